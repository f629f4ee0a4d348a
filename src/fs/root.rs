//! A directory as the root of look-ups that cannot leave it: `openat2(RESOLVE_IN_ROOT)`, or a
//! no-follow walk where the kernel has no openat2. For image trees, mounts and build contexts.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::error::Result;

/// An open directory; every path is resolved inside it, symlinks included.
#[derive(Debug)]
pub(crate) struct Root {
    _fd: OwnedFd,
    _path: PathBuf,
}

impl Root {
    /// Opens `path` (followed once, by the caller's choice) as a root.
    pub(crate) fn open(_path: &Path) -> Result<Self> {
        todo!()
    }

    /// Opens a file for reading; symlinks are resolved inside the root.
    pub(crate) fn open_file(&self, _path: &Path) -> Result<File> {
        todo!()
    }

    /// Opens a directory; symlinks are resolved inside the root.
    pub(crate) fn open_directory(&self, _path: &Path) -> Result<OwnedFd> {
        todo!()
    }
}
