//! The directory tree of docker-distribution: `docker/registry/v2/{blobs,repositories}`.
//!
//! The tree is valid at every instant: blobs are written before the links that refer to them, links
//! before tags, each by rename. Names, tags and digests are checked before they become paths, and
//! no symlink in the tree is followed. Must not depend on HTTP, or on who reads or writes.

mod blobs;
mod catalog;
mod document;
mod evict;
pub mod gc;
mod manifests;
pub mod names;
pub mod paths;
pub mod retire;
pub mod scrub;
#[cfg(test)]
mod tests;
mod tree;
mod uploads;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use rustix::fs::FlockOperation;

use imgctl_base::error::{Error, IoContext, Kind, Result};
use tree::Tree;

pub use document::{Facts, MAX_MANIFEST};
pub use uploads::{Upload, UploadSession};

/// One tree. Cheap to clone; may be used from any thread and in parallel to other processes.
#[derive(Clone, Debug)]
pub struct Layout {
    tree: Arc<Tree>,
    /// Read-locked while a manifest and its tag are stored, write-locked while one is removed, so
    /// that no tag points to a manifest that another request of this process removes.
    changes: Arc<RwLock<()>>,
    /// Held by writers, see [`Layout::for_writing`].
    in_use: Option<Arc<InUse>>,
}

/// A held lock on a tree; dropping it releases it.
#[derive(Debug)]
pub struct InUse {
    _directory: OwnedFd,
}

impl Layout {
    /// Opens the tree in `directory`, which must contain `docker/registry/v2`. `sync`: writes
    /// survive a power failure.
    pub fn open(directory: &Path, sync: bool) -> Result<Self> {
        let layout = Self {
            tree: Arc::new(Tree::open(directory, sync)?),
            changes: Arc::default(),
            in_use: None,
        };
        match layout.tree.metadata(paths::BASE)? {
            Some(metadata) if metadata.is_directory() => Ok(layout),
            _ => Err(Error::not_found(format!("{} contains no registry", directory.display()))
                .hint(format!("pass the directory that contains {}", paths::BASE))),
        }
    }

    /// Opens the tree in `directory`, creating both if they are missing.
    pub fn create(directory: &Path, sync: bool) -> Result<Self> {
        std::fs::create_dir_all(directory).path("create the directory", directory)?;
        let layout = Self {
            tree: Arc::new(Tree::open(directory, sync)?),
            changes: Arc::default(),
            in_use: None,
        };
        layout.tree.make_directory(paths::BASE)?;
        Ok(layout)
    }

    /// Returns the same tree, protected from garbage collection until its last copy is dropped.
    pub fn for_writing(mut self) -> Result<Self> {
        let in_use = self.lock_shared()?.ok_or_else(|| {
            Error::new(
                Kind::Busy,
                format!("garbage collection is running in {}", self.path().display()),
            )
            .hint("try again when `imgctl registry gc` is done")
        })?;
        self.in_use = Some(Arc::new(in_use));
        Ok(self)
    }

    /// Acquires a shared lock on the tree, so that [`Layout::lock_alone`] fails; `None` if another
    /// process holds the exclusive lock.
    pub fn lock_shared(&self) -> Result<Option<InUse>> {
        self.lock(FlockOperation::NonBlockingLockShared)
    }

    /// Acquires the exclusive lock on the tree.
    pub(crate) fn lock_alone(&self) -> Result<InUse> {
        self.lock(FlockOperation::NonBlockingLockExclusive)?.ok_or_else(|| {
            Error::new(
                Kind::Busy,
                format!("{} is being served or written to", self.path().display()),
            )
            .hint("stop the registry that serves it first, or wait for the copy to end")
        })
    }

    fn lock(&self, operation: FlockOperation) -> Result<Option<InUse>> {
        let fd = self.tree.lock(paths::BASE, operation)?;
        Ok(fd.map(|fd| InUse { _directory: fd }))
    }

    /// Returns the number of bytes that can still be written to the file system; `None` if unknown.
    pub fn free_space(&self) -> Option<u64> {
        self.tree.free_space()
    }

    /// Returns the directory with which the tree was opened, for messages.
    pub fn path(&self) -> PathBuf {
        self.tree.shown("")
    }
}
