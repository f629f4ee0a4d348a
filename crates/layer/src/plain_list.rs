//! The list at the end of a layer without compression: runs of bytes of the tar with their BLAKE3
//! hashes, behind the end of the archive, where readers of tar ignore it. A large file's content is a
//! run; what lies between is cut behind entries whose paths say so, so that a new entry moves no cut.
//!
//! Must not depend on what the runs hold, or on where blobs are stored.

use crate::runs::{Key, Runs};
use crate::tar_header::BLOCK;
use crate::{LayerPath, tar_writer};
use imgctl_base::error::{Error, Result};

/// A blob below this size, in bytes, has no list: asking for parts of it is not worth a request.
pub(crate) const SMALLEST_BLOB: u64 = 128 << 10;
/// Size from which a file's content is a run of its own, in bytes.
pub(crate) const LARGE_FILE: u64 = 16 << 10;
/// Size of the footer, in bytes.
const FOOTER: usize = 64;
/// Maximum size of all records, in bytes, as of other lists.
const MOST: u64 = 64 << 20;
/// Maximum size of what follows the end of the archive, in bytes: the list, padding and footer.
pub(crate) const MOST_BEHIND: u64 = MOST + 1024;
/// Size of a record: the length of the run as a little-endian number, and its hash.
const RECORD: usize = 8 + 32;
const MAGIC: [u8; 8] = *b"imgctlRL";
const VERSION: u64 = 1;
/// One path in sixteen ends a run.
const CUT: u8 = 15;

/// Collects the runs of a tar while it is written.
#[derive(Debug, Default)]
pub(crate) struct RunWriter {
    hasher: blake3::Hasher,
    /// Number of bytes of the current run.
    length: u64,
    records: Vec<u8>,
}

impl RunWriter {
    /// Adds bytes that are not a large file's content.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
    }

    /// Adds the content of a large file, whose hash is known.
    pub(crate) fn content(&mut self, length: u64, hash: &[u8; 32]) {
        self.cut();
        self.record(length, hash);
    }

    /// Ends a run behind an entry if its path says so.
    pub(crate) fn end_entry(&mut self, path: &LayerPath) {
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
    pub(crate) fn finish(mut self, size: u64) -> Vec<u8> {
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

/// What the end of a blob says about its list.
pub(crate) struct Footer {
    /// Where the list begins, in bytes.
    pub(crate) offset: u64,
    /// Size of the list, in bytes.
    pub(crate) length: u64,
    pub(crate) checksum: [u8; 32],
}

impl Footer {
    /// Reads the end of a blob; `None` if it is no footer of such a list.
    pub(crate) fn of(end: &[u8]) -> Option<Self> {
        let footer = end.last_chunk::<FOOTER>()?;
        let word =
            |at: usize| footer.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word));
        let checksum = *footer.get(16..)?.first_chunk()?;
        let this = Self { offset: word(0)?, length: word(8)?, checksum };
        (footer.ends_with(&MAGIC) && word(48)? == VERSION).then_some(this)
    }
}

/// Returns whether `rest`, which follows the end of an archive of `end` bytes, is a list and nothing
/// else.
pub(crate) fn is_list(rest: &[u8], end: u64) -> bool {
    let footer = Footer::of(rest).filter(|it| it.offset == end && it.length <= MOST);
    let Some(footer) = footer else { return false };
    let length = usize::try_from(footer.length).unwrap_or(usize::MAX);
    let Some((list, tail)) = rest.split_at_checked(length) else { return false };
    let padding = tail.len().checked_sub(FOOTER).filter(|padding| *padding < BLOCK);
    padding.is_some_and(|padding| tail[..padding].iter().all(|byte| *byte == 0))
        && read(list, end, &footer.checksum).is_ok()
}

/// Reads the list of a blob in which it begins at `offset`.
pub(crate) fn read(list: &[u8], offset: u64, checksum: &[u8; 32]) -> Result<Runs> {
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
