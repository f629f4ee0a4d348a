//! Images of layers that are given byte for byte, as OCI image layouts.

use std::path::{Path, PathBuf};

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::common::tree::hex;

/// The name of the one image in each layout.
pub(crate) const TAG: &str = "v1";

/// One entry of a ustar archive, written as it is told: nothing is normalised.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) flag: u8,
    pub(crate) name: String,
    pub(crate) link: String,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) device: (u32, u32),
    pub(crate) mtime: u64,
    pub(crate) content: Vec<u8>,
}

impl Member {
    fn new(flag: u8, name: &str) -> Self {
        Self {
            flag,
            name: name.to_owned(),
            link: String::new(),
            mode: 0o644,
            owner: (0, 0),
            device: (0, 0),
            mtime: 1_000_000_000,
            content: Vec::new(),
        }
    }

    /// `KIND NAME [TARGET, CONTENT, MODE or MAJOR:MINOR]`; the kinds are `f d l h p c`. `-` stands for
    /// an empty name.
    pub(crate) fn parse(line: &str) -> Self {
        let mut words = line.splitn(3, ' ');
        let (kind, name) = (words.next().unwrap(), words.next().unwrap());
        let rest = words.next().unwrap_or_default();
        let name = if name == "-" { "" } else { name };
        let mut member = Self::new(b'0', name);
        match kind {
            "f" => member.content = rest.as_bytes().to_vec(),
            "d" => {
                member.flag = b'5';
                member.mode = u32::from_str_radix(rest, 8).unwrap_or(0o755);
            }
            "l" | "h" => {
                member.flag = if kind == "l" { b'2' } else { b'1' };
                member.mode = if kind == "l" { 0o777 } else { 0o644 };
                member.link = rest.to_owned();
            }
            "p" => member.flag = b'6',
            "c" => {
                member.flag = b'3';
                let (major, minor) = rest.split_once(':').unwrap();
                member.device = (major.parse().unwrap(), minor.parse().unwrap());
            }
            _ => panic!("{line}"),
        }
        member
    }

    fn write(&self, tar: &mut Vec<u8>) {
        let mut block = [0_u8; 512];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        assert!(self.name.len() <= 100 && self.link.len() <= 100);
        put(0, self.name.as_bytes());
        for (at, number) in [(100, self.mode), (108, self.owner.0), (116, self.owner.1)] {
            put(at, format!("{number:07o}").as_bytes());
        }
        put(124, format!("{:011o}", self.content.len()).as_bytes());
        put(136, format!("{:011o}", self.mtime).as_bytes());
        put(148, b"        ");
        put(156, &[self.flag]);
        put(157, self.link.as_bytes());
        put(257, b"ustar\x0000");
        put(329, format!("{:07o}", self.device.0).as_bytes());
        put(337, format!("{:07o}", self.device.1).as_bytes());
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        tar.extend_from_slice(&block);
        tar.extend_from_slice(&self.content);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
}

/// A tar of these members, closed by two blocks of zeros.
pub(crate) fn tar(members: &[Member]) -> Vec<u8> {
    let mut tar = Vec::new();
    for member in members {
        member.write(&mut tar);
    }
    tar.resize(tar.len() + 1024, 0);
    tar
}

/// A tar of what [`Member::parse`] reads.
pub(crate) fn tar_of(lines: &[&str]) -> Vec<u8> {
    let members: Vec<Member> = lines.iter().map(|line| Member::parse(line)).collect();
    tar(&members)
}

/// An image of these uncompressed layers, lowest first, in a new layout at `path`.
pub(crate) fn layout(path: &Path, layers: &[Vec<u8>]) -> PathBuf {
    let blobs = path.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    let put = |bytes: &[u8]| {
        let digest = hex(&Sha256::digest(bytes));
        std::fs::write(blobs.join(&digest), bytes).unwrap();
        format!("sha256:{digest}")
    };
    let descriptor = |kind: &str, bytes: &[u8]| {
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": put(bytes),
            "size": bytes.len(),
        })
    };
    let described: Vec<_> = layers.iter().map(|layer| descriptor("layer.v1.tar", layer)).collect();
    let diff_ids: Vec<_> = described.iter().map(|layer| &layer["digest"]).collect();
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/x"]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": layers.iter().map(|_| json!({"created_by": "test"})).collect::<Vec<_>>(),
    });
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("config.v1+json", config.to_string().as_bytes()),
        "layers": described,
    });
    let mut entry = descriptor("manifest.v1+json", manifest.to_string().as_bytes());
    entry["annotations"] = json!({"org.opencontainers.image.ref.name": TAG});
    let index = json!({"schemaVersion": 2, "manifests": [entry]});
    std::fs::write(path.join("index.json"), index.to_string()).unwrap();
    let version = json!({"imageLayoutVersion": "1.0.0"});
    std::fs::write(path.join("oci-layout"), version.to_string()).unwrap();
    path.to_owned()
}
