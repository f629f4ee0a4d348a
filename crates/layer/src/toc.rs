//! A layer's table of contents: all entries with the offsets of their contents, collected while the
//! layer is streamed, so `ls`, `cat`, `diff`, `COPY --from` and parent look-ups need no unpacking.

use std::io::{self, Read, Write};

use crate::leb128::{self, put};
use crate::{Entry, EntryKind, LayerPath, Mtime};
use imgctl_base::error::{Error, IoContext, Result};

/// An entry and the location of its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TocEntry {
    pub entry: Entry,
    /// Offset of the content in the uncompressed tar, in bytes; 0 for entries without content and
    /// for sparse files, whose content is stored in pieces.
    pub offset: u64,
    /// BLAKE3 hash of the content of regular files, including empty ones; `None` for everything
    /// else.
    pub content: Option<[u8; 32]>,
}

/// A position where decompression can start: a zstd frame, or a run of deflate blocks in a gzip
/// member that does not refer to earlier data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartPoint {
    /// Offset in the compressed blob, in bytes.
    pub compressed: u64,
    /// Offset in the uncompressed tar, in bytes.
    pub uncompressed: u64,
}

/// The table of contents, in the order of the tar. Foreign layers may contain duplicate paths: the
/// last one wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toc {
    pub entries: Vec<TocEntry>,
    /// Positions where decompression can start; empty for foreign compressed layers and for plain
    /// tars.
    pub restarts: Vec<RestartPoint>,
}

/// What can be stored as a table of contents.
pub trait Table {
    /// Returns the positions where decompression can start, which belong to one compressed blob and
    /// not to others of the same tar.
    fn restarts(&self) -> &[RestartPoint];

    /// Passes the number of entries and the entries to `sink` in pieces.
    fn encode(&self, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>;

    /// Writes the compact binary format, which is versioned and checksummed, with these restart
    /// points.
    fn write_to(&self, restarts: &[RestartPoint], writer: &mut dyn Write) -> Result<()> {
        let doing = || "cannot write a table of contents".to_owned();
        let mut head = Vec::new();
        put_restarts(&mut head, restarts);
        // The length precedes the body: a first pass counts, so that memory never holds it twice.
        let mut length = head.len() as u64;
        self.encode(&mut |bytes| {
            length += bytes.len() as u64;
            Ok(())
        })
        .doing(doing)?;
        let mut hasher = blake3::Hasher::new();
        let mut put = |bytes: &[u8]| {
            hasher.update(bytes);
            writer.write_all(bytes)
        };
        put(MAGIC).and_then(|()| put(&length.to_le_bytes())).doing(doing)?;
        put(&head).doing(doing)?;
        self.encode(&mut put).doing(doing)?;
        writer.write_all(hasher.finalize().as_bytes()).doing(doing)?;
        writer.flush().doing(doing)
    }
}

/// A table of contents in its stored form: about 80 bytes an entry instead of 200. Entries can be
/// appended, and read in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedToc {
    /// Positions where decompression can start.
    pub restarts: Vec<RestartPoint>,
    /// The number of entries.
    count: u64,
    /// The encoded entries; each piece begins and ends with whole ones, and has room for its last.
    pieces: Vec<Vec<u8>>,
    /// The path of the last entry, of which the next one states only what differs.
    last: LayerPath,
}

impl PackedToc {
    /// Appends an entry.
    pub fn push(&mut self, listed: TocEntry) {
        if self.pieces.last().is_none_or(|piece| piece.len() >= PIECE) {
            self.pieces.push(Vec::with_capacity(PIECE + ROOM));
        }
        if let Some(piece) = self.pieces.last_mut() {
            put_entry(piece, &listed, self.last.as_bytes());
            self.count += 1;
            self.last = listed.entry.path;
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the entries in the order of the tar, one after another. What [`PackedToc::push`] has
    /// written can be read: an error is a defect of this module.
    pub fn entries(&self) -> impl Iterator<Item = Result<TocEntry>> {
        let mut pieces = self.pieces.iter();
        let mut input = Input(&[]);
        let mut path = Vec::new();
        std::iter::from_fn(move || {
            while input.0.is_empty() {
                input = Input(pieces.next()?);
            }
            let listed = input.entry(&mut path).ok_or_else(|| damaged("is malformed"));
            if listed.is_err() {
                input = Input(&[]);
                pieces = Default::default();
            }
            Some(listed)
        })
    }

    /// Returns the table with all its entries.
    pub fn unpack(&self) -> Result<Toc> {
        let mut entries = Vec::with_capacity(usize::try_from(self.count).unwrap_or_default());
        for listed in self.entries() {
            entries.push(listed?);
        }
        Ok(Toc { entries, restarts: self.restarts.clone() })
    }
}

impl Table for PackedToc {
    fn restarts(&self) -> &[RestartPoint] {
        &self.restarts
    }

    fn encode(&self, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut out = Vec::new();
        put(&mut out, self.count);
        sink(&out)?;
        self.pieces.iter().try_for_each(|piece| sink(piece))
    }
}

impl Toc {
    /// Returns the last entry with the path `path`. Scans all entries: for many look-ups, build a
    /// [`crate::Tree`].
    pub fn find(&self, path: &LayerPath) -> Option<&TocEntry> {
        self.entries.iter().rev().find(|listed| listed.entry.path == *path)
    }

    /// Reads the output of [`Table::write_to`]; fails on any damage (the table is then rebuilt).
    pub fn read_from(reader: &mut dyn Read) -> Result<Self> {
        let mut window =
            Window { reader, bytes: Vec::new(), at: 0, hasher: blake3::Hasher::new(), left: 0 };
        if window.exactly(MAGIC.len())? != MAGIC {
            return Err(damaged("is of another version"));
        }
        let length = window.exactly(8)?.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if length > MAX_FILE {
            return Err(damaged("has a wrong length"));
        }
        window.left = length;
        let mut toc = Self::default();
        let mut last = RestartPoint { compressed: 0, uncompressed: 0 };
        for _ in 0..window.count()? {
            last = window.take(|input| {
                Some(RestartPoint {
                    compressed: last.compressed.wrapping_add(input.number()?),
                    uncompressed: last.uncompressed.wrapping_add(input.number()?),
                })
            })?;
            toc.restarts.push(last);
        }
        let count = window.count()?;
        // The number of entries is not trusted: each takes at least this many bytes.
        let least = usize::try_from(window.rest()).unwrap_or(usize::MAX) / LEAST_ENTRY;
        toc.entries.reserve_exact(usize::try_from(count).unwrap_or(usize::MAX).min(least));
        let (mut path, mut before) = (Vec::new(), Vec::new());
        for _ in 0..count {
            before.clone_from(&path);
            let listed = window.take(|input| {
                path.clone_from(&before);
                input.entry(&mut path)
            })?;
            toc.entries.push(listed);
        }
        window.end()?;
        Ok(toc)
    }
}

/// Number of bytes of a file that are read at once.
const WINDOW: usize = 256 << 10;
/// Size of the smallest entry, in bytes.
const LEAST_ENTRY: usize = 11;

/// The part of a file that is being read: a file may be as large as memory.
struct Window<'a> {
    reader: &'a mut dyn Read,
    bytes: Vec<u8>,
    /// Number of bytes of the window that have been decoded.
    at: usize,
    hasher: blake3::Hasher,
    /// Number of bytes of the body that have not been read into the window.
    left: u64,
}

impl Window<'_> {
    /// Reads the next `count` bytes, outside the body.
    fn exactly(&mut self, count: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.reader.read_exact(&mut bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged("is truncated"),
            _ => Error::io("cannot read a table of contents", error),
        })?;
        self.hasher.update(&bytes);
        Ok(bytes)
    }

    /// Decodes the next thing, for which more of the body is read as long as it does not suffice.
    fn take<T>(&mut self, mut decode: impl FnMut(&mut Input<'_>) -> Option<T>) -> Result<T> {
        loop {
            let mut input = Input(self.bytes.get(self.at..).unwrap_or_default());
            if let Some(value) = decode(&mut input) {
                self.at = self.bytes.len() - input.0.len();
                return Ok(value);
            }
            if self.left == 0 {
                return Err(damaged("is malformed"));
            }
            self.bytes.drain(..self.at);
            self.at = 0;
            // What is longer than a window takes twice as many bytes each time.
            let more = WINDOW.max(self.bytes.len()) as u64;
            let more = usize::try_from(more.min(self.left)).unwrap_or(WINDOW);
            let bytes = self.exactly(more)?;
            self.bytes.extend_from_slice(&bytes);
            self.left -= bytes.len() as u64;
        }
    }

    /// Returns the number of bytes of the body that have not been decoded.
    fn rest(&self) -> u64 {
        self.left + (self.bytes.len() - self.at) as u64
    }

    /// Reads the number of things that follow; each takes at least one byte.
    fn count(&mut self) -> Result<u64> {
        let count = self.take(|input: &mut Input<'_>| leb128::take(&mut input.0))?;
        if count > self.rest() {
            return Err(damaged("is malformed"));
        }
        Ok(count)
    }

    /// Checks that nothing else follows but the checksum.
    fn end(mut self) -> Result<()> {
        if self.rest() > 0 {
            return Err(damaged("is malformed"));
        }
        let expected = self.hasher.finalize();
        let checksum = self.exactly(CHECKSUM)?;
        let rest =
            self.reader.read(&mut [0]).doing(|| "cannot read a table of contents".to_owned())?;
        if *expected.as_bytes() != checksum[..] || rest > 0 {
            return Err(damaged("does not match its checksum"));
        }
        Ok(())
    }
}

/// Name and version of the format. Versions 2 and 3 had entries of layers that other readers read differently.
const MAGIC: &[u8] = b"imgctl toc 4\n";
const CHECKSUM: usize = blake3::OUT_LEN;
/// Number of bytes that are written at once.
const PIECE: usize = 64 << 10;
/// Room for the last entry of a piece, in bytes.
const ROOM: usize = 4 << 10;

/// Maximum size of a file, in bytes: ten million entries of a few hundred bytes.
const MAX_FILE: u64 = 4 << 30;

fn damaged(how: &str) -> Error {
    Error::bad_content(format!("a table of contents {how}"))
}

impl Table for Toc {
    fn restarts(&self) -> &[RestartPoint] {
        &self.restarts
    }

    fn encode(&self, sink: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut out = Vec::with_capacity(2 * PIECE);
        put(&mut out, self.entries.len() as u64);
        let mut path: &[u8] = b"";
        for listed in &self.entries {
            let next = listed.entry.path.as_bytes();
            put_entry(&mut out, listed, path);
            path = next;
            if out.len() >= PIECE {
                sink(&out)?;
                out.clear();
            }
        }
        sink(&out)
    }
}

const FILE: u64 = 0;
const DIRECTORY: u64 = 1;
const SYMLINK: u64 = 2;
const HARD_LINK: u64 = 3;
const CHAR_DEVICE: u64 = 4;
const BLOCK_DEVICE: u64 = 5;
const FIFO: u64 = 6;

fn put_restarts(out: &mut Vec<u8>, restarts: &[RestartPoint]) {
    put(out, restarts.len() as u64);
    let mut last = RestartPoint { compressed: 0, uncompressed: 0 };
    for restart in restarts {
        put(out, restart.compressed.wrapping_sub(last.compressed));
        put(out, restart.uncompressed.wrapping_sub(last.uncompressed));
        last = *restart;
    }
}

fn put_entry(out: &mut Vec<u8>, listed: &TocEntry, last_path: &[u8]) {
    let entry = &listed.entry;
    let path = entry.path.as_bytes();
    let same = path.iter().zip(last_path).take_while(|(a, b)| a == b);
    let same = same.count();
    put(out, same as u64);
    put_bytes(out, &path[same..]);
    match &entry.kind {
        EntryKind::File { size } => {
            put(out, FILE);
            put(out, *size);
        }
        EntryKind::Directory => put(out, DIRECTORY),
        EntryKind::Symlink { target } => {
            put(out, SYMLINK);
            put_bytes(out, target);
        }
        EntryKind::HardLink { target } => {
            put(out, HARD_LINK);
            put_bytes(out, target.as_bytes());
        }
        EntryKind::CharDevice { major, minor } => {
            put(out, CHAR_DEVICE);
            put(out, u64::from(*major));
            put(out, u64::from(*minor));
        }
        EntryKind::BlockDevice { major, minor } => {
            put(out, BLOCK_DEVICE);
            put(out, u64::from(*major));
            put(out, u64::from(*minor));
        }
        EntryKind::Fifo => put(out, FIFO),
    }
    for number in [entry.mode, entry.uid, entry.gid] {
        put(out, u64::from(number));
    }
    put(out, entry.mtime.seconds.cast_unsigned());
    put(out, u64::from(entry.mtime.nanoseconds));
    put(out, entry.xattrs.len() as u64);
    for (name, value) in &entry.xattrs {
        put_bytes(out, name);
        put_bytes(out, value);
    }
    put(out, listed.offset);
    match &listed.content {
        None => put(out, 0),
        Some(hash) => {
            put(out, 1);
            out.extend_from_slice(hash);
        }
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// The remaining input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn number(&mut self) -> Option<u64> {
        leb128::take(&mut self.0)
    }

    fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    /// Reads the number of items that follow; each takes at least one byte.
    fn count(&mut self) -> Option<usize> {
        let count = usize::try_from(self.number()?).ok()?;
        (count <= self.0.len()).then_some(count)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.count()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn entry(&mut self, path: &mut Vec<u8>) -> Option<TocEntry> {
        let same = usize::try_from(self.number()?).ok()?;
        if same > path.len() {
            return None;
        }
        path.truncate(same);
        path.extend_from_slice(self.bytes()?);
        let mut entry = Entry::new(normal(path)?, self.kind()?, self.small()?);
        entry.uid = self.small()?;
        entry.gid = self.small()?;
        entry.mtime = Mtime { seconds: self.number()?.cast_signed(), nanoseconds: self.small()? };
        for _ in 0..self.count()? {
            entry.xattrs.insert(self.bytes()?.to_vec(), self.bytes()?.to_vec());
        }
        Some(TocEntry { entry, offset: self.number()?, content: self.hash()? })
    }

    fn kind(&mut self) -> Option<EntryKind> {
        Some(match self.number()? {
            FILE => EntryKind::File { size: self.number()? },
            DIRECTORY => EntryKind::Directory,
            SYMLINK => EntryKind::Symlink { target: self.bytes()?.to_vec() },
            HARD_LINK => EntryKind::HardLink { target: normal(self.bytes()?)? },
            CHAR_DEVICE => EntryKind::CharDevice { major: self.small()?, minor: self.small()? },
            BLOCK_DEVICE => EntryKind::BlockDevice { major: self.small()?, minor: self.small()? },
            FIFO => EntryKind::Fifo,
            _ => return None,
        })
    }

    fn hash(&mut self) -> Option<Option<[u8; 32]>> {
        match self.number()? {
            0 => Some(None),
            1 => {
                let (hash, rest) = self.0.split_first_chunk::<32>()?;
                self.0 = rest;
                Some(Some(*hash))
            }
            _ => None,
        }
    }
}

/// Returns a path only if it is in normal form; others would not compare equal.
fn normal(bytes: &[u8]) -> Option<LayerPath> {
    let path = LayerPath::parse(bytes).ok()?;
    (path.as_bytes() == bytes).then_some(path)
}

#[cfg(test)]
mod tests;
