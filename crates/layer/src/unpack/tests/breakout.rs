//! Layers that try to write outside the root: whatever they do, the files next to it must not
//! change.

use super::*;

/// Paths and link targets. `OUT` stands for the absolute path of the target directory of the
/// attack, which is also reachable as `../out` from the root.
const ATTACKS: &[(&str, &[&str])] = &[
    ("file through an absolute link", &["l a OUT", "f a/secret pwned"]),
    ("file through a relative link", &["l a ../out", "f a/secret pwned"]),
    ("new file through a link", &["l a ../out", "f a/new pwned"]),
    ("deeper through a link", &["l a ../out", "f a/sub/new pwned"]),
    ("file through two links", &["l b ../out", "l a b", "f a/secret pwned"]),
    ("file through a chain", &["l x ..", "l y x/out", "f y/secret pwned"]),
    ("file through a link in a directory", &["d d", "l d/a ../../out", "f d/a/secret pwned"]),
    ("file over a link to a file", &["l a OUT/secret", "f a pwned"]),
    ("file over a dangling link", &["l a OUT/created", "f a pwned"]),
    ("directory through a link", &["l a ../out", "d a/new"]),
    ("chmod of a linked directory", &["l a ../out", "d a 777"]),
    ("chmod of a linked file", &["l a ../out/secret", "d a 777"]),
    ("chmod of a linked directory, in a directory", &["d d", "l d/a ../../out", "d d/a 777"]),
    ("link through a link", &["l a ../out", "l a/new target"]),
    ("fifo through a link", &["l a ../out", "p a/new"]),
    ("fifo over a link", &["l a OUT/created", "p a"]),
    ("hard link to a link, then write", &["l a ../out/secret", "h b a", "f b pwned"]),
    ("hard link through a link", &["l a ../out", "h b a/secret"]),
    ("hard link through an absolute link", &["l a OUT", "h b a/secret", "f b pwned"]),
    ("hard link placed through a link", &["l a ../out", "f x 1", "h a/new x"]),
    ("hard link to a linked directory", &["l a ../out", "h b a", "f b/secret pwned"]),
    ("hard link, then chmod", &["l a ../out", "h b a", "d b 777"]),
    ("whiteout through a link", &["l a ../out", "f a/.wh.secret"]),
    ("whiteout of a link", &["l a ../out", "f .wh.a"]),
    ("opaque through a link", &["l a ../out", "f a/.wh..wh..opq"]),
    ("opaque in a link's directory", &["l a ../out", "f a/sub/.wh..wh..opq"]),
    ("whiteout of the parent", &["f a/.wh..."]),
    ("whiteout of the parent in the root", &["f .wh..."]),
    ("directory becomes a link", &["d a", "f a/x 1", "l a ../out", "f a/secret pwned"]),
    ("directory becomes a link and back", &["d a", "l a ../out", "d a", "f a/secret ok"]),
    ("parent of the current becomes a link", &["f a/b/x 1", "l a ../out", "f a/b/y pwned"]),
    ("link becomes a directory", &["l a ../out", "d a", "f a/.wh.secret", "f a/secret ok"]),
    ("the root is a link", &["l . OUT", "f secret pwned"]),
    ("the root is a file", &["f . pwned"]),
    ("the root is a hard link", &["h . out/secret", "f secret pwned"]),
    ("replace a link's tree", &["l a ../out", "f a pwned", "d a", "f a 2"]),
    ("link to itself", &["l a a", "f a/b 1", "d a/c"]),
    ("link to the root's parent", &["l up ..", "f up/out/secret pwned", "d up 777"]),
    ("slash and dots in a name", &["f a/./../out/secret pwned"]),
    ("absolute name", &["f OUT/secret pwned", "d OUT 777"]),
    ("opaque over a tree with a link", &["d d", "l d/a ../../out", "f .wh.d", "f d/.wh..wh..opq"]),
    ("through /proc", &["l a /proc/self/cwd", "f a/new pwned", "l b /proc/self/root", "f b/x 1"]),
];

/// Returns everything about a tree that an attack could change, including change times.
fn state(directory: &Path) -> Vec<String> {
    let root = Root::open(directory).unwrap();
    let metadata = std::fs::metadata(directory).unwrap();
    let mut lines = vec![format!("{:o} {:?}", metadata.mode(), metadata.mtime_nsec())];
    walk(&root, &mut |_, _| Visit::Keep, &mut |found| {
        lines.push(format!("{:?} {:?}", String::from_utf8_lossy(found.path), found.metadata));
        Ok(())
    })
    .unwrap();
    lines
}

/// Applies line by line and continues after errors, as a careless caller would.
fn attack(root: &Path, form: Form, layers: &[&[String]]) {
    let mut unpacker = Unpacker::new(open(root), form, privilege()).unwrap();
    for (number, layer) in layers.iter().enumerate() {
        if number > 0 {
            unpacker.next_layer();
        }
        for line in *layer {
            let Ok((entry, content)) = try_entry(line) else {
                continue;
            };
            let _ = unpacker.apply(&entry, &mut &content[..], &NoLowerFiles);
        }
    }
    let _ = unpacker.finish();
}

#[test]
fn nothing_outside_is_ever_touched() {
    for (name, lines) in ATTACKS {
        for form in [overlay(), Form::Flat] {
            for split in [false, true] {
                let directory = tempfile::tempdir().unwrap();
                let (out, root) = (directory.path().join("out"), directory.path().join("root"));
                std::fs::create_dir_all(out.join("sub")).unwrap();
                std::fs::create_dir(&root).unwrap();
                std::fs::write(out.join("secret"), "secret").unwrap();
                let lines: Vec<String> =
                    lines.iter().map(|line| line.replace("OUT", out.to_str().unwrap())).collect();
                let before = state(&out);
                let layers: Vec<&[String]> =
                    if split { lines.chunks(1).collect() } else { vec![&lines] };
                attack(&root, form, &layers);
                assert_eq!(state(&out), before, "{name}, {form:?}");
                let names = directory::names(open(directory.path())).unwrap();
                assert_eq!(names.len(), 2, "{name}, {form:?}");
                assert_eq!(std::fs::read(out.join("secret")).unwrap(), b"secret", "{name}");
            }
        }
    }
}
