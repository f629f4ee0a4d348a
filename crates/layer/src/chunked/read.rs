//! Reads the table of contents of a blob that may come from anywhere: what it says is bounded and in
//! order, or the blob has no table.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt as _;

use serde::Deserializer;
use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::chunked::item::{CHUNK, FILE, Item, RUN, is_misread, misread};
use crate::chunked::{
    CHECKSUM, FOOTER_MAGIC, OLD_CHECKSUM, OLD_POSITION, POSITION, RUNS_CHECKSUM, RUNS_MAGIC,
    RUNS_POSITION, TABLE_TYPE,
};
use crate::plain_list;
use crate::runs::{Key, Runs};
use crate::zstd_frames::is_skippable;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::Digest;

/// Maximum size of a compressed table, in bytes.
const MOST_COMPRESSED: u64 = 64 << 20;
/// Maximum size of a table, in bytes.
const MOST: u64 = 128 << 20;
/// Size of the footer with its frame's header, in bytes.
pub const FOOTER: u64 = 72;

/// Size of the header of a skippable frame, in bytes.
const SKIPPABLE_HEADER: u64 = 8;

/// What a footer or an annotation says about the place of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Announced {
    pub(super) offset: u64,
    pub(super) compressed: u64,
    pub(super) uncompressed: u64,
}

impl Announced {
    /// Reads a footer that ends with `footer`.
    pub(super) fn of_footer(footer: &[u8]) -> Option<Self> {
        let footer = footer.last_chunk::<{ FOOTER as usize }>()?;
        // A skippable frame of seven or, before containers/storage 1.44, of four numbers and the magic.
        let has_frame = |at: usize, length: u8| {
            let frame = footer.get(at..at + 8);
            frame.is_some_and(|frame| is_skippable(&frame[..4]) && frame[4..] == [length, 0, 0, 0])
        };
        let start = match (has_frame(0, 64), has_frame(24, 40)) {
            (true, _) => 8,
            (false, true) => 32,
            (false, false) => return None,
        };
        let word =
            |at: usize| footer.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word));
        let (offset, compressed) = (word(start)?, word(start + 8)?);
        let (uncompressed, kind) = (word(start + 16)?, word(start + 24)?);
        (kind == TABLE_TYPE).then_some(Self { offset, compressed, uncompressed })
    }

    /// Reads `OFFSET:COMPRESSED:UNCOMPRESSED:TYPE`.
    pub(super) fn of_annotation(text: &str) -> Option<Self> {
        let mut numbers = text.split(':').map(str::parse);
        let mut next = || numbers.next()?.ok();
        let (offset, compressed, uncompressed, kind) = (next()?, next()?, next()?, next()?);
        (kind == TABLE_TYPE).then_some(Self { offset, compressed, uncompressed })
    }
}

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
    /// Checksum of the list of a layer without compression, which is not compressed either; `None`
    /// for a table of zstd frames.
    pub plain: Option<[u8; 32]>,
}

impl Position {
    /// Reads the annotations of a descriptor; `None` if it has none, or none that make sense for a
    /// blob of `size` bytes.
    pub fn of_annotations(annotations: &BTreeMap<String, String>, size: u64) -> Option<Self> {
        let names =
            [(CHECKSUM, POSITION), (RUNS_CHECKSUM, RUNS_POSITION), (OLD_CHECKSUM, OLD_POSITION)];
        let mut pairs = names
            .into_iter()
            .filter_map(|(digest, numbers)| annotations.get(digest).zip(annotations.get(numbers)));
        let (digest, numbers) = pairs.next()?;
        let digest = digest.parse().ok()?;
        Self::of(Announced::of_annotation(numbers)?, Some(digest)).bounded(size)
    }

    fn of(announced: Announced, digest: Option<Digest>) -> Self {
        let Announced { offset, compressed, uncompressed } = announced;
        Self { offset, compressed, uncompressed, digest, plain: None }
    }

    /// Reads the last [`FOOTER`] bytes of a blob of `size` bytes.
    pub fn of_footer(footer: &[u8], size: u64) -> Option<Self> {
        let footer = footer.last_chunk::<{ FOOTER as usize }>()?;
        if let Some(plain_list::Footer { offset, length, checksum }) =
            plain_list::Footer::of(footer)
        {
            let plain = Some(checksum);
            let position =
                Self { offset, compressed: length, uncompressed: length, digest: None, plain };
            return position.bounded(size);
        }
        let magic: [u8; 8] = *footer.last_chunk()?;
        if magic != FOOTER_MAGIC && magic != RUNS_MAGIC {
            return None;
        }
        Self::of(Announced::of_footer(footer)?, None).bounded(size)
    }

    fn bounded(self, size: u64) -> Option<Self> {
        let end = self.offset.checked_add(self.compressed)?;
        let fits = end <= size && self.compressed <= MOST_COMPRESSED && self.uncompressed <= MOST;
        fits.then_some(self)
    }

    /// Returns where what follows the last part of the tar begins, in bytes.
    pub fn begins(&self) -> u64 {
        match self.plain {
            Some(_) => self.offset,
            // The header of the skippable frame precedes the table.
            None => self.offset.saturating_sub(SKIPPABLE_HEADER),
        }
    }

    /// Reads a list that was fetched from here, in either form.
    pub fn runs(&self, list: &[u8]) -> Result<Runs> {
        match &self.plain {
            Some(checksum) => plain_list::read(list, self.offset, checksum),
            None => Ok(Runs::from(&self.read(list)?)),
        }
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
        // One byte more than announced tells a longer table.
        let mut counted = Counted { reader: decoder.take(self.uncompressed + 1), count: 0 };
        let table = Table::parse(BufReader::new(&mut counted), self.offset);
        if counted.count > self.uncompressed || (table.is_ok() && counted.count < self.uncompressed)
        {
            return Err(malformed("has another length than announced"));
        }
        table
    }
}

/// Reads the list of a blob that is here; `None` if it has none.
pub fn runs_of(blob: &File) -> Result<Option<Runs>> {
    let doing = || "cannot read the list of frames".to_owned();
    let size = blob.metadata().doing(doing)?.len();
    let Some(start) = size.checked_sub(FOOTER) else { return Ok(None) };
    let mut footer = [0; FOOTER as usize];
    blob.read_exact_at(&mut footer, start).doing(doing)?;
    let Some(position) = Position::of_footer(&footer, size) else { return Ok(None) };
    let mut list = vec![0; usize::try_from(position.compressed).unwrap_or_default()];
    blob.read_exact_at(&mut list, position.offset).doing(doing)?;
    position.runs(&list).map(Some)
}

struct Counted<R> {
    reader: R,
    count: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.count += count as u64;
        Ok(count)
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

impl Table {
    /// Parses the JSON of a table that begins at `offset` of its blob. Entries are not collected:
    /// there may be millions.
    fn parse(json: impl Read, offset: u64) -> Result<Self> {
        let end =
            offset.checked_sub(SKIPPABLE_HEADER).ok_or_else(|| malformed("begins too early"))?;
        let mut reader = TableReader::default();
        items(json, &mut |item| reader.item(item))?;
        reader.finish(end)
    }
}

impl From<&Table> for Runs {
    fn from(table: &Table) -> Self {
        let mut runs = Self::default();
        let mut position = 0;
        let headers =
            |hash: &[u8; 32], length: u64| Key::of(&[b"zstd headers", hash, &length.to_le_bytes()]);
        for frame in &table.frames {
            if position < frame.start {
                runs.push(frame.start, headers(&frame.headers, frame.start - position));
            }
            let compressed = (frame.end - frame.start).to_le_bytes();
            let digest = frame.digest.to_string();
            let length = frame.length.to_le_bytes();
            runs.push(
                frame.end,
                Key::of(&[b"zstd content", &length, &compressed, digest.as_bytes()]),
            );
            position = frame.end;
        }
        if position < table.end {
            runs.push(table.end, headers(&table.headers, table.end - position));
        }
        runs
    }
}

/// Turns the entries of a table into frames, one after another.
#[derive(Default)]
struct TableReader {
    frames: Vec<Frame>,
    headers: blake3::Hasher,
    /// Where the next frame may begin.
    position: u64,
    /// The last file, whose chunks may follow.
    file: Option<FileChunks>,
}

/// A file with content and its chunks.
struct FileChunks {
    size: u64,
    end: u64,
    digest: Option<Digest>,
    chunks: Vec<Chunk>,
}

struct Chunk {
    offset: u64,
    length: u64,
    position: u64,
    digest: Option<Digest>,
}

impl Chunk {
    fn of(item: Item) -> Self {
        Self {
            offset: item.offset,
            length: item.chunk_size,
            position: item.chunk_offset,
            digest: item.chunk_digest,
        }
    }
}

/// Parses the JSON of a table and passes on its items.
pub(super) fn items(json: impl Read, each: &mut dyn FnMut(Item) -> Result<()>) -> Result<()> {
    let mut reader = ItemReader { version: None, each, has_entries: false, refused: None };
    let mut deserializer = serde_json::Deserializer::from_reader(json);
    let parsed = (&mut reader).deserialize(&mut deserializer);
    let parsed = parsed.and_then(|()| deserializer.end());
    if let Some(refused) = reader.refused {
        return Err(refused);
    }
    parsed.map_err(|error| malformed("is not valid JSON").caused_by(error))?;
    if reader.version == Some(1) { Ok(()) } else { Err(malformed("is of another version")) }
}

struct ItemReader<'a> {
    version: Option<u32>,
    each: &'a mut dyn FnMut(Item) -> Result<()>,
    has_entries: bool,
    /// Why the table is not accepted.
    refused: Option<Error>,
}

impl<'de> DeserializeSeed<'de> for &mut ItemReader<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut ItemReader<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of contents")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "version" if self.version.is_none() => self.version = Some(map.next_value()?),
                "entries" if !self.has_entries => {
                    self.has_entries = true;
                    map.next_value_seed(Entries(self))?;
                }
                _ if is_misread(&key, &["version", "entries"]) => return Err(misread(&key)),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

struct Entries<'a, 'e>(&'a mut ItemReader<'e>);

impl<'de> DeserializeSeed<'de> for Entries<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of entries")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut entries: S) -> Result<(), S::Error> {
        while let Some(item) = entries.next_element::<Item>()? {
            if let Err(error) = (self.0.each)(item) {
                self.0.refused = Some(error);
                return Err(de::Error::custom("it is refused"));
            }
        }
        Ok(())
    }
}

impl TableReader {
    fn item(&mut self, item: Item) -> Result<()> {
        if item.kind == CHUNK
            && let Some(file) = &mut self.file
        {
            file.chunks.push(Chunk::of(item));
            return Ok(());
        }
        self.end_file()?;
        let is_run = item.kind == RUN;
        if !is_run {
            let header = item.header();
            self.headers.update(&(header.len() as u64).to_le_bytes());
            self.headers.update(&header);
        }
        if is_run || (item.kind == FILE && item.size > 0) {
            self.file = Some(FileChunks {
                size: item.size,
                end: item.end_offset,
                digest: item.digest.clone(),
                chunks: vec![Chunk::of(item)],
            });
        }
        Ok(())
    }

    /// Adds the frames of the last file.
    fn end_file(&mut self) -> Result<()> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        if let [only] = &mut file.chunks[..] {
            (only.length, only.position, only.digest) = (file.size, 0, file.digest);
        }
        let mut covered = 0;
        let ends: Vec<u64> = file.chunks.iter().skip(1).map(|chunk| chunk.offset).collect();
        let ends = ends.into_iter().chain([file.end]);
        for (index, (chunk, end)) in file.chunks.into_iter().zip(ends).enumerate() {
            let Chunk { offset: start, length, position, digest } = chunk;
            let digest = digest.ok_or_else(|| malformed("lacks a digest"))?;
            let follows = start >= self.position && end > start;
            if !follows || length == 0 || (index > 0 && start != self.position) {
                return Err(malformed("has frames that overlap"));
            }
            if position != covered {
                return Err(malformed("has chunks that do not follow each other"));
            }
            covered = length.checked_add(covered).ok_or_else(|| malformed("is out of range"))?;
            let headers = *std::mem::take(&mut self.headers).finalize().as_bytes();
            self.frames.push(Frame { start, end, length, digest, headers });
            self.position = end;
        }
        if covered != file.size {
            return Err(malformed("has chunks that do not add up to their file"));
        }
        // The padding after the content precedes the next header.
        self.headers.update(&(file.size % 512).to_le_bytes());
        Ok(())
    }

    fn finish(mut self, end: u64) -> Result<Table> {
        self.end_file()?;
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
