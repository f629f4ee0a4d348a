//! Layers that stay in the registry of a cache: a push only names them there. One that a step has to
//! read is fetched then.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cache::import::Import;
use crate::cache::records::RecordedLayer;
use imgctl_base::error::{Context as _, Result};
use imgctl_base::image::Digest;
use imgctl_base::progress::Reporter;
use imgctl_base::workers;
use imgctl_layer::Toc;
use imgctl_store::store::Store;
use imgctl_transfer::transfer::engine::JOBS;

/// The layers of a build that are not in the store.
pub(crate) struct Remotes {
    store: Store,
    allowed: bool,
    left: Mutex<BTreeMap<Digest, Left>>,
    /// A layer that a step had to read could not be fetched.
    failed: AtomicBool,
}

#[derive(Clone)]
struct Left {
    import: Arc<Import>,
    layer: RecordedLayer,
    /// Known if the build has the content of the layer itself.
    toc: Option<Arc<Toc>>,
}

impl fmt::Debug for Remotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.lock().keys()).finish()
    }
}

impl Remotes {
    /// Creates an empty set; layers are only left if that is `allowed`.
    pub(crate) fn new(store: &Store, allowed: bool) -> Self {
        Self {
            store: store.clone(),
            allowed,
            left: Mutex::default(),
            failed: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Digest, Left>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports whether a layer can stay where it is.
    pub(crate) fn allows(&self, import: &Import, layer: &RecordedLayer) -> bool {
        self.allowed && import.repository().is_some() && !import.has_lost(&layer.digest)
    }

    /// Leaves a layer where it is. The caller has asked [`Remotes::allows`] and verified the layer, or
    /// trusts the record.
    pub(crate) fn leave(&self, import: &Arc<Import>, layer: &RecordedLayer, toc: Option<Toc>) {
        let left =
            Left { import: Arc::clone(import), layer: layer.clone(), toc: toc.map(Arc::new) };
        self.lock().insert(layer.digest.clone(), left);
    }

    /// Reports whether a layer was left.
    pub(crate) fn has(&self, layer: &Digest) -> bool {
        self.lock().contains_key(layer)
    }

    /// Returns the table of contents of a layer, wherever it is.
    pub(crate) fn toc(
        &self,
        blob: &Digest,
        diff_id: &Digest,
        reporter: &dyn Reporter,
    ) -> Result<Arc<Toc>> {
        let known = self.lock().get(blob).and_then(|left| left.toc.clone());
        if let Some(toc) = known {
            return Ok(toc);
        }
        self.bring(blob, reporter)?;
        self.store.toc(blob, diff_id).map(Arc::new)
    }

    /// Brings a layer that was left into the store; does nothing for any other.
    pub(crate) fn bring(&self, blob: &Digest, reporter: &dyn Reporter) -> Result<()> {
        let Some(left) = self.lock().get(blob).cloned() else {
            return Ok(());
        };
        let fetched = left.import.fetch(&left.layer, &self.store, reporter);
        if fetched.is_err() {
            left.import.give_up();
            self.failed.store(true, Ordering::Relaxed);
        }
        fetched.context(|| format!("cannot use the build cache {}", left.import.place()))?;
        self.lock().remove(blob);
        Ok(())
    }

    /// Reports whether a step failed because it could not have a layer. The build can be repeated
    /// without that cache.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Asks the registries for those of `wanted` that were left. Returns false if one has been lost;
    /// it is not used again.
    pub(crate) fn are_there(&self, wanted: &BTreeSet<Digest>) -> Result<bool> {
        let all = AtomicBool::new(true);
        let left: Vec<Left> = self.of(wanted).collect();
        workers::for_each(&left, JOBS, &AtomicBool::new(false), |left| {
            // A cache that does not answer any more is as good as lost.
            let answers = left.import.repository().is_some();
            if !answers || !left.import.still_has(&left.layer) {
                tracing::warn!(
                    "the build cache {} has lost layer {}",
                    left.import.place(),
                    left.layer.digest
                );
                all.store(false, Ordering::Relaxed);
            }
            Ok(())
        })?;
        Ok(all.into_inner())
    }

    /// Forgets everything, before the build is repeated.
    pub(crate) fn restart(&self) {
        self.lock().clear();
        self.failed.store(false, Ordering::Relaxed);
    }

    /// Returns the repositories of those of `wanted` that were left.
    pub(crate) fn origins(&self, wanted: &BTreeSet<Digest>) -> BTreeMap<Digest, String> {
        let origin = |left: Left| Some((left.layer.digest, left.import.repository()?.name()));
        self.of(wanted).filter_map(origin).collect()
    }

    fn of(&self, wanted: &BTreeSet<Digest>) -> impl Iterator<Item = Left> {
        let left = self.lock();
        let found: Vec<Left> =
            wanted.iter().filter_map(|digest| left.get(digest)).cloned().collect();
        found.into_iter()
    }
}
