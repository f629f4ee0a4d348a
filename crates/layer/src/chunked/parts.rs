//! Which parts of a blob can be copied from blobs that are here already. Equal content was compressed
//! to equal frames if both blobs were written in the same way; that is not certain, so that the whole
//! must be verified by its digest.

use crate::chunked::read::Table;
use crate::runs::{Index, Part, Runs};

/// Splits a blob of `size` bytes with the table `wanted` into parts, of which those that a blob of
/// `known` has are not missing.
pub fn parts(wanted: &Table, size: u64, known: &[Table]) -> Vec<Part> {
    let mut index = Index::default();
    for (source, table) in known.iter().enumerate() {
        index.add(source, &Runs::from(table));
    }
    index.parts(&Runs::from(wanted), size)
}
