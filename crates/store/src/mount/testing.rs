//! Small images in a temporary store, and trees as comparable lists, for the tests of this folder.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use crate::store::images::Image;
use crate::store::{self, Store};
use imgctl_base::fs::metadata::FileKind;
use imgctl_base::fs::root::Root;
use imgctl_base::fs::walk::{Visit, walk};
use imgctl_base::image::config::RootFs;
use imgctl_base::image::{
    Descriptor, Digest, ImageConfig, Manifest, Reference, Verdict, media_type,
};
use imgctl_layer::{Compression, Entry, EntryKind, LayerPath, LayerWriter, Mtime};

/// A store in a temporary directory, in a mount namespace of the test's thread.
pub(super) struct Fixture {
    pub directory: tempfile::TempDir,
    pub store: Store,
}

impl Fixture {
    pub(super) fn new() -> Self {
        super::overlay::tests::private_mounts();
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), store::Options { sync: false }).unwrap();
        Self { directory, store }
    }

    /// Stores an image of these layers, lowest first, as `localhost/test:<name>`.
    pub(super) fn image(&self, name: &str, compression: Compression, layers: Vec<Layer>) -> Image {
        let mut descriptors = Vec::new();
        let mut diff_ids = Vec::new();
        for layer in layers {
            let ingest = self.store.ingest().unwrap();
            let mut writer = LayerWriter::start(ingest, compression, 1).unwrap();
            for (entry, content) in layer.0 {
                writer.add(entry, &mut content.as_slice()).unwrap();
            }
            let (ingest, layer) = writer.finish().unwrap();
            self.store.commit(ingest, &layer.digest).unwrap();
            // Stores no table of contents: readers build it and resolve names through the layer's
            // symlinks.
            let media = compression.media_type(false).unwrap();
            descriptors.push(Descriptor::new(media, layer.digest, layer.size));
            diff_ids.push(layer.diff_id);
        }
        self.image_of(name, descriptors, diff_ids)
    }

    /// Stores an image of existing layers.
    pub(super) fn image_of(
        &self,
        name: &str,
        layers: Vec<Descriptor>,
        diff_ids: Vec<Digest>,
    ) -> Image {
        let config = ImageConfig {
            architecture: "amd64".into(),
            os: "linux".into(),
            rootfs: RootFs { kind: "layers".into(), diff_ids },
            ..ImageConfig::default()
        };
        let config = serde_json::to_vec(&config).unwrap();
        let digest = self.store.put_blob(&config).unwrap();
        let manifest = Manifest {
            schema_version: 2,
            media_type: Some(media_type::OCI_MANIFEST.into()),
            artifact_type: None,
            config: Descriptor::new(media_type::OCI_CONFIG, digest, config.len() as u64),
            layers,
            subject: None,
            annotations: BTreeMap::new(),
        };
        let manifest = serde_json::to_vec(&manifest).unwrap();
        let digest = self.store.put_blob(&manifest).unwrap();
        let descriptor = Descriptor::new(media_type::OCI_MANIFEST, digest, manifest.len() as u64);
        let reference = Reference::parse(&format!("localhost/test:{name}")).unwrap();
        self.store.tag(&[reference], &descriptor, &Verdict::not_asked("a test")).unwrap();
        self.store.image(&format!("localhost/test:{name}"), None).unwrap()
    }

    pub(super) fn options(&self) -> super::Options {
        super::Options::default()
    }
}

/// Builder for one layer.
#[derive(Clone, Debug, Default)]
pub(super) struct Layer(pub Vec<(Entry, Vec<u8>)>);

impl Layer {
    pub(super) fn add(mut self, path: &str, kind: EntryKind, mode: u32, content: &[u8]) -> Self {
        let mut entry = Entry::new(LayerPath::parse(path.as_bytes()).unwrap(), kind, mode);
        entry.mtime = Mtime { seconds: 1_000_000_000 + self.0.len() as i64, nanoseconds: 0 };
        self.0.push((entry, content.to_vec()));
        self
    }

    pub(super) fn file(self, path: &str, content: &str) -> Self {
        let size = content.len() as u64;
        self.add(path, EntryKind::File { size }, 0o644, content.as_bytes())
    }

    pub(super) fn dir(self, path: &str, mode: u32) -> Self {
        self.add(path, EntryKind::Directory, mode, b"")
    }

    pub(super) fn link(self, path: &str, target: &str) -> Self {
        let target = LayerPath::parse(target.as_bytes()).unwrap();
        self.add(path, EntryKind::HardLink { target }, 0o644, b"")
    }

    pub(super) fn symlink(self, path: &str, target: &str) -> Self {
        let target = target.as_bytes().to_vec();
        self.add(path, EntryKind::Symlink { target }, 0o777, b"")
    }

    pub(super) fn with(mut self, change: impl FnOnce(&mut Entry)) -> Self {
        change(&mut self.0.last_mut().unwrap().0);
        self
    }
}

/// Returns one line for `root` and each file below it: path, type, mode, owner, time, attributes,
/// content or target, and which names are hard links to the same file.
pub(super) fn listing(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut first_names: BTreeMap<(u64, u64), String> = BTreeMap::new();
    let opened = Root::open(root).unwrap();
    let metadata = opened.metadata(Path::new(".")).unwrap();
    lines.push(format!(
        "/ {:o} {}:{} {:?}",
        metadata.mode, metadata.uid, metadata.gid, metadata.mtime
    ));
    walk(&opened, &mut |_, _| Visit::Keep, &mut |found| {
        let path = String::from_utf8_lossy(found.path).into_owned();
        let m = found.metadata;
        let what = match m.kind {
            FileKind::File => {
                let mut content = Vec::new();
                found.open().unwrap().read_to_end(&mut content).unwrap();
                let first = first_names.entry((m.dev, m.ino)).or_insert_with(|| path.clone());
                format!("{} {} ={first}", m.size, blake3::hash(&content))
            }
            FileKind::Symlink => format!("-> {}", String::from_utf8_lossy(&found.read_link()?)),
            FileKind::Directory => String::new(),
            _ => format!("{:?}", m.device),
        };
        lines.push(format!(
            "/{path} {:?} {:o} {}:{} {:?} {:?} {what}",
            m.kind,
            m.mode,
            m.uid,
            m.gid,
            m.mtime,
            found.xattrs()?
        ));
        Ok(())
    })
    .unwrap();
    lines
}

/// Returns layers that contain every kind of entry that is hard to stack.
pub(crate) fn awkward_layers() -> Vec<Layer> {
    let base = Layer::default()
        .dir("", 0o711)
        .dir("etc", 0o2750)
        .with(|entry| entry.gid = 42)
        .file("etc/passwd", "root")
        .with(|entry| {
            entry.xattrs.insert(b"user.note".to_vec(), b"x".to_vec());
        })
        .dir("lib", 0o755)
        .file("lib/a", "a")
        .link("lib/b", "lib/a")
        .file("lib/setuid", "s")
        .with(|entry| entry.mode = 0o4755)
        .dir("opaque", 0o700)
        .file("opaque/old", "old")
        .dir("gone", 0o755)
        .dir("gone/deep", 0o755)
        .file("gone/deep/file", "x")
        .file("file-to-dir", "x")
        .dir("dir-to-file", 0o755)
        .file("dir-to-file/x", "x")
        .symlink("bin", "usr/bin")
        .dir("usr", 0o755)
        .dir("usr/bin", 0o755)
        .add("null", EntryKind::CharDevice { major: 1, minor: 3 }, 0o666, b"")
        .add("pipe", EntryKind::Fifo, 0o600, b"");
    let middle = Layer::default()
        .file("etc/hosts", "hosts")
        .file("opaque/.wh..wh..opq", "")
        .file("opaque/new", "new")
        .file(".wh.gone", "")
        .dir("file-to-dir", 0o750)
        .file("file-to-dir/x", "now")
        .file("dir-to-file", "now")
        .file("lib/a", "changed")
        .file("bin/tool", "the link is replaced")
        .file("implied/deep/er/file", "x");
    let top = Layer::default()
        .file("etc/.wh.hosts", "")
        .dir("gone", 0o700)
        .file("gone/again", "again")
        .file("lib/\u{e9}\n odd", "odd")
        .file("big", &"0123456789".repeat(100_000));
    vec![base, middle, top]
}
