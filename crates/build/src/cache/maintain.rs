//! Lists and prunes caches, that of the store and others.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::time::UNIX_EPOCH;

use crate::cache::artifact::{self, Found, TRIES};
use crate::cache::options::Limits;
use crate::cache::place::CachePlace;
use crate::cache::places::Place;
use crate::cache::records::{Basis, Records, Step};
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::{Digest, Document};
use imgctl_base::progress::Reporter;
use imgctl_registry::Client;
use imgctl_store::store::Store;
use imgctl_store::store::prune::PruneOptions;
use imgctl_store::store::usage::CacheUsage;

const DAY: i64 = 86_400;

/// A cache and its records, the most recently used first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// `None` is the store.
    pub place: Option<String>,
    /// Manifest or index of the cache, or of the image that carries it.
    pub digest: Option<Digest>,
    pub is_image: bool,
    pub records: Vec<Record>,
    /// Size of all layers, each of which counts once.
    pub size: u64,
    /// Size of the layers that only the cache needs, where that is known.
    pub reclaimable: Option<u64>,
}

/// The record of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub key: String,
    /// `content` for COPY and the like, `run`, or `embedded` for container images; unknown in the
    /// store.
    pub kind: Option<&'static str>,
    /// Last use, in seconds since 1970 and to the day outside of the store; `None` for the records
    /// of an image.
    pub used: Option<i64>,
    pub layers: Vec<Digest>,
    /// Size of its layers.
    pub size: u64,
    /// Size of those that only the cache needs, where that is known.
    pub reclaimable: Option<u64>,
}

/// What a pruning has done, or would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pruned {
    pub place: String,
    pub removed: Vec<Record>,
    /// Number of the records that stay.
    pub kept: usize,
    /// Size of the layers that no record names any more.
    pub bytes: u64,
}

impl Record {
    fn of(key: &str, step: &Step) -> Self {
        Self {
            key: key.to_owned(),
            kind: Some(match step.basis {
                Basis::Content => "content",
                Basis::Run => "run",
                Basis::Embedded => "embedded",
            }),
            used: (step.used > 0).then(|| i64::from(step.used) * DAY),
            layers: step.layers.iter().map(|layer| layer.digest.clone()).collect(),
            size: step.layers.iter().fold(0, |sum, layer| layer.size.saturating_add(sum)),
            reclaimable: None,
        }
    }

    fn of_store(usage: &CacheUsage) -> Self {
        let since = usage.used.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (size, reclaimable) = CacheUsage::total([usage]);
        Self {
            key: usage.key.clone(),
            kind: None,
            used: i64::try_from(since.as_secs()).ok(),
            layers: usage.layers.iter().map(|layer| layer.digest.clone()).collect(),
            size,
            reclaimable: Some(reclaimable),
        }
    }
}

/// Lists the build cache of the store.
pub fn list_store(store: &Store) -> Result<Listing> {
    let usage = store.cache_usage()?;
    let (size, reclaimable) = CacheUsage::total(&usage);
    Ok(Listing {
        place: None,
        digest: None,
        is_image: false,
        records: usage.iter().map(Record::of_store).collect(),
        size,
        reclaimable: Some(reclaimable),
    })
}

/// Removes the records of the store beyond `limits`, and what nothing refers to then.
pub fn prune_store(
    limits: &Limits,
    dry_run: bool,
    store: &Store,
    reporter: &dyn Reporter,
) -> Result<Pruned> {
    let options = PruneOptions {
        cache_age: limits.max_age,
        cache_size: limits.max_size,
        cache_keep: if limits.all { Some(0) } else { limits.keep },
        ..PruneOptions::default()
    };
    let records = list_store(store)?.records;
    let plan = store.plan_prune(&options)?;
    let plan = if dry_run { plan } else { store.prune(&plan, reporter)? };
    let gone: HashSet<_> = plan.garbage.iter().filter_map(|item| item.path.file_name()).collect();
    let is_gone = |record: &Record| gone.contains(OsStr::new(&record.key));
    let (removed, kept): (Vec<Record>, Vec<Record>) = records.into_iter().partition(is_gone);
    Ok(Pruned { place: "the store".to_owned(), removed, kept: kept.len(), bytes: plan.bytes() })
}

/// Lists the cache at `place`: several, if it consists of several.
pub fn list(place: &Place, store: &Store, client: Option<&Client>) -> Result<Vec<Listing>> {
    let mut listings = Vec::new();
    for part in place.readable() {
        let opened = part.open(store, client)?;
        let found = artifact::read(&*opened).context(|| format!("cannot read {part}"))?;
        let Some(digest) = found.root else { continue };
        listings.push(Listing {
            place: Some(part.to_string()),
            digest: Some(digest),
            reclaimable: None,
            is_image: found.is_image,
            size: size(&found.records),
            records: by_use(&found.records).map(|(key, step)| Record::of(key, step)).collect(),
        });
    }
    if listings.is_empty() { Err(missing(place)) } else { Ok(listings) }
}

/// Removes the records beyond `limits`, and what only they need where the place allows that; `today`
/// is the number of days since 1970.
pub fn prune(
    place: &Place,
    limits: &Limits,
    dry_run: bool,
    store: &Store,
    client: Option<&Client>,
    today: u32,
) -> Result<Pruned> {
    let name = place.writable()?;
    let opened = name.open(store, client)?;
    let place = &*opened;
    if place.digest().context(|| format!("cannot read {name}"))?.is_none() {
        return Err(missing(&name));
    }
    let _lock = if dry_run { None } else { place.lock()? };
    for _ in 0..TRIES {
        let found = artifact::read(place).context(|| format!("cannot read {name}"))?;
        if found.is_image {
            return Err(Error::usage(format!(
                "{name} is an image; its cache cannot be pruned separately"
            ))
            .hint("remove the image, or build it again without --cache-to type=inline"));
        }
        let Found { root: Some(current), records, .. } = found else {
            return Err(missing(&name));
        };
        let (kept, removed) = split(&records, limits, today);
        let pruned = Pruned {
            place: name.to_string(),
            kept: kept.steps.len(),
            bytes: size(&records).saturating_sub(size(&kept)),
            removed,
        };
        if dry_run || pruned.removed.is_empty() {
            return Ok(pruned);
        }
        let old = documents(place, &current)?;
        let artifact = artifact::artifact(&kept)?;
        artifact.write(place)?;
        if artifact.name(place, Some(&current))? {
            let new = artifact.documents();
            let old: Vec<Digest> = old.into_iter().filter(|old| !new.contains(&old)).collect();
            place.remove_documents(&old);
            return Ok(pruned);
        }
    }
    Err(Error::new(Kind::Busy, format!("builds write {name} all the time"))
        .hint("prune it when no build runs"))
}

fn missing(place: &Place) -> Error {
    Error::not_found(format!("there is no build cache {place}"))
}

/// Returns the records, the most recently used first.
fn by_use(records: &Records) -> impl Iterator<Item = (&String, &Step)> {
    let mut steps: Vec<(&String, &Step)> = records.steps.iter().collect();
    steps.sort_by(|(a_key, a), (b_key, b)| b.used.cmp(&a.used).then(a_key.cmp(b_key)));
    steps.into_iter()
}

fn size(records: &Records) -> u64 {
    records.layers().values().fold(0, |sum, layer| layer.size.saturating_add(sum))
}

/// Returns the records that stay, and those that go.
fn split(records: &Records, limits: &Limits, today: u32) -> (Records, Vec<Record>) {
    let days = |age: std::time::Duration| u32::try_from(age.as_secs() / 86_400).unwrap_or(u32::MAX);
    let since = limits.max_age.map_or(0, |age| today.saturating_sub(days(age)));
    let (mut kept, mut removed) = (BTreeMap::new(), Vec::new());
    let (mut layers, mut total) = (BTreeSet::new(), 0_u64);
    for (key, step) in by_use(records) {
        let added = step.layers.iter().filter(|layer| !layers.contains(&layer.digest));
        let added: BTreeMap<&Digest, u64> =
            added.map(|layer| (&layer.digest, layer.size)).collect();
        let with_it = added.values().fold(total, |sum, size| sum.saturating_add(*size));
        let fits = step.used >= since
            && limits.keep.is_none_or(|keep| kept.len() < keep)
            && limits.max_size.is_none_or(|most| with_it <= most)
            && !limits.all;
        if fits {
            layers.extend(added.into_keys());
            total = with_it;
            kept.insert(key.clone(), step.clone());
        } else {
            removed.push(Record::of(key, step));
        }
    }
    (Records::new(kept), removed)
}

/// Returns the digests of the cache's documents.
fn documents(place: &dyn CachePlace, current: &Digest) -> Result<Vec<Digest>> {
    let mut digests = vec![current.clone()];
    if let Some((root, bytes)) = place.root()?
        && root.digest == *current
        && let Document::Index(index) = Document::parse(&bytes, Some(&root.media_type))?
    {
        digests.extend(index.manifests.into_iter().map(|entry| entry.digest));
    }
    Ok(digests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::records::{CachedLayer, RecordedLayer};
    use imgctl_base::image::descriptor::LAYER_KIND;
    use imgctl_base::image::{Descriptor, media_type};
    use std::time::Duration;

    /// Number of a record, the day of its last use, its layers (number and size).
    type Listed<'a> = (u8, u32, &'a [(u8, u64)]);

    fn records(steps: &[Listed<'_>]) -> Records {
        let layer = |(number, size): &(u8, u64)| {
            let digest = Digest::of(&[*number]);
            let mut descriptor = Descriptor::new(media_type::OCI_LAYER_ZSTD, digest.clone(), *size);
            descriptor.annotations.insert(LAYER_KIND.to_owned(), "rootfs".to_owned());
            let layer = CachedLayer { descriptor, diff_id: digest, newest: 1 };
            RecordedLayer::new(&layer, std::iter::empty()).unwrap()
        };
        let step = |(number, used, layers): &Listed<'_>| {
            let layers = layers.iter().map(layer).collect();
            (
                format!("{number:064x}"),
                Step { basis: Basis::Run, used: *used, layers, signature: None },
            )
        };
        Records::new(steps.iter().map(step).collect())
    }

    #[test]
    fn the_most_recently_used_records_within_the_limits_stay() {
        let all = records(&[
            (1, 100, &[(1, 10)]),
            (2, 99, &[(1, 10), (2, 20)]),
            (3, 98, &[(3, 5)]),
            (4, 40, &[(4, 1)]),
        ]);
        let kept = |limits: Limits| {
            let (kept, removed) = split(&all, &limits, 100);
            assert_eq!(kept.steps.len() + removed.len(), 4);
            let number = |key: &String| u8::from_str_radix(&key[62..], 16).unwrap();
            kept.steps.keys().map(number).collect::<Vec<_>>()
        };
        assert_eq!(kept(Limits::default()), [1, 2, 3, 4]);
        let age = Some(Duration::from_secs(2 * 86_400));
        assert_eq!(kept(Limits { max_age: age, ..Limits::default() }), [1, 2, 3]);
        assert_eq!(kept(Limits { keep: Some(2), ..Limits::default() }), [1, 2]);
        // A layer that two records name counts once, and what is small fits beside what does not.
        assert_eq!(kept(Limits { max_size: Some(31), ..Limits::default() }), [1, 2, 4]);
        assert_eq!(kept(Limits { max_size: Some(16), ..Limits::default() }), [1, 3, 4]);
        assert_eq!(kept(Limits { all: true, ..Limits::default() }), [0; 0]);
    }
}
