//! The pieces of a blob in their order, and a reader of them.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use imgctl_base::error::{Error, Result};

/// Number of bytes here between two missing ranges that are fetched along, rather than with another
/// request.
const GAP: u64 = 32 << 10;

/// Where a part of a blob comes from.
#[derive(Clone)]
pub(super) enum Piece {
    /// From the source.
    Missing(Range<u64>),
    /// From a file on this machine, from this offset on.
    Local { length: u64, file: Arc<File>, start: u64 },
    /// From the end of the blob, which was fetched before.
    Held { bytes: Arc<[u8]>, range: Range<usize> },
}

impl Piece {
    fn length(&self) -> u64 {
        match self {
            Self::Missing(range) => range.end - range.start,
            Self::Local { length, .. } => *length,
            Self::Held { range, .. } => range.len() as u64,
        }
    }

    /// Leaves out the first `count` bytes, which it has.
    fn skip(&mut self, count: u64) {
        match self {
            Self::Missing(range) => range.start += count,
            Self::Local { length, start, .. } => {
                *length -= count;
                *start += count;
            }
            Self::Held { range, .. } => {
                range.start += usize::try_from(count).unwrap_or(range.len());
            }
        }
    }

    /// Leaves out all but the first `count` bytes.
    fn truncate(&mut self, count: u64) {
        match self {
            Self::Missing(range) => range.end = range.end.min(range.start + count),
            Self::Local { length, .. } => *length = count.min(*length),
            Self::Held { range, .. } => {
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                range.end = range.end.min(range.start.saturating_add(count));
            }
        }
    }
}

/// The end of a blob.
pub(super) struct Tail {
    /// Offset of the first byte in the blob.
    pub(super) start: u64,
    pub(super) bytes: Arc<[u8]>,
}

/// The pieces of a blob, without gaps.
#[derive(Clone, Default)]
pub(super) struct Pieces {
    pieces: VecDeque<Piece>,
}

impl Pieces {
    /// Returns how many bytes come from files on this machine, and how many of them are different ones.
    pub(super) fn reused(&self) -> (u64, u64) {
        let mut places = HashMap::new();
        let mut all: u64 = 0;
        for piece in &self.pieces {
            if let Piece::Local { length, file, start } = piece {
                all = all.saturating_add(*length);
                let longest: &mut u64 = places.entry((Arc::as_ptr(file), *start)).or_default();
                *longest = (*longest).max(*length);
            }
        }
        (all, places.into_values().fold(0, u64::saturating_add))
    }

    /// Takes the parts of a blob, which cover it up to its list, and the end from there on.
    pub(super) fn new(parts: impl IntoIterator<Item = Piece>, tail: Tail) -> Result<Self> {
        let mut pieces = Vec::new();
        let mut last_missing = None;
        let mut position = 0;
        for mut part in parts {
            if position >= tail.start {
                break;
            }
            part.truncate(tail.start - position);
            position += part.length();
            let Piece::Missing(range) = &part else {
                pieces.push(part);
                continue;
            };
            if let Some(index) = last_missing
                && let Some(Piece::Missing(before)) = pieces.get_mut(index)
                && range.start - before.end <= GAP
            {
                before.end = range.end;
                pieces.truncate(index + 1);
            } else {
                last_missing = Some(pieces.len());
                pieces.push(part);
            }
        }
        if position != tail.start {
            return Err(Error::bad_content("the list does not cover the blob"));
        }
        pieces.push(Piece::Held { range: 0..tail.bytes.len(), bytes: tail.bytes });
        Ok(Self { pieces: pieces.into() })
    }

    /// Returns the ranges that the source has to give.
    pub(super) fn missing(&self) -> impl Iterator<Item = Range<u64>> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Missing(range) => Some(range.clone()),
            Piece::Local { .. } | Piece::Held { .. } => None,
        })
    }

    /// Returns the number of bytes in memory.
    pub(super) fn held(&self) -> u64 {
        let held = self.pieces.iter().filter(|piece| matches!(piece, Piece::Held { .. }));
        held.map(Piece::length).sum()
    }

    /// Returns the pieces from `offset` of the blob on.
    pub(super) fn from(&self, offset: u64) -> Self {
        let mut pieces = self.pieces.clone();
        let mut left = offset;
        while let Some(first) = pieces.front_mut() {
            if first.length() > left {
                first.skip(left);
                break;
            }
            left -= first.length();
            pieces.pop_front();
        }
        Self { pieces }
    }
}

/// Reads the pieces one after another.
pub(super) struct Assembled {
    pieces: VecDeque<Piece>,
    /// The missing ranges, one after another.
    missing: Box<dyn Read + Send>,
    /// Counts the bytes that are not among them.
    reused: Arc<AtomicU64>,
}

impl Assembled {
    pub(super) fn new(
        pieces: Pieces,
        missing: Box<dyn Read + Send>,
        reused: Arc<AtomicU64>,
    ) -> Self {
        Self { pieces: pieces.pieces, missing, reused }
    }
}

impl Read for Assembled {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(piece) = self.pieces.front_mut() else { return Ok(0) };
        let most = usize::try_from(piece.length()).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = &mut buffer[..most];
        if most == 0 {
            return Ok(0);
        }
        let count = match piece {
            Piece::Missing(_) => self.missing.read(buffer)?,
            Piece::Local { file, start, .. } => file.read_at(buffer, *start)?,
            Piece::Held { bytes, range } => {
                let held = bytes.get(range.clone()).unwrap_or_default();
                let count = held.len().min(buffer.len());
                buffer[..count].copy_from_slice(&held[..count]);
                count
            }
        };
        if count == 0 {
            return Err(
                Error::bad_content("a part of the blob is shorter than its list says").into()
            );
        }
        if !matches!(piece, Piece::Missing(_)) {
            self.reused.fetch_add(count as u64, Ordering::Relaxed);
        }
        piece.skip(count as u64);
        if piece.length() == 0 {
            self.pieces.pop_front();
        }
        Ok(count)
    }
}
