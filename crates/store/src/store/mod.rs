//! The content store of one machine: blobs, names, leases, snapshots, caches.
//!
//! On disk it is an OCI image layout with additional directories (docs/store.md). Any process reads
//! without a lock; a file under its final name is complete and verified; a name never points at
//! anything that is not durable. Must not depend on how images are built or moved.

pub mod blobs;
pub mod images;
mod index;
mod layout;
mod lease;
pub mod partial;
pub mod prune;
mod reachable;
pub mod referrers;
pub mod remote_layers;
pub mod resolve;
mod scratch;
pub mod scrub;
mod sharing;
pub mod snapshots;
pub mod usage;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

pub use images::Image;
pub use index::Named;
pub use lease::Lease;
pub(crate) use reachable::is_torn;
pub use scratch::ScratchDirectory;

use imgctl_base::error::Result;
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_layer::Limits;

/// Options for opening a store.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether to sync objects and names (false only for throw-away CI).
    pub sync: bool,
}

/// One machine's store. Cheap to clone; every method can be called from any thread.
///
/// Objects that a store value (with its clones) has written or read as an image are safe from
/// `prune` until the value is dropped: it has its own lease.
#[derive(Clone, Debug)]
pub struct Store {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// `--root`.
    root: PathBuf,
    /// The OCI layout: `<root>/store`.
    layout: PathBuf,
    options: Options,
    /// Limits on the layers that are read.
    limits: Limits,
    /// Lease of this value, created when it first holds an object.
    session: Mutex<Option<Lease>>,
}

impl Store {
    /// Opens the store under `root`. Creates it if missing and recovers from an unclean stop.
    pub fn open(root: &Path, options: Options) -> Result<Self> {
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

    /// Returns the same store with its own lease: claims made through it are released with it.
    pub fn separate(&self) -> Self {
        self.with_limits(self.limits())
    }

    /// Returns the same store with its own lease and other limits on the archives and layers that
    /// are read.
    pub fn with_limits(&self, limits: Limits) -> Self {
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

    /// Returns the directory of the store (`--root`).
    pub fn root(&self) -> &Path {
        &self.shared.root
    }

    /// Returns the OCI image layout, which other tools can read: `<root>/store`.
    pub fn layout(&self) -> &Path {
        &self.shared.layout
    }

    /// Returns the limits on archives and layers that are read.
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// Reports whether objects and names are synced (not with `--no-sync`).
    pub fn is_synced(&self) -> bool {
        self.shared.options.sync
    }

    /// Returns the path of `name` inside the layout: `mounts`, `cache`, `snapshots`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.shared.layout.join(name)
    }

    /// Returns the directory of caches: `steps/` (build cache records), stat caches, cache mounts.
    pub fn cache_directory(&self) -> PathBuf {
        self.path("cache")
    }

    /// Acquires the store's lock: exclusive to change names or to collect garbage, shared to claim
    /// objects while no collection is running. Held briefly, never during a callback.
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
