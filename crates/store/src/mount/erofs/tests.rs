//! Indexes written from small tables of contents, mounted and compared name by name.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use super::*;
use crate::mount::overlay::tests::private_mounts;
use imgctl_base::testing::needs_root;
use imgctl_layer::{Entry, EntryKind, LayerPath, Mtime, Toc, TocEntry};

/// A tar-like file of 512-byte blocks and the table of contents that describes it.
#[derive(Default)]
struct Layer {
    toc: Toc,
    bytes: Vec<u8>,
}

impl Layer {
    fn add(mut self, path: &str, kind: EntryKind, content: &[u8]) -> Self {
        self.bytes.extend([b'H'; 512]);
        let offset = self.bytes.len() as u64;
        self.bytes.extend(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        let mut entry = Entry::new(LayerPath::parse(path.as_bytes()).unwrap(), kind, 0o640);
        entry.mtime = Mtime { seconds: -5, nanoseconds: 7 };
        entry.uid = 70_000;
        self.toc.entries.push(TocEntry {
            entry,
            offset: if content.is_empty() { 0 } else { offset },
            content: None,
        });
        self
    }

    fn file(self, path: &str, content: &[u8]) -> Self {
        let size = content.len() as u64;
        self.add(path, EntryKind::File { size }, content)
    }

    fn xattr(mut self, name: &str, value: &[u8]) -> Self {
        let last = self.toc.entries.last_mut().unwrap();
        last.entry.xattrs.insert(name.as_bytes().to_vec(), value.to_vec());
        self
    }
}

fn mounted(directory: &Path, layers: Vec<Layer>) -> PathBuf {
    let mut tree = Tree::new();
    let mut devices = Vec::new();
    let mut tocs = Vec::new();
    for (number, layer) in layers.into_iter().enumerate() {
        let path = directory.join(format!("layer{number}"));
        fs::write(&path, &layer.bytes).unwrap();
        let device = Device { tag: number.to_string(), size: layer.bytes.len() as u64 };
        devices.push((device, path));
        let toc = Arc::new(layer.toc);
        tree.apply(Arc::clone(&toc)).unwrap();
        tocs.push(toc);
    }
    let merged = directory.join("merged");
    fs::create_dir(&merged).unwrap();
    Index { tree, tocs, devices }.attach(directory, &merged).unwrap();
    merged
}

#[test]
fn every_type_and_attribute_is_shown() {
    if !needs_root() {
        return;
    }
    private_mounts();
    let directory = tempfile::tempdir().unwrap();
    let long = vec![b'l'; 3000];
    let large: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    let layer = Layer::default()
        .file("a", b"hello")
        .xattr("user.x", b"value")
        .xattr("trusted.overlay.opaque", b"y")
        .file("empty", b"")
        .file("large", &large)
        .add("dir/sub", EntryKind::Directory, b"")
        .add("link", EntryKind::Symlink { target: b"dir/sub".to_vec() }, b"")
        .add("long", EntryKind::Symlink { target: long.clone() }, b"")
        .add("hard", EntryKind::HardLink { target: LayerPath::parse(b"a").unwrap() }, b"")
        .add("char", EntryKind::CharDevice { major: 300, minor: 70_000 }, b"")
        .add("block", EntryKind::BlockDevice { major: 8, minor: 1 }, b"")
        .add("fifo", EntryKind::Fifo, b"");
    let merged = mounted(directory.path(), vec![layer]);
    assert_eq!(fs::read(merged.join("a")).unwrap(), b"hello");
    assert_eq!(fs::read(merged.join("empty")).unwrap(), b"");
    assert!(fs::read(merged.join("large")).unwrap() == large);
    let metadata = fs::metadata(merged.join("a")).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o640);
    assert_eq!((metadata.uid(), metadata.nlink()), (70_000, 2));
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-5, 7));
    assert_eq!(fs::metadata(merged.join("hard")).unwrap().ino(), metadata.ino());
    let target = fs::read_link(merged.join("long")).unwrap();
    assert_eq!(target.as_os_str().as_bytes(), long);
    assert!(fs::metadata(merged.join("link")).unwrap().is_dir());
    let char = fs::symlink_metadata(merged.join("char")).unwrap();
    assert_eq!(rustix::fs::major(char.rdev()), 300);
    assert_eq!(rustix::fs::minor(char.rdev()), 70_000);
    let kind = |name: &str| fs::symlink_metadata(merged.join(name)).unwrap().file_type();
    assert!(kind("block").is_block_device() && kind("fifo").is_fifo());
    let file = File::open(merged.join("a")).unwrap();
    let xattrs = imgctl_base::fs::xattr::read(&file).unwrap();
    assert_eq!(xattrs[&b"user.x"[..]], b"value");
    assert_eq!(xattrs[&b"trusted.overlay.overlay.opaque"[..]], b"y");
    assert_eq!(xattrs.len(), 2);
}

#[test]
fn many_names_and_odd_ones_are_found() {
    if !needs_root() {
        return;
    }
    private_mounts();
    let directory = tempfile::tempdir().unwrap();
    let mut layer = Layer::default();
    let mut names: Vec<String> =
        (0..3000).map(|n| format!("d/{n}{}", "n".repeat(n % 240))).collect();
    // Names that sort near `.` and `..`.
    names.extend(["d/-", "d/!", "d/...", "d/.a", "d/..a", "d/ ", "d/é"].map(String::from));
    for name in &names {
        layer = layer.file(name, name.as_bytes());
    }
    let merged = mounted(directory.path(), vec![layer]);
    assert_eq!(fs::read_dir(merged.join("d")).unwrap().count(), names.len());
    for name in &names {
        assert_eq!(fs::read(merged.join(name)).unwrap(), name.as_bytes());
    }
    assert!(fs::metadata(merged.join("d/missing")).is_err());
}

#[test]
fn layers_are_merged() {
    if !needs_root() {
        return;
    }
    private_mounts();
    let directory = tempfile::tempdir().unwrap();
    let merged = mounted(
        directory.path(),
        vec![
            Layer::default()
                .file("kept", b"below")
                .file("gone", b"x")
                .file("replaced", b"below")
                .file("opaque/old", b"x"),
            Layer::default()
                .file(".wh.gone", b"")
                .file("replaced", b"above")
                .file("opaque/.wh..wh..opq", b"")
                .file("opaque/new", b"new"),
        ],
    );
    assert_eq!(fs::read(merged.join("kept")).unwrap(), b"below");
    assert_eq!(fs::read(merged.join("replaced")).unwrap(), b"above");
    assert_eq!(fs::read(merged.join("opaque/new")).unwrap(), b"new");
    assert!(!merged.join("gone").exists() && !merged.join("opaque/old").exists());
    assert_eq!(fs::read_dir(&merged).unwrap().count(), 3);
}

/// Tars of several layers, as an image brings them: each index is one, and is written twice the same.
#[test]
fn any_layers_make_an_index_or_are_refused() {
    const NAMES: [&str; 12] = [
        "a",
        "b",
        "c/d",
        "c",
        "c/.wh.d",
        ".wh.a",
        "c/.wh..wh..opq",
        "e/f/g",
        "é",
        "x y",
        "c/d/h",
        "b/../a",
    ];
    bolero::check!().with_type::<Vec<Vec<(u8, u8, u16)>>>().for_each(|layers| {
        let mut tree = Tree::new();
        let mut devices = Vec::new();
        for (number, entries) in layers.iter().take(4).enumerate() {
            let mut layer = Layer::default();
            for (name, kind, more) in entries.iter().take(64) {
                let name = NAMES[usize::from(*name) % NAMES.len()];
                if LayerPath::parse(name.as_bytes()).is_err() {
                    continue;
                }
                let target = NAMES[usize::from(*more) % NAMES.len()];
                layer = match kind % 7 {
                    0 | 1 => layer.file(name, &vec![7; usize::from(*more)]),
                    2 => layer.add(name, EntryKind::Directory, b""),
                    3 => layer.add(name, EntryKind::Symlink { target: target.into() }, b""),
                    4 => match LayerPath::parse(target.as_bytes()) {
                        Ok(target) => layer.add(name, EntryKind::HardLink { target }, b""),
                        Err(_) => layer,
                    },
                    5 => layer.add(
                        name,
                        EntryKind::CharDevice { major: u32::from(*more), minor: 1 },
                        b"",
                    ),
                    _ => layer
                        .add(name, EntryKind::Fifo, b"")
                        .xattr("user.x", &vec![1; usize::from(more % 512)]),
                };
            }
            devices.push(Device { tag: format!("{number:064}"), size: layer.bytes.len() as u64 });
            if tree.apply(Arc::new(layer.toc)).is_err() {
                return;
            }
        }
        let write = || {
            let mut out = Vec::new();
            let mut copy = |found: &Found<'_>, out: &mut dyn Write| {
                let EntryKind::File { size } = found.entry().kind else { return Ok(()) };
                out.write_all(&vec![7; usize::try_from(size).unwrap()]).doing(String::new)
            };
            image::write(&tree, &devices, &mut copy, &mut out).map(|()| out)
        };
        if let Ok(index) = write() {
            // The magic number of the superblock.
            assert_eq!(index[1024..1028], 0xe0f5_e1e2_u32.to_le_bytes());
            assert!(write().unwrap() == index);
        }
    });
}
