//! What a name means to the layers below it: ordinary, deleted, hidden or left over (image-spec,
//! layer.md "Whiteouts").
//!
//! Only names are judged here; what is done about them is up to the tree and the unpacker.

use crate::error::{Error, Result};
use crate::layer::LayerPath;

const PREFIX: &[u8] = b".wh.";
const META_PREFIX: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// What an entry's name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    /// An entry like any other.
    None,
    /// This path of the layers below is gone; the same layer's own entries are not touched.
    Whiteout(LayerPath),
    /// Everything the layers below have in this directory is hidden.
    Opaque(LayerPath),
    /// Bookkeeping of aufs (`.wh..wh.plnk` and the like): skipped, never created.
    Leftover,
}

/// Judges `path`. A bare `.wh.` names nothing and is refused, as is what lies below a whiteout:
/// such a directory could be put into no other layer. What lies in the folders that aufs left
/// behind means nothing either.
pub(crate) fn marker(path: &LayerPath) -> Result<Marker> {
    let Some(name) = path.file_name() else {
        return Ok(Marker::None);
    };
    let mut above = path.components();
    above.next_back();
    if let Some(component) = above.find(|component| is_reserved(component)) {
        if component.starts_with(META_PREFIX) && component != OPAQUE {
            return Ok(Marker::Leftover);
        }
        return Err(Error::bad_content(format!(
            "`{path}` lies below a whiteout"
        )));
    }
    let Some(hidden) = name.strip_prefix(PREFIX) else {
        return Ok(Marker::None);
    };
    let parent = path.parent().unwrap_or_default();
    if name == OPAQUE {
        return Ok(Marker::Opaque(parent));
    }
    if name.starts_with(META_PREFIX) {
        return Ok(Marker::Leftover);
    }
    match hidden {
        b"" | b"." | b".." => Err(Error::bad_content(format!(
            "`{path}` is a whiteout that names nothing"
        ))),
        _ => Ok(Marker::Whiteout(parent.join(hidden))),
    }
}

/// A hard link to something below its own name would replace the directory that its target is in.
pub(crate) fn check_link(path: &LayerPath, target: &LayerPath) -> Result<()> {
    if target != path && target.starts_with(path) {
        return Err(Error::bad_content(format!(
            "`{path}` is a hard link to `{target}`, which it replaces"
        )));
    }
    Ok(())
}

/// Why a character device 0/0 is no part of an image: overlayfs takes it for a deleted file.
pub(crate) fn device_refused(path: &LayerPath) -> Error {
    Error::bad_content(format!(
        "`{path}` is a character device 0/0, which cannot be told from a deleted file"
    ))
}

/// Whether a file of this name cannot be put into a layer, because every reader would take it for
/// a whiteout. Builders refuse it by name.
pub(crate) fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

/// The marker file that deletes `path` in the layers below; the root cannot be deleted.
pub(crate) fn whiteout_path(path: &LayerPath) -> Option<LayerPath> {
    let mut name = PREFIX.to_vec();
    name.extend_from_slice(path.file_name()?);
    Some(path.parent()?.join(&name))
}

/// The marker file that hides what the layers below have in `directory`.
pub(crate) fn opaque_path(directory: &LayerPath) -> LayerPath {
    directory.join(OPAQUE)
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
            ("a/.wh.b", Marker::Whiteout(path("a/b"))),
            (".wh.b", Marker::Whiteout(path("b"))),
            (".wh.b.wh.c", Marker::Whiteout(path("b.wh.c"))),
            ("a/.wh..b", Marker::Whiteout(path("a/.b"))),
            ("a/.wh..wh..opq", Marker::Opaque(path("a"))),
            (".wh..wh..opq", Marker::Opaque(LayerPath::root())),
            (".wh..wh.plnk", Marker::Leftover),
            ("a/.wh..wh..opq2", Marker::Leftover),
            (".wh..wh.", Marker::Leftover),
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
        ] {
            assert!(marker(&path(bad)).is_err(), "{bad}");
        }
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
