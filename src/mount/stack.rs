//! Snapshots stacked so that overlayfs shows exactly the image's merged tree.
//!
//! Two things overlayfs would show otherwise: an opaque marker at an image's root (it ignores
//! that attribute on a lower's root), and directories that a layer implies (`implied.rs`). The
//! first ends the stack; for the second the top of the stack gets the right metadata.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid};

use crate::error::{Error, IoContext, Kind, Result};
use crate::fs::metadata::Metadata;
use crate::fs::root::Root;
use crate::fs::xattr;
use crate::layer::LayerPath;
use crate::mount::implied::{Below, Implied};

/// One snapshot and the directories that it made up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Its `fs` directory.
    pub(crate) fs: PathBuf,
    pub(crate) implied: Implied,
}

/// Snapshots, lowest first, and what has to be corrected above them.
#[derive(Debug)]
pub(crate) struct Stack {
    snapshots: Vec<Snapshot>,
    /// The lowest that shows; those below it only lend the root's metadata.
    first: usize,
    user_xattrs: bool,
}

/// A directory's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Dressing {
    mode: u32,
    /// `None`: as a new directory has it.
    owner: Option<(u32, u32)>,
    mtime: (i64, u32),
    xattrs: xattr::Xattrs,
}

impl Default for Dressing {
    /// A directory that no layer lists.
    fn default() -> Self {
        Self {
            mode: 0o755,
            owner: None,
            mtime: (0, 0),
            xattrs: xattr::Xattrs::new(),
        }
    }
}

/// What one snapshot says about a path.
enum Seen {
    /// Nothing: the next lower one decides.
    Absent,
    /// Something else lies here or on the way: nothing below is visible.
    Hidden,
    Directory {
        /// A directory on the way is opaque.
        in_opaque: bool,
    },
}

impl Stack {
    /// Stacks `snapshots`, lowest first, leaving out what an opaque root hides.
    pub(crate) fn new(snapshots: Vec<Snapshot>, user_xattrs: bool) -> Result<Self> {
        let mut stack = Self {
            snapshots,
            first: 0,
            user_xattrs,
        };
        let mut first = 0;
        for (number, snapshot) in stack.snapshots.iter().enumerate().skip(1) {
            let root = Root::open(&snapshot.fs)?;
            if stack.is_opaque(&root, &LayerPath::root())? {
                first = number;
            }
        }
        stack.first = first;
        Ok(stack)
    }

    /// The snapshots' directories, lowest first.
    pub(crate) fn lowers(&self) -> Vec<PathBuf> {
        self.snapshots
            .iter()
            .skip(self.first)
            .map(|snapshot| snapshot.fs.clone())
            .collect()
    }

    /// Whether the snapshots' marks are `user.overlay.*`.
    pub(crate) fn user_xattrs(&self) -> bool {
        self.user_xattrs
    }

    /// Gives the directory `path` (an upper directory) the metadata of the image's root.
    pub(crate) fn dress_root(&self, path: &Path) -> Result<()> {
        let roots = self.roots()?;
        let dressing = self.dressing(&roots, &LayerPath::root())?;
        dressing.put_on(&Root::open(path)?, &LayerPath::root())
    }

    /// Fills the empty directory `top` with the directories that the snapshots show wrongly;
    /// false if there are none (then `top` is not needed).
    pub(crate) fn correct(&self, top: &Path) -> Result<bool> {
        let roots = self.roots()?;
        let mut wrong: BTreeMap<LayerPath, Dressing> = BTreeMap::new();
        let implied: BTreeSet<&LayerPath> = self
            .snapshots
            .iter()
            .skip(self.first.max(1))
            .flat_map(|snapshot| snapshot.implied.keys())
            .collect();
        for path in implied {
            if let (Some(number), true) = self.ruling(&roots, path)? {
                wrong.insert(path.clone(), Dressing::of(&roots[number], path)?);
            }
        }
        if wrong.is_empty() {
            return Ok(false);
        }
        // A directory in `top` shows its own metadata, so the ancestors need theirs as well.
        let paths: Vec<LayerPath> = wrong.keys().cloned().collect();
        for path in paths {
            let mut ancestor = path.parent();
            while let Some(path) = ancestor {
                if !wrong.contains_key(&path) {
                    wrong.insert(path.clone(), self.dressing(&roots, &path)?);
                }
                ancestor = path.parent();
            }
        }
        let top = Root::open(top)?;
        for path in wrong.keys().filter(|path| !path.is_root()) {
            let name = top.path().join(path.as_path());
            std::fs::create_dir(&name).path("create", &name)?;
        }
        for (path, dressing) in wrong.iter().rev() {
            dressing.put_on(&top, path)?;
        }
        Ok(true)
    }

    fn roots(&self) -> Result<Vec<Root>> {
        self.snapshots
            .iter()
            .map(|snapshot| Root::open(&snapshot.fs))
            .collect()
    }

    fn dressing(&self, roots: &[Root], path: &LayerPath) -> Result<Dressing> {
        match self.ruling(roots, path)?.0 {
            Some(number) => Dressing::of(&roots[number], path),
            None => Ok(Dressing::default()),
        }
    }

    /// The uppermost snapshot that lists the directory `path`, and whether one above it made the
    /// directory up. `None` if none lists it or `path` is not a visible directory.
    fn ruling(&self, roots: &[Root], path: &LayerPath) -> Result<(Option<usize>, bool)> {
        let mut made_up = false;
        let last = if path.is_root() { 0 } else { self.first };
        for (number, root) in roots.iter().enumerate().skip(last).rev() {
            match self.see(root, path)? {
                Seen::Absent => {}
                Seen::Hidden => break,
                Seen::Directory { in_opaque } => {
                    match self.snapshots[number].implied.get(path) {
                        None => return Ok((Some(number), made_up)),
                        Some(Below::Deleted) => break,
                        Some(Below::Shows) => made_up = true,
                    }
                    if in_opaque {
                        break;
                    }
                }
            }
        }
        Ok((None, made_up))
    }

    fn see(&self, root: &Root, path: &LayerPath) -> Result<Seen> {
        let mut walked = LayerPath::root();
        let mut in_opaque = false;
        for name in path.components() {
            in_opaque |= self.is_opaque(root, &walked)?;
            walked = walked.join(name);
            match root.symlink_metadata(walked.as_path()) {
                Ok(metadata) if metadata.is_directory() => {}
                Ok(_) => return Ok(Seen::Hidden),
                Err(error) if error.kind() == Kind::NotFound && in_opaque => {
                    return Ok(Seen::Hidden);
                }
                Err(error) if error.kind() == Kind::NotFound => return Ok(Seen::Absent),
                Err(error) => return Err(error),
            }
        }
        Ok(Seen::Directory { in_opaque })
    }

    fn is_opaque(&self, root: &Root, path: &LayerPath) -> Result<bool> {
        let attribute: &[u8] = if self.user_xattrs {
            b"user.overlay.opaque"
        } else {
            b"trusted.overlay.opaque"
        };
        let name = root.path().join(path.as_path());
        let mut value = [0_u8; 8];
        match rustix::fs::lgetxattr(&name, OsStr::from_bytes(attribute), &mut value[..]) {
            Ok(length) => Ok(&value[..length] == b"y"),
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP) => Ok(false),
            Err(errno) => Err(Error::io(
                format!("cannot examine {}", name.display()),
                errno,
            )),
        }
    }
}

impl Dressing {
    fn of(root: &Root, path: &LayerPath) -> Result<Self> {
        let directory = root.open_directory(path.as_path())?;
        let shown = || root.path().join(path.as_path());
        let metadata = Metadata::of(&directory).path("examine", shown())?;
        let mut xattrs = xattr::read(&directory).path("examine", shown())?;
        xattrs.retain(|name, _| !is_overlay_internal(name));
        Ok(Self {
            mode: metadata.mode,
            owner: Some((metadata.uid, metadata.gid)),
            mtime: metadata.mtime,
            xattrs,
        })
    }

    fn put_on(&self, root: &Root, path: &LayerPath) -> Result<()> {
        let shown = || root.path().join(path.as_path());
        let directory = root.open_directory(path.as_path())?;
        let current = Metadata::of(&directory).path("examine", shown())?;
        if let Some((uid, gid)) = self.owner
            && (uid, gid) != (current.uid, current.gid)
        {
            rustix::fs::fchown(
                directory.as_fd(),
                Some(Uid::from_raw(uid)),
                Some(Gid::from_raw(gid)),
            )
            .path("set the owner of", shown())?;
        }
        rustix::fs::fchmod(directory.as_fd(), Mode::from_raw_mode(self.mode))
            .path("set the mode of", shown())?;
        for (name, value) in &self.xattrs {
            xattr::set(&directory, name, value).path("set the attributes of", shown())?;
        }
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT,
            },
            last_modification: Timespec {
                tv_sec: self.mtime.0,
                tv_nsec: i64::from(self.mtime.1),
            },
        };
        rustix::fs::futimens(&directory, &times).path("set the time of", shown())
    }
}

/// Attributes that overlayfs reads itself. An image's own of that name are escaped in snapshots
/// (`trusted.overlay.overlay.*`) and are copied as they are.
fn is_overlay_internal(name: &[u8]) -> bool {
    [&b"trusted.overlay."[..], b"user.overlay."]
        .iter()
        .any(|prefix| {
            name.strip_prefix(*prefix)
                .is_some_and(|rest| !rest.starts_with(b"overlay."))
        })
}

#[cfg(test)]
#[path = "stack_tests.rs"]
mod tests;
