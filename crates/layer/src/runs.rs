//! A blob as runs of bytes with keys, whatever its compression, and which of them known blobs have.

use std::collections::HashMap;
use std::ops::Range;

/// Identifies a run of bytes before it is there. Runs with the same key hold the same bytes if their
/// blobs were written in the same way; that is not certain, so that the whole must be verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// Hashes the parts, whose lengths the first determines.
    pub(crate) fn of(parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }
}

/// The runs of a blob, from its first byte on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// Where each run ends, in bytes, and its key.
    runs: Vec<(u64, Key)>,
}

impl Runs {
    pub(crate) fn push(&mut self, end: u64, key: Key) {
        self.runs.push((end, key));
    }

    /// Returns where the last run ends, in bytes.
    pub fn end(&self) -> u64 {
        self.runs.last().map_or(0, |(end, _)| *end)
    }

    /// Returns the number of runs.
    pub fn count(&self) -> usize {
        self.runs.len()
    }
}

/// A part of a blob, in bytes. The parts of a blob follow each other without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Must be fetched.
    Missing(Range<u64>),
    /// Can be copied from the known blob with this index, where the range is another one.
    Known { length: u64, source: usize, start: u64 },
}

impl Part {
    /// Returns the number of bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Missing(range) => range.end - range.start,
            Self::Known { length, .. } => *length,
        }
    }
}

/// Where known blobs have runs.
#[derive(Debug, Default)]
pub struct Index {
    /// Number of a blob and the offset in it, in bytes.
    places: HashMap<Key, (usize, u64)>,
}

impl Index {
    /// Adds the runs of the known blob number `source`. Blobs that were added earlier come first.
    pub fn add(&mut self, source: usize, runs: &Runs) {
        let mut start = 0;
        for (end, key) in &runs.runs {
            self.places.entry(*key).or_insert((source, start));
            start = *end;
        }
    }

    /// Returns the number of different runs.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// Splits a blob of `size` bytes with the runs `wanted` into parts, of which those that a known
    /// blob has are not missing.
    pub fn parts(&self, wanted: &Runs, size: u64) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut position = 0;
        for (end, key) in &wanted.runs {
            let part = match self.places.get(key) {
                Some((source, start)) => {
                    Part::Known { length: end - position, source: *source, start: *start }
                }
                None => Part::Missing(position..*end),
            };
            add(&mut parts, part);
            position = *end;
        }
        if position < size {
            add(&mut parts, Part::Missing(position..size));
        }
        parts
    }
}

/// Appends a part, or prolongs the last.
fn add(parts: &mut Vec<Part>, part: Part) {
    match (parts.last_mut(), part) {
        (Some(Part::Missing(last)), Part::Missing(range)) if last.end == range.start => {
            last.end = range.end;
        }
        (
            Some(Part::Known { length, source, start }),
            Part::Known { length: more, source: other, start: next },
        ) if *source == other && *start + *length == next => *length += more,
        (_, part) => parts.push(part),
    }
}
