//! The store as the backend of a registry server: `imgctl registry serve --store`, and the agent's
//! blobs.
//!
//! An image is in the repository of its full name (`quay.io/a/b`) and in that of its name without
//! the registry (`a/b`). Each requested repository holds a lease, so an image stays complete until
//! clients have finished pulling it. Must not depend on HTTP or the command line.

#[cfg(test)]
mod tests;
mod view;
mod writable;

use std::collections::{HashMap, HashSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::Value;

use crate::transfer::arbiter::Arbiter;
use imgctl_base::error::{Context, IoContext, Result};
use imgctl_base::image::Digest;
use imgctl_registry::client::Target;
use imgctl_registry::layout::MAX_MANIFEST;
use imgctl_registry::server::backend::{Backend, BlobFile, Served, WritableBackend};
use imgctl_store::store::Store;
use view::{Repository, View};
use writable::Arrivals;

pub use writable::upload_id;

/// How long an image can be pulled by digest after its name is gone.
const KEPT: Duration = Duration::from_secs(600);
/// Maximum number of repositories kept for such pulls.
const MAX_KEPT: usize = 256;

/// A served store.
pub struct StoreBackend {
    store: Store,
    view: Mutex<Seen>,
    arrivals: Arrivals,
    /// Whether every blob of the store is in every repository.
    by_digest: bool,
    /// Decides about what is pushed; `None` on a host, whose controller has decided.
    arbiter: Option<Arbiter>,
}

/// The names as last read.
#[derive(Default)]
struct Seen {
    stamp: Option<Stamp>,
    view: Arc<View>,
    /// Requested repositories that have changed since.
    kept: HashMap<String, Vec<(Arc<Repository>, Instant)>>,
}

/// Identifies one version of the table of names: the file is replaced, never modified.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp(u64, u64, i64, i64);

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self(metadata.ino(), metadata.size(), metadata.ctime(), metadata.ctime_nsec())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seen {
    /// Serves `fresh` from now on, and keeps content that clients may be pulling for a while.
    fn replace(&mut self, stamp: Stamp, fresh: View) {
        let now = Instant::now();
        for (name, old) in self.view.repositories() {
            let is_same = fresh.repository(name).is_some_and(|new| Arc::ptr_eq(new, old));
            if !is_same && old.was_asked_for() {
                let kept = self.kept.entry(name.clone()).or_default();
                kept.push((Arc::clone(old), now));
            }
        }
        self.view = Arc::new(fresh);
        self.stamp = Some(stamp);
        self.forget();
    }

    /// Drops the repositories that protect deleted manifests and blobs.
    fn let_go(&mut self, deleted: &HashSet<Digest>) {
        self.kept.retain(|_, kept| {
            kept.retain(|(repository, _)| !repository.offers(deleted));
            !kept.is_empty()
        });
    }

    fn forget(&mut self) {
        self.kept.retain(|_, kept| {
            kept.retain(|(_, since)| since.elapsed() < KEPT);
            !kept.is_empty()
        });
        let mut all: Vec<Instant> = self.kept.values().flatten().map(|(_, at)| *at).collect();
        if all.len() > MAX_KEPT {
            all.sort_unstable();
            let from = all[all.len() - MAX_KEPT];
            self.kept.retain(|_, kept| {
                kept.retain(|(_, since)| *since >= from);
                !kept.is_empty()
            });
        }
    }
}

impl StoreBackend {
    /// Serves `store`; `arbiter` decides about what clients push.
    pub fn new(store: &Store, arbiter: &Arbiter) -> Self {
        Self { arbiter: Some(arbiter.clone()), ..Self::of(store) }
    }

    fn of(store: &Store) -> Self {
        Self {
            store: store.clone(),
            view: Mutex::default(),
            arrivals: Arrivals::default(),
            by_digest: false,
            arbiter: None,
        }
    }

    /// Serves every blob of `store` in any repository, and also accepts blobs at an address that
    /// derives from their digest and size ([`upload_id`]), so that a push resumes where an earlier
    /// one ended, even one by another process. Ordinary clients push and pull images as always.
    pub fn by_digest(store: &Store) -> Self {
        Self { by_digest: true, ..Self::of(store) }
    }

    /// Returns the current names.
    fn view(&self) -> Result<Arc<View>> {
        let path = self.store.path("index.json");
        let mut seen = lock(&self.view);
        // The stamp is taken before the table is read: a table replaced in between is read again
        // next time.
        let stamp = Stamp::of(&std::fs::metadata(&path).path("look at", &path)?);
        if seen.stamp != Some(stamp) {
            let fresh = View::new(&self.store.names()?, &seen.view);
            seen.replace(stamp, fresh);
        }
        Ok(Arc::clone(&seen.view))
    }

    /// The current repository and its recent versions.
    fn repositories(&self, name: &str) -> Result<Vec<Arc<Repository>>> {
        let mut all: Vec<Arc<Repository>> = Vec::new();
        all.extend(self.view()?.repository(name).cloned());
        if let Some(kept) = lock(&self.view).kept.get(name) {
            let young = kept.iter().filter(|(_, since)| since.elapsed() < KEPT);
            all.extend(young.map(|(repository, _)| Arc::clone(repository)));
        }
        Ok(all)
    }

    /// Stops serving deleted content, and removes those of its `parts` that nothing else needs.
    fn let_go(
        &self,
        deleted: &HashSet<Digest>,
        parts: &HashSet<Digest>,
        repositories: &HashSet<String>,
    ) -> Result<()> {
        self.view()?;
        lock(&self.view).let_go(deleted);
        for repository in repositories {
            self.arrivals.release(repository, parts)?;
        }
        let parts: Vec<Digest> = parts.iter().cloned().collect();
        self.store.discard(&parts)
    }

    /// The media type of a manifest in that repository.
    fn media_type(&self, name: &str, digest: &Digest) -> Result<Option<String>> {
        for repository in self.repositories(name)? {
            if let Some(found) = repository.content(&self.store)?.manifests.get(digest) {
                return Ok(Some(found.clone()));
            }
        }
        Ok(None)
    }

    fn has_blob(&self, name: &str, digest: &Digest) -> Result<bool> {
        if self.arrivals.has(name, digest) {
            return Ok(true);
        }
        for repository in self.repositories(name)? {
            if repository.content(&self.store)?.blobs.contains(digest) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Backend for StoreBackend {
    fn may_wait(&self) -> bool {
        // The first request for a repository reads all of its manifests.
        true
    }

    fn manifest(&self, repository: &str, target: &Target) -> Result<Option<Served>> {
        let digest = match target {
            Target::Digest(digest) => digest.clone(),
            Target::Tag(tag) => {
                let view = self.view()?;
                let named = view.repository(repository).and_then(|found| found.tag(tag));
                match named {
                    Some(named) => named.descriptor.digest.clone(),
                    None => return Ok(None),
                }
            }
        };
        let Some(media_type) = self.media_type(repository, &digest)? else {
            return Ok(None);
        };
        // A platform of an index may be missing from the store.
        let bytes = self.store.read_blob(&digest, MAX_MANIFEST).found()?;
        Ok(bytes.map(|bytes| Served { digest, media_type, bytes: Bytes::from(bytes) }))
    }

    fn blob(&self, repository: &str, digest: &Digest) -> Result<Option<BlobFile>> {
        if !self.by_digest && !self.has_blob(repository, digest)? {
            return Ok(None);
        }
        let Some(file) = self.store.open_blob(digest).found()? else {
            return Ok(None);
        };
        let metadata = file.metadata().path("look at", digest.to_string())?;
        Ok(Some(BlobFile { file: Arc::new(file), size: metadata.len(), growing: None }))
    }

    fn blob_size(&self, repository: &str, digest: &Digest) -> Result<Option<u64>> {
        if self.by_digest || self.has_blob(repository, digest)? {
            self.store.blob_size(digest)
        } else {
            Ok(None)
        }
    }

    fn tags(
        &self,
        repository: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Option<Vec<String>>> {
        let view = self.view()?;
        Ok(view.repository(repository).map(|found| found.tags(after, limit)))
    }

    fn repositories(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>> {
        Ok(self.view()?.catalog(after, limit))
    }

    fn referrers(&self, repository: &str, subject: &Digest) -> Result<Vec<Value>> {
        let view = self.view()?;
        let Some(found) = view.repository(repository) else {
            return Ok(Vec::new());
        };
        let referrers = &found.content(&self.store)?.referrers;
        Ok(referrers.get(subject).map(|all| all.values().cloned().collect()).unwrap_or_default())
    }

    fn intake(&self) -> Option<&dyn WritableBackend> {
        Some(self)
    }

    fn tidy(&self) -> Result<()> {
        self.arrivals.forget();
        self.view()?;
        lock(&self.view).forget();
        Ok(())
    }
}
