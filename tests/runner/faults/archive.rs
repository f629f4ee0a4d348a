//! Archives written byte by byte: tars that no tar program would make, and OCI and docker archives
//! around them in which anything may lie.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Type flags of POSIX tar headers.
pub(crate) const FILE: u8 = b'0';
pub(crate) const HARD_LINK: u8 = b'1';
pub(crate) const SYMLINK: u8 = b'2';
pub(crate) const CHARACTER_DEVICE: u8 = b'3';
pub(crate) const BLOCK_DEVICE: u8 = b'4';
pub(crate) const DIRECTORY: u8 = b'5';
pub(crate) const FIFO: u8 = b'6';
pub(crate) const PAX: u8 = b'x';

/// A tar that is being written.
#[derive(Clone, Default)]
pub(crate) struct Tar {
    bytes: Vec<u8>,
}

impl Tar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// An entry with a header as given and its content; the size is the content's.
    pub(crate) fn entry(self, flag: u8, name: &[u8], link: &[u8], content: &[u8]) -> Self {
        let size = content.len() as u64;
        self.lying(flag, name, link, content, size)
    }

    /// An entry whose header may tell another size than its content has.
    pub(crate) fn lying(
        mut self,
        flag: u8,
        name: &[u8],
        link: &[u8],
        content: &[u8],
        size: u64,
    ) -> Self {
        if name.len() > 100 || link.len() > 100 {
            let records = [pax_record("path", name), pax_record("linkpath", link)].concat();
            self = self.entry(PAX, b"PaxHeaders/x", b"", &records);
        }
        let mut header = [0_u8; 512];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &name[..name.len().min(100)]);
        put(100, if flag == DIRECTORY { b"0000755\0" } else { b"0000644\0" });
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{size:011o}\0").as_bytes());
        put(136, b"14000000000\0");
        put(148, b"        ");
        put(156, &[flag]);
        put(157, &link[..link.len().min(100)]);
        put(257, b"ustar\x0000");
        if matches!(flag, CHARACTER_DEVICE | BLOCK_DEVICE) {
            put(329, b"0000001\0");
            put(337, b"0000003\0");
        }
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: &[u8], content: &[u8]) -> Self {
        self.entry(FILE, name, b"", content)
    }

    pub(crate) fn directory(self, name: &[u8]) -> Self {
        self.entry(DIRECTORY, name, b"", b"")
    }

    pub(crate) fn symlink(self, name: &[u8], target: &[u8]) -> Self {
        self.entry(SYMLINK, name, target, b"")
    }

    pub(crate) fn hard_link(self, name: &[u8], target: &[u8]) -> Self {
        self.entry(HARD_LINK, name, target, b"")
    }

    /// The whole tar with its end.
    pub(crate) fn end(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 1024, 0);
        self.bytes
    }
}

/// `LENGTH KEY=VALUE\n`, the length counting itself.
pub(crate) fn pax_record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

/// A layer with one file.
pub(crate) fn plain_layer(content: &[u8]) -> Vec<u8> {
    Tar::new().file(b"file", content).end()
}

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// An OCI image layout in the making; its parts can be made worse before it is written.
#[derive(Clone)]
pub(crate) struct Layout {
    /// By the hex that their path says.
    pub(crate) blobs: BTreeMap<String, Vec<u8>>,
    pub(crate) index: Value,
}

impl Layout {
    /// A sound image `localhost/hostile:v1` of these layers, as they are: plain tars or compressed.
    pub(crate) fn of(layers: &[Vec<u8>]) -> Self {
        let diff_ids: Vec<String> = layers.iter().map(|layer| sha256(&unpacked(layer))).collect();
        Self::with_diff_ids(layers, &diff_ids)
    }

    /// The same with the diff-ids that the config is to say.
    pub(crate) fn with_diff_ids(layers: &[Vec<u8>], diff_ids: &[String]) -> Self {
        let ids: Vec<String> = diff_ids.iter().map(|hex| format!("sha256:{hex}")).collect();
        let config = json!({
            "architecture": "amd64", "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": ids},
        });
        let mut layout = Self { blobs: BTreeMap::new(), index: Value::Null };
        let config = layout.put(CONFIG, config.to_string().into_bytes());
        let layers: Vec<Value> =
            layers.iter().map(|layer| layout.put(media_of(layer), layer.clone())).collect();
        layout.set_manifest(&json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers,
        }));
        layout
    }

    /// Adds a blob and gives its descriptor.
    pub(crate) fn put(&mut self, media: &str, bytes: Vec<u8>) -> Value {
        let hex = sha256(&bytes);
        let descriptor = json!({
            "mediaType": media, "digest": format!("sha256:{hex}"), "size": bytes.len(),
        });
        self.blobs.insert(hex, bytes);
        descriptor
    }

    /// The manifest.
    pub(crate) fn manifest(&self) -> Value {
        serde_json::from_slice(&self.blobs[&self.manifest_hex()]).unwrap()
    }

    /// The hex of the manifest that the index names.
    pub(crate) fn manifest_hex(&self) -> String {
        hex(&self.index["manifests"][0]["digest"])
    }

    /// Puts another manifest in and names it.
    pub(crate) fn set_manifest(&mut self, manifest: &Value) {
        self.set_document(MANIFEST, manifest.to_string().into_bytes());
    }

    /// Puts a document in, whatever it is, and names it as `media`.
    pub(crate) fn set_document(&mut self, media: &str, bytes: Vec<u8>) {
        let mut descriptor = self.put(media, bytes);
        descriptor["annotations"] =
            json!({"org.opencontainers.image.ref.name": "localhost/hostile:v1"});
        self.index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]});
    }

    /// Changes the manifest.
    pub(crate) fn edit(mut self, change: impl FnOnce(&mut Value)) -> Self {
        let mut manifest = self.manifest();
        change(&mut manifest);
        self.set_manifest(&manifest);
        self
    }

    /// Changes the config, and the manifest's idea of it.
    pub(crate) fn edit_config(mut self, change: impl FnOnce(&mut Value)) -> Self {
        let mut manifest = self.manifest();
        let mut config: Value =
            serde_json::from_slice(&self.blobs[&hex(&manifest["config"]["digest"])]).unwrap();
        change(&mut config);
        manifest["config"] = self.put(CONFIG, config.to_string().into_bytes());
        self.set_manifest(&manifest);
        self
    }

    /// Changes the bytes of the first layer's blob, under the name it has.
    pub(crate) fn damage_layer(mut self, change: impl FnOnce(&mut Vec<u8>)) -> Self {
        let hex = hex(&self.manifest()["layers"][0]["digest"]);
        change(self.blobs.get_mut(&hex).unwrap());
        self
    }

    /// The members of the archive, not yet ended.
    pub(crate) fn tar(&self) -> Tar {
        let mut tar = Tar::new()
            .file(b"oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)
            .file(b"index.json", self.index.to_string().as_bytes());
        for (hex, bytes) in &self.blobs {
            tar = tar.file(format!("blobs/sha256/{hex}").as_bytes(), bytes);
        }
        tar
    }

    /// The whole OCI archive.
    pub(crate) fn archive(&self) -> Vec<u8> {
        self.tar().end()
    }
}

/// The hex of a digest in JSON.
pub(crate) fn hex(digest: &Value) -> String {
    digest.as_str().unwrap().strip_prefix("sha256:").unwrap().to_owned()
}

/// What a docker archive consists of: the config and the layers' paths can be made worse.
pub(crate) fn docker_archive(layers: &[(&str, Vec<u8>)], extra: Tar) -> Vec<u8> {
    let ids: Vec<String> =
        layers.iter().map(|(_, layer)| format!("sha256:{}", sha256(&unpacked(layer)))).collect();
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": ids},
    });
    let paths: Vec<&str> = layers.iter().map(|(path, _)| *path).collect();
    let manifest = json!([{
        "Config": "config.json", "RepoTags": ["localhost/hostile:v1"], "Layers": paths,
    }]);
    let mut tar = extra
        .file(b"config.json", config.to_string().as_bytes())
        .file(b"manifest.json", manifest.to_string().as_bytes());
    for (path, layer) in layers {
        tar = tar.file(path.as_bytes(), layer);
    }
    tar.end()
}

fn media_of(layer: &[u8]) -> &'static str {
    match layer {
        [0x1f, 0x8b, ..] => "application/vnd.oci.image.layer.v1.tar+gzip",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "application/vnd.oci.image.layer.v1.tar+zstd",
        _ => LAYER,
    }
}

fn unpacked(layer: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    match layer {
        [0x1f, 0x8b, ..] => {
            let mut decoder = flate2::read::MultiGzDecoder::new(layer);
            std::io::Read::read_to_end(&mut decoder, &mut plain).unwrap();
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => plain = zstd::decode_all(layer).unwrap(),
        _ => plain.extend_from_slice(layer),
    }
    plain
}
