//! A record whose layer is consistent in itself but is not what the build makes: bytes behind the
//! archive, a second archive, other headers, entries that programs read differently, a list that lies,
//! another compression. Every kind of record is attacked in every way, in a cache of its own, in GitHub's
//! cache service and in an image that carries it (`type=inline`), and no image changes.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use crate::cache_gha::service::{Service, token};
use crate::common::needs_root;

/// Changes an archive, which ends with imgctl's list if it is an embedded image.
type Attack = (&'static str, fn(&[u8]) -> Option<Vec<u8>>);

const ATTACKS: [Attack; 10] = [
    ("zeros behind the archive", |tar| Some([tar, &[0; 512]].concat())),
    ("junk behind the archive", |tar| Some([tar, &b"JUNK".repeat(128)].concat())),
    ("a second archive", |tar| {
        let name = b"registry/EVIL";
        Some([tar, &header(name, b'0', 4), &padded(b"evil"), &[0; 1024]].concat())
    }),
    ("the name of an owner", |tar| Some(with_header(tar, 265, b"evil"))),
    ("a device number", |tar| Some(with_header(tar, 329, b"0000007\0"))),
    ("another mode", |tar| Some(with_header(tar, 100, b"0004755\0"))),
    ("no list", |tar| Some(tar[..list_of(tar)?.0].to_vec())),
    ("a list that lies", |tar| {
        let (start, length) = list_of(tar)?;
        let mut bytes = tar.to_vec();
        (start..start + length).step_by(40).for_each(|record| bytes[record + 8] ^= 0xff);
        Some(bytes)
    }),
    // A GNU long name before a PAX path: which one counts depends on the program.
    ("two names", |tar| {
        let record = pax("path", &name_of(&tar[..512]));
        let long = [header(b"././@LongLink", b'L', 15).to_vec(), padded(b"usr/local/EVIL\0")];
        let named = [header(b"n", b'x', record.len()).to_vec(), padded(&record)];
        Some([long.concat(), named.concat(), tar.to_vec()].concat())
    }),
    // A directory for who takes the PAX path, a program for who takes the GNU name.
    ("a program that one reader sees", |tar| {
        let record = pax("comment", b"x");
        let mut script = b"#!/bin/sh\necho injected\nexit 0\n".to_vec();
        script.resize(100, b'#');
        let hidden =
            [with_header(&header(b"n", b'x', record.len()), 0, &script), padded(&record)].concat();
        let path = pax("path", &[name_of(&tar[..512]).trim_ascii_end(), b"/"].concat());
        let long =
            [header(b"././@LongLink", b'L', 22).to_vec(), padded(b"usr/local/bin/kubectl\0")];
        let named = [header(b"n", b'x', path.len()).to_vec(), padded(&path)];
        let first = header(b"d", 0, hidden.len());
        Some([&long.concat(), &named.concat(), &first[..], &hidden, &tar[512..]].concat())
    }),
];

/// Changes a compressed layer whose archive stays the same.
const RECOMPRESSED: [Attack; 4] = [
    ("a skippable frame", |blob| Some([blob, b"\x50\x2a\x4d\x18\x04\0\0\0evil"].concat())),
    ("junk behind the frames", |blob| Some([blob, b"evil"].concat())),
    ("another level", |blob| zstd::encode_all(zstd::decode_all(blob).ok()?.as_slice(), 1).ok()),
    ("other frames", |blob| {
        let tar = zstd::decode_all(blob).ok()?;
        let frame = |part: &[u8]| zstd::encode_all(part, 3).ok();
        Some([frame(&tar[..512])?, frame(&tar[512..])?].concat())
    }),
];

fn header(name: &[u8], kind: u8, size: usize) -> [u8; 512] {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name);
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    for (at, text) in [
        (100, "0000755\0".to_owned()),
        (108, "0000000\0".to_owned()),
        (116, "0000000\0".to_owned()),
        (124, format!("{size:011o}\0")),
        (136, "00000000000\0".to_owned()),
    ] {
        block[at..at + text.len()].copy_from_slice(text.as_bytes());
    }
    with_header(&block, 0, name).try_into().unwrap()
}

/// Puts `bytes` into the first header, whose checksum is right again afterwards.
fn with_header(tar: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut tar = tar.to_vec();
    tar[at..at + bytes.len()].copy_from_slice(bytes);
    tar[148..156].fill(b' ');
    let sum: u32 = tar[..512].iter().map(|byte| u32::from(*byte)).sum();
    tar[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    tar
}

fn name_of(header: &[u8]) -> Vec<u8> {
    header[..100].iter().copied().take_while(|byte| *byte != 0).collect()
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn pax(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = [format!(" {key}=").as_bytes(), value, b"\n"].concat();
    let mut length = rest.len();
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    [length.to_string().into_bytes(), rest].concat()
}

/// Where the list behind an archive is, and its length.
fn list_of(tar: &[u8]) -> Option<(usize, usize)> {
    let number = |at: usize| {
        let bytes = tar.get(tar.len().checked_sub(at)?..)?.first_chunk()?;
        usize::try_from(u64::from_le_bytes(*bytes)).ok()
    };
    let (start, length) = (number(64)?, number(56)?);
    (start.checked_add(length)? <= tar.len()).then_some((start, length))
}

/// The kinds of records in the code, as they are written.
fn kinds() -> BTreeSet<String> {
    let source = include_str!("../../../crates/build/src/cache/records.rs");
    let (_, variants) = source.split_once("pub(crate) enum Basis {").unwrap();
    let (variants, _) = variants.split_once("\n}\n").unwrap();
    let lines = variants.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    lines.map(|line| line.trim_end_matches(',').to_lowercase()).filter(|l| !l.is_empty()).collect()
}

impl Layout {
    /// Changes the layers of all records, so that everything fits again. Returns the kinds of records
    /// that have been changed.
    fn tamper(&self, is_blob: bool, attack: fn(&[u8]) -> Option<Vec<u8>>) -> BTreeSet<String> {
        let (mut records, mut manifest) = (self.records(), self.manifest());
        let mut changed = BTreeSet::new();
        for step in records["steps"].as_object_mut().unwrap().values_mut() {
            let kind = step["basis"].as_str().unwrap().to_owned();
            for layer in step["layers"].as_array_mut().unwrap() {
                let blob = std::fs::read(self.blob(&layer["digest"])).unwrap();
                let is_zstd = blob.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
                if is_blob && !is_zstd {
                    continue;
                }
                let tar = if is_zstd { zstd::decode_all(&blob[..]).unwrap() } else { blob.clone() };
                let Some(bytes) = attack(if is_blob { &blob } else { &tar }) else { continue };
                let (blob, tar) = match (is_blob, is_zstd) {
                    (true, _) => (bytes, tar),
                    (_, true) => (zstd::encode_all(&bytes[..], 3).unwrap(), bytes),
                    _ => (bytes.clone(), bytes),
                };
                let digest = self.put(&blob);
                for listed in manifest["layers"].as_array_mut().unwrap() {
                    if listed["digest"] == layer["digest"] {
                        listed["digest"] = json!(digest);
                        listed["size"] = json!(blob.len());
                    }
                }
                layer["digest"] = json!(digest);
                layer["diffId"] = json!(format!("sha256:{}", sha(&tar)));
                layer["size"] = json!(blob.len());
                layer.as_object_mut().unwrap().remove("list");
                changed.insert(kind.clone());
            }
        }
        let bytes = serde_json::to_vec(&manifest).unwrap();
        let mut index = json(&self.path.join("index.json"));
        index["manifests"][0]["digest"] = json!(self.put(&bytes));
        std::fs::write(self.path.join("index.json"), index.to_string()).unwrap();
        let text = serde_json::to_vec(&records).unwrap();
        self.set_records(&zstd::encode_all(text.as_slice(), 3).unwrap());
        changed
    }
}

impl Layout {
    /// Makes the cache an image that carries it, as `type=inline` does.
    fn carried_by_an_image(&self) {
        let mut manifest = self.manifest();
        let records = std::fs::read(self.blob(&manifest["config"]["digest"])).unwrap();
        let config = json!({
            "architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []},
            "io.imgctl.buildcache.v1": STANDARD.encode(records),
        });
        let config = config.to_string();
        manifest.as_object_mut().unwrap().remove("artifactType");
        manifest["config"] = json!({
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": self.put(config.as_bytes()), "size": config.len(),
        });
        let bytes = serde_json::to_vec(&manifest).unwrap();
        let mut index = json(&self.path.join("index.json"));
        let entry = &mut index["manifests"][0];
        entry.as_object_mut().unwrap().remove("artifactType");
        entry["digest"] = json!(self.put(&bytes));
        entry["size"] = json!(bytes.len());
        std::fs::write(self.path.join("index.json"), index.to_string()).unwrap();
    }
}

impl Layout {
    /// Puts the cache into GitHub's cache service, in place of what is there.
    fn put_into(&self, service: &Service) {
        let index = json(&self.path.join("index.json"));
        let manifest = std::fs::read(self.blob(&index["manifests"][0]["digest"])).unwrap();
        let blobs = std::fs::read_dir(self.path.join("blobs/sha256")).unwrap();
        service.replace(
            manifest,
            blobs.map(|entry| {
                let entry = entry.unwrap();
                let digest = format!("sha256:{}", entry.file_name().to_str().unwrap());
                (digest, std::fs::read(entry.path()).unwrap())
            }),
        );
    }
}

/// Builds with GitHub's cache service at hand.
fn build_in_a_job(env: &TestEnv, service: &Service, machine: &str, flags: &[&str]) -> Ran {
    let mut command = on(env, machine);
    command.args(["build", "-t", "app"]).args(flags).arg("context");
    command.env("ACTIONS_RESULTS_URL", &service.url);
    command.env("ACTIONS_RUNTIME_TOKEN", token(&["refs/heads/main"], true, 4_000_000_000));
    Ran::new(command)
}

/// A context with a step of each kind: content, a command, an embedded image.
fn every_kind(env: &TestEnv) {
    env.context("other", "FROM scratch\nCOPY f /f\n", &[("f", "embedded\n")]);
    Ran::new({
        let mut command = on(env, "maker");
        command.args(["build", "--timestamp=0", "-t", "localhost/app:v1", "other"]);
        command
    })
    .ok();
    let kubefile = "FROM scratch\nCOPY --chmod=755 busybox /bin/sh\nCOPY --chmod=755 busybox /bin/cat\n\
        RUN cat /bin/sh >/copy\nADD file /file\nCOPY images images\n";
    let list = "oci-archive:app.tar@quay.io/team/app:v2\n";
    env.context("context", kubefile, &[("file", "1\n"), ("images/skopeo/tar.txt", list)]);
    std::fs::copy("/bin/busybox", env.path("context/busybox")).expect("no busybox: scripts/setup");
    Ran::new({
        let mut command = on(env, "maker");
        command.args(["save", "--format=oci-archive", "-o", "context/images/skopeo/app.tar"]);
        command.arg("localhost/app:v1");
        command
    })
    .ok();
    set_times(&env.path("context"), 1_600_000_000);
}

#[test]
fn no_byte_of_a_cached_layer_is_another_than_the_build_writes() {
    if !needs_root() {
        return;
    }
    let env = TestEnv::new();
    every_kind(&env);
    let flags = ["--timestamp=1700000000"];
    let (expected, _) = result(build(&env, "alone", &flags));
    let to = "--cache-to=type=local,dest=cache";
    assert_eq!(result(build(&env, "good", &[flags[0], to])).0, expected);
    let from = "--cache-from=type=local,src=cache";
    let (honest, cached) = result(build(&env, "honest", &[flags[0], from]));
    assert_eq!(honest, expected);
    let layout = Layout { path: env.path("cache") };
    let (good, index) = (layout.records(), std::fs::read(env.path("cache/index.json")).unwrap());
    let service = Service::start();
    let gha = [flags[0], "--cache-from=type=gha"];
    build_in_a_job(&env, &service, "writer", &[flags[0], "--cache-to=type=gha"]).ok();
    layout.put_into(&service);
    let ran = build_in_a_job(&env, &service, "reader", &gha);
    assert_eq!(result(ran), (honest.clone(), cached));
    layout.carried_by_an_image();
    assert_eq!(result(build(&env, "inline", &[flags[0], from])), (honest, cached));
    let known: BTreeSet<String> = good["steps"]
        .as_object()
        .unwrap()
        .values()
        .map(|step| step["basis"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(known, kinds(), "a kind of record that is not attacked here");
    let attacks = ATTACKS.iter().map(|attack| (false, attack));
    let attacks = attacks.chain(RECOMPRESSED.iter().map(|attack| (true, attack)));
    for (is_blob, (name, attack)) in attacks {
        std::fs::write(env.path("cache/index.json"), &index).unwrap();
        let changed = layout.tamper(is_blob, *attack);
        match (is_blob, *name) {
            (false, "no list" | "a list that lies") => {
                assert!(changed.contains("embedded"), "{name}: {changed:?}");
            }
            (false, _) => assert_eq!(changed, known, "{name}"),
            (true, _) => assert!(changed.contains("content"), "{name}: {changed:?}"),
        }
        for place in ["a cache", "GitHub's cache service", "an image"] {
            let machine = env.path("machine");
            let _ = std::fs::remove_dir_all(&machine);
            let ran = if place == "GitHub's cache service" {
                layout.put_into(&service);
                build_in_a_job(&env, &service, "machine", &gha).ok()
            } else {
                if place == "an image" {
                    layout.carried_by_an_image();
                }
                build(&env, "machine", &[flags[0], from]).ok()
            };
            assert!(ran.stderr().contains("is not used"), "{name}, {place}: {}", ran.report());
            let (digest, used) = result(ran);
            assert_eq!(digest, expected, "{name}, {place}");
            assert!(used < cached || is_blob, "{name}, {place}: {used} of {cached} steps");
        }
    }
}
