//! Owners, modes, times and extended attributes, as root and as an ordinary user.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;
use crate::Mtime;
use imgctl_base::fs::atomic::remove_tree;
use imgctl_base::fs::xattr;

#[test]
fn metadata_is_set_whatever_comes_later() {
    let layer: &[&str] = &[
        "r . 711",
        "d a 1770",
        "f a/f x",
        "d a/b 700",
        "f a/b/f x",
        "f later/x 1",
        "f a/late x",
        "h a/hard a/f",
        "l a/link f",
        "p a/fifo",
    ];
    let (directory, _) = unpack(overlay(), &[layer]);
    let at = |path: &str| std::fs::symlink_metadata(directory.path().join(path)).unwrap();
    for (path, mode) in
        [("", 0o711), ("a", 0o1770), ("a/b", 0o700), ("a/f", 0o644), ("a/fifo", 0o600)]
    {
        assert_eq!(at(path).permissions().mode() & 0o7777, mode, "{path}");
    }
    for path in ["", "a", "a/b", "a/f", "a/b/f", "a/late", "a/link", "a/fifo", "a/hard"] {
        assert_eq!((at(path).mtime(), at(path).mtime_nsec()), (1000, 0), "{path:?}");
    }
    // A directory without an entry.
    assert_eq!(at("later").mtime(), 0);
    assert_eq!(at("later").permissions().mode() & 0o7777, 0o755);
    assert_eq!(at("a/f").ino(), at("a/hard").ino());

    let (mut file, _) = entry("f suid");
    file.mode = 0o6755;
    file.mtime = Mtime { seconds: -5, nanoseconds: u32::MAX };
    if privilege() == Privilege::Root && !attributes::in_user_namespace() {
        (file.uid, file.gid) = (12, 34);
    }
    let mut unpacker = Unpacker::new(open(directory.path()), Form::Flat, privilege()).unwrap();
    unpacker.apply(&file, &mut &b""[..], &NoLowerFiles).unwrap();
    assert!(unpacker.finish().unwrap().is_empty());
    assert_eq!(at("suid").permissions().mode() & 0o7777, 0o6755);
    assert_eq!((at("suid").mtime(), at("suid").mtime_nsec()), (-5, 999_999_999));
    assert_eq!((at("suid").uid(), at("suid").gid()), (file.uid, file.gid));
    assert_eq!(at("").mtime(), 1000, "the root's time outlives a second round");
}

type Change<'a> = &'a dyn Fn(&mut Entry);

#[test]
fn a_hard_link_changes_nothing_of_its_file() {
    let apply = |change: Change<'_>| {
        let directory = tempfile::tempdir().unwrap();
        let mut unpacker = Unpacker::new(open(directory.path()), overlay(), privilege()).unwrap();
        let mut file = entry("f a x").0;
        file.xattrs.insert(b"user.a".to_vec(), b"1".to_vec());
        unpacker.apply(&file, &mut &b"x"[..], &NoLowerFiles).unwrap();
        unpacker.apply(&entry("l s a").0, &mut &b""[..], &NoLowerFiles).unwrap();
        for (line, is_symlink) in [("h b a", false), ("h a a", false), ("h t s", true)] {
            let mut link = entry(line).0;
            change(&mut link);
            let applied = unpacker.apply(&link, &mut &b""[..], &NoLowerFiles);
            if is_symlink {
                return applied.map_err(|error| error.to_string());
            }
            applied.map_err(|error| error.to_string())?;
        }
        Ok(Applied::Yes)
    };
    assert_eq!(apply(&|_| {}), Ok(Applied::Yes));
    assert_eq!(apply(&|link| link.mtime.seconds = 7), Ok(Applied::Yes));
    let mut changes: Vec<(Change<'_>, &str)> = vec![
        (&|link| link.mode = 0o4644, "another mode"),
        (&|link| link.mode = 0o600, "another mode"),
    ];
    let is_root = privilege() == Privilege::Root && !attributes::in_user_namespace();
    let capability =
        |link: &mut Entry| drop(link.xattrs.insert(b"security.capability".to_vec(), vec![1]));
    let other = |link: &mut Entry| drop(link.xattrs.insert(b"user.a".to_vec(), vec![1]));
    if is_root {
        changes.push((&|link| link.uid = 9, "another owner"));
        changes.push((&capability, "`security.capability`"));
        changes.push((&other, "`user.a`"));
    }
    for (change, why) in changes {
        let error = apply(change).unwrap_err();
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn xattrs_are_set_escaped_and_renewed() {
    let directory = tempfile::tempdir().unwrap();
    let form = Form::Overlay { user_xattrs: true };
    let mut unpacker = Unpacker::new(open(directory.path()), form, privilege()).unwrap();
    for line in ["d a", "f a/f x", "f a/.wh..wh..opq", "d a"] {
        let (mut entry, content) = entry(line);
        entry.mode &= 0o555;
        entry.xattrs = [
            (b"user.x".to_vec(), b"1".to_vec()),
            (b"user.overlay.redirect".to_vec(), b"/etc".to_vec()),
            (b"security.selinux".to_vec(), b"label".to_vec()),
        ]
        .into();
        unpacker.apply(&entry, &mut &content[..], &NoLowerFiles).unwrap();
    }
    assert!(unpacker.finish().unwrap().is_empty());
    let fd = open(directory.path());
    let names = |name: &[u8]| xattr::read_at(&fd, name).unwrap();
    let escaped = b"user.overlay.overlay.redirect".to_vec();
    let of_file = names(b"a/f");
    assert_eq!(of_file.keys().cloned().collect::<Vec<_>>(), [escaped.clone(), b"user.x".to_vec()]);
    let of_directory = names(b"a");
    let expected = [b"user.overlay.opaque".to_vec(), escaped, b"user.x".to_vec()];
    assert_eq!(of_directory.keys().cloned().collect::<Vec<_>>(), expected);
    remove_tree(&directory.path().join("a")).unwrap();
}

#[test]
fn a_user_gets_notes_instead_of_errors() {
    let directory = tempfile::tempdir().unwrap();
    let form = Form::Overlay { user_xattrs: true };
    let mut unpacker = Unpacker::new(open(directory.path()), form, Privilege::User).unwrap();
    for line in ["d a 0", "c a/null", "c a/zero", "f a/f x", "d a/b 500", "f a/b/f x", "f a/.wh.x"]
    {
        let (mut entry, content) = entry(line);
        entry.uid = 4242;
        entry.xattrs.insert(b"trusted.none".to_vec(), b"1".to_vec());
        if privilege() == Privilege::Root {
            entry.xattrs.clear();
        }
        unpacker.apply(&entry, &mut &content[..], &NoLowerFiles).unwrap();
    }
    let notes = unpacker.finish().unwrap();
    assert!(
        notes.iter().any(|note| note.contains("(2 entries, the first is /a/null)")),
        "{notes:?}"
    );
    assert!(notes.iter().any(|note| note.starts_with("owners")), "{notes:?}");
    let at = |path: &str| std::fs::symlink_metadata(directory.path().join(path));
    assert_eq!(at("a").unwrap().permissions().mode() & 0o7777, 0);
    assert_eq!(at("a").unwrap().uid(), rustix::process::geteuid().as_raw());
    if privilege() == Privilege::Root {
        assert!(at("a/b/f").unwrap().is_file() && at("a/null").is_err());
        assert_eq!(at("a/b").unwrap().permissions().mode() & 0o7777, 0o500);
    }
    remove_tree(&directory.path().join("a")).unwrap();
}
