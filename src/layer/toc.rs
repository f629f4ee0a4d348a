//! A layer's table of contents: every entry with where its bytes lie, made while the layer
//! streams by, so that `ls`, `cat`, `diff`, `COPY --from` and parent look-ups need no unpacking.

use std::io::{Read, Write};

use crate::error::Result;
use crate::layer::{Entry, LayerPath};

/// One entry and its content's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TocEntry {
    pub(crate) entry: Entry,
    /// Offset of the content in the uncompressed tar, in bytes; 0 without content.
    pub(crate) offset: u64,
    /// BLAKE3 of the content; `None` for everything that has none.
    pub(crate) content: Option<[u8; 32]>,
}

/// A place where decompression can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RestartPoint {
    /// Offset in the compressed blob, in bytes.
    pub(crate) compressed: u64,
    /// Offset in the uncompressed tar, in bytes.
    pub(crate) uncompressed: u64,
}

/// The table, in the order of the tar. Duplicate paths are possible in foreign layers: the last wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Toc {
    pub(crate) entries: Vec<TocEntry>,
    /// Where decompression can start; empty for foreign compressed layers and for plain tars.
    pub(crate) restarts: Vec<RestartPoint>,
}

impl Toc {
    /// The entry called `path` (the last one of that name).
    pub(crate) fn find(&self, _path: &LayerPath) -> Option<&TocEntry> {
        todo!()
    }

    /// Writes the compact binary form: versioned, checksummed.
    pub(crate) fn write_to(&self, _writer: &mut dyn Write) -> Result<()> {
        todo!()
    }

    /// Reads what [`Toc::write_to`] wrote; any damage is an error (the table is then made again).
    pub(crate) fn read_from(_reader: &mut dyn Read) -> Result<Self> {
        todo!()
    }
}
