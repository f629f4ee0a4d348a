//! A directory's metadata, read from one directory and applied to another.

use std::os::fd::AsFd;

use rustix::fs::{Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid};

use crate::layer::LayerPath;
use imgctl_base::error::{IoContext, Result};
use imgctl_base::fs::metadata::Metadata;
use imgctl_base::fs::root::Root;
use imgctl_base::fs::xattr;

/// A directory's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DirMetadata {
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
