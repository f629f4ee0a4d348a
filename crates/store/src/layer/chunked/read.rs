//! Reads the table of contents of a blob that may come from anywhere: what it says is bounded and in
//! order, or the blob has no table.

use std::collections::BTreeMap;
use std::io::Read as _;

use serde::Deserialize;

use crate::layer::chunked::item::{CHUNK, FILE, Item, RUN};
use crate::layer::chunked::{
    CHECKSUM, FOOTER_MAGIC, POSITION, RUNS_CHECKSUM, RUNS_MAGIC, RUNS_POSITION, TABLE_TYPE,
};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::Digest;

/// Maximum size of a compressed table, in bytes.
const MOST_COMPRESSED: u64 = 64 << 20;
/// Maximum size of a table, in bytes.
const MOST: u64 = 128 << 20;
/// Size of the footer with its frame's header, in bytes.
pub const FOOTER: u64 = 72;

/// Where the table of a blob is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Offset of the compressed table in the blob, in bytes.
    pub offset: u64,
    /// Size of the compressed table, in bytes.
    pub compressed: u64,
    /// Size of the table, in bytes.
    pub uncompressed: u64,
    /// Digest of the compressed table, if it is known from elsewhere than the blob.
    pub digest: Option<Digest>,
}

impl Position {
    /// Reads the annotations of a descriptor; `None` if it has none, or none that make sense for a
    /// blob of `size` bytes.
    pub fn of_annotations(annotations: &BTreeMap<String, String>, size: u64) -> Option<Self> {
        let of = |name, other| annotations.get(name).or_else(|| annotations.get(other));
        let digest = of(CHECKSUM, RUNS_CHECKSUM)?.parse().ok()?;
        let mut numbers = of(POSITION, RUNS_POSITION)?.split(':').map(str::parse);
        let mut next = || numbers.next()?.ok();
        let (offset, compressed, uncompressed, kind) = (next()?, next()?, next()?, next()?);
        let position = Self { offset, compressed, uncompressed, digest: Some(digest) };
        (kind == TABLE_TYPE).then_some(position)?.bounded(size)
    }

    /// Reads the last [`FOOTER`] bytes of a blob of `size` bytes.
    pub fn of_footer(footer: &[u8], size: u64) -> Option<Self> {
        let numbers = footer.last_chunk::<64>()?;
        let (numbers, _) = numbers.as_chunks::<8>();
        let [offset, compressed, uncompressed, kind, _, _, _, magic] = numbers else { return None };
        let [offset, compressed, uncompressed, kind] =
            [offset, compressed, uncompressed, kind].map(|bytes| u64::from_le_bytes(*bytes));
        let position = Self { offset, compressed, uncompressed, digest: None };
        let is_known = *magic == FOOTER_MAGIC || *magic == RUNS_MAGIC;
        (is_known && kind == TABLE_TYPE).then_some(position)?.bounded(size)
    }

    fn bounded(self, size: u64) -> Option<Self> {
        let end = self.offset.checked_add(self.compressed)?;
        let fits = end <= size && self.compressed <= MOST_COMPRESSED && self.uncompressed <= MOST;
        fits.then_some(self)
    }

    /// Decompresses and reads a table that was fetched from here.
    pub fn read(&self, compressed: &[u8]) -> Result<Table> {
        if let Some(expected) = &self.digest
            && Digest::of(compressed) != *expected
        {
            return Err(malformed("does not match its digest"));
        }
        let doing = || "cannot read the list of frames".to_owned();
        let decoder = zstd::stream::Decoder::with_buffer(compressed).doing(doing)?;
        let mut json = Vec::new();
        decoder.take(self.uncompressed + 1).read_to_end(&mut json).doing(doing)?;
        if json.len() as u64 != self.uncompressed {
            return Err(malformed("has another length than announced"));
        }
        Table::parse(&json, self.offset)
    }
}

/// The frames with content of a blob, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub frames: Vec<Frame>,
    /// Hash of what follows the last frame, as in [`Frame::headers`].
    pub headers: [u8; 32],
    /// Where the last part of the tar ends and the list begins, in bytes.
    pub end: u64,
}

/// A frame with a file's content, or a chunk of it, or with a run of the tar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Range in the blob, in bytes.
    pub start: u64,
    pub end: u64,
    /// Number of bytes of content.
    pub length: u64,
    /// Digest of the content.
    pub digest: Digest,
    /// Hash of what precedes the frame in the table since the frame before: entries that describe
    /// the same headers have the same hash.
    pub headers: [u8; 32],
}

#[derive(Deserialize)]
struct Json {
    version: u32,
    entries: Vec<Item>,
}

impl Table {
    /// Parses the JSON of a table that begins at `offset` of its blob.
    fn parse(json: &[u8], offset: u64) -> Result<Self> {
        let parsed: Json = serde_json::from_slice(json)
            .map_err(|error| malformed("is not valid JSON").caused_by(error))?;
        if parsed.version != 1 {
            return Err(malformed("is of another version"));
        }
        // The header of the skippable frame precedes the table.
        let end = offset.checked_sub(8).ok_or_else(|| malformed("begins too early"))?;
        let mut reader = TableReader::default();
        let mut items = parsed.entries.iter().peekable();
        while let Some(item) = items.next() {
            if item.kind == RUN {
                reader.file(item, &[item])?;
                continue;
            }
            reader.header(item);
            if item.kind != FILE || item.size == 0 {
                continue;
            }
            let mut chunks = vec![item];
            while let Some(chunk) = items.next_if(|next| next.kind == CHUNK) {
                chunks.push(chunk);
            }
            reader.file(item, &chunks)?;
        }
        reader.finish(end)
    }
}

#[derive(Default)]
struct TableReader {
    frames: Vec<Frame>,
    headers: blake3::Hasher,
    /// Where the next frame may begin.
    position: u64,
}

impl TableReader {
    fn header(&mut self, item: &Item) {
        let header = item.header();
        self.headers.update(&(header.len() as u64).to_le_bytes());
        self.headers.update(&header);
    }

    /// Adds the frames of one file: its own item, and those of the chunks that follow.
    fn file(&mut self, item: &Item, chunks: &[&Item]) -> Result<()> {
        let mut covered = 0;
        for (index, chunk) in chunks.iter().enumerate() {
            let (length, digest) = match chunks {
                [_] => (item.size, &item.digest),
                _ => (chunk.chunk_size, &chunk.chunk_digest),
            };
            let end = chunks.get(index + 1).map_or(item.end_offset, |next| next.offset);
            let digest = digest.clone().ok_or_else(|| malformed("lacks a digest"))?;
            let follows = chunk.offset >= self.position && end > chunk.offset;
            if !follows || length == 0 || (index > 0 && chunk.offset != self.position) {
                return Err(malformed("has frames that overlap"));
            }
            if chunk.chunk_offset != covered {
                return Err(malformed("has chunks that do not follow each other"));
            }
            covered = length.checked_add(covered).ok_or_else(|| malformed("is out of range"))?;
            let headers = *std::mem::take(&mut self.headers).finalize().as_bytes();
            self.frames.push(Frame { start: chunk.offset, end, length, digest, headers });
            self.position = end;
        }
        if covered != item.size {
            return Err(malformed("has chunks that do not add up to their file"));
        }
        // The padding after the content precedes the next header.
        self.headers.update(&(item.size % 512).to_le_bytes());
        Ok(())
    }

    fn finish(self, end: u64) -> Result<Table> {
        if self.position > end {
            return Err(malformed("has a frame behind the last"));
        }
        let headers = *self.headers.finalize().as_bytes();
        Ok(Table { frames: self.frames, headers, end })
    }
}

fn malformed(how: &str) -> Error {
    Error::bad_content(format!("the list of frames {how}"))
}
