//! The list at the end of a layer without compression: runs of bytes of the tar with their BLAKE3
//! hashes, behind the end of the archive, where readers of tar ignore it. A large file's content is a
//! run; what lies between is cut behind entries whose paths say so, so that a new entry moves no cut.
//!
//! Must not depend on what the runs hold, or on where blobs are stored.

use crate::layer::LayerPath;
use crate::layer::chunked::runs::{Key, Runs};
use crate::layer::chunked::write::SMALLEST_BLOB;
use crate::layer::tar_writer;
use imgctl_base::error::{Error, Result};

/// Size from which a file's content is a run of its own, in bytes.
pub(in crate::layer) const LARGE_FILE: u64 = 16 << 10;
/// Size of the footer, in bytes.
pub(super) const FOOTER: usize = 64;
/// Maximum size of all records, in bytes, as of other lists.
pub(super) const MOST: u64 = 64 << 20;
/// Size of a record: the length of the run as a little-endian number, and its hash.
const RECORD: usize = 8 + 32;
pub(super) const MAGIC: [u8; 8] = *b"imgctlRL";
pub(super) const VERSION: u64 = 1;
/// One path in sixteen ends a run.
const CUT: u8 = 15;

/// Collects the runs of a tar while it is written.
#[derive(Debug, Default)]
pub(in crate::layer) struct RunWriter {
    hasher: blake3::Hasher,
    /// Number of bytes of the current run.
    length: u64,
    records: Vec<u8>,
}

impl RunWriter {
    /// Adds bytes that are not a large file's content.
    pub(in crate::layer) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
    }

    /// Adds the content of a large file, whose hash is known.
    pub(in crate::layer) fn content(&mut self, length: u64, hash: &[u8; 32]) {
        self.cut();
        self.record(length, hash);
    }

    /// Ends a run behind an entry if its path says so.
    pub(in crate::layer) fn end_entry(&mut self, path: &LayerPath) {
        if blake3::hash(path.as_bytes()).as_bytes()[0] & CUT == 0 {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if self.length > 0 {
            let hash = *std::mem::take(&mut self.hasher).finalize().as_bytes();
            let length = std::mem::take(&mut self.length);
            self.record(length, &hash);
        }
    }

    fn record(&mut self, length: u64, hash: &[u8; 32]) {
        self.records.extend_from_slice(&length.to_le_bytes());
        self.records.extend_from_slice(hash);
    }

    /// Returns what follows a tar of `size` bytes; nothing after a small one, or if the list is too long.
    pub(in crate::layer) fn finish(mut self, size: u64) -> Vec<u8> {
        self.cut();
        if size < SMALLEST_BLOB || self.records.len() as u64 > MOST {
            return Vec::new();
        }
        let mut list = self.records;
        let checksum = *blake3::hash(&list).as_bytes();
        let length = list.len() as u64;
        list.resize(list.len() + tar_writer::padding(length + FOOTER as u64), 0);
        list.extend_from_slice(&size.to_le_bytes());
        list.extend_from_slice(&length.to_le_bytes());
        list.extend_from_slice(&checksum);
        list.extend_from_slice(&VERSION.to_le_bytes());
        list.extend_from_slice(&MAGIC);
        list
    }
}

/// Reads the list of a blob in which it begins at `offset`.
pub(super) fn read(list: &[u8], offset: u64, checksum: &[u8; 32]) -> Result<Runs> {
    let refuse = |how: &str| Error::bad_content(format!("the list of runs {how}"));
    if blake3::hash(list) != *checksum {
        return Err(refuse("does not match its checksum"));
    }
    let (records, rest) = list.as_chunks::<RECORD>();
    if !rest.is_empty() {
        return Err(refuse("is cut off"));
    }
    let mut runs = Runs::default();
    for record in records {
        let (length, hash) = record.split_at(8);
        let length = length.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let end = runs.end().checked_add(length).filter(|end| *end <= offset && length > 0);
        let end = end.ok_or_else(|| refuse("does not cover the archive"))?;
        runs.push(end, Key::of(&[b"plain", hash, &length.to_le_bytes()]));
    }
    if runs.end() != offset {
        return Err(refuse("does not cover the archive"));
    }
    Ok(runs)
}
