//! Archives for tests, built byte by byte, and stores to load them into.

use std::io::Write;
use std::path::Path;

use crate::transfer::arbiter::Arbiter;
use crate::transfer::engine::{Copied, CopyOptions, copy_plan};
use crate::transfer::members::Loaded;
use crate::transfer::plan::Plan;
use crate::transfer::sink::ImageSink;
use crate::transfer::source::ImageSource;
use crate::transfer::{Input, LoadOptions, load};
use imgctl_base::error::{Context, Result};
use imgctl_base::image::descriptor::REF_NAME;
use imgctl_base::image::{Descriptor, Digest, Index, Platform, media_type};
use imgctl_base::progress::{Reporter, Silent};
use imgctl_layer::tar_writer::{END, append_header, padding};
use imgctl_layer::{Entry, EntryKind, LayerPath};
use imgctl_store::store::{Options, Store};

/// A store that is removed when dropped.
pub(super) struct Fixture {
    pub(super) directory: tempfile::TempDir,
    pub(super) store: Store,
}

pub(super) fn fixture() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("root"), Options { sync: false }).unwrap();
    Fixture { directory, store }
}

/// Type of a member of a test archive.
#[derive(Clone, Debug)]
pub(super) enum Node {
    File(Vec<u8>),
    Symlink(&'static str),
    HardLink(&'static str),
    Device,
}

/// Builds a tar of `members`, in the given order.
pub(super) fn tar(members: &[(String, Node)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (path, node) in members {
        let path = LayerPath::parse(path.as_bytes()).unwrap();
        let (kind, content) = match node {
            Node::File(content) => {
                (EntryKind::File { size: content.len() as u64 }, content.as_slice())
            }
            Node::Symlink(target) => {
                (EntryKind::Symlink { target: target.as_bytes().to_vec() }, &[][..])
            }
            Node::HardLink(target) => (
                EntryKind::HardLink { target: LayerPath::parse(target.as_bytes()).unwrap() },
                &[][..],
            ),
            Node::Device => (EntryKind::CharDevice { major: 1, minor: 3 }, &[][..]),
        };
        append_header(&Entry::new(path, kind, 0o644), &mut bytes).unwrap();
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len() + padding(content.len() as u64), 0);
    }
    bytes.extend_from_slice(&END);
    bytes
}

/// Builds a layer with one file.
pub(super) fn layer(content: &str) -> Vec<u8> {
    tar(&[("file".to_owned(), Node::File(content.as_bytes().to_vec()))])
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(1));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

pub(super) fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Builds a config whose layers are the given tars.
pub(super) fn config(tars: &[&[u8]], platform: &str) -> Vec<u8> {
    let platform = Platform::parse(platform).unwrap();
    let diff_ids: Vec<Digest> = tars.iter().map(|tar| Digest::of(tar)).collect();
    serde_json::json!({
        "architecture": platform.architecture, "os": platform.os,
        "config": {"Labels": {"a": "b"}},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    })
    .to_string()
    .into_bytes()
}

/// Returns the members of a docker archive with one image.
pub(super) fn docker(tags: &[&str], layers: &[Vec<u8>]) -> Vec<(String, Node)> {
    let tars: Vec<&[u8]> = layers.iter().map(Vec::as_slice).collect();
    docker_with(tags, layers, &config(&tars, "linux/amd64"))
}

/// Like `docker`, with the given config.
pub(super) fn docker_with(tags: &[&str], layers: &[Vec<u8>], config: &[u8]) -> Vec<(String, Node)> {
    let name = format!("{}.json", Digest::of(config).hex());
    let paths: Vec<String> = (0..layers.len()).map(|n| format!("{n}/layer.tar")).collect();
    let manifest = serde_json::json!([{ "Config": name, "RepoTags": tags, "Layers": paths }]);
    let mut members: Vec<(String, Node)> =
        paths.into_iter().zip(layers.iter().cloned().map(Node::File)).collect();
    members.push((name, Node::File(config.to_vec())));
    members.push(("manifest.json".to_owned(), Node::File(manifest.to_string().into_bytes())));
    members
}

/// An OCI layout under construction.
#[derive(Default)]
pub(super) struct Layout {
    pub(super) blobs: Vec<Vec<u8>>,
    pub(super) entries: Vec<Descriptor>,
}

impl Layout {
    /// Adds a blob.
    pub(super) fn blob(&mut self, media: &str, bytes: &[u8]) -> Descriptor {
        self.blobs.push(bytes.to_vec());
        Descriptor::new(media, Digest::of(bytes), bytes.len() as u64)
    }

    /// Adds an image whose layers are given as pairs of blob and tar.
    pub(super) fn image(
        &mut self,
        layers: &[(&str, Vec<u8>, Vec<u8>)],
        platform: &str,
    ) -> Descriptor {
        let tars: Vec<&[u8]> = layers.iter().map(|(_, _, tar)| tar.as_slice()).collect();
        let config = self.blob(media_type::OCI_CONFIG, &config(&tars, platform));
        let layers: Vec<Descriptor> =
            layers.iter().map(|(media, blob, _)| self.blob(media, blob)).collect();
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST,
            "config": config, "layers": layers,
        });
        let mut descriptor = self.blob(media_type::OCI_MANIFEST, manifest.to_string().as_bytes());
        descriptor.platform = Some(Platform::parse(platform).unwrap());
        descriptor
    }

    /// Adds an image with one plain layer.
    pub(super) fn simple(&mut self, content: &str, platform: &str) -> Descriptor {
        let tar = layer(content);
        self.image(&[(media_type::OCI_LAYER, tar.clone(), tar)], platform)
    }

    /// Adds an index.
    pub(super) fn index(&mut self, children: Vec<Descriptor>) -> Descriptor {
        let bytes = serde_json::to_vec(&Index::new(children)).unwrap();
        self.blob(media_type::OCI_INDEX, &bytes)
    }

    /// Adds an image to the layout's index.
    pub(super) fn name(&mut self, mut descriptor: Descriptor, name: Option<&str>) {
        if let Some(name) = name {
            descriptor.annotations.insert(REF_NAME.to_owned(), name.to_owned());
        }
        self.entries.push(descriptor);
    }

    /// Returns the members of the archive.
    pub(super) fn members(&self) -> Vec<(String, Node)> {
        let index = serde_json::to_vec(&Index::new(self.entries.clone())).unwrap();
        let mark = br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec();
        let mut members = vec![
            ("index.json".to_owned(), Node::File(index)),
            ("oci-layout".to_owned(), Node::File(mark)),
        ];
        for blob in &self.blobs {
            let path = format!("blobs/sha256/{}", Digest::of(blob).hex());
            if !members.iter().any(|(other, _)| *other == path) {
                members.push((path, Node::File(blob.clone())));
            }
        }
        members
    }

    /// Writes the layout as a directory.
    pub(super) fn write(&self, directory: &Path) {
        for (path, node) in self.members() {
            let path = directory.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            if let Node::File(bytes) = node {
                std::fs::write(path, bytes).unwrap();
            }
        }
    }
}

/// Loads a stream with default options.
pub(super) fn load_bytes(store: &Store, bytes: &[u8]) -> Result<Vec<Loaded>> {
    load(store, Input::Stream(Box::new(bytes)), &LoadOptions::new(Arbiter::everything()), &Silent)
}

/// Returns the names of all loaded images, in order.
pub(super) fn names(loaded: &[Loaded]) -> Vec<String> {
    let references = loaded.iter().flat_map(|image| &image.references);
    references.map(ToString::to_string).collect()
}

/// Copies the selected parts of the image at `source` to `sink`.
pub(super) fn copy(
    source: &dyn ImageSource,
    sink: &dyn ImageSink,
    options: &CopyOptions,
    reporter: &dyn Reporter,
) -> Result<Copied> {
    let plan = Plan::read(source, &options.selection, options.jobs)
        .context(|| format!("cannot read {}", source.describe()))?;
    copy_plan(source, sink, &plan, options.jobs, reporter)
}
