//! The content store of one machine: blobs, names, leases, snapshots, caches.
//!
//! On disk it is an OCI image layout with further directories beside it (docs/store.md). Any
//! process reads without a lock; a file under its final name is complete and verified; a name
//! never points at anything that is not durable. Must not know how images are built or moved.

pub(crate) mod blobs;
pub(crate) mod images;
pub(crate) mod snapshots;

use std::path::{Path, PathBuf};

use crate::error::Result;

/// How to open a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Sync objects and names (everything but throw-away CI).
    pub(crate) sync: bool,
}

/// One machine's store. Cheap to clone; every method may be called from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    root: PathBuf,
    options: Options,
}

impl Store {
    /// Opens the store under `root`, creating it when missing and recovering from an unclean stop.
    pub(crate) fn open(root: &Path, options: Options) -> Result<Self> {
        Ok(Self {
            root: root.to_owned(),
            options,
        })
    }

    /// The directory it lies in.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }
}
