//! Reads caches while the build begins, and brings the layers that their records name into the store.
//! A cache that cannot be used is a warning, and the build goes on without it.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::cache::artifact::{self, Found};
use crate::cache::options::{Source, Trust};
use crate::cache::place::CachePlace;
use crate::cache::places::Place;
use crate::cache::records::{Basis, CachedLayer, RecordedLayer, Step};
use crate::cache::signed::is_signed;
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::{Digest, Reference};
use imgctl_base::progress::{Reporter, Unit};
use imgctl_layer::Toc;
use imgctl_registry::Client;
use imgctl_store::store::Store;
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
    let layers = found.records.layers().into_keys().cloned().collect();
    Ok(Import {
        source,
        place,
        found,
        layers,
        is_dead: AtomicBool::new(false),
        lost: Mutex::default(),
    })
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
                    imports.push(Arc::new(import));
                }
                Ok(import) => {
                    let count = import.found.records.steps.len();
                    reporter.note(&format!("found the build cache {place} (steps: {count})"));
                    imports.push(Arc::new(import));
                }
                Err(error) => warn_unusable(&place, &error),
            }
        }
        Imported { imports, is_told: AtomicBool::new(false) }
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
    /// The layers that the records name.
    layers: BTreeSet<Digest>,
    /// The cache no longer answers.
    is_dead: AtomicBool,
    /// Layers that the cache names and does not have.
    lost: Mutex<BTreeSet<Digest>>,
}

/// All caches that were read.
#[derive(Default)]
pub(crate) struct Imported {
    imports: Vec<Arc<Import>>,
    /// The user knows that results of commands are not used.
    is_told: AtomicBool,
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

    /// Returns the records of a step and whether they are trusted: trusted ones first, then those of
    /// the first cache. What the build cannot recreate (results of commands) is only found if it is
    /// trusted.
    pub(crate) fn find(&self, key: &str, basis: Basis) -> Vec<Candidate<'_>> {
        let mut found: Vec<Candidate<'_>> = Vec::new();
        for import in &self.imports {
            let Some(step) = import.found.records.steps.get(key) else { continue };
            if step.basis == basis {
                let is_trusted = import.trusts(key, step);
                found.push(Candidate { import, step, is_trusted });
            }
        }
        found.sort_by_key(|candidate| !candidate.is_trusted);
        if !basis.can_be_recreated() {
            let all = found.len();
            found.retain(|candidate| candidate.is_trusted);
            if found.len() < all && !self.is_told.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "the build cache has results of RUN that are not used, because nothing shows who \
                     made them: sign them (key=FILE of --cache-to and --cache-from), or trust \
                     everybody who can write the cache (--cache-from …,trust=all)"
                );
            }
        }
        found
    }

    /// Returns the record of a step that is trusted and names exactly these layers. What another record
    /// says besides (the times of entries) may be wrong.
    pub(crate) fn recorded(&self, key: &str, layers: &[CachedLayer]) -> Option<&Step> {
        self.imports.iter().find_map(|import| {
            let step = import.found.records.steps.get(key)?;
            (step.names(layers) && import.trusts(key, step)).then_some(step)
        })
    }

    /// Returns the cache that has a layer.
    pub(crate) fn holder(&self, layer: &Digest) -> Option<&Import> {
        let has = |import: &&Arc<Import>| {
            import.layers.contains(layer) && !import.has_lost(layer) && !import.is_dead()
        };
        self.imports.iter().find(has).map(|import| &**import)
    }

    /// Returns the cache at `place` as it was when the build began, and the layers that it turned
    /// out to lack.
    pub(crate) fn at(&self, place: &Place) -> Option<(&Found, BTreeSet<Digest>)> {
        let import = self.imports.iter().find(|import| import.source.place == *place)?;
        let lost = import.lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Some((&import.found, lost))
    }
}

/// A record of a step, in a cache that was read.
pub(crate) struct Candidate<'a> {
    pub(crate) import: &'a Arc<Import>,
    pub(crate) step: &'a Step,
    pub(crate) is_trusted: bool,
}

impl Import {
    fn trusts(&self, key: &str, step: &Step) -> bool {
        let is_signed = |by| is_signed(key, step, by);
        self.source.trust == Trust::All || self.source.key.as_ref().is_some_and(is_signed)
    }

    /// Returns the repository that has the layers, if a push can use it.
    pub(crate) fn repository(&self) -> Option<&Reference> {
        self.place.repository().filter(|_| !self.is_dead())
    }

    /// Opens a layer from `offset` on; the caller verifies its digest.
    pub(crate) fn open(
        &self,
        layer: &RecordedLayer,
        offset: u64,
    ) -> Result<Box<dyn Read + Send + 'static>> {
        self.place.open(&layer.descriptor(), offset)
    }

    /// Asks whether a layer is still there. One that is not is not used again.
    pub(crate) fn still_has(&self, layer: &RecordedLayer) -> bool {
        let is_there = self.place.has_blob(&layer.descriptor()).unwrap_or(false);
        if !is_there {
            self.lose(&layer.digest);
        }
        is_there
    }

    /// Reports whether the cache was found to lack a layer that it names.
    pub(crate) fn has_lost(&self, layer: &Digest) -> bool {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).contains(layer)
    }

    fn lose(&self, layer: &Digest) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.insert(layer.clone());
    }

    fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// Fetches nothing from this cache any more.
    pub(crate) fn give_up(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
    }

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
        reporter: &dyn Reporter,
    ) -> Result<(CachedLayer, Toc)> {
        if self.is_dead() {
            return Err(Error::new(Kind::Network, "it failed before"));
        }
        // Prune must not remove it while it is used.
        store.claim_blob(&layer.digest, layer.size)?;
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
            self.give_up();
        }
        if let Err(error) = &brought
            && matches!(error.kind(), Kind::NotFound | Kind::BadContent)
        {
            self.lose(&layer.digest);
        }
        brought.context(doing)?;
        let toc = store.scan_layer(&layer.digest, &layer.diff_id).context(doing)?;
        task.done(&format!("fetched layer {} of the build cache", layer.digest.short()));
        Ok((layer.layer(), toc))
    }
}
