//! The content store of one machine: blobs, names, leases, snapshots, caches.
//!
//! On disk it is an OCI image layout with further directories beside it (docs/store.md). Any
//! process reads without a lock; a file under its final name is complete and verified; a name
//! never points at anything that is not durable. Must not know how images are built or moved.

pub(crate) mod blobs;
pub(crate) mod images;
mod index;
mod layout;
mod lease;
pub(crate) mod list;
pub(crate) mod partial;
pub(crate) mod prune;
mod reachable;
mod resolve;
mod scratch;
pub(crate) mod scrub;
mod scrub_snapshot;
pub(crate) mod snapshots;
pub(crate) mod usage;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

pub(crate) use images::{Image, Named};
pub(crate) use lease::Lease;
pub(crate) use scratch::ScratchDirectory;

use crate::error::Result;
use crate::fs::lock::{Lock, Mode};
use crate::layer::Limits;

/// How to open a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Sync objects and names (everything but throw-away CI).
    pub(crate) sync: bool,
}

/// One machine's store. Cheap to clone; every method may be called from any thread.
///
/// What a store value (with its clones) has written or read as an image is safe from `prune`
/// until the value is dropped: it carries a lease of its own.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// `--root`.
    root: PathBuf,
    /// The OCI layout: `<root>/store`.
    layout: PathBuf,
    options: Options,
    /// What layers may ask of whoever reads them.
    limits: Limits,
    /// The lease of this value, made when it first holds something.
    session: Mutex<Option<Lease>>,
}

impl Store {
    /// Opens the store under `root`, creating it when missing and recovering from an unclean stop.
    pub(crate) fn open(root: &Path, options: Options) -> Result<Self> {
        let store = Self {
            shared: Arc::new(Shared {
                root: root.to_owned(),
                layout: root.join("store"),
                options,
                limits: Limits::default(),
                session: Mutex::new(None),
            }),
        };
        store.prepare_layout()?;
        store.recover();
        Ok(store)
    }

    /// The same store with a lease of its own: what is claimed through it ends with it.
    pub(crate) fn separate(&self) -> Self {
        self.with_limits(self.limits())
    }

    /// The same store with a lease of its own, and with other limits on the archives and layers
    /// that are read.
    pub(crate) fn with_limits(&self, limits: Limits) -> Self {
        Self {
            shared: Arc::new(Shared {
                root: self.shared.root.clone(),
                layout: self.shared.layout.clone(),
                options: self.shared.options,
                limits,
                session: Mutex::new(None),
            }),
        }
    }

    /// The directory it lies in (`--root`).
    pub(crate) fn root(&self) -> &Path {
        &self.shared.root
    }

    /// The OCI image layout itself, which other tools can read: `<root>/store`.
    pub(crate) fn layout(&self) -> &Path {
        &self.shared.layout
    }

    /// What an archive or a layer may ask of whoever reads it.
    pub(crate) fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// Whether objects and names are synced (not with `--no-sync`).
    pub(crate) fn is_synced(&self) -> bool {
        self.shared.options.sync
    }

    /// `name` inside the layout: `mounts`, `cache`, `snapshots`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.shared.layout.join(name)
    }

    /// Where caches lie: `steps/` (build cache records), stat caches, cache mounts.
    pub(crate) fn cache_directory(&self) -> PathBuf {
        self.path("cache")
    }

    /// Takes the store's lock: exclusive to change names or to collect garbage, shared to claim
    /// objects while no collection is under way. Held briefly, never while calling back.
    fn lock(&self, mode: Mode) -> Result<Lock> {
        Lock::acquire(&self.path("lock"), mode, &mut || {
            tracing::info!("waiting for another imgctl process that changes the store");
        })
    }
}

#[cfg(test)]
mod prune_tests;
#[cfg(test)]
mod scrub_tests;
#[cfg(test)]
mod tests;
