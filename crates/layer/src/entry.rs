//! One entry of a layer, independent of the source stream: path, type, metadata.
//!
//! Names are bytes. Content is passed alongside the entry, never inside it.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use imgctl_base::error::{Error, Result};
use imgctl_base::fs::metadata::FileKind;
use imgctl_base::fs::walk::Found;
use imgctl_base::fs::xattr::Xattrs;
use imgctl_base::image::LayerKind;

/// A path inside an image: relative to its root, separated by `/`, without empty, `.` or `..`
/// components. The empty path is the root itself.
///
/// A build knows all paths of a step at once, each in several lists: clones share their bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LayerPath(Arc<[u8]>);

impl LayerPath {
    /// Returns the image's root.
    pub fn root() -> Self {
        Self::default()
    }

    /// Parses a name as tars and users write it: removes leading `/` and `./`, and rejects `..` and
    /// NUL (the oldest attack on unpackers).
    pub fn parse(name: &[u8]) -> Result<Self> {
        if name.split(|b| *b == b'/').any(|component| component == b"..") {
            return Err(refuse(name, "leads outside the image with `..`"));
        }
        Self::clean(name).map(|(path, _)| path)
    }

    /// Returns the path of an entry that a walk has found: those are in normal form.
    pub fn found(found: &Found<'_>) -> Self {
        Self(found.path.into())
    }

    /// Parses a name as Go's `path.Clean` does: `..` removes the preceding component, whatever it
    /// is, and stops at the root. Also returns whether the name leads above the root. Rejects NUL.
    pub fn clean(name: &[u8]) -> Result<(Self, bool)> {
        if name.contains(&0) {
            return Err(refuse(name, "contains a NUL byte"));
        }
        let mut path: Vec<u8> = Vec::with_capacity(name.len());
        let mut leaves = false;
        for component in name.split(|b| *b == b'/') {
            match component {
                b"" | b"." => {}
                b".." => {
                    leaves |= path.is_empty();
                    let end = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
                    path.truncate(end);
                }
                _ => {
                    if !path.is_empty() {
                        path.push(b'/');
                    }
                    path.extend_from_slice(component);
                }
            }
        }
        Ok((Self(path.into()), leaves))
    }

    /// Returns the bytes, without a leading or trailing slash.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns a relative path for file operations.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// Returns whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the last component; `None` for the root.
    pub fn file_name(&self) -> Option<&[u8]> {
        self.0.rsplit(|b| *b == b'/').next().filter(|name| !name.is_empty())
    }

    /// Returns the path without its last component; `None` for the root.
    pub fn parent(&self) -> Option<LayerPath> {
        self.parent_bytes().map(|path| Self(path.into()))
    }

    /// Returns the bytes of [`LayerPath::parent`].
    pub fn parent_bytes(&self) -> Option<&[u8]> {
        if self.is_root() {
            return None;
        }
        let end = self.0.iter().rposition(|b| *b == b'/').unwrap_or(0);
        Some(&self.0[..end])
    }

    /// Returns this path with one more component, which must not contain `/`.
    pub fn join(&self, name: &[u8]) -> LayerPath {
        if self.is_root() {
            return Self(name.into());
        }
        let mut path = Vec::with_capacity(self.0.len() + 1 + name.len());
        path.extend_from_slice(&self.0);
        path.push(b'/');
        path.extend_from_slice(name);
        Self(path.into())
    }

    /// Returns the components in order.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|b| *b == b'/').filter(|component| !component.is_empty())
    }

    /// Returns whether `self` is `other` or below it.
    pub fn starts_with(&self, other: &LayerPath) -> bool {
        other.is_root()
            || self
                .0
                .strip_prefix(other.as_bytes())
                .is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
    }

    /// Returns the kind of layer for this path of a cluster image (sealos' rootfs layout).
    pub fn layer_kind(&self) -> LayerKind {
        match self.components().next() {
            Some(b"registry") => LayerKind::Registry,
            Some(b"charts" | b"manifests" | b"addons" | b"applications") => LayerKind::Addons,
            _ => LayerKind::Rootfs,
        }
    }
}

fn refuse(name: &[u8], why: &str) -> Error {
    Error::bad_content(format!("path `{}` {why}", String::from_utf8_lossy(name)))
}

/// For display only: the conversion is lossy.
impl fmt::Display for LayerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for LayerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// A modification time: seconds since 1970 (may be negative) and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mtime {
    pub seconds: i64,
    pub nanoseconds: u32,
}

/// Type of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file of `size` bytes, including every `.wh.` marker (whiteout rules apply to
    /// names).
    File {
        size: u64,
    },
    Directory,
    Symlink {
        target: Vec<u8>,
    },
    /// Another name of an earlier file in the same layer (in foreign layers, also in a lower one).
    HardLink {
        target: LayerPath,
    },
    CharDevice {
        major: u32,
        minor: u32,
    },
    BlockDevice {
        major: u32,
        minor: u32,
    },
    Fifo,
}

impl EntryKind {
    /// Returns the type of a file that a walk has found; `None` for a socket, which archives cannot
    /// contain.
    pub fn of(found: &Found<'_>) -> Result<Option<Self>> {
        let (major, minor) = found.metadata.device;
        Ok(Some(match found.metadata.kind {
            FileKind::File => Self::File { size: found.metadata.size },
            FileKind::Directory => Self::Directory,
            FileKind::Symlink => Self::Symlink { target: found.read_link()? },
            FileKind::CharDevice => Self::CharDevice { major, minor },
            FileKind::BlockDevice => Self::BlockDevice { major, minor },
            FileKind::Fifo => Self::Fifo,
            FileKind::Socket => return Ok(None),
        }))
    }
}

/// One entry, with everything except its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub path: LayerPath,
    pub kind: EntryKind,
    /// The twelve permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Mtime,
    /// Extended attributes by their full name (`security.capability`, `user.x`).
    pub xattrs: Xattrs,
}

impl Entry {
    /// Returns an entry owned by root with `mode` and time 0.
    pub fn new(path: LayerPath, kind: EntryKind, mode: u32) -> Self {
        Self { path, kind, mode, uid: 0, gid: 0, mtime: Mtime::default(), xattrs: Xattrs::new() }
    }

    /// Returns the number of content bytes that follow the entry.
    pub fn size(&self) -> u64 {
        match self.kind {
            EntryKind::File { size } => size,
            _ => 0,
        }
    }

    /// Returns whether this is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == EntryKind::Directory
    }
}

/// The label of a file, which belongs to the host's policy.
pub(crate) const SELINUX: &[u8] = b"security.selinux";

/// Returns whether an attribute of an image's file is left out: labels belong to the host's policy,
/// and `user.*` exists only for regular files and directories (xattr(7)).
pub fn is_left_out(kind: &EntryKind, name: &[u8]) -> bool {
    let takes_user = matches!(kind, EntryKind::File { .. } | EntryKind::Directory);
    name == SELINUX || name.starts_with(b"user.") && !takes_user
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalised_and_cannot_leave() {
        for (text, expected) in [
            ("./a//b/", "a/b"),
            ("/a", "a"),
            (".", ""),
            ("", ""),
            ("a/./b", "a/b"),
            ("..a/b..", "..a/b.."),
        ] {
            assert_eq!(LayerPath::parse(text.as_bytes()).unwrap().as_bytes(), expected.as_bytes());
        }
        for bad in ["..", "a/../b", "/../etc", "a\0b"] {
            assert!(LayerPath::parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn cleaned_paths_stay_inside() {
        for (text, expected, leaves) in [
            ("a/../b", "b", false),
            ("a/b/../../c/./d/", "c/d", false),
            ("..", "", true),
            ("/../../etc/passwd", "etc/passwd", true),
            ("a/../../b", "b", true),
            ("", "", false),
        ] {
            let (path, left) = LayerPath::clean(text.as_bytes()).unwrap();
            assert_eq!((path.as_bytes(), left), (expected.as_bytes(), leaves));
        }
        assert!(LayerPath::clean(b"a\0").is_err());
    }

    #[test]
    fn parents_and_prefixes() {
        let path = LayerPath::parse(b"a/b/c").unwrap();
        assert_eq!(path.parent().unwrap().as_bytes(), b"a/b");
        assert_eq!(path.file_name().unwrap(), b"c");
        assert_eq!(LayerPath::parse(b"a").unwrap().parent().unwrap(), LayerPath::root());
        assert!(LayerPath::root().parent().is_none());
        assert!(path.starts_with(&LayerPath::parse(b"a/b").unwrap()));
        assert!(!path.starts_with(&LayerPath::parse(b"a/bc").unwrap()));
        assert!(!LayerPath::parse(b"ab").unwrap().starts_with(&LayerPath::parse(b"a").unwrap()));
    }

    #[test]
    fn paths_have_kinds() {
        let kind = |text: &str| LayerPath::parse(text.as_bytes()).unwrap().layer_kind();
        assert_eq!(kind("registry/docker/x"), LayerKind::Registry);
        assert_eq!(kind("charts"), LayerKind::Addons);
        assert_eq!(kind("etc/registry"), LayerKind::Rootfs);
        assert_eq!(kind("registry2/x"), LayerKind::Rootfs);
    }
}
