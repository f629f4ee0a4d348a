//! The build cache: maps a step's key to the layers that the step created, and the state of a file
//! of a context to its digest.
//!
//! A record is a small JSON file `cache/steps/<key>`; its `digests` tell prune which blobs to keep.
//! A record whose blobs are missing does not count.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::cache::import::Imported;
use crate::cache::records::{self, RecordedLayer, Used};
pub(crate) use crate::cache::records::{Basis, CachedLayer};
use crate::cache::remote::Remotes;
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::fs::metadata::Metadata;
use imgctl_base::image::Digest;
use imgctl_store::store::{Lease, Store};

/// Changed when the same inputs produce different bytes than before.
const SEMANTICS: &str = "imgctl build 2";
/// Maximum size of a record, in bytes.
const MAX_RECORD: u64 = 1 << 20;
/// Age at which using a record is worth a write.
const RENEWED: Duration = Duration::from_secs(3600);

#[derive(Serialize, Deserialize)]
struct Record {
    layers: Vec<CachedLayer>,
    digests: Vec<Digest>,
}

/// Builder of a step's key from its parts, in order. Parts are length-prefixed, so that different
/// lists of parts cannot produce the same key by accident.
#[derive(Clone, Debug)]
pub(super) struct Key {
    hasher: blake3::Hasher,
    /// What is not hashed yet: parts are short, and the hash is several times as fast at length.
    pending: Vec<u8>,
}

/// Number of bytes that are hashed at once.
const AT_ONCE: usize = 64 << 10;

impl Key {
    /// Creates a key for one type of step.
    pub(super) fn new(sort: &str) -> Self {
        let mut key = Self { hasher: blake3::Hasher::new(), pending: Vec::new() };
        key.add(SEMANTICS.as_bytes());
        key.add(sort.as_bytes());
        key
    }

    /// Adds one part.
    pub(super) fn add(&mut self, part: &[u8]) {
        self.add_number(part.len() as u64);
        self.pending.extend_from_slice(part);
    }

    /// Adds a number.
    pub(crate) fn add_number(&mut self, number: u64) {
        if self.pending.len() >= AT_ONCE {
            self.hasher.update(&self.pending);
            self.pending.clear();
        }
        self.pending.extend_from_slice(&number.to_le_bytes());
    }

    /// Returns the key as the record's file name.
    pub(super) fn finish(&self) -> String {
        self.hasher.clone().update(&self.pending).finalize().to_hex().to_string()
    }
}

/// The cache in a store, with those that were imported for this build. With `--no-cache`, nothing is
/// read but results are still recorded.
#[derive(Clone, Debug)]
pub(crate) struct StepCache {
    directory: PathBuf,
    read: bool,
    imported: Arc<Imported>,
    remotes: Arc<Remotes>,
    used: Arc<Mutex<Used>>,
}

impl StepCache {
    /// Returns the step cache of `store`; without `read`, every lookup misses. `leave` allows layers
    /// to stay in the registries of imported caches.
    pub(super) fn new(store: &Store, read: bool, imported: Imported, leave: bool) -> Self {
        Self {
            directory: store.cache_directory().join("steps"),
            read,
            imported: Arc::new(imported),
            remotes: Arc::new(Remotes::new(store, leave)),
            used: Arc::default(),
        }
    }

    /// Returns the same cache, read even with `--no-cache`.
    pub(crate) fn reading(&self) -> Self {
        Self { read: true, ..self.clone() }
    }

    /// Returns the imported caches.
    pub(crate) fn imported(&self) -> &Arc<Imported> {
        &self.imported
    }

    /// Returns the layers that stay in registries.
    pub(crate) fn remotes(&self) -> &Arc<Remotes> {
        &self.remotes
    }

    /// Forgets what this build has used so far, before it is repeated.
    pub(super) fn restart(&self) {
        self.remotes.restart();
        self.take_used();
    }

    /// Records that this build has used the layers of a step, for exports.
    pub(crate) fn used(&self, key: &str, basis: Basis, layers: &[CachedLayer]) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.insert(key.to_owned(), (basis, layers.to_vec()));
    }

    /// Returns the record of a step that this build has used; `None` if its layer is in no known
    /// place.
    pub(super) fn recorded(
        &self,
        store: &Store,
        key: &str,
        basis: Basis,
        layers: &[CachedLayer],
    ) -> Result<Option<Vec<RecordedLayer>>> {
        match records::recorded(store, basis, layers)? {
            None => Ok(self.imported.recorded(key, layers).map(|step| step.layers.clone())),
            known => Ok(known),
        }
    }

    /// Returns the steps used since the last call.
    pub(super) fn take_used(&self) -> Used {
        std::mem::take(&mut *self.used.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the layers recorded under `key` if all of them still exist. They are leased before
    /// they are checked, so that a concurrent prune cannot remove them.
    pub(super) fn get(
        &self,
        store: &Store,
        lease: &Lease,
        key: &str,
    ) -> Result<Option<Vec<CachedLayer>>> {
        if !self.read {
            return Ok(None);
        }
        let Ok(file) = std::fs::File::open(self.directory.join(key)) else {
            return Ok(None);
        };
        let Ok(metadata) = file.metadata() else { return Ok(None) };
        if metadata.len() > MAX_RECORD {
            return Ok(None);
        }
        // Prune keeps what was used most recently.
        let now = SystemTime::now();
        if metadata.modified().is_ok_and(|then| now.duration_since(then).is_ok_and(|a| a > RENEWED))
        {
            let _ = file.set_modified(now);
        }
        // A damaged record is a miss: the step runs and replaces it.
        let Ok(record) = serde_json::from_reader::<_, Record>(file) else {
            return Ok(None);
        };
        for layer in &record.layers {
            lease.hold_all([&layer.descriptor.digest, &layer.diff_id])?;
            if store.blob_size(&layer.descriptor.digest)? != Some(layer.descriptor.size) {
                return Ok(None);
            }
        }
        Ok(Some(record.layers))
    }

    /// Records the layers of a step.
    pub(super) fn put(&self, key: &str, layers: &[CachedLayer]) -> Result<()> {
        self.put_keeping(key, layers, &[])
    }

    /// Records the layers of a step, and additional blobs to keep for the lifetime of the record.
    /// Layers that are not in the store are not recorded.
    pub(crate) fn put_keeping(
        &self,
        key: &str,
        layers: &[CachedLayer],
        further: &[Digest],
    ) -> Result<()> {
        if layers.iter().any(|layer| self.remotes.has(&layer.descriptor.digest)) {
            return Ok(());
        }
        let digests = layers
            .iter()
            .flat_map(|layer| [layer.descriptor.digest.clone(), layer.diff_id.clone()]);
        let record = Record {
            layers: layers.to_vec(),
            digests: digests.chain(further.iter().cloned()).collect(),
        };
        let bytes = serde_json::to_vec(&record)
            .map_err(|error| Error::failed("cannot write a build cache record").caused_by(error))?;
        atomic::write(&self.directory.join(key), &bytes, 0o600, Durability::Atomic)
    }
}

const MAGIC: &[u8; 8] = b"imgstat3";
/// Size of one record on disk, in bytes.
const RECORD: usize = 16 + 8 + 16 + 16 + 32 + 1;
/// Size of the hash at the end, in bytes.
const CHECKSUM: usize = 32;
/// Minimum time since a file's last change for it to be cached, in seconds.
const SETTLED: i64 = 2;
/// Maximum number of records; a longer file is not read.
const MAX_RECORDS: usize = 20_000_000;

/// Identifies one state of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileState {
    pub device: u64,
    pub inode: u64,
    pub size: u64,
    /// Seconds since 1970.
    pub mtime: i64,
    pub(crate) ctime: i64,
    /// Nanoseconds of both times. There is a state for every file of a context.
    pub(crate) nanoseconds: [u32; 2],
}

impl FileState {
    /// Returns the state that `metadata` describes.
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev,
            inode: metadata.ino,
            size: metadata.size,
            mtime: metadata.mtime.0,
            ctime: metadata.ctime.0,
            nanoseconds: [metadata.mtime.1, metadata.ctime.1],
        }
    }
}

/// Cached facts about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// BLAKE3 of the content.
    pub content: [u8; 32],
    /// Whether the file has extended attributes for a layer, which must then be read.
    pub(crate) has_xattrs: bool,
    /// Whether the search for images has found that the content cannot name any.
    pub(crate) names_nothing: bool,
}

/// The cached files of one context.
#[derive(Debug)]
pub(crate) struct StatCache {
    path: PathBuf,
    /// Records read from disk, as they are there: sorted by device and inode.
    known: Stored,
    /// For each of those, whether this build has used it.
    used: Vec<bool>,
    /// The record after the one found last. A file's successor in a walk was often created after it,
    /// and its record is the next one.
    next: usize,
    /// Records added by this build: the first `sorted` by device and inode, the others in any order. A
    /// later record of the same file counts more.
    added: Vec<(FileState, Known)>,
    sorted: usize,
    /// Hashes of the states of files that name no image and have no record yet.
    nameless: HashSet<[u8; 16]>,
    now: i64,
}

impl StatCache {
    /// Reads the cache file; `now` is the current time in seconds, taken before the context is
    /// walked.
    pub(super) fn open(path: PathBuf, now: i64) -> Self {
        let known = Stored::read(&path).unwrap_or_default();
        let used = vec![false; known.len()];
        Self {
            path,
            known,
            used,
            next: 0,
            added: Vec::new(),
            sorted: 0,
            nameless: HashSet::new(),
            now,
        }
    }

    /// Returns the cached facts about a file in exactly this state.
    pub(super) fn get(&mut self, state: &FileState) -> Option<Known> {
        if let Some((_, known)) = self.find_added(state).filter(|(added, _)| added == state) {
            return Some(*known);
        }
        let index = self.known.find(identity(state), self.next)?;
        self.next = index + 1;
        let (found, known) = self.known.get(index)?;
        if found != *state {
            return None;
        }
        if let Some(used) = self.used.get_mut(index) {
            *used = true;
        }
        Some(known)
    }

    fn find_added(&mut self, state: &FileState) -> Option<&(FileState, Known)> {
        self.sort_added();
        let end = self.added.partition_point(|(added, _)| identity(added) <= identity(state));
        let last = self.added.get(end.checked_sub(1)?)?;
        (identity(&last.0) == identity(state)).then_some(last)
    }

    /// Sorts what was added. Builds look files up and add files in turns of thousands.
    fn sort_added(&mut self) {
        if self.sorted < self.added.len() {
            self.added.sort_by_key(|(state, _)| identity(state));
            self.sorted = self.added.len();
        }
    }

    /// Makes room for the records of `count` more files: growing by doubling takes three times as much.
    pub(super) fn expect(&mut self, count: usize) {
        self.added.reserve_exact(count);
    }

    /// Caches a file for this build, and for later ones unless it has changed so recently that another
    /// change could go unnoticed.
    pub(super) fn put(&mut self, state: &FileState, mut known: Known) {
        known.names_nothing |= self.nameless.contains(&fingerprint(state));
        self.added.push((*state, known));
    }

    /// Whether a file in exactly this state is known to name no image.
    pub(crate) fn names_nothing(&mut self, state: &FileState) -> bool {
        self.get(state).is_some_and(|known| known.names_nothing)
    }

    /// Remembers that a file names no image, once it has a record.
    pub(crate) fn remember_nothing(&mut self, state: &FileState) {
        match self.get(state) {
            Some(known) => self.put(state, Known { names_nothing: true, ..known }),
            None => drop(self.nameless.insert(fingerprint(state))),
        }
    }

    /// Writes the cache if this build added anything. Records that this build did not use are kept,
    /// unless they far outnumber the used ones.
    pub(super) fn save(mut self) -> Result<()> {
        self.sort_added();
        let now = self.now;
        let is_settled =
            |state: &FileState| state.ctime.max(state.mtime).saturating_add(SETTLED) <= now;
        self.added.retain(|(state, _)| is_settled(state));
        if self.added.is_empty() {
            return Ok(());
        }
        let used = self.used.iter().filter(|used| **used).count() + self.added.len();
        let keeps_all = self.known.len() <= 4 * used + 1000;
        let mut bytes = Vec::with_capacity(
            MAGIC.len() + (self.known.len() + self.added.len()) * RECORD + CHECKSUM,
        );
        bytes.extend_from_slice(MAGIC);
        let mut added = self.added.chunk_by(|a, b| identity(&a.0) == identity(&b.0)).peekable();
        let mut put_until = |end: Option<(u64, u64)>, bytes: &mut Vec<u8>| {
            let mut last = None;
            let is_before =
                |same: &&[(FileState, Known)]| end.is_none_or(|end| identity(&same[0].0) <= end);
            while let Some(same) = added.next_if(is_before) {
                last = same.last();
                if let Some((state, known)) = last {
                    encode(bytes, state, known);
                }
            }
            last.map(|(state, _)| identity(state))
        };
        for (record, is_used) in self.known.records().zip(&self.used) {
            let Some((state, _)) = decode(record) else { continue };
            // What was added takes precedence.
            let is_replaced =
                put_until(Some(identity(&state)), &mut bytes) == Some(identity(&state));
            if !is_replaced && (keeps_all || *is_used) {
                bytes.extend_from_slice(record);
            }
        }
        put_until(None, &mut bytes);
        let checksum = blake3::hash(&bytes);
        bytes.extend_from_slice(checksum.as_bytes());
        if let Some(directory) = self.path.parent() {
            std::fs::create_dir_all(directory).path("make", directory)?;
        }
        atomic::write(&self.path, &bytes, 0o600, Durability::Atomic)
    }
}

/// Returns the part of a state that does not change when the file changes.
fn identity(state: &FileState) -> (u64, u64) {
    (state.device, state.inode)
}

/// Returns a hash of the state that no other file has.
fn fingerprint(state: &FileState) -> [u8; 16] {
    let mut bytes = Vec::with_capacity(RECORD);
    encode_state(&mut bytes, state);
    blake3::hash(&bytes).as_bytes().first_chunk().copied().unwrap_or_default()
}

/// A cache file in memory.
#[derive(Debug, Default)]
struct Stored(Vec<u8>);

impl Stored {
    /// Reads and verifies a file; `None` if there is none, or if it is damaged.
    fn read(path: &Path) -> Option<Self> {
        let mut file = std::fs::File::open(path).ok()?;
        let length = usize::try_from(file.metadata().ok()?.len()).ok()?;
        if length > MAX_RECORDS * RECORD {
            return None;
        }
        // One more than there is, so that the end is found without more memory.
        let mut bytes = Vec::with_capacity(length + 1);
        file.read_to_end(&mut bytes).ok()?;
        let (body, checksum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM)?)?;
        let is_whole = blake3::hash(body).as_bytes() == checksum
            && body.starts_with(MAGIC)
            && (body.len() - MAGIC.len()).is_multiple_of(RECORD);
        is_whole.then_some(Self(bytes))
    }

    fn records(&self) -> std::slice::ChunksExact<'_, u8> {
        let end = self.0.len().saturating_sub(CHECKSUM);
        self.0.get(MAGIC.len()..end).unwrap_or_default().chunks_exact(RECORD)
    }

    fn len(&self) -> usize {
        self.records().len()
    }

    fn get(&self, index: usize) -> Option<(FileState, Known)> {
        decode(self.records().nth(index)?)
    }

    /// Returns the index of the record of a file, which may be `guess`.
    fn find(&self, file: (u64, u64), guess: usize) -> Option<usize> {
        let identity = |record: &[u8]| Some((word(record, 0)?, word(record, 8)?));
        if self.records().nth(guess).and_then(identity) == Some(file) {
            return Some(guess);
        }
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            let record = self.records().nth(middle)?;
            match identity(record)?.cmp(&file) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Some(middle),
            }
        }
        None
    }
}

fn encode(bytes: &mut Vec<u8>, state: &FileState, known: &Known) {
    encode_state(bytes, state);
    bytes.extend_from_slice(&known.content);
    bytes.push(u8::from(known.has_xattrs) | u8::from(known.names_nothing) << 1);
}

fn encode_state(bytes: &mut Vec<u8>, state: &FileState) {
    bytes.extend_from_slice(&state.device.to_le_bytes());
    bytes.extend_from_slice(&state.inode.to_le_bytes());
    bytes.extend_from_slice(&state.size.to_le_bytes());
    let [modified, changed] = state.nanoseconds;
    for (seconds, nanoseconds) in [(state.mtime, modified), (state.ctime, changed)] {
        bytes.extend_from_slice(&seconds.to_le_bytes());
        bytes.extend_from_slice(&u64::from(nanoseconds).to_le_bytes());
    }
}

fn word(record: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*record.get(at..)?.first_chunk()?))
}

fn decode(record: &[u8]) -> Option<(FileState, Known)> {
    let word = |at| word(record, at);
    let small = |at| u32::try_from(word(at)?).ok();
    let state = FileState {
        device: word(0)?,
        inode: word(8)?,
        size: word(16)?,
        mtime: word(24)?.cast_signed(),
        ctime: word(40)?.cast_signed(),
        nanoseconds: [small(32)?, small(48)?],
    };
    let flags = *record.get(88)?;
    let known = Known {
        content: record.get(56..88)?.try_into().ok()?,
        has_xattrs: flags & 1 != 0,
        names_nothing: flags & 2 != 0,
    };
    Some((state, known))
}

#[cfg(test)]
mod tests;
