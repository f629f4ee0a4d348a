//! The layer pipeline: entries and contents in, compressed blob, both digests and the table of
//! contents out, each byte read once, hashed at most twice and compressed once.

use std::io::{Read, Write};

use crate::error::Result;
use crate::image::Digest;
use crate::layer::{Compression, Entry, Toc};

/// A finished layer.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// Digest of the compressed blob (equal to `diff_id` without compression).
    pub(crate) digest: Digest,
    /// Size of the compressed blob in bytes.
    pub(crate) size: u64,
    /// Digest of the uncompressed tar.
    pub(crate) diff_id: Digest,
    /// Size of the uncompressed tar in bytes.
    pub(crate) diff_size: u64,
    pub(crate) toc: Toc,
}

/// Writes one layer into `sink`. Hashing, compression and writing run on threads of its own; the
/// bytes do not depend on their number.
pub(crate) struct LayerWriter<W> {
    sink: W,
}

impl<W: Write + Send + 'static> LayerWriter<W> {
    /// Starts the pipeline with `threads` compressing threads (at least one).
    pub(crate) fn start(sink: W, _compression: Compression, _threads: usize) -> Result<Self> {
        Ok(Self { sink })
    }

    /// Adds one entry. `content` must give exactly [`Entry::size`] bytes; a file that shrank or
    /// grew while we read it is an error that names it. The caller adds entries in final order.
    pub(crate) fn add(&mut self, _entry: Entry, _content: &mut dyn Read) -> Result<()> {
        todo!()
    }

    /// Ends the tar, waits for the threads and gives the sink back. On error (or drop) nothing
    /// keeps running.
    pub(crate) fn finish(self) -> Result<(W, Layer)> {
        todo!()
    }
}
