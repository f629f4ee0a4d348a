//! Layers as recipes: what a host lacks of a layer, given what it has, as a file from which the host
//! makes the layer.
//!
//! A recipe is worth the time that it takes if the line is slow. Must not know which host gets what,
//! or how recipes are sent.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::file_at::FileAt;
use imgctl_base::image::{Descriptor, Digest, Hasher};
use imgctl_base::workers::lock;
use imgctl_layer::chunked::{self, FOOTER, Part, Position, Table};
use imgctl_layer::delta::{self, Base};
use imgctl_layer::{ContentReader, EntryKind, LayerPath};
use imgctl_store::mount::layers::LayerOf;
use imgctl_store::store::Store;

/// Whether hosts get changed layers as differences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delta {
    /// If the line is slower than it takes to make and to apply them.
    #[default]
    Auto,
    /// As small as possible, however long it takes.
    Always,
    Never,
}

/// Media type of a recipe on its way to a host.
const MEDIA_TYPE: &str = "application/vnd.imgctl.layer.recipe.v1";
/// Level of patches if only the number of bytes counts.
const SMALLEST: i32 = 19;
/// Speeds of the line below which patches are made at a level, in bytes per second. Patches of
/// another version are made with about 150, 40 and 3 MB/s of content by one core.
const LEVELS: [(u64, i32); 3] = [(200_000, SMALLEST), (2_000_000, 9), (200_000_000, 3)];
/// Level while the speed is not known.
const USUAL: i32 = 3;
/// Maximum number of bytes in a recipe, as a percentage of the layer, beyond which the layer itself
/// is sent.
const WORTH: u64 = 90;
/// Minimum size of a file in a registry that is looked for on the host, in bytes.
const SMALL_FILE: u64 = 64 << 10;
/// Where the files of a registry layer are that have their digest as name.
const REGISTRY_BLOBS: &str = "registry/docker/registry/v2/blobs/";

/// What a host has that a layer may have in common with.
#[derive(Clone, Debug, Default)]
pub struct Held {
    pub layers: Vec<LayerOf>,
    /// Blobs in its registry directory.
    pub files: BTreeSet<Digest>,
}

impl Held {
    /// Returns whether it has nothing.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty() && self.files.is_empty()
    }

    /// Identifies the content.
    fn key(&self) -> Vec<Digest> {
        let layers = self.layers.iter().map(|layer| layer.blob.digest.clone());
        let mut key: Vec<Digest> = layers.chain(self.files.iter().cloned()).collect();
        key.sort();
        key
    }
}

/// A recipe in a scratch file.
#[derive(Debug)]
pub struct Recipe {
    pub descriptor: Descriptor,
    file: File,
}

impl Recipe {
    /// Opens the recipe from an offset.
    pub fn open(&self, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        let file = self.file.try_clone().doing(|| "cannot read a recipe".to_owned())?;
        Ok(Box::new(FileAt::new(file, offset)))
    }
}

/// Makes the recipe of a layer of `store`; `None` if it would save little.
pub(super) fn make(
    store: &Store,
    layer: &LayerOf,
    held: &Held,
    level: i32,
) -> Result<Option<Recipe>> {
    let mut bases = Vec::new();
    for base in &held.layers {
        // What the controller no longer has cannot be compared.
        if store.blob_size(&base.blob.digest)? == Some(base.blob.size) {
            let blob = store.open_blob(&base.blob.digest)?;
            let toc = store.toc(&base.blob.digest, &base.diff_id)?;
            bases.push(Base::layer(base.blob.digest.clone(), blob, Arc::new(toc)));
        }
    }
    let toc = store.toc(&layer.blob.digest, &layer.diff_id)?;
    let toc = Arc::new(toc);
    if !held.files.is_empty() {
        let mut reader =
            ContentReader::new(store.open_blob(&layer.blob.digest)?, Arc::clone(&toc))?;
        for listed in &toc.entries {
            let Some(digest) = blob_at(&listed.entry.path).filter(|d| held.files.contains(d))
            else {
                continue;
            };
            let mut copy = store.scratch_file()?;
            let doing = || format!("cannot copy {}", listed.entry.path);
            io::copy(&mut reader.open(listed)?, &mut copy).doing(doing)?;
            let (path, size) = (listed.entry.path.clone(), listed.entry.size());
            bases.push(Base::file(digest, copy, path, size, listed.content));
        }
    }
    if bases.is_empty() {
        return Ok(None);
    }
    let file = store.scratch_file()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let options = delta::Options {
        level,
        // Memory, not time, limits the highest levels.
        threads: if level > 9 { cores.min(2) } else { cores },
        advance: &|_| {},
    };
    let blob = store.open_blob(&layer.blob.digest)?;
    let created = delta::create(&layer.blob.digest, &blob, &toc, &bases, &options, &file)?;
    if created.size.saturating_mul(100) > layer.blob.size.saturating_mul(WORTH) {
        return Ok(None);
    }
    let mut hasher = Hasher::new();
    let mut reader = FileAt::new(file, 0);
    let mut buffer = vec![0; 256 << 10];
    loop {
        let count = reader.read(&mut buffer).doing(|| "cannot read a recipe".to_owned())?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
    }
    let descriptor = Descriptor::new(MEDIA_TYPE, hasher.finish(), created.size);
    Ok(Some(Recipe { descriptor, file: reader.into_file() }))
}

/// Returns the blobs of a registry that a layer brings and that are worth looking for.
pub(super) fn registry_files(store: &Store, layer: &LayerOf) -> Result<Vec<Digest>> {
    let toc = store.toc(&layer.blob.digest, &layer.diff_id)?;
    let is_large =
        |kind: &EntryKind| matches!(kind, EntryKind::File { size } if *size >= SMALL_FILE);
    let large = toc.entries.iter().filter(|listed| is_large(&listed.entry.kind));
    Ok(large.filter_map(|listed| blob_at(&listed.entry.path)).collect())
}

/// The digest of the blob that lies at this path of a registry layer.
fn blob_at(path: &LayerPath) -> Option<Digest> {
    let rest = str::from_utf8(path.as_bytes()).ok()?.strip_prefix(REGISTRY_BLOBS)?;
    match rest.split('/').collect::<Vec<_>>()[..] {
        [algorithm, _, hex, "data"] => Digest::parse(&format!("{algorithm}:{hex}")).ok(),
        _ => None,
    }
}

/// Returns how many bytes of a layer are in none of the layers that a host holds, judging by their
/// lists of frames; `None` if there is no list.
pub(super) fn differing(store: &Store, layer: &LayerOf, held: &Held) -> Option<u64> {
    let wanted = table(store, &layer.blob)?;
    let known: Vec<Table> = held.layers.iter().filter_map(|l| table(store, &l.blob)).collect();
    let parts = chunked::parts(&wanted, layer.blob.size, &known);
    let missing = parts.iter().filter(|part| matches!(part, Part::Missing(_)));
    Some(missing.map(Part::length).sum())
}

fn table(store: &Store, blob: &Descriptor) -> Option<Table> {
    let file = store.open_blob(&blob.digest).ok()?;
    let mut footer = vec![0; usize::try_from(FOOTER).ok()?];
    file.read_exact_at(&mut footer, blob.size.checked_sub(FOOTER)?).ok()?;
    let position = Position::of_footer(&footer, blob.size)?;
    let mut bytes = vec![0; usize::try_from(position.compressed).ok()?];
    file.read_exact_at(&mut bytes, position.offset).ok()?;
    position.read(&bytes).ok()
}

/// Number of a blob, and what hosts hold.
type Key = (u32, Vec<Digest>);

/// The recipes of one sync, each made once, and what is known of the line.
#[derive(Default)]
pub(super) struct Recipes {
    delta: Delta,
    line: Line,
    made: Mutex<HashMap<Key, Arc<Mutex<Made>>>>,
    /// Held while one is made: each uses all cores.
    making: Mutex<()>,
}

/// A recipe, if one was made and was worth it.
#[derive(Default)]
enum Made {
    #[default]
    NotYet,
    Done(Option<Arc<Recipe>>),
}

impl Recipes {
    pub(super) fn new(delta: Delta) -> Self {
        Self { delta, ..Self::default() }
    }

    pub(super) fn line(&self) -> &Line {
        &self.line
    }

    /// Returns at which level recipes are worth making; `None` if they are not.
    pub(super) fn level(&self) -> Option<i32> {
        match (self.delta, self.line.speed()) {
            (Delta::Never, _) => None,
            (Delta::Always, _) => Some(SMALLEST),
            (Delta::Auto, None) => Some(USUAL),
            (Delta::Auto, Some(speed)) => {
                LEVELS.iter().find(|(below, _)| speed < *below).map(|(_, level)| *level)
            }
        }
    }

    /// Returns the recipe of blob `number` for hosts that hold `held`.
    pub(super) fn get(
        &self,
        number: u32,
        held: &Held,
        make: impl FnOnce() -> Result<Option<Recipe>>,
    ) -> Result<Option<Arc<Recipe>>> {
        let slot = Arc::clone(lock(&self.made).entry((number, held.key())).or_default());
        let mut slot = lock(&slot);
        if let Made::Done(recipe) = &*slot {
            return Ok(recipe.clone());
        }
        let _one = lock(&self.making);
        // A recipe that cannot be made is not tried again.
        *slot = Made::Done(None);
        let recipe = make()?.map(Arc::new);
        *slot = Made::Done(recipe.clone());
        Ok(recipe)
    }
}

/// The speed of the line from here to the hosts.
#[derive(Default)]
pub(super) struct Line(Mutex<Traffic>);

#[derive(Default)]
struct Traffic {
    /// Number of running transfers, and the beginning of the time in which there were some.
    running: u32,
    since: Option<Instant>,
    busy: Duration,
    bytes: u64,
}

/// Number of bytes after which the speed is known.
const ENOUGH: u64 = 1 << 20;

impl Line {
    /// Measures a transfer, which returns the number of bytes sent.
    pub(super) fn measured(&self, transfer: impl FnOnce() -> Result<u64>) -> Result<u64> {
        {
            let mut traffic = lock(&self.0);
            traffic.running += 1;
            traffic.since.get_or_insert_with(Instant::now);
        }
        let sent = transfer();
        let mut traffic = lock(&self.0);
        traffic.running -= 1;
        traffic.bytes += sent.as_ref().copied().unwrap_or(0);
        if let Some(since) = traffic.since {
            traffic.busy += since.elapsed();
            traffic.since = (traffic.running > 0).then(Instant::now);
        }
        drop(traffic);
        sent
    }

    /// Returns the speed in bytes per second, once it is known.
    fn speed(&self) -> Option<u64> {
        let traffic = lock(&self.0);
        let micros = u64::try_from(traffic.busy.as_micros()).ok()?.max(1);
        (traffic.bytes >= ENOUGH).then(|| traffic.bytes.saturating_mul(1_000_000) / micros)
    }
}

/// Returns whether a layer is sent whole after this error of a host.
pub(super) fn is_of_recipe(error: &Error) -> bool {
    use imgctl_base::error::Kind;
    matches!(error.kind(), Kind::BadContent | Kind::NotFound | Kind::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_the_line_the_harder_the_compression() {
        let at = |delta: Delta, bytes: u64, busy: Duration| {
            let recipes = Recipes::new(delta);
            *lock(&recipes.line.0) = Traffic { bytes, busy, ..Traffic::default() };
            recipes.level()
        };
        let second = Duration::from_secs(1);
        assert_eq!(at(Delta::Never, 0, second), None);
        assert_eq!(at(Delta::Always, 10 << 30, second), Some(19));
        assert_eq!(at(Delta::Auto, 1000, second), Some(3));
        assert_eq!(at(Delta::Auto, 1 << 30, second), None);
        assert_eq!(at(Delta::Auto, 12 << 20, second), Some(3));
        assert_eq!(at(Delta::Auto, 2 << 20, 2 * second), Some(9));
        assert_eq!(at(Delta::Auto, 2 << 20, 20 * second), Some(19));
    }
}
