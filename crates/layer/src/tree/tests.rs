//! Layers stacked according to the image specification.

use super::*;

fn path(text: &str) -> LayerPath {
    LayerPath::parse(text.as_bytes()).unwrap()
}

/// Parses `d/` as directory, `f=content` as file, `s>target` as symlink, `h@target` as hard link
/// and anything else as an empty file.
fn toc(lines: &[&str]) -> Toc {
    let mut toc = Toc::default();
    for line in lines {
        let (name, kind, mode) = if let Some(name) = line.strip_suffix('/') {
            (name, EntryKind::Directory, 0o711)
        } else if let Some((name, content)) = line.split_once('=') {
            let size = content.len() as u64;
            (name, EntryKind::File { size }, 0o644)
        } else if let Some((name, target)) = line.split_once('>') {
            let target = target.as_bytes().to_vec();
            (name, EntryKind::Symlink { target }, 0o777)
        } else if let Some((name, target)) = line.split_once('@') {
            let target = path(target);
            (name, EntryKind::HardLink { target }, 0o644)
        } else {
            (*line, EntryKind::File { size: 0 }, 0o644)
        };
        toc.entries.push(TocEntry {
            entry: Entry::new(path(name), kind, mode),
            offset: 0,
            content: None,
        });
    }
    toc
}

fn tree(layers: &[&[&str]]) -> Tree {
    Tree::from_layers(layers.iter().map(|lines| Arc::new(toc(lines)))).unwrap()
}

/// Returns every path with the layer that provides it; `-` for implied directories.
fn listing(tree: &Tree) -> String {
    let mut lines = Vec::new();
    for (path, found) in tree.walk(&LayerPath::root()) {
        let layer = found.layer.map_or("-".to_owned(), |layer| layer.to_string());
        let slash = if found.entry().is_directory() { "/" } else { "" };
        if !path.is_root() {
            let name = String::from_utf8_lossy(path.as_bytes()).into_owned();
            lines.push(format!("{name}{slash}:{layer}"));
        }
    }
    lines.join(" ")
}

#[test]
fn layers_stack_by_the_rules() {
    let cases: &[(&str, &[&[&str]], &str)] = &[
        ("one layer", &[&["b", "a/", "a/x"]], "a/:0 a/x:0 b:0"),
        ("a parent nobody lists", &[&["a/b/c"]], "a/:- a/b/:- a/b/c:0"),
        ("last duplicate wins", &[&["a", "a/", "a/b"]], "a/:0 a/b:0"),
        ("upper file wins", &[&["a", "b"], &["a"]], "a:1 b:0"),
        ("whiteout", &[&["d/", "d/a", "d/b"], &["d/.wh.a"]], "d/:0 d/b:0"),
        ("whiteout of a tree", &[&["d/", "d/a", "e"], &[".wh.d"]], "e:0"),
        ("a whiteout does not touch its own layer", &[&["a"], &["a", ".wh.a"]], "a:1"),
        ("nor when it stands first", &[&["d/", "d/a"], &[".wh.d", "d/", "d/b"]], "d/:1 d/b:1"),
        ("whiteout of nothing", &[&["a"], &["x/.wh.y", ".wh.z"]], "a:0"),
        (
            "opaque hides lower content wherever it stands",
            &[&["d/", "d/a"], &["d/", "d/b", "d/.wh..wh..opq"]],
            "d/:1 d/b:1",
        ),
        ("opaque root", &[&["a"], &["b", ".wh..wh..opq"]], "b:1"),
        ("leftovers of aufs", &[&[".wh..wh.plnk", "a"]], "a:0"),
        ("directory over directory keeps children", &[&["d/", "d/a"], &["d/"]], "d/:1 d/a:0"),
        ("file over directory", &[&["d/", "d/a"], &["d"]], "d:1"),
        ("directory over file", &[&["d"], &["d/", "d/a"]], "d/:1 d/a:1"),
        ("entry below a file replaces it", &[&["d"], &["d/a"]], "d/:- d/a:1"),
        (
            "entry below a symlink replaces it",
            &[&["l>d", "d/", "d/x"], &["l/a"]],
            "d/:0 d/x:0 l/:- l/a:1",
        ),
        ("sorted bytewise by name", &[&["a/", "a/b", "a-b", "a.b"]], "a/:0 a/b:0 a-b:0 a.b:0"),
    ];
    for (name, layers, expected) in cases {
        assert_eq!(listing(&tree(layers)), *expected, "{name}");
    }
}

#[test]
fn hard_links_share_the_file_and_outlive_its_name() {
    let tree = tree(&[&["a=content", "b@a", "c@b"], &[".wh.a", "c=new"]]);
    let b = tree.lookup(&path("b")).unwrap();
    assert_eq!(b.entry().kind, EntryKind::File { size: 7 });
    assert_eq!(b.entry().path, path("a"));
    assert!(tree.lookup(&path("a")).is_none());
    assert_ne!(tree.lookup(&path("c")).unwrap().inode, b.inode);

    let replaced = Tree::from_layers([Arc::new(toc(&["a=old", "b@a", "a=newer"]))]).unwrap();
    let b = replaced.lookup(&path("b")).unwrap();
    assert_eq!(b.entry().size(), 3);
    for bad in [&["b@a"][..], &["a/", "b@a"]] {
        assert!(Tree::new().apply(toc(bad)).is_err(), "{bad:?}");
    }
}

type Change<'a> = &'a dyn Fn(&mut Entry);

#[test]
fn a_hard_link_says_of_its_file_what_the_file_says() {
    let with = |link: Change<'_>, lines: &[&str]| {
        let mut toc = toc(lines);
        link(&mut toc.entries.last_mut().unwrap().entry);
        toc
    };
    let attribute = |value: &[u8]| {
        let value = value.to_vec();
        move |entry: &mut Entry| drop(entry.xattrs.insert(b"user.a".to_vec(), value.clone()))
    };
    let apply = |layer: Toc| {
        let mut lower = with(&attribute(b"1"), &["l=content"]);
        lower.entries.extend(toc(&["s>x"]).entries);
        let mut tree = Tree::from_layers([Arc::new(lower)]).unwrap();
        tree.apply(layer).map_err(|error| error.to_string())
    };
    // Times, and attributes that only the file has, change nothing; symlinks have no mode.
    let harmless: [(&[&str], Change<'_>); 4] = [
        (&["a", "b@a"], &|entry| entry.mtime.seconds = 7),
        (&["b@l"], &|entry| entry.mtime.seconds = 7),
        (&["b@l"], &attribute(b"1")),
        (&["b@s"], &|entry| entry.mode = 0o4755),
    ];
    for (lines, link) in harmless {
        assert_eq!(apply(with(link, lines)), Ok(()), "{lines:?}");
    }
    let cases: [(&[&str], Change<'_>, &str); 7] = [
        (&["a", "b@a"], &|entry| entry.mode = 0o4644, "mode"),
        (&["a", "a@a"], &|entry| entry.mode = 0o600, "mode"),
        (&["b@l"], &|entry| entry.mode = 0o777, "mode"),
        (&["a", "b@a"], &|entry| entry.uid = 1, "owner"),
        (&["b@s"], &|entry| entry.gid = 1, "owner"),
        (&["a", "b@a"], &attribute(b""), "`user.a`"),
        (&["b@l"], &attribute(b"2"), "`user.a`"),
    ];
    for (lines, link, what) in cases {
        let error = apply(with(link, lines)).unwrap_err();
        let name = if lines[1..].contains(&"a@a") { "`/a`" } else { "`/b`" };
        assert!(error.contains(name) && error.contains(what), "{lines:?}: {error}");
    }
}

#[test]
fn hard_links_precede_the_opaque_marker_that_replaces_their_target() {
    let cases: &[(&[&str], Option<&str>)] = &[
        (&["b@a", "a/.wh..wh..opq"], Some("a/:- b:0")),
        (&["b@a", "a/c/.wh..wh..opq"], Some("a/:- a/c/:- b:0")),
        (&["b@a", "a/.wh..wh..opq", "a/x"], Some("a/:- a/x:1 b:0")),
        (&["a@a", "a/.wh..wh..opq"], Some("a:0")),
        (&["a/.wh..wh..opq", "b@a"], None),
        (&["a/c/.wh..wh..opq", "b@a"], None),
        (&["a/", "b@a", "a/.wh..wh..opq"], None),
        (&["a/x", "b@a", "a/.wh..wh..opq"], None),
    ];
    for (layer, expected) in cases {
        let mut tree = tree(&[&["a"]]);
        let applied = tree.apply(toc(layer)).is_ok();
        assert_eq!(applied.then(|| listing(&tree)).as_deref(), *expected, "{layer:?}");
    }
}

#[test]
fn symlinks_resolve_inside_the_root() {
    let tree = tree(&[&[
        "usr/",
        "usr/lib/",
        "usr/lib/x",
        "lib>usr/lib",
        "abs>/usr",
        "up>../../../usr",
        "usr/back>../lib",
        "loop>loop",
        "a>b",
        "b>a",
        "gone>/no/such",
    ]]);
    for (from, to) in [
        ("lib/x", "usr/lib/x"),
        ("abs/lib", "usr/lib"),
        ("up/lib/x", "usr/lib/x"),
        ("usr/back/x", "usr/lib/x"),
        ("lib", "usr/lib"),
        ("lib/new/dir", "usr/lib/new/dir"),
        ("gone/x", "no/such/x"),
        ("usr/lib/x/y", "usr/lib/x/y"),
        ("", ""),
    ] {
        assert_eq!(tree.resolve(&path(from)).unwrap(), path(to), "{from}");
    }
    assert_eq!(tree.resolve_parent(&path("lib")).unwrap(), path("lib"));
    let through = tree.resolve_parent(&path("abs/back")).unwrap();
    assert_eq!(through, path("usr/back"));
    for bad in ["loop", "a/x"] {
        assert!(tree.resolve(&path(bad)).is_err(), "{bad}");
    }
}

#[test]
fn children_are_those_of_one_directory() {
    let tree = tree(&[&["d/", "d/b", "d/a/", "d/a/deep", "f"]]);
    let names: Vec<_> = tree.children(&path("d")).map(|(name, _)| name).collect();
    assert_eq!(names, [&b"a"[..], b"b"]);
    assert_eq!(tree.children(&path("f")).count(), 0);
    assert_eq!(tree.children(&path("none")).count(), 0);
    assert_eq!(tree.walk(&path("d/a")).count(), 2);
}

#[test]
fn a_hostile_layer_cannot_imply_endless_directories() {
    let mut hostile = Toc::default();
    for index in 0..=MAX_IMPLIED / 500 {
        let name = format!("{index}{}", "/a".repeat(500));
        hostile.entries.extend(toc(&[&name]).entries);
    }
    assert!(Tree::new().apply(hostile).is_err());
}

#[test]
fn the_root_takes_the_metadata_that_is_listed() {
    assert_eq!(tree(&[&["a"]]).lookup(&LayerPath::root()).unwrap().entry().mode, 0o755);
    assert_eq!(tree(&[&["/"]]).lookup(&LayerPath::root()).unwrap().entry().mode, 0o711);
    assert!(Tree::new().apply(toc(&["."])).is_err());
}
