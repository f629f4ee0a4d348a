//! Reads caches while the build begins, and brings the layers that their records name into the store.
//! A cache that cannot be used is a warning, and the build goes on without it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::cache::artifact::{self, Found};
use crate::cache::options::{Source, Trust};
use crate::cache::place::CachePlace;
use crate::cache::places::Place;
use crate::cache::records::{Basis, CachedLayer, RecordedLayer, Step};
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::Digest;
use imgctl_base::progress::{Reporter, Unit};
use imgctl_registry::Client;
use imgctl_store::layer::Toc;
use imgctl_store::store::{Lease, Store};
use imgctl_transfer::transfer::source::counted;

/// Caches that are being read.
pub(crate) struct Importing {
    threads: Vec<(Place, JoinHandle<Result<Import>>)>,
}

/// Starts reading; returns at once.
pub(crate) fn start(sources: &[Source], store: &Store, client: Option<&Client>) -> Importing {
    let parts = sources.iter().flat_map(|source| {
        source.place.readable().into_iter().map(|place| Source { place, ..source.clone() })
    });
    let threads = parts.map(|source| {
        let (store, client) = (store.clone(), client.cloned());
        let place = source.place.clone();
        (place, std::thread::spawn(move || import(source, &store, client.as_ref())))
    });
    Importing { threads: threads.collect() }
}

fn import(source: Source, store: &Store, client: Option<&Client>) -> Result<Import> {
    let place = source.place.open(store, client)?;
    let found = artifact::read(&*place)?;
    if found.is_image && found.records.steps.is_empty() {
        return Err(Error::bad_content("it is an image without a build cache")
            .hint("build it with `--cache-to type=inline`"));
    }
    let layers: Vec<_> = found.records.layers().into_keys().collect();
    place.remember(&layers);
    Ok(Import { source, place, found, is_dead: AtomicBool::new(false), lost: Mutex::default() })
}

impl Importing {
    /// Waits for the caches. Those that cannot be used are reported.
    pub(crate) fn finish(self, reporter: &dyn Reporter) -> Imported {
        let mut imports = Vec::new();
        for (place, thread) in self.threads {
            let died = |_| Err(Error::failed("the thread that reads it has panicked"));
            match thread.join().unwrap_or_else(died) {
                Ok(import) if import.found.root.is_none() => {
                    reporter.note(&format!("there is no build cache {place} yet"));
                    imports.push(import);
                }
                Ok(import) => {
                    let count = import.found.records.steps.len();
                    reporter.note(&format!("build cache {place}: {count} steps"));
                    imports.push(import);
                }
                Err(error) => warn_unusable(&place, &error),
            }
        }
        Imported { imports }
    }
}

fn warn_unusable(place: &Place, error: &Error) {
    let why = error.chain().join(": ");
    tracing::warn!("the build cache {place} cannot be used, the build goes on without it: {why}");
}

/// A cache that was read.
pub(crate) struct Import {
    source: Source,
    place: Arc<dyn CachePlace>,
    found: Found,
    /// The cache no longer answers.
    is_dead: AtomicBool,
    /// Layers that the cache names and does not have.
    lost: Mutex<BTreeSet<Digest>>,
}

/// All caches that were read.
#[derive(Default)]
pub(crate) struct Imported {
    imports: Vec<Import>,
}

impl fmt::Debug for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.imports.iter().map(|import| &import.source.place);
        f.debug_list().entries(places).finish()
    }
}

impl Imported {
    /// Reports whether there is any record.
    pub(crate) fn is_empty(&self) -> bool {
        self.imports.iter().all(|import| import.found.records.steps.is_empty())
    }

    /// Returns the records of a step, those of the first cache first.
    pub(crate) fn find(&self, key: &str, basis: Basis) -> impl Iterator<Item = (&Import, &Step)> {
        self.imports.iter().filter_map(move |import| {
            let step = import.found.records.steps.get(key)?;
            let is_believed = basis != Basis::Run || import.source.trust == Trust::All;
            (step.basis == basis && is_believed).then_some((import, step))
        })
    }

    /// Returns the cache at `place` as it was when the build began, and the layers that it turned
    /// out to lack.
    pub(crate) fn at(&self, place: &Place) -> Option<(&Found, BTreeSet<Digest>)> {
        let import = self.imports.iter().find(|import| import.source.place == *place)?;
        let lost = import.lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Some((&import.found, lost))
    }
}

impl Import {
    /// Returns the name of the cache, for messages.
    pub(crate) fn place(&self) -> &Place {
        &self.source.place
    }

    /// Fetches a layer into the store and verifies its digest and diff ID. The caller must check its
    /// contents by the table of contents.
    pub(crate) fn fetch(
        &self,
        layer: &RecordedLayer,
        store: &Store,
        lease: &Lease,
        reporter: &dyn Reporter,
    ) -> Result<(CachedLayer, Toc)> {
        if self.is_dead.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Network, "it failed before"));
        }
        lease.hold_all([&layer.digest, &layer.diff_id])?;
        let blob = layer.descriptor();
        let doing = || format!("cannot fetch layer {}", layer.digest);
        let title = format!("fetching layer {} of the build cache", layer.digest.short());
        let task = reporter.start(&title, Unit::Bytes, Some(layer.size));
        let moved = |bytes| task.advance(bytes);
        let brought = store.complete_blob(&layer.digest, layer.size, &|offset| {
            Ok(counted(self.place.open(&blob, offset)?, &moved))
        });
        if let Err(error) = &brought
            && error.kind() == Kind::Network
        {
            self.is_dead.store(true, Ordering::Relaxed);
        }
        if let Err(error) = &brought
            && matches!(error.kind(), Kind::NotFound | Kind::BadContent)
        {
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            lost.insert(layer.digest.clone());
        }
        brought.context(doing)?;
        let toc = store.scan_layer(&layer.digest, &layer.diff_id).context(doing)?;
        task.done(&format!("fetched layer {} of the build cache", layer.digest.short()));
        Ok((layer.layer(), toc))
    }
}
