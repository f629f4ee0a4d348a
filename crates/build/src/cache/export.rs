//! Writes a cache: the records of this build merged with those that are there. Layers first, then the
//! records, the name last, so that the name is the old cache or the new one at every moment.
//!
//! Registries have no locks. A writer looks at the name before and after it sets it, and merges again
//! if another writer came between.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek as _, SeekFrom};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::cache::artifact::{self, Artifact, Found, TRIES};
use crate::cache::import::Imported;
use crate::cache::options::{Mode, Target};
use crate::cache::place::CachePlace;
use crate::cache::records::{self, Basis, CachedLayer, RecordedLayer, Records, Step, Used};
use crate::cache::signed::{Signer, is_signed};
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::image::Digest;
use imgctl_base::workers;
use imgctl_registry::Client;
use imgctl_store::store::Store;
use imgctl_transfer::transfer::engine::JOBS;

/// Data of a finished build that its exports need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Collected {
    pub(crate) used: Used,
    /// Layers of the result.
    pub(crate) result: BTreeSet<Digest>,
}

/// An exported cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Where it is.
    pub place: String,
    /// Manifest or index of the cache.
    pub digest: Digest,
    /// Number of its records.
    pub steps: usize,
    /// Bytes of layers that were sent.
    pub sent: u64,
    /// The cache was unchanged; nothing was written.
    pub unchanged: bool,
}

/// Writes one cache; `today` is the number of days since 1970.
pub(crate) fn export(
    target: &Target,
    collected: &Collected,
    imported: &Imported,
    store: &Store,
    client: Option<&Client>,
    today: u32,
) -> Result<Exported> {
    let name = target.place.writable()?;
    let place = name.open(store, client)?;
    let base = imported.at(&name).filter(|(found, _)| !found.is_image);
    let (base, lost) = base.map(|(found, lost)| (found.clone(), lost)).unwrap_or_default();
    let _lock = place.lock()?;
    let days = u32::try_from(target.max_age.as_secs() / 86_400).unwrap_or(u32::MAX);
    let export = Export {
        name: name.to_string(),
        imported,
        signer: target.signer.as_ref(),
        place: &*place,
        store,
        used: collected
            .used
            .iter()
            .filter(|(_, (_, layers))| {
                let in_result =
                    |layer: &CachedLayer| collected.result.contains(&layer.descriptor.digest);
                target.mode == Mode::Max || layers.iter().all(in_result)
            })
            .map(|(key, (basis, layers))| (key.as_str(), (*basis, layers.as_slice())))
            .collect(),
        since: today.saturating_sub(days),
        today,
        lost,
        sent: AtomicU64::new(0),
    };
    export.run(base)
}

struct Export<'a> {
    name: String,
    place: &'a dyn CachePlace,
    imported: &'a Imported,
    signer: Option<&'a Signer>,
    store: &'a Store,
    used: BTreeMap<&'a str, (Basis, &'a [CachedLayer])>,
    /// Records that were last used before this day are dropped.
    since: u32,
    today: u32,
    /// Layers of the existing cache that were not there when the build needed them.
    lost: BTreeSet<Digest>,
    sent: AtomicU64,
}

impl Export<'_> {
    fn run(&self, mut base: Found) -> Result<Exported> {
        // A registry may have lost layers of the cache that it lists.
        let mut is_base_sure = true;
        for _ in 0..TRIES {
            let current = self.place.digest()?;
            if base.root != current {
                base = self.found(current.clone())?;
            }
            let mut known = if is_base_sure { base.records.layers() } else { BTreeMap::new() };
            known.retain(|digest, _| !self.lost.contains(*digest));
            let merged = self.merged(&base.records, &known)?;
            if is_base_sure
                && self.lost.is_empty()
                && merged == base.records
                && let Some(digest) = &base.root
            {
                return Ok(self.exported(digest.clone(), &merged, true));
            }
            let artifact = artifact::artifact(&merged)?;
            match self.write(&merged, &artifact, &known) {
                Err(error) if is_base_sure && !base.records.steps.is_empty() => {
                    tracing::debug!("writing all of the cache again: {error}");
                    is_base_sure = false;
                    continue;
                }
                written => written?,
            }
            if artifact.name(self.place, current.as_ref())? {
                let layers: Vec<&Digest> = merged.layers().into_keys().collect();
                self.place.remember(&layers);
                let (root, _) = &artifact.root;
                return Ok(self.exported(root.digest.clone(), &merged, false));
            }
            is_base_sure = true;
        }
        Err(Error::new(Kind::Busy, format!("other builds write {} all the time", self.name))
            .hint("give each of them a build cache of its own"))
    }

    fn exported(&self, digest: Digest, records: &Records, unchanged: bool) -> Exported {
        let sent = self.sent.load(Ordering::Relaxed);
        Exported { place: self.name.clone(), digest, steps: records.steps.len(), sent, unchanged }
    }

    /// Returns the existing cache; an unreadable one is replaced, an image is not.
    fn found(&self, current: Option<Digest>) -> Result<Found> {
        match artifact::read(self.place) {
            Ok(found) if found.is_image => Err(Error::usage(format!(
                "{} is an image, which the cache would replace",
                self.name
            ))
            .hint("use a name of its own: `--cache-to REGISTRY/NAME/cache`, or type=inline")),
            Err(error) if error.kind() == Kind::BadContent => {
                let why = error.chain().join(": ");
                tracing::warn!("the build cache {} is replaced: {why}", self.name);
                Ok(Found { root: current, ..Found::default() })
            }
            found => found,
        }
    }

    /// Returns the records to write. Records whose layers neither the cache nor the store has are skipped.
    fn merged(&self, base: &Records, known: &BTreeMap<&Digest, &RecordedLayer>) -> Result<Records> {
        let mut ours = BTreeMap::new();
        for (key, (basis, layers)) in &self.used {
            let old = base.steps.get(*key).filter(|old| old.names(layers));
            // Whoever wrote a record may have put wrong times in: a signature vouches for them too.
            let old =
                old.filter(|old| self.signer.is_none_or(|by| is_signed(key, old, by.public())));
            let old = old.or_else(|| self.imported.recorded(key, layers));
            let step = match old.filter(|old| old.basis == *basis) {
                Some(old) => Some(Step { used: self.today, ..old.clone() }),
                None => records::recorded(self.store, *basis, layers)?
                    .map(|layers| Step::new(*basis, self.today, layers)),
            };
            if let Some(mut step) = step {
                if let Some(signer) = self.signer {
                    signer.sign(key, &mut step)?;
                }
                ours.insert((*key).to_owned(), step);
            }
        }
        let mut merged = base.merged(&Records::new(ours), self.since, self.today);
        let mut missing = BTreeSet::new();
        for (digest, layer) in merged.layers() {
            if !known.contains_key(digest)
                && !self.store.claim_blob(digest, layer.size)?
                && self.imported.holder(digest).is_none()
                && !self.place.has_blob(&layer.descriptor())?
            {
                missing.insert(digest.clone());
            }
        }
        merged
            .steps
            .retain(|_, step| step.layers.iter().all(|layer| !missing.contains(&layer.digest)));
        Ok(merged)
    }

    /// Writes everything but the name.
    fn write(
        &self,
        records: &Records,
        artifact: &Artifact,
        known: &BTreeMap<&Digest, &RecordedLayer>,
    ) -> Result<()> {
        let mut layers: Vec<&RecordedLayer> = records.layers().into_values().collect();
        layers.retain(|layer| !known.contains_key(&layer.digest));
        layers.sort_by_key(|layer| std::cmp::Reverse(layer.size));
        workers::for_each(layers, JOBS, &AtomicBool::new(false), |layer| {
            let digest = &layer.digest;
            let open = |offset| -> Result<Box<dyn Read + Send>> {
                let mut file = match self.store.open_blob(digest) {
                    Err(error) if error.kind() == Kind::NotFound => {
                        let holder = self.imported.holder(digest).ok_or(error)?;
                        return holder.open(layer, offset);
                    }
                    file => file?,
                };
                file.seek(SeekFrom::Start(offset))
                    .doing(|| format!("cannot read blob {digest}"))?;
                Ok(Box::new(file))
            };
            let sent = self.place.put_blob(&layer.descriptor(), &open);
            self.sent.fetch_add(
                sent.context(|| format!("cannot write layer {digest}"))?,
                Ordering::Relaxed,
            );
            Ok(())
        })?;
        artifact.write(self.place)
    }
}
