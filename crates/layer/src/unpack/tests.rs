//! Layers written as lines of text, unpacked and listed as lines of text.

mod breakout;
mod metadata;
mod union;

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::*;
use imgctl_base::error::Kind;
use imgctl_base::fs::root::Root;
use imgctl_base::fs::walk::{Visit, walk};

/// Returns the privilege of the user who runs the tests.
fn privilege() -> Privilege {
    if rustix::process::geteuid().is_root() { Privilege::Root } else { Privilege::User }
}

/// Returns the overlay form that the user who runs the tests may write.
fn overlay() -> Form {
    Form::Overlay { user_xattrs: privilege() == Privilege::User || attributes::in_user_namespace() }
}

/// Parses `f a/b text`, `d a 750`, `l a target`, `h a target`, `p fifo`, `c null`, `r` (the root).
/// All entries are owned by the user who runs the tests; files are 0644, directories 0755; all
/// times are 1000.
fn entry(line: &str) -> (Entry, Vec<u8>) {
    try_entry(line).unwrap()
}

/// Like [`entry`], but returns an error for names with `..`, for which no entry can be created.
fn try_entry(line: &str) -> Result<(Entry, Vec<u8>)> {
    let mut words = line.splitn(3, ' ');
    let kind = words.next().unwrap();
    let path = LayerPath::parse(words.next().unwrap_or("").as_bytes())?;
    let rest = words.next().unwrap_or("");
    let mode = |default| u32::from_str_radix(rest, 8).unwrap_or(default);
    let (kind, mode) = match kind {
        "f" => (EntryKind::File { size: rest.len() as u64 }, 0o644),
        "d" | "r" => (EntryKind::Directory, mode(0o755)),
        "l" => (EntryKind::Symlink { target: rest.into() }, 0o777),
        "h" => (EntryKind::HardLink { target: LayerPath::parse(rest.as_bytes())? }, 0o644),
        "p" => (EntryKind::Fifo, 0o600),
        "c" => (EntryKind::CharDevice { major: 1, minor: 3 }, 0o666),
        other => panic!("{other}"),
    };
    let mut entry = Entry::new(path, kind, mode);
    entry.uid = rustix::process::geteuid().as_raw();
    entry.gid = rustix::process::getegid().as_raw();
    entry.mtime.seconds = 1000;
    Ok((entry, rest.into()))
}

/// Unpacks layers of one line per entry into `directory`.
fn try_unpack(directory: &Path, form: Form, layers: &[&[&str]]) -> Result<Vec<String>> {
    let mut unpacker = Unpacker::new(open(directory), form, privilege())?;
    for (number, layer) in layers.iter().enumerate() {
        if number > 0 {
            unpacker.next_layer();
        }
        for line in *layer {
            let (entry, content) = entry(line);
            unpacker.apply(&entry, &mut &content[..], &NoLowerFiles)?;
        }
    }
    unpacker.finish()
}

fn open(directory: &Path) -> OwnedFd {
    directory::open(fs::CWD, directory).unwrap()
}

fn unpack(form: Form, layers: &[&[&str]]) -> (tempfile::TempDir, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    try_unpack(directory.path(), form, layers).unwrap();
    let listing = list(directory.path());
    (directory, listing)
}

/// Returns one line per file: kind, path, and content or target; whiteouts are `W`, opaque
/// directories `D`.
fn list(directory: &Path) -> Vec<String> {
    let root = Root::open(directory).unwrap();
    let mut lines = Vec::new();
    walk(&root, &mut |_, _| Visit::Keep, &mut |found| {
        let path = String::from_utf8_lossy(found.path).into_owned();
        let xattrs = found.xattrs()?;
        let opaque =
            xattrs.iter().any(|(name, value)| name.ends_with(b".overlay.opaque") && value == b"y");
        lines.push(match found.metadata.kind {
            FileKind::File => {
                let mut text = String::new();
                found.open()?.read_to_string(&mut text).unwrap();
                format!("f {path} {text}")
            }
            FileKind::Directory if opaque => format!("D {path}"),
            FileKind::Directory => format!("d {path}"),
            FileKind::Symlink => {
                format!("l {path} {}", String::from_utf8_lossy(&found.read_link()?))
            }
            FileKind::CharDevice if found.metadata.device == (0, 0) => format!("W {path}"),
            FileKind::CharDevice => format!("c {path}"),
            FileKind::Fifo => format!("p {path}"),
            other => panic!("{other:?}"),
        });
        Ok(())
    })
    .unwrap();
    lines
}

#[test]
fn an_overlay_layer_marks_what_it_hides() {
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("whiteout", &["d a", "f a/.wh.x"], &["d a", "W a/x"]),
        ("whiteout without parent", &["f a/b/.wh.x"], &["d a", "d a/b", "W a/b/x"]),
        ("opaque", &["d a", "f a/.wh..wh..opq", "f a/x 1"], &["D a", "f a/x 1"]),
        ("opaque after siblings", &["f a/x 1", "f a/.wh..wh..opq"], &["D a", "f a/x 1"]),
        ("opaque in the root", &["f .wh..wh..opq", "f a 1"], &["f a 1"]),
        ("whiteout in opaque", &["f a/.wh..wh..opq", "f a/.wh.x"], &["D a"]),
        ("opaque after whiteout", &["f a/.wh.x", "f a/.wh..wh..opq"], &["D a"]),
        (
            "whiteout deep in opaque",
            &["f a/b/.wh.x", "f a/.wh..wh..opq", "f a/b/.wh.y"],
            &["D a", "d a/b"],
        ),
        ("whiteout, then the file", &["f .wh.a", "f a 1"], &["f a 1"]),
        ("the file, then whiteout", &["f a 1", "f .wh.a"], &["f a 1"]),
        ("whiteout, then directory", &["f .wh.a", "d a", "f a/x 1"], &["D a", "f a/x 1"]),
        ("whiteout, then child", &["f .wh.a", "f a/x 1"], &["D a", "f a/x 1"]),
        ("directory, then whiteout", &["d a", "f a/x 1", "f .wh.a"], &["D a", "f a/x 1"]),
        ("whiteout twice", &["f .wh.a", "f .wh.a"], &["W a"]),
        ("whiteout below a whiteout", &["f .wh.a", "f a/.wh.b"], &["W a"]),
        ("whiteout below a file", &["f a 1", "f a/.wh.b", "f a/b/.wh.c"], &["f a 1"]),
        (
            "whiteout below a link",
            &["d d", "f d/x 1", "l a d", "f a/.wh.x"],
            &["l a d", "d d", "f d/x 1"],
        ),
        ("aufs leftovers", &["f .wh..wh.aufs", "d .wh..wh.plnk", "f .wh..wh.plnk/1"], &[]),
        ("file, then directory", &["f a 1", "d a"], &["D a"]),
        ("directory again", &["d a", "f a/x 1", "d a"], &["d a", "f a/x 1"]),
        ("opaque, then directory again", &["f a/.wh..wh..opq", "d a"], &["D a"]),
        ("opaque, then a file", &["f a/.wh..wh..opq", "f a 1", "f .wh.a"], &["f a 1"]),
    ];
    for (name, layer, expected) in cases {
        let (_directory, listing) = unpack(overlay(), &[layer]);
        assert_eq!(listing, *expected, "{name}");
    }
}

#[test]
fn a_flat_tree_loses_what_layers_hide() {
    let lower: &[&str] = &["d a", "f a/x 1", "f a/y 2", "d a/s", "f a/s/z 3", "l l a", "f t 4"];
    let kept = ["d a", "d a/s", "f a/s/z 3", "f a/x 1", "f a/y 2", "l l a", "f t 4"];
    let without = |gone: &[&str]| -> Vec<String> {
        let stays = |line: &&&str| !gone.iter().any(|gone| line[2..].starts_with(gone));
        kept.iter().filter(stays).map(ToString::to_string).collect()
    };
    let with = |mut lines: Vec<String>, more: &[&str]| {
        lines.extend(more.iter().map(ToString::to_string));
        lines.sort_by(|a, b| a[2..].split(' ').next().cmp(&b[2..].split(' ').next()));
        lines
    };
    let cases: &[(&str, &[&str], Vec<String>)] = &[
        ("nothing", &[], without(&[])),
        ("file", &["f a/.wh.x"], without(&["a/x"])),
        ("tree", &["f .wh.a"], without(&["a"])),
        ("missing", &["f .wh.none", "f no/ne/.wh.x"], without(&[])),
        ("own file stays", &["f a/x new", "f a/.wh.x"], with(without(&["a/x"]), &["f a/x new"])),
        ("own file comes", &["f a/.wh.x", "f a/x new"], with(without(&["a/x"]), &["f a/x new"])),
        ("opaque", &["f a/.wh..wh..opq"], with(without(&["a"]), &["d a"])),
        (
            "opaque keeps its own",
            &["f a/s/own 5", "f a/y 6", "f a/.wh..wh..opq"],
            with(without(&["a"]), &["d a", "d a/s", "f a/s/own 5", "f a/y 6"]),
        ),
        (
            "whiteout of a directory keeps its own",
            &["f a/s/own 5", "f .wh.a"],
            with(without(&["a"]), &["d a", "d a/s", "f a/s/own 5"]),
        ),
        ("the root", &["f new 1", "f .wh..wh..opq"], vec!["f new 1".into()]),
        ("through a link: nothing", &["f l/.wh.x", "f l/s/.wh.z"], without(&[])),
        ("file over directory", &["f a 7"], with(without(&["a"]), &["f a 7"])),
        ("directory over directory", &["d a"], without(&[])),
        ("directory over file", &["d t"], with(without(&["t"]), &["d t"])),
        ("below a link", &["f l/n 8"], with(without(&["l"]), &["d l", "f l/n 8"])),
        ("below a file", &["f t/n 8"], with(without(&["t"]), &["d t", "f t/n 8"])),
        ("link to lower", &["h n a/x"], with(without(&[]), &["f n 1"])),
        ("link outlives", &["h n a/x", "f a/.wh.x"], with(without(&["a/x"]), &["f n 1"])),
    ];
    for (name, layer, expected) in cases {
        let (_directory, listing) = unpack(Form::Flat, &[lower, layer]);
        assert_eq!(listing, *expected, "{name}");
        // Existing content is a lower layer, too.
        let (directory, _) = unpack(Form::Flat, &[lower]);
        try_unpack(directory.path(), Form::Flat, &[layer]).unwrap();
        assert_eq!(list(directory.path()), *expected, "{name}, in two goes");
    }
}

#[test]
fn the_last_of_several_entries_wins() {
    let kinds = ["f a text", "d a", "l a nowhere", "p a"];
    for form in [overlay(), Form::Flat] {
        for first in kinds {
            for second in kinds {
                let (_directory, listing) = unpack(form, &[&[first, second]]);
                let opaque = form != Form::Flat && second == "d a" && first != "d a";
                let expected = if opaque { "D a" } else { second };
                assert_eq!(listing, [expected], "{first}, {second}");
            }
        }
    }
    let layer: &[&str] = &["f a old", "h b a", "f a new"];
    assert_eq!(unpack(overlay(), &[layer]).1, ["f a new", "f b old"]);
}

#[test]
fn malformed_names_and_links_are_refused() {
    for line in [
        "f .wh.",
        "f a/.wh.",
        "f .wh..",
        "f .wh...",
        "f a/.wh...",
        "f .wh.a/b",
        "f a/.wh.b/c/d",
        "l a",
        "h a nowhere",
        "h a a",
        "h a nowhere/b",
        "h a /",
        "f ",
        "l  target",
        "p ",
    ] {
        for form in [overlay(), Form::Flat] {
            let directory = tempfile::tempdir().unwrap();
            let error = try_unpack(directory.path(), form, &[&[line]]).unwrap_err();
            assert_eq!(error.kind(), Kind::BadContent, "{line}: {error}");
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let device = EntryKind::CharDevice { major: 0, minor: 0 };
    let whiteout = Entry::new(LayerPath::parse(b"a").unwrap(), device, 0o600);
    let mut unpacker = Unpacker::new(open(directory.path()), overlay(), privilege()).unwrap();
    assert!(unpacker.apply(&whiteout, &mut &b""[..], &NoLowerFiles).is_err());
}

#[test]
fn content_must_be_as_long_as_announced() {
    let directory = tempfile::tempdir().unwrap();
    let mut unpacker = Unpacker::new(open(directory.path()), overlay(), privilege()).unwrap();
    let (mut entry, _) = entry("f a 12345");
    let error = unpacker.apply(&entry, &mut &b"1234"[..], &NoLowerFiles).unwrap_err();
    assert_eq!(error.kind(), Kind::BadContent);
    assert!(error.to_string().starts_with("cannot unpack /a: "), "{error}");

    let large: Vec<u8> = (0..3 * (512 << 10) + 7).map(|n| (n % 251) as u8).collect();
    entry.kind = EntryKind::File { size: large.len() as u64 };
    unpacker.apply(&entry, &mut &large[..], &NoLowerFiles).unwrap();
    assert!(std::fs::read(directory.path().join("a")).unwrap() == large);
}

/// The files of a directory.
struct LowerDirectory(tempfile::TempDir);

impl LowerFiles for LowerDirectory {
    fn find(&self, path: &LayerPath) -> Result<Option<LowerFile>> {
        if std::fs::symlink_metadata(self.0.path().join(path.as_path())).is_err() {
            return Ok(None);
        }
        Ok(Some(LowerFile { directory: open(self.0.path()), name: path.as_bytes().to_vec() }))
    }
}

#[test]
fn links_to_lower_files_are_further_names_of_them() {
    let lower = LowerDirectory(tempfile::tempdir().unwrap());
    std::fs::write(lower.0.path().join("low"), "content").unwrap();
    std::os::unix::fs::symlink("low", lower.0.path().join("link")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut unpacker = Unpacker::new(open(directory.path()), overlay(), privilege()).unwrap();
    for line in ["h a low", "f a new", "h b low", "h c low", "h d link", "f .wh.low"] {
        let (entry, content) = entry(line);
        unpacker.apply(&entry, &mut &content[..], &lower).unwrap();
    }
    unpacker.finish().unwrap();
    let expected = ["f a new", "f b content", "f c content", "l d low", "W low"];
    assert_eq!(list(directory.path()), expected);
    let inode = |path: &Path| std::fs::symlink_metadata(path).unwrap().ino();
    let low = inode(&lower.0.path().join("low"));
    let names = ["b", "c"].map(|name| inode(&directory.path().join(name)));
    assert_eq!(names, [low, low]);
    let links = [&lower, &LowerDirectory(directory)]
        .map(|directory| directory.0.path().to_owned())
        .iter()
        .zip(["link", "d"])
        .map(|(directory, name)| inode(&directory.join(name)))
        .collect::<Vec<_>>();
    assert_eq!(links[0], links[1]);
}

#[test]
fn links_to_what_the_layer_has_hidden_are_refused() {
    for layer in [
        &["f .wh.low", "h a low"][..],
        &["f d/.wh..wh..opq", "h a d/low"],
        &["f d 1", "h a d/low"],
        &["f .wh.d", "d d", "h a d/low"],
    ] {
        let lower = LowerDirectory(tempfile::tempdir().unwrap());
        std::fs::create_dir(lower.0.path().join("d")).unwrap();
        for name in ["low", "d/low"] {
            std::fs::write(lower.0.path().join(name), "content").unwrap();
        }
        let directory = tempfile::tempdir().unwrap();
        let mut unpacker = Unpacker::new(open(directory.path()), overlay(), privilege()).unwrap();
        let outcome = layer.iter().try_for_each(|line| {
            let (entry, content) = entry(line);
            unpacker.apply(&entry, &mut &content[..], &lower).map(drop)
        });
        assert_eq!(outcome.unwrap_err().kind(), Kind::BadContent, "{layer:?}");
        let directory = tempfile::tempdir().unwrap();
        let below = &["f low content", "d d", "f d/low content"][..];
        let flat = try_unpack(directory.path(), Form::Flat, &[below, layer]);
        assert_eq!(flat.unwrap_err().kind(), Kind::BadContent, "{layer:?}");
    }
}

#[test]
fn whiteouts_without_devices_are_marked_files() {
    let directory = tempfile::tempdir().unwrap();
    let form = Form::Overlay { user_xattrs: true };
    let mut unpacker = Unpacker::new(open(directory.path()), form, privilege()).unwrap();
    unpacker.enter(b"d").unwrap();
    unpacker.hidden.make_xattr_whiteout(&unpacker.parents, b"d", b"gone").unwrap();
    unpacker.finish().unwrap();
    let root = Root::open(directory.path()).unwrap();
    let mut paths = Vec::new();
    let mut emit = |entry: Entry, _: &mut dyn Read| {
        paths.push(entry.path.to_string());
        Ok(())
    };
    crate::snapshot_diff::upper_entries(&root, &mut emit).unwrap();
    assert_eq!(paths, ["/d", "/d/.wh.gone"]);
    let fd = root.open_directory(Path::new("d")).unwrap();
    let mark = imgctl_base::fs::xattr::get(&fd, b"user.overlay.opaque").unwrap();
    assert_eq!(mark, Some(b"x".to_vec()));
}
