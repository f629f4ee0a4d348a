//! Content digests of files that have not changed since they were last read: (device, inode, size,
//! mtime, ctime) → BLAKE3, so that an unchanged context is not read again. For extended attributes,
//! only their presence is cached.
//!
//! A file whose ctime is not clearly older than the time of the build could change again without a
//! change of its times (git calls this racy); such a file is never cached. Losing the cache costs
//! time, never correctness, so a damaged cache counts as empty.

use std::io::Read;
use std::path::{Path, PathBuf};

use imgctl_base::error::{IoContext as _, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::fs::metadata::Metadata;

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

type Record = (FileState, Known);

/// The cached files of one context.
#[derive(Debug)]
pub(crate) struct StatCache {
    path: PathBuf,
    /// Records read from disk, sorted by device and inode.
    known: Vec<Record>,
    /// Records used or added by this build, in any order.
    seen: Vec<Record>,
    now: i64,
    changed: bool,
}

impl StatCache {
    /// Reads the cache file; `now` is the current time in seconds, taken before the context is
    /// walked.
    pub(super) fn open(path: PathBuf, now: i64) -> Self {
        let known = read(&path).unwrap_or_default();
        Self { path, known, seen: Vec::new(), now, changed: false }
    }

    /// Returns the cached facts about a file in exactly this state.
    pub(super) fn get(&mut self, state: &FileState) -> Option<Known> {
        let place = self.known.binary_search_by_key(&identity(state), |(state, _)| identity(state));
        let record = *self.known.get(place.ok()?)?;
        if record.0 != *state {
            return None;
        }
        self.seen.push(record);
        Some(record.1)
    }

    /// Caches a file, unless it has changed so recently that another change could go unnoticed.
    pub(super) fn put(&mut self, state: &FileState, known: Known) {
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

fn read(path: &Path) -> Option<Vec<Record>> {
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
        let mut cache = StatCache::open(directory.path().join("stat"), 1000);
        cache.put(&state(1, 999), KNOWN);
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
