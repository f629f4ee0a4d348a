//! The layer pipeline: entries and contents in, compressed blob, both digests and the table of
//! contents out, each byte read once, hashed at most twice and compressed once.
//!
//! This half frames the tar into blocks on the caller's thread; `pipeline.rs` does the rest.

use std::io::{ErrorKind, Read, Write};

use crate::error::{Error, IoContext, Result};
use crate::image::Digest;
use crate::layer::pipe::Buffer;
use crate::layer::pipeline::Pipeline;
use crate::layer::{Compression, Entry, EntryKind, LayerPath, Toc, TocEntry, tar_writer};

#[cfg(test)]
pub(super) mod tests;

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
#[derive(Debug)]
pub(crate) struct LayerWriter<W> {
    pipeline: Pipeline<W>,
    /// The block being filled and how far it is.
    block: Option<Buffer>,
    filled: usize,
    /// Bytes of tar so far.
    position: u64,
    header: Vec<u8>,
    toc: Toc,
}

impl<W: Write + Send + 'static> LayerWriter<W> {
    /// Starts the pipeline with `threads` compressing threads (at least one).
    pub(crate) fn start(sink: W, compression: Compression, threads: usize) -> Result<Self> {
        Ok(Self {
            pipeline: Pipeline::start(sink, compression, threads)?,
            block: None,
            filled: 0,
            position: 0,
            header: Vec::new(),
            toc: Toc::default(),
        })
    }

    /// Adds one entry. `content` must give exactly [`Entry::size`] bytes; a file that shrank or
    /// grew while we read it is an error that names it. The caller adds entries in final order.
    /// After an error the writer is of no further use.
    pub(crate) fn add(&mut self, entry: Entry, content: &mut dyn Read) -> Result<()> {
        let mut header = std::mem::take(&mut self.header);
        header.clear();
        tar_writer::append_header(&entry, &mut header)?;
        self.append(&header)?;
        self.header = header;
        let mut listed = TocEntry {
            offset: 0,
            content: None,
            entry,
        };
        if let EntryKind::File { size } = listed.entry.kind {
            listed.offset = self.position;
            listed.content = Some(self.copy(&listed.entry.path, size, content)?);
            let padding = [0; tar_writer::END.len()];
            self.append(&padding[..tar_writer::padding(size)])?;
        }
        self.toc.entries.push(listed);
        Ok(())
    }

    /// Ends the tar, waits for the threads and gives the sink back. On error (or drop) nothing
    /// keeps running.
    pub(crate) fn finish(mut self) -> Result<(W, Layer)> {
        self.append(&tar_writer::END)?;
        self.push_block()?;
        let output = self.pipeline.finish()?;
        let mut toc = self.toc;
        toc.restarts = output.restarts;
        let layer = Layer {
            digest: output.digest,
            size: output.size,
            diff_id: output.diff_id,
            diff_size: output.diff_size,
            toc,
        };
        Ok((output.sink, layer))
    }

    /// Reads `size` bytes straight into blocks and returns their BLAKE3.
    fn copy(&mut self, path: &LayerPath, size: u64, content: &mut dyn Read) -> Result<[u8; 32]> {
        let mut hasher = blake3::Hasher::new();
        let mut left = size;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX);
            let room = self.room()?;
            let most = most.min(room.len());
            let count = match content.read(&mut room[..most]) {
                Ok(0) => return Err(changed(path, size, "is shorter now")),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::io(format!("cannot read `{path}`"), error)),
            };
            hasher.update(&room[..count]);
            left -= count as u64;
            self.advance(count)?;
        }
        let more = content.take(1).read_to_end(&mut Vec::new());
        match more.doing(|| format!("cannot read `{path}`"))? {
            0 => Ok(*hasher.finalize().as_bytes()),
            _ => Err(changed(path, size, "is longer now")),
        }
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let room = self.room()?;
            let count = bytes.len().min(room.len());
            let (now, later) = bytes.split_at(count);
            room[..count].copy_from_slice(now);
            bytes = later;
            self.advance(count)?;
        }
        Ok(())
    }

    /// What is still free of the current block, never nothing.
    fn room(&mut self) -> Result<&mut [u8]> {
        let block = match self.block.take() {
            Some(block) => block,
            None => self.pipeline.buffer()?,
        };
        Ok(&mut self.block.insert(block).bytes_mut()[self.filled..])
    }

    /// Counts `count` bytes put into [`LayerWriter::room`]; a full block is sent on.
    fn advance(&mut self, count: usize) -> Result<()> {
        self.filled += count;
        self.position += count as u64;
        let is_full = |block: &mut Buffer| self.filled == block.bytes_mut().len();
        if self.block.as_mut().is_some_and(is_full) {
            self.push_block()?;
        }
        Ok(())
    }

    fn push_block(&mut self) -> Result<()> {
        let filled = std::mem::take(&mut self.filled);
        match self.block.take() {
            Some(block) => self.pipeline.push(&block.freeze(filled)),
            None => Ok(()),
        }
    }
}

fn changed(path: &LayerPath, size: u64, how: &str) -> Error {
    Error::failed(format!(
        "`{path}` changed while it was read: it had {size} bytes and {how}"
    ))
    .hint("build again when nothing writes to it")
}
