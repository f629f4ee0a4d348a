//! The build cache: maps a step's key to the layers that the step created, and the state of a file
//! of a context to its digest.
//!
//! A record is a small JSON file `cache/steps/<key>`; its `digests` tell prune which blobs to keep.
//! A record whose blobs are missing does not count.

use std::collections::HashMap;
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
const SEMANTICS: &str = "imgctl build 1";
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
pub(super) struct Key(blake3::Hasher);

impl Key {
    /// Creates a key for one type of step.
    pub(super) fn new(sort: &str) -> Self {
        let mut key = Self(blake3::Hasher::new());
        key.add(SEMANTICS.as_bytes());
        key.add(sort.as_bytes());
        key
    }

    /// Adds one part.
    pub(super) fn add(&mut self, part: &[u8]) {
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    /// Adds a number.
    pub(crate) fn add_number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    /// Returns the key as the record's file name.
    pub(super) fn finish(&self) -> String {
        self.0.finalize().to_hex().to_string()
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

const MAGIC: &[u8; 8] = b"imgstat1";
/// Size of one record on disk, in bytes.
const RECORD: usize = 16 + 8 + 16 + 16 + 32 + 1;
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
    /// Seconds and nanoseconds.
    pub mtime: (i64, u32),
    pub(crate) ctime: (i64, u32),
}

impl FileState {
    /// Returns the state that `metadata` describes.
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev,
            inode: metadata.ino,
            size: metadata.size,
            mtime: metadata.mtime,
            ctime: metadata.ctime,
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
}

/// The cached files of one context.
#[derive(Debug)]
pub(crate) struct StatCache {
    path: PathBuf,
    /// Records read from disk, sorted by device and inode.
    known: Vec<(FileState, Known)>,
    /// Records used or added by this build, in any order.
    seen: Vec<(FileState, Known)>,
    /// Files that this build has read and that changed too recently to be recorded, by identity: the
    /// next platform need not read them again.
    recent: HashMap<(u64, u64), (FileState, Known)>,
    now: i64,
    changed: bool,
}

impl StatCache {
    /// Reads the cache file; `now` is the current time in seconds, taken before the context is
    /// walked.
    pub(super) fn open(path: PathBuf, now: i64) -> Self {
        let known = read_states(&path).unwrap_or_default();
        Self { path, known, seen: Vec::new(), recent: HashMap::new(), now, changed: false }
    }

    /// Returns the cached facts about a file in exactly this state.
    pub(super) fn get(&mut self, state: &FileState) -> Option<Known> {
        if let Some((_, known)) = self.recent.get(&identity(state)).filter(|(s, _)| s == state) {
            return Some(*known);
        }
        let place = self.known.binary_search_by_key(&identity(state), |(state, _)| identity(state));
        let record = *self.known.get(place.ok()?)?;
        if record.0 != *state {
            return None;
        }
        self.seen.push(record);
        Some(record.1)
    }

    /// Caches a file for this build, and for later ones unless it has changed so recently that another
    /// change could go unnoticed.
    pub(super) fn put(&mut self, state: &FileState, known: Known) {
        self.recent.insert(identity(state), (*state, known));
        let newest = state.ctime.0.max(state.mtime.0);
        if newest + SETTLED > self.now {
            return;
        }
        self.changed = true;
        self.seen.push((*state, known));
    }

    /// Writes the cache if this build added anything. Records that this build did not use are kept,
    /// unless they far outnumber the used ones.
    pub(super) fn save(mut self) -> Result<()> {
        if !self.changed {
            return Ok(());
        }
        // The most recent record wins, and records of this build take precedence over those from
        // disk: sorting is stable.
        let mut records = self.seen;
        records.reverse();
        if self.known.len() <= 4 * records.len() + 1000 {
            records.append(&mut self.known);
        }
        records.sort_by_key(|(state, _)| identity(state));
        records.dedup_by_key(|(state, _)| identity(state));
        let mut bytes = Vec::with_capacity(MAGIC.len() + records.len() * RECORD + 32);
        bytes.extend_from_slice(MAGIC);
        for (state, known) in &records {
            encode(&mut bytes, state, known);
        }
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

fn read_states(path: &Path) -> Option<Vec<(FileState, Known)>> {
    let mut file = std::fs::File::open(path).ok()?;
    let length = usize::try_from(file.metadata().ok()?.len()).ok()?;
    if length > MAX_RECORDS * RECORD {
        return None;
    }
    let mut bytes = Vec::with_capacity(length);
    file.read_to_end(&mut bytes).ok()?;
    let (body, checksum) = bytes.split_at_checked(bytes.len().checked_sub(32)?)?;
    if blake3::hash(body).as_bytes() != checksum {
        return None;
    }
    let records = body.strip_prefix(MAGIC.as_slice())?;
    if records.len() % RECORD != 0 {
        return None;
    }
    records.chunks_exact(RECORD).map(decode).collect()
}

fn encode(bytes: &mut Vec<u8>, state: &FileState, known: &Known) {
    bytes.extend_from_slice(&state.device.to_le_bytes());
    bytes.extend_from_slice(&state.inode.to_le_bytes());
    bytes.extend_from_slice(&state.size.to_le_bytes());
    for (seconds, nanoseconds) in [state.mtime, state.ctime] {
        bytes.extend_from_slice(&seconds.to_le_bytes());
        bytes.extend_from_slice(&u64::from(nanoseconds).to_le_bytes());
    }
    bytes.extend_from_slice(&known.content);
    bytes.push(u8::from(known.has_xattrs));
}

fn decode(record: &[u8]) -> Option<(FileState, Known)> {
    let word = |at: usize| Some(u64::from_le_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let time = |at: usize| Some((word(at)?.cast_signed(), u32::try_from(word(at + 8)?).ok()?));
    let state = FileState {
        device: word(0)?,
        inode: word(8)?,
        size: word(16)?,
        mtime: time(24)?,
        ctime: time(40)?,
    };
    let known =
        Known { content: record.get(56..88)?.try_into().ok()?, has_xattrs: *record.get(88)? != 0 };
    Some((state, known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(inode: u64, changed: i64) -> FileState {
        FileState { device: 1, inode, size: 5, mtime: (changed, 7), ctime: (changed, 9) }
    }

    const KNOWN: Known = Known { content: [3; 32], has_xattrs: true };

    #[test]
    fn what_is_saved_is_found_again_in_the_same_state_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stat");
        let mut cache = StatCache::open(path.clone(), 1000);
        cache.put(&state(1, 900), KNOWN);
        cache.save().unwrap();
        let mut cache = StatCache::open(path, 1001);
        assert_eq!(cache.get(&state(1, 900)), Some(KNOWN));
        assert_eq!(cache.get(&state(1, 901)), None, "another time is another state");
        assert_eq!(cache.get(&FileState { size: 6, ..state(1, 900) }), None);
    }

    #[test]
    fn a_file_that_just_changed_is_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stat");
        let mut cache = StatCache::open(path, 1000);
        cache.put(&state(1, 999), KNOWN);
        assert_eq!(cache.get(&state(1, 999)), Some(KNOWN), "it is the same build");
        cache.save().unwrap();
        let mut cache = StatCache::open(directory.path().join("stat"), 1001);
        assert_eq!(cache.get(&state(1, 999)), None);
    }

    #[test]
    fn a_damaged_file_is_an_empty_cache() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stat");
        let mut cache = StatCache::open(path.clone(), 1000);
        cache.put(&state(1, 900), KNOWN);
        cache.save().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(StatCache::open(path, 1001).get(&state(1, 900)), None);
    }
}
