//! Upper directories created by the tests, and one created by the kernel if it permits mounting.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::*;
use crate::unpack::{Form, NoLowerFiles, Privilege, Unpacker};
use imgctl_base::fs::directory;
use imgctl_base::fs::xattr;

/// Returns all entries with their contents.
fn entries(dir: &Path) -> Result<Vec<(Entry, String)>> {
    let root = Root::open(dir).unwrap();
    let mut entries = Vec::new();
    upper_entries(&root, &mut |entry, content| {
        let mut text = String::new();
        content.read_to_string(&mut text).unwrap();
        entries.push((entry, text));
        Ok(())
    })?;
    Ok(entries)
}

fn lines(entries: &[(Entry, String)]) -> Vec<String> {
    let line = |(entry, text): &(Entry, String)| {
        let kind = match &entry.kind {
            EntryKind::File { size } => {
                assert_eq!(*size, text.len() as u64);
                format!("file {text}")
            }
            EntryKind::Directory => "directory".to_owned(),
            EntryKind::Symlink { target } => format!("-> {}", String::from_utf8_lossy(target)),
            EntryKind::HardLink { target } => format!("= {target}"),
            other => format!("{other:?}"),
        };
        format!("{} {kind}", entry.path)
    };
    entries.iter().map(line).collect()
}

fn whiteout(path: &Path) {
    let kind = FileType::CharacterDevice;
    mknodat(CWD, path, kind, Mode::empty(), makedev(0, 0)).unwrap();
}

fn mark(path: &Path, name: &str, value: &str) {
    let parent = directory::open(CWD, path.parent().unwrap()).unwrap();
    let file = path.file_name().unwrap().as_encoded_bytes();
    xattr::set_at(&parent, file, name.as_bytes(), value.as_bytes()).unwrap();
}

#[test]
fn the_kernels_marks_become_those_of_layers() {
    let upper = tempfile::tempdir().unwrap();
    let at = |path: &str| upper.path().join(path);
    for directory in ["a", "opaque", "mixed"] {
        fs::create_dir_all(at(directory)).unwrap();
    }
    whiteout(&at("a/gone"));
    fs::write(at("a/file"), "content").unwrap();
    fs::write(at("mixed/also-gone"), "").unwrap();
    fs::write(at("opaque/new"), "x").unwrap();
    fs::hard_link(at("a/file"), at("other-name")).unwrap();
    symlink("a/file", at("link")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    mark(&at("mixed/also-gone"), "user.overlay.whiteout", "y");
    mark(&at("mixed"), "user.overlay.opaque", "x");
    mark(&at("opaque"), "user.overlay.opaque", "y");
    mark(&at("a"), "user.overlay.origin", "kernel's own");
    mark(&at("a/file"), "user.overlay.overlay.mine", "1");
    mark(&at("a/file"), "user.kept", "2");

    let found = entries(upper.path()).unwrap();
    assert_eq!(
        lines(&found),
        [
            "/a directory",
            "/a/.wh.gone file ",
            "/a/file file content",
            "/link -> a/file",
            "/mixed directory",
            "/mixed/.wh.also-gone file ",
            "/opaque directory",
            "/opaque/.wh..wh..opq file ",
            "/opaque/new file x",
            "/other-name = /a/file",
        ]
    );
    let xattrs = |path: &str| {
        let found = found.iter().find(|(entry, _)| entry.path.to_string() == path);
        found.unwrap().0.xattrs.clone()
    };
    let expected =
        [(b"user.kept".to_vec(), b"2".to_vec()), (b"user.overlay.mine".to_vec(), b"1".to_vec())];
    assert_eq!(xattrs("/a/file"), expected.into());
    assert!(xattrs("/a").is_empty() && xattrs("/opaque").is_empty());
}

#[test]
fn what_cannot_be_told_is_an_error() {
    for (name, attribute) in [
        (".wh.real-file", None),
        ("moved", Some("user.overlay.redirect")),
        ("half-copied", Some("user.overlay.metacopy")),
    ] {
        let upper = tempfile::tempdir().unwrap();
        fs::write(upper.path().join(name), "x").unwrap();
        if let Some(attribute) = attribute {
            mark(&upper.path().join(name), attribute, "1");
        }
        let error = entries(upper.path()).unwrap_err();
        assert!(error.message().contains(name), "{error}");
    }
}

#[test]
fn an_unpacked_layer_gives_its_entries_back() {
    let is_root = rustix::process::geteuid().is_root();
    let mut layer = Vec::new();
    for (path, kind, content) in [
        ("d", EntryKind::Directory, ""),
        ("d/.wh.gone", EntryKind::File { size: 0 }, ""),
        ("d/file", EntryKind::File { size: 4 }, "text"),
        ("d/o", EntryKind::Directory, ""),
        ("d/o/.wh..wh..opq", EntryKind::File { size: 0 }, ""),
        ("fifo", EntryKind::Fifo, ""),
        ("link", EntryKind::Symlink { target: b"d".to_vec() }, ""),
        ("m", EntryKind::HardLink { target: LayerPath::parse(b"d/file").unwrap() }, ""),
    ] {
        let path = LayerPath::parse(path.as_bytes()).unwrap();
        let is_marker = path.file_name().is_some_and(is_reserved);
        let mode = match kind {
            EntryKind::Symlink { .. } => 0o777,
            _ => 0o750,
        };
        let mut entry = Entry::new(path, kind, if is_marker { 0 } else { mode });
        entry.uid = rustix::process::geteuid().as_raw();
        entry.gid = rustix::process::getegid().as_raw();
        if is_marker {
            (entry.uid, entry.gid) = (0, 0);
        } else {
            entry.mtime.seconds = 77;
            entry.mtime.nanoseconds = 5;
        }
        if matches!(entry.kind, EntryKind::Directory) {
            entry.xattrs.insert(b"user.overlay.x".to_vec(), b"y".to_vec());
        }
        layer.push((entry, content.to_owned()));
    }
    let directory = tempfile::tempdir().unwrap();
    let form = Form::Overlay { user_xattrs: true };
    let privilege = if is_root { Privilege::Root } else { Privilege::User };
    let fd = directory::open(CWD, directory.path()).unwrap();
    let mut unpacker = Unpacker::new(fd, form, privilege).unwrap();
    for (entry, content) in &layer {
        unpacker.apply(entry, &mut content.as_bytes(), &NoLowerFiles).unwrap();
    }
    unpacker.finish().unwrap();
    assert_eq!(entries(directory.path()).unwrap(), layer);
}

#[test]
fn changes_under_a_mounted_overlay_are_told() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    if !imgctl_base::testing::needs_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |path: &str| directory.path().join(path);
    for name in ["lower/d/sub", "lower/gone", "upper", "work", "merged"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    fs::write(at("lower/d/old"), "old").unwrap();
    fs::write(at("lower/d/changed"), "before").unwrap();
    let options = format!(
        "lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work,redirect_dir=off,metacopy=off",
        directory.path().display()
    );
    let options = std::ffi::CString::new(options).unwrap();
    let flags = MountFlags::empty();
    mount("overlay", at("merged"), "overlay", flags, &*options).unwrap();
    fs::remove_dir_all(at("merged/gone")).unwrap();
    fs::remove_file(at("merged/d/old")).unwrap();
    fs::write(at("merged/d/changed"), "after").unwrap();
    fs::remove_dir(at("merged/d/sub")).unwrap();
    fs::create_dir(at("merged/d/sub")).unwrap();
    unmount(at("merged"), UnmountFlags::empty()).unwrap();
    assert_eq!(
        lines(&entries(&at("upper")).unwrap()),
        [
            "/.wh.gone file ",
            "/d directory",
            "/d/.wh.old file ",
            "/d/changed file after",
            "/d/sub directory",
            "/d/sub/.wh..wh..opq file ",
        ]
    );
}
