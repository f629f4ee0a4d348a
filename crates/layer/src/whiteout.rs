//! The meaning of a name for the layers below: ordinary, whiteout, opaque or leftover (image-spec,
//! layer.md "Whiteouts").
//!
//! Classifies names only; the tree and the unpacker apply the result.

use crate::{Entry, EntryKind, LayerPath};
use imgctl_base::error::{Error, Result};
use imgctl_base::fs::metadata::{FileKind, Metadata};

const PREFIX: &[u8] = b".wh.";
const META_PREFIX: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Meaning of an entry's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marker {
    /// An ordinary entry.
    None,
    /// Deletes this path in the layers below; the layer's own entries are not affected.
    Whiteout(LayerPath),
    /// Hides everything that the layers below have in this directory.
    Opaque(LayerPath),
    /// An internal file of aufs ([`AUFS`]): skipped, never created.
    Leftover,
}

/// What aufs keeps at the top of a layer.
const AUFS: [&[u8]; 3] = [b".wh..wh.aufs", b".wh..wh.orph", b".wh..wh.plnk"];

/// Classifies `path`. Rejects a bare `.wh.`, which names nothing, anything below a whiteout, because no
/// other layer could contain such a directory, and names that begin as those of aufs without being one: other
/// programs create them.
pub fn marker(path: &LayerPath) -> Result<Marker> {
    let Some(name) = path.file_name() else {
        return Ok(Marker::None);
    };
    let mut above = path.components();
    above.next_back();
    if above.any(is_reserved) {
        if path.components().next().is_some_and(is_of_aufs) {
            return Ok(Marker::Leftover);
        }
        return Err(Error::bad_content(format!("`{path}` lies below a whiteout")));
    }
    let Some(hidden) = name.strip_prefix(PREFIX) else {
        return Ok(Marker::None);
    };
    let parent = path.parent().unwrap_or_default();
    if name == OPAQUE {
        return Ok(Marker::Opaque(parent));
    }
    if parent.is_root() && is_of_aufs(name) {
        return Ok(Marker::Leftover);
    }
    if name.starts_with(META_PREFIX) {
        return Err(Error::bad_content(format!(
            "`{path}` has a name like those of aufs, which some programs skip and others create"
        )));
    }
    match hidden {
        b"" | b"." | b".." => {
            Err(Error::bad_content(format!("`{path}` is a whiteout without a name")))
        }
        _ => Ok(Marker::Whiteout(parent.join(hidden))),
    }
}

fn is_of_aufs(name: &[u8]) -> bool {
    AUFS.contains(&name)
}

/// Rejects a marker that programs do not all take for one: a symlink, which some follow for later names of the
/// layer, and what aufs cannot have left behind, because some create it.
pub(crate) fn check_marker(entry: &Entry) -> Result<()> {
    let marker = marker(&entry.path)?;
    let is_of_aufs = marker == Marker::Leftover;
    let is_good = match &entry.kind {
        _ if marker == Marker::None => true,
        EntryKind::Symlink { .. } => false,
        EntryKind::Directory => true,
        EntryKind::File { size } => !is_of_aufs || *size == 0,
        EntryKind::HardLink { target } => {
            !is_of_aufs || target.file_name().is_some_and(is_reserved)
        }
        EntryKind::CharDevice { .. } | EntryKind::BlockDevice { .. } | EntryKind::Fifo => {
            !is_of_aufs
        }
    };
    if is_good {
        return Ok(());
    }
    Err(Error::bad_content(format!(
        "`{}` has the name of a whiteout and is more than that: some programs create it",
        entry.path
    )))
}

/// Rejects a hard link to something below its own name, which would replace the directory of its
/// target.
pub(crate) fn check_link(path: &LayerPath, target: &LayerPath) -> Result<()> {
    if target != path && target.starts_with(path) {
        return Err(Error::bad_content(format!(
            "`{path}` is a hard link to `{target}`, which it replaces"
        )));
    }
    Ok(())
}

/// Returns the error for a character device 0/0, which an image cannot contain because overlayfs
/// treats it as a deleted file.
pub(crate) fn device_refused(path: &LayerPath) -> Error {
    Error::bad_content(format!(
        "`{path}` is a character device 0/0, which cannot be distinguished from a deleted file"
    ))
}

/// Returns whether a file of this name cannot be part of a layer, because every reader would treat
/// it as a whiteout. Builders reject it by name.
pub(crate) fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

/// Returns the marker file that deletes `path` in the layers below; the root cannot be deleted.
pub fn whiteout_path(path: &LayerPath) -> Option<LayerPath> {
    let mut name = PREFIX.to_vec();
    name.extend_from_slice(path.file_name()?);
    Some(path.parent()?.join(&name))
}

/// Returns the marker file that hides what the layers below have in `directory`.
pub(crate) fn opaque_path(directory: &LayerPath) -> LayerPath {
    directory.join(OPAQUE)
}

/// Returns whether overlayfs treats a file as deleted: a 0/0 device, or an empty file whose attribute
/// says so.
pub fn is_overlay_whiteout(
    metadata: &Metadata,
    is_marked: impl FnOnce() -> Result<bool>,
) -> Result<bool> {
    match metadata.kind {
        FileKind::CharDevice => Ok(metadata.device == (0, 0)),
        FileKind::File if metadata.size == 0 => is_marked(),
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> LayerPath {
        LayerPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn names_say_what_they_mean() {
        for (name, expected) in [
            ("a/b", Marker::None),
            ("", Marker::None),
            ("a/x.wh.b", Marker::None),
            (".wh..wh.plnk/a/.wh.b", Marker::Leftover),
            (".wh..wh.aufs", Marker::Leftover),
            ("a/.wh.b", Marker::Whiteout(path("a/b"))),
            (".wh.b", Marker::Whiteout(path("b"))),
            (".wh.b.wh.c", Marker::Whiteout(path("b.wh.c"))),
            ("a/.wh..b", Marker::Whiteout(path("a/.b"))),
            ("a/.wh..wh..opq", Marker::Opaque(path("a"))),
            (".wh..wh..opq", Marker::Opaque(LayerPath::root())),
            (".wh..wh.plnk", Marker::Leftover),
        ] {
            assert_eq!(marker(&path(name)).unwrap(), expected, "{name}");
        }
        for bad in [
            ".wh.",
            "a/.wh.",
            "a/.wh..",
            "a/.wh...",
            ".wh./a",
            "a/.wh.b/c",
            ".wh..wh..opq/a",
            ".wh..wh.",
            ".wh..wh.x",
            ".wh..wh.x/sh",
            "a/.wh..wh.plnk",
            "a/.wh..wh.plnk/1",
            "a/.wh..wh..opq2",
        ] {
            assert!(marker(&path(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn markers_are_nothing_else() {
        let check = |name: &str, kind| check_marker(&Entry::new(path(name), kind, 0o644)).is_ok();
        let link = |target: &str| EntryKind::HardLink { target: path(target) };
        let symlink = || EntryKind::Symlink { target: b"/etc".to_vec() };
        for (name, is_of_aufs) in [
            ("a/.wh.b", false),
            ("a/.wh..wh..opq", false),
            (".wh..wh.plnk", true),
            (".wh..wh.plnk/1", true),
        ] {
            assert!(check(name, EntryKind::File { size: 0 }), "{name}");
            assert!(check(name, EntryKind::Directory), "{name}");
            assert!(check(name, link(".wh..wh.aufs")), "{name}");
            assert!(!check(name, symlink()), "{name}");
            assert_eq!(check(name, EntryKind::File { size: 1 }), !is_of_aufs, "{name}");
            assert_eq!(check(name, link("bin/sh")), !is_of_aufs, "{name}");
            assert_eq!(check(name, EntryKind::Fifo), !is_of_aufs, "{name}");
        }
        assert!(check("a/b", symlink()) && check("a/b", EntryKind::File { size: 1 }));
    }

    #[test]
    fn written_markers_read_back() {
        let whiteout = whiteout_path(&path("a/b")).unwrap();
        assert_eq!(marker(&whiteout).unwrap(), Marker::Whiteout(path("a/b")));
        let opaque = opaque_path(&path("a"));
        assert_eq!(marker(&opaque).unwrap(), Marker::Opaque(path("a")));
        assert_eq!(whiteout_path(&LayerPath::root()), None);
        assert!(is_reserved(b".wh.x") && !is_reserved(b"x.wh."));
    }
}
