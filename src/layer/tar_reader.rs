//! A strict, streaming tar reader: ustar, PAX, GNU long names and sparse files; bytes stay bytes.

use std::io::{self, Read};

use crate::error::Result;
use crate::layer::Entry;

/// Bounds on what a foreign archive may make us do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Entries in one layer.
    pub(crate) entries: u64,
    /// Uncompressed bytes of one layer.
    pub(crate) size: u64,
    /// Bytes of one path.
    pub(crate) path: usize,
    /// Components of one path.
    pub(crate) depth: usize,
    /// Bytes of one PAX header block or GNU long name.
    pub(crate) pax: u64,
    /// Uncompressed over compressed size, looked at beyond the first 64 MiB.
    pub(crate) ratio: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries: 10_000_000,
            size: 1 << 40,
            path: 4096,
            depth: 512,
            pax: 1 << 20,
            ratio: 1024,
        }
    }
}

/// Reads entries one after another; between two calls of [`TarReader::next_entry`] it is the
/// reader of the current file's content.
pub(crate) struct TarReader<R> {
    reader: R,
}

impl<R: Read> TarReader<R> {
    /// Starts at the archive's first byte.
    pub(crate) fn new(reader: R, _limits: Limits) -> Self {
        Self { reader }
    }

    /// The next entry, skipping what is left of the current content; `None` at the end, after
    /// which the rest of the stream has been read to EOF (trailing bytes count for the diff-id).
    pub(crate) fn next_entry(&mut self) -> Result<Option<Entry>> {
        todo!()
    }

    /// Where in the tar stream the current file's content starts, in bytes; `None` for sparse files.
    pub(crate) fn content_offset(&self) -> Option<u64> {
        todo!()
    }

    /// Gives the stream back.
    pub(crate) fn into_inner(self) -> R {
        self.reader
    }
}

impl<R: Read> Read for TarReader<R> {
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        todo!()
    }
}
