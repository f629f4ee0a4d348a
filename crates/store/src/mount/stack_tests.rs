//! Mounts stacks and inspects the result.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;
use crate::mount::overlay::tests::private_mounts;
use crate::mount::shapes::Shape;
use crate::mount::{OverlaySpec, attach};
use imgctl_base::fs::xattr;
use imgctl_base::testing::needs_root;

struct Fixture {
    directory: tempfile::TempDir,
    snapshots: Vec<Snapshot>,
}

impl Fixture {
    fn new() -> Self {
        private_mounts();
        Self { directory: tempfile::tempdir().unwrap(), snapshots: Vec::new() }
    }

    /// Creates a snapshot of directories (`path mode`), all with time 0. Mode 0 marks an implied
    /// directory.
    fn layer(&mut self, directories: &[(&str, u32)]) -> PathBuf {
        let number = self.snapshots.len();
        let fs = self.directory.path().join(number.to_string()).join("fs");
        fs::create_dir_all(&fs).unwrap();
        let mut shapes = Shapes::new();
        for (path, mode) in directories {
            fs::create_dir_all(fs.join(path)).unwrap();
            if *mode == 0 {
                let shape = Shape { implied: true, ..Shape::default() };
                shapes.insert(LayerPath::parse(path.as_bytes()).unwrap(), shape);
            }
            let mode = if *mode == 0 { 0o755 } else { *mode };
            fs::set_permissions(fs.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        self.snapshots.push(Snapshot { fs: fs.clone(), shapes });
        fs
    }

    fn mounted(&self) -> PathBuf {
        let stack = Stack::new(self.snapshots.clone(), false).unwrap();
        let at = |name: &str| {
            let path = self.directory.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let mut lowers = vec![at("empty")];
        lowers.extend(stack.lowers());
        let top = at("top");
        if stack.correct(&top).unwrap() {
            lowers.push(top);
        }
        let merged = at("merged");
        let spec = OverlaySpec {
            source: "imgctl:test".into(),
            lowers,
            upper: None,
            user_xattrs: false,
            volatile: false,
            no_devices: true,
        };
        attach(&spec, &merged).unwrap();
        merged
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn implied_directories_show_what_lies_below() {
    if !needs_root() {
        return;
    }
    let mut fixture = Fixture::new();
    let lowest = fixture.layer(&[("", 0o700), ("a", 0o711), ("a/b", 0o2750), ("c", 0o701)]);
    rustix::fs::chownat(
        CWD,
        lowest.join("a/b"),
        Some(Uid::from_raw(12)),
        Some(Gid::from_raw(34)),
        AtFlags::empty(),
    )
    .unwrap();
    fs::set_permissions(lowest.join("a/b"), fs::Permissions::from_mode(0o2750)).unwrap();
    fixture.layer(&[("", 0), ("a", 0), ("a/b", 0), ("c", 0o777), ("new", 0)]);
    fixture.layer(&[("", 0), ("a", 0o555), ("a/b", 0), ("c", 0)]);
    let merged = fixture.mounted();
    assert_eq!(mode(&merged), 0o700);
    assert_eq!(mode(&merged.join("a")), 0o555);
    assert_eq!(mode(&merged.join("a/b")), 0o2750);
    let metadata = fs::metadata(merged.join("a/b")).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (12, 34));
    assert_eq!(mode(&merged.join("c")), 0o777);
    assert_eq!(mode(&merged.join("new")), 0o755);
}

#[test]
fn what_is_hidden_does_not_shine_through() {
    if !needs_root() {
        return;
    }
    let mut fixture = Fixture::new();
    fixture.layer(&[
        ("", 0),
        ("opaque", 0o711),
        ("opaque/x", 0o700),
        ("gone", 0o700),
        ("gone/x", 0o700),
    ]);
    let middle = fixture.layer(&[("", 0), ("opaque", 0)]);
    let opaque = LayerPath::parse(b"opaque").unwrap();
    fixture.snapshots[1].shapes.get_mut(&opaque).unwrap().marked_opaque = true;
    xattr::set(
        Root::open(&middle).unwrap().open_directory(Path::new("opaque")).unwrap(),
        b"trusted.overlay.opaque",
        b"y",
    )
    .unwrap();
    rustix::fs::mknodat(CWD, middle.join("gone"), FileType::CharacterDevice, Mode::empty(), 0)
        .unwrap();
    fixture.layer(&[("", 0), ("opaque", 0), ("opaque/x", 0), ("gone", 0), ("gone/x", 0)]);
    let merged = fixture.mounted();
    for path in ["gone", "gone/x", "opaque/x"] {
        assert_eq!(mode(&merged.join(path)), 0o755, "{path}");
    }
    // The marker hides the content of the directory, not the directory itself.
    assert_eq!(mode(&merged.join("opaque")), 0o711);
}

#[test]
fn an_opaque_root_ends_the_stack() {
    if !needs_root() {
        return;
    }
    let mut fixture = Fixture::new();
    fixture.layer(&[("", 0), ("below", 0o755)]);
    let middle = fixture.layer(&[("", 0), ("middle", 0o755)]);
    xattr::set(
        rustix::fs::open(&middle, rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap(),
        b"trusted.overlay.opaque",
        b"y",
    )
    .unwrap();
    fixture.layer(&[("", 0), ("above", 0o755)]);
    let merged = fixture.mounted();
    let mut names: Vec<_> =
        fs::read_dir(merged).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["above", "middle"]);
}

#[test]
fn an_upper_gets_the_roots_metadata() {
    if !needs_root() {
        return;
    }
    let mut fixture = Fixture::new();
    fixture.layer(&[("", 0o1777)]);
    fixture.layer(&[("", 0)]);
    let stack = Stack::new(fixture.snapshots.clone(), false).unwrap();
    let upper = fixture.directory.path().join("upper");
    fs::create_dir(&upper).unwrap();
    stack.dress_root(&upper).unwrap();
    assert_eq!(mode(&upper), 0o1777);
    let lowest = fs::metadata(&fixture.snapshots[0].fs).unwrap();
    assert_eq!(fs::metadata(&upper).unwrap().mtime(), lowest.mtime());
}
