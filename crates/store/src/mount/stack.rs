//! Stacks snapshots so that overlayfs shows exactly the image's merged tree.
//!
//! Without corrections, overlayfs shows the following differently: content below an opaque root (it
//! ignores that attribute on the root of a lower directory), directories that a layer implies,
//! directories that only hold whiteouts, and whiteouts in a directory that only one layer has. An
//! opaque root ends the stack; an additional directory on top corrects the others.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid};

use crate::mount::shapes::Shapes;
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::fs::metadata::Metadata;
use imgctl_base::fs::root::Root;
use imgctl_base::fs::xattr;
use imgctl_layer::LayerPath;
use imgctl_layer::whiteout::is_overlay_whiteout;

/// One snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its `fs` directory.
    pub fs: PathBuf,
    pub(crate) shapes: Shapes,
}

/// Snapshots, lowest first, and the corrections needed above them.
#[derive(Debug)]
pub(super) struct Stack {
    snapshots: Vec<Snapshot>,
    /// Index of the lowest visible snapshot. Those below it only provide the root's metadata.
    first: usize,
    user_xattrs: bool,
}

/// What one snapshot contains at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Nothing: the next lower snapshot decides.
    Absent,
    /// The path is deleted or cannot exist: nothing below is visible.
    Deleted,
    /// A file that is not a directory.
    Other,
    Directory {
        /// The directory or one of its ancestors is opaque: none of its content comes from below.
        opaque: bool,
        /// An ancestor is opaque, so the directory is unrelated to the lower directory of the same
        /// name.
        in_opaque: bool,
    },
}

/// Combined view of all snapshots on a path at which at least one of them has a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct View {
    /// A layer contains the directory itself, not just a whiteout inside it.
    exists: bool,
    /// The uppermost snapshot that lists the directory.
    ruling: Option<usize>,
    /// A higher snapshot created the directory although its layer only implies it.
    made_up: bool,
    /// Number of directories that overlayfs merges, and whether one of them holds a whiteout.
    merged: usize,
    whiteouts: bool,
    /// The uppermost snapshot with something other than a directory at this path.
    instead: Option<usize>,
}

/// Content of the correction directory on top of the stack.
#[derive(Default)]
struct Corrections {
    directories: BTreeMap<LayerPath, DirMetadata>,
    /// Paths to hide.
    gone: BTreeSet<LayerPath>,
    /// Paths that are not directories, regardless of the whiteouts of a higher layer, with their
    /// snapshots.
    restored: BTreeMap<LayerPath, usize>,
}

impl Stack {
    /// Stacks `snapshots`, lowest first, without those that an opaque root hides.
    pub(super) fn new(snapshots: Vec<Snapshot>, user_xattrs: bool) -> Result<Self> {
        let mut stack = Self { snapshots, first: 0, user_xattrs };
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

    /// Returns the directories of the snapshots, lowest first.
    pub(crate) fn lowers(&self) -> Vec<PathBuf> {
        self.snapshots.iter().skip(self.first).map(|snapshot| snapshot.fs.clone()).collect()
    }

    /// Returns whether the snapshots' markers are `user.overlay.*`.
    pub(crate) fn user_xattrs(&self) -> bool {
        self.user_xattrs
    }

    /// Sets the metadata of the image's root on the directory `path` (an upper directory).
    pub(crate) fn dress_root(&self, path: &Path) -> Result<()> {
        let roots = self.roots()?;
        let view = self.view(&roots, &LayerPath::root())?;
        let metadata = dir_metadata(&roots, &LayerPath::root(), view)?;
        metadata.put_on(&Root::open(path)?, &LayerPath::root())
    }

    /// Fills the empty directory `top` with corrections of what the snapshots show wrongly. Returns
    /// false if there is nothing to correct, in which case `top` is not needed.
    pub(super) fn correct(&self, top: &Path) -> Result<bool> {
        let roots = self.roots()?;
        let corrections = self.corrections(&roots)?;
        if corrections.directories.is_empty() {
            return Ok(false);
        }
        let top = Root::open(top)?;
        let place = |path: &LayerPath| top.path().join(path.as_path());
        for path in corrections.directories.keys().filter(|path| !path.is_root()) {
            std::fs::create_dir(place(path)).path("create", place(path))?;
        }
        for path in &corrections.gone {
            // Device 0/0 is a whiteout. Creating it needs no privileges (Linux 5.8).
            rustix::fs::mknodat(CWD, place(path), FileType::CharacterDevice, Mode::empty(), 0)
                .path("create the whiteout", place(path))?;
        }
        for (path, number) in &corrections.restored {
            let from = roots[*number].path().join(path.as_path());
            rustix::fs::linkat(CWD, &from, CWD, place(path), AtFlags::empty())
                .path("create the link", place(path))?;
        }
        for (path, metadata) in corrections.directories.iter().rev() {
            metadata.put_on(&top, path)?;
        }
        Ok(true)
    }

    fn corrections(&self, roots: &[Root]) -> Result<Corrections> {
        let mut corrections = Corrections::default();
        let candidates: BTreeSet<&LayerPath> = self
            .snapshots
            .iter()
            .skip(self.first)
            .flat_map(|snapshot| snapshot.shapes.keys())
            .collect();
        for path in candidates {
            if corrections.hides(path) {
                continue;
            }
            let view = self.view(roots, path)?;
            if view.merged == 0 {
                continue;
            }
            let parent = path.parent().filter(|_| !view.exists);
            if let Some(parent) = parent {
                match view.instead {
                    Some(number) => {
                        corrections.restored.insert(path.clone(), number);
                    }
                    None => {
                        corrections.gone.insert(path.clone());
                    }
                }
                self.add_directory(&mut corrections, roots, &parent)?;
                continue;
            }
            let is_wrong = view.made_up && view.ruling.is_some();
            // overlayfs lists the whiteouts of a directory that it does not merge with another.
            let shows_whiteouts = view.whiteouts && view.merged == 1 && !path.is_root();
            if is_wrong || shows_whiteouts {
                self.add_directory(&mut corrections, roots, path)?;
            }
        }
        Ok(corrections)
    }

    /// Adds a directory and its ancestors: a directory on top shows its own metadata, so each needs
    /// a copy.
    fn add_directory(
        &self,
        corrections: &mut Corrections,
        roots: &[Root],
        path: &LayerPath,
    ) -> Result<()> {
        let mut next = Some(path.clone());
        while let Some(path) = next {
            next = path.parent();
            if corrections.directories.contains_key(&path) {
                break;
            }
            let view = self.view(roots, &path)?;
            let metadata = dir_metadata(roots, &path, view)?;
            corrections.directories.insert(path, metadata);
        }
        Ok(())
    }

    fn roots(&self) -> Result<Vec<Root>> {
        self.snapshots.iter().map(|snapshot| Root::open(&snapshot.fs)).collect()
    }

    fn view(&self, roots: &[Root], path: &LayerPath) -> Result<View> {
        let mut view = View::default();
        // Whether lower directories still merge with those seen so far.
        let mut merges = true;
        let last = if path.is_root() { 0 } else { self.first };
        for (number, root) in roots.iter().enumerate().skip(last).rev() {
            match self.see(root, path)? {
                Seen::Absent => {}
                Seen::Deleted => break,
                Seen::Other => {
                    view.instead = Some(number);
                    break;
                }
                Seen::Directory { opaque, in_opaque } => {
                    let shapes = &self.snapshots[number].shapes;
                    let shape = shapes.get(path).copied().unwrap_or_default();
                    if merges {
                        view.merged += 1;
                        view.whiteouts |= shape.whiteouts;
                    }
                    merges &= !opaque;
                    view.exists |= !shape.only_markers;
                    if view.ruling.is_none() {
                        if shape.implied {
                            view.made_up = true;
                        } else {
                            view.ruling = Some(number);
                        }
                    }
                    let is_settled = view.ruling.is_some() && !merges;
                    let replaces = shape.replaces || opaque && !shape.marked_opaque;
                    if replaces || in_opaque || is_settled {
                        break;
                    }
                }
            }
        }
        Ok(view)
    }

    fn see(&self, root: &Root, path: &LayerPath) -> Result<Seen> {
        let mut walked = LayerPath::root();
        let mut in_opaque = false;
        let mut opaque = self.is_opaque(root, &walked)?;
        for name in path.components() {
            in_opaque |= opaque;
            walked = walked.join(name);
            match root.symlink_metadata(walked.as_path()) {
                Ok(metadata) if metadata.is_directory() => {
                    opaque = in_opaque || self.is_opaque(root, &walked)?;
                }
                Ok(metadata) if walked == *path => {
                    return Ok(
                        if is_overlay_whiteout(&metadata, || {
                            Ok(self.mark(root, path, "whiteout")?.is_some())
                        })? {
                            Seen::Deleted
                        } else {
                            Seen::Other
                        },
                    );
                }
                Ok(_) => return Ok(Seen::Deleted),
                Err(error) if error.kind() == Kind::NotFound && in_opaque => {
                    return Ok(Seen::Deleted);
                }
                Err(error) if error.kind() == Kind::NotFound => return Ok(Seen::Absent),
                Err(error) => return Err(error),
            }
        }
        Ok(Seen::Directory { opaque, in_opaque })
    }

    fn is_opaque(&self, root: &Root, path: &LayerPath) -> Result<bool> {
        Ok(self.mark(root, path, "opaque")?.as_deref() == Some(b"y"))
    }

    /// Reads the first bytes of an overlayfs attribute.
    fn mark(&self, root: &Root, path: &LayerPath, mark: &str) -> Result<Option<Vec<u8>>> {
        let namespace = if self.user_xattrs { "user" } else { "trusted" };
        let attribute = format!("{namespace}.overlay.{mark}");
        let name = root.path().join(path.as_path());
        let mut value = [0_u8; 8];
        match rustix::fs::lgetxattr(&name, OsStr::from_bytes(attribute.as_bytes()), &mut value[..])
        {
            Ok(length) => Ok(Some(value[..length].to_vec())),
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP) => Ok(None),
            Err(errno) => Err(Error::io(format!("cannot examine {}", name.display()), errno)),
        }
    }
}

impl Corrections {
    /// Returns whether `path` lies below a path that is hidden or not a directory.
    fn hides(&self, path: &LayerPath) -> bool {
        let mut ancestor = path.parent();
        while let Some(path) = ancestor {
            if self.gone.contains(&path) || self.restored.contains_key(&path) {
                return true;
            }
            ancestor = path.parent();
        }
        false
    }
}

fn dir_metadata(roots: &[Root], path: &LayerPath, view: View) -> Result<DirMetadata> {
    match view.ruling {
        Some(number) => DirMetadata::of(&roots[number], path),
        None => Ok(DirMetadata::default()),
    }
}

#[cfg(test)]
#[path = "stack_tests.rs"]
mod tests;

/// A directory's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DirMetadata {
    mode: u32,
    /// `None` keeps the owner of a new directory.
    owner: Option<(u32, u32)>,
    mtime: (i64, u32),
    xattrs: xattr::Xattrs,
}

impl Default for DirMetadata {
    /// Returns the metadata of a directory that no layer lists.
    fn default() -> Self {
        Self { mode: 0o755, owner: None, mtime: (0, 0), xattrs: xattr::Xattrs::new() }
    }
}

impl DirMetadata {
    /// Reads the metadata of the directory `path`.
    pub(super) fn of(root: &Root, path: &LayerPath) -> Result<Self> {
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

    /// Applies this metadata to the directory `path`. The time is set last, so nothing may be
    /// created in the directory afterwards.
    pub(super) fn put_on(&self, root: &Root, path: &LayerPath) -> Result<()> {
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
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: self.mtime.0, tv_nsec: i64::from(self.mtime.1) },
        };
        rustix::fs::futimens(&directory, &times).path("set the time of", shown())
    }
}

/// Returns whether overlayfs itself uses the attribute. An image's own attributes of that name are
/// escaped in snapshots (`trusted.overlay.overlay.*`) and are copied unchanged.
fn is_overlay_internal(name: &[u8]) -> bool {
    [&b"trusted.overlay."[..], b"user.overlay."]
        .iter()
        .any(|prefix| name.strip_prefix(*prefix).is_some_and(|rest| !rest.starts_with(b"overlay.")))
}
