//! What a blob is made of: frames, deflate blocks, files and what lies between them, each with its
//! place in the blob and in the tar.
//!
//! Must not know what is done with the segments.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use crate::block::block_size;
use crate::decompress::{Format, SNIFF, decoder};
use crate::delta::format::{Encoding, MOST_SEGMENT};
use crate::delta::patch::Encoder;
use crate::pipe::fill;
use crate::{Compression, EntryKind, Toc, zstd_frames};
use imgctl_base::error::{IoContext, Result};

/// How a segment is encoded in its blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Bytes of the tar as they are.
    Plain,
    /// A zstd frame.
    Frame,
    /// Deflate blocks as our gzip layers have them.
    Deflate,
    /// A skippable frame that may be a part of a list of frames; the value is its number.
    List(usize),
    /// Bytes of which nothing is known.
    Opaque,
}

/// A part of a blob. The segments of a blob follow each other without gaps.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) kind: Kind,
    /// Range in the blob, in bytes.
    pub(super) start: u64,
    pub(super) length: u64,
    /// Range in the tar, in bytes; empty for what is not in it.
    pub(super) tar: u64,
    pub(super) content: u64,
    /// BLAKE3 hash of its bytes in the blob; `None` if it is not worth looking for.
    pub(super) hash: Option<[u8; 32]>,
}

/// Maximum length of a skippable frame that is read, in bytes.
const MOST_LIST: u64 = 16 << 20;
/// Length of the pieces in which everything else is read, in bytes.
const PIECE: u64 = MOST_SEGMENT;

/// The segments of a blob.
#[derive(Debug)]
pub(super) struct Segments {
    pub(super) list: Vec<Segment>,
    /// Level of the gzip whose blocks are among them.
    pub(super) gzip: Option<u32>,
}

/// Splits a layer. `toc` tells the files of a plain one.
pub(super) fn layer(blob: &File, toc: &Toc) -> Result<Segments> {
    let doing = || "cannot read the layer".to_owned();
    let size = blob.metadata().doing(doing)?.len();
    let mut start = vec![0; SNIFF.min(usize::try_from(size).unwrap_or(SNIFF))];
    blob.read_exact_at(&mut start, 0).doing(doing)?;
    let mut splitter = Splitter { blob, segments: Vec::new(), position: 0, tar: 0 };
    let mut gzip = None;
    match Format::sniff(&start) {
        Format::Zstd => splitter.frames(size).doing(doing)?,
        Format::Plain => splitter.files(toc, size).doing(doing)?,
        Format::Gzip => gzip = splitter.blocks()?,
        Format::Bzip2 | Format::Xz => {}
    }
    splitter.pieces(Kind::Opaque, size);
    Ok(Segments { list: splitter.segments, gzip })
}

/// Splits the content of a file, or leaves it whole if its hash is known.
pub(super) fn file(blob: &File, content: Option<[u8; 32]>) -> Result<Segments> {
    let size = blob.metadata().doing(|| "cannot read a file".to_owned())?.len();
    let mut splitter = Splitter { blob, segments: Vec::new(), position: 0, tar: 0 };
    match content {
        Some(hash) => splitter.push(Kind::Plain, size, size, Some(hash)),
        None => splitter.pieces(Kind::Plain, size),
    }
    Ok(Segments { list: splitter.segments, gzip: None })
}

struct Splitter<'a> {
    blob: &'a File,
    segments: Vec<Segment>,
    position: u64,
    tar: u64,
}

impl Splitter<'_> {
    fn push(&mut self, kind: Kind, length: u64, content: u64, hash: Option<[u8; 32]>) {
        if length > 0 {
            let (start, tar) = (self.position, self.tar);
            self.segments.push(Segment { kind, start, length, tar, content, hash });
            self.position += length;
            self.tar += content;
        }
    }

    /// Splits what precedes `end` into pieces that are not looked for elsewhere.
    fn pieces(&mut self, kind: Kind, end: u64) {
        while self.position < end {
            let length = (end - self.position).min(PIECE);
            let content = if kind == Kind::Plain { length } else { 0 };
            self.push(kind, length, content, None);
        }
    }

    /// Splits a plain tar at the borders of files.
    fn files(&mut self, toc: &Toc, size: u64) -> io::Result<()> {
        let mut bytes = Vec::new();
        for listed in &toc.entries {
            let EntryKind::File { size: length } = listed.entry.kind else { continue };
            let end = listed.offset.saturating_add(length);
            if length == 0 || listed.offset < self.position || end > size {
                continue;
            }
            self.between(listed.offset, &mut bytes)?;
            self.push(Kind::Plain, length, length, listed.content);
        }
        self.between(size, &mut bytes)
    }

    /// Headers and padding up to `end`.
    fn between(&mut self, end: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
        while self.position < end {
            let length = (end - self.position).min(PIECE);
            bytes.resize(usize::try_from(length).unwrap_or_default(), 0);
            self.blob.read_exact_at(bytes, self.position)?;
            self.push(Kind::Plain, length, length, Some(*blake3::hash(bytes).as_bytes()));
        }
        Ok(())
    }

    /// Splits a zstd blob into frames, until something else comes.
    fn frames(&mut self, size: u64) -> io::Result<()> {
        let mut file = self.blob;
        file.seek(SeekFrom::Start(0))?;
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let mut bytes = Vec::new();
        let mut lists = 0;
        while self.position < size {
            bytes.clear();
            if (&mut reader).take(4).read_to_end(&mut bytes)? < 4 {
                return Ok(());
            }
            if zstd_frames::is_skippable(&bytes) {
                if !skippable(&mut reader, &mut bytes)? {
                    return Ok(());
                }
                let hash = *blake3::hash(&bytes).as_bytes();
                self.push(Kind::List(lists), bytes.len() as u64, 0, Some(hash));
                lists += 1;
                continue;
            }
            let most = usize::try_from(MOST_SEGMENT).unwrap_or(usize::MAX);
            match zstd_frames::rest_of_frame(&mut reader, most, &mut bytes)? {
                Some(content) if content > 0 => {
                    let hash = *blake3::hash(&bytes).as_bytes();
                    self.push(Kind::Frame, bytes.len() as u64, content as u64, Some(hash));
                }
                _ => return Ok(()),
            }
        }
        Ok(())
    }
}

impl Splitter<'_> {
    /// Splits a gzip blob of ours into blocks, and returns its level. Where its blocks end is known
    /// only by compressing its content again: another writer's differs at once.
    fn blocks(&mut self) -> Result<Option<u32>> {
        let doing = || "cannot read the layer".to_owned();
        let mut file = self.blob;
        file.seek(SeekFrom::Start(0)).doing(doing)?;
        let mut tar = decoder(Format::Gzip, BufReader::with_capacity(256 << 10, file))?;
        let mut block = vec![0; block_size(Compression::Gzip { level: 1 })];
        let mut codec: Option<(u32, Encoder)> = None;
        let mut bytes = Vec::new();
        let mut there = Vec::new();
        while let Ok(length) = fill(&mut *tar, &mut block) {
            // Reading the content has moved the file's position: ranges are read at offsets.
            let start = if self.position == 0 { GZIP_HEADER } else { self.position };
            let content = &block[..length];
            let mut is_same = |encoder: &mut Encoder| -> Result<bool> {
                bytes.clear();
                encoder.encode(Encoding::Deflate, content, &mut bytes)?;
                there.resize(bytes.len(), 0);
                Ok(self.blob.read_exact_at(&mut there, start).is_ok() && there == bytes)
            };
            if length == 0 {
                break;
            }
            let is_ours = match &mut codec {
                Some((_, encoder)) => is_same(encoder)?,
                None => {
                    for level in [6, 1, 2, 3, 4, 5, 7, 8, 9] {
                        let mut encoder = Encoder::gzip(level)?;
                        if is_same(&mut encoder)? {
                            codec = Some((level, encoder));
                            break;
                        }
                    }
                    codec.is_some()
                }
            };
            if !is_ours {
                break;
            }
            if self.position == 0 {
                self.push(Kind::Opaque, GZIP_HEADER, 0, None);
            }
            let hash = *blake3::hash(&bytes).as_bytes();
            self.push(Kind::Deflate, bytes.len() as u64, length as u64, Some(hash));
        }
        Ok(codec.map(|(level, _)| level))
    }
}

/// Number of bytes before the first block.
const GZIP_HEADER: u64 = 10;

/// Reads the rest of a skippable frame; returns `false` if it is too long or cut off.
fn skippable(reader: &mut impl BufRead, bytes: &mut Vec<u8>) -> io::Result<bool> {
    if reader.take(4).read_to_end(bytes)? < 4 {
        return Ok(false);
    }
    let length = match bytes[..] {
        [_, _, _, _, a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        _ => return Ok(false),
    };
    if length > MOST_LIST {
        return Ok(false);
    }
    Ok(reader.take(length).read_to_end(bytes)? as u64 == length)
}
