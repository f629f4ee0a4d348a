//! Which parts of a blob can be copied from blobs that are here already. Equal content was compressed
//! to equal frames if both blobs were written in the same way; that is not certain, so that the whole
//! must be verified by its digest.

use std::ops::Range;

use crate::layer::chunked::read::Table;
use crate::layer::chunked::runs::{Index, Runs};

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

/// Splits a blob of `size` bytes with the table `wanted` into parts, of which those that a blob of
/// `known` has are not missing.
pub fn parts(wanted: &Table, size: u64, known: &[Table]) -> Vec<Part> {
    let mut index = Index::default();
    for (source, table) in known.iter().enumerate() {
        index.add(source, &Runs::from(table));
    }
    index.parts(&Runs::from(wanted), size)
}
