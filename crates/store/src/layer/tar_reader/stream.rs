//! The archive as a stream of blocks: counts the position and detects truncation and exceeded
//! limits.

use std::io::{self, BufReader, Read};

use crate::layer::tar_header::BLOCK;
use imgctl_base::error::{Error, IoContext, Result};

/// The archive and the current position in it.
#[derive(Debug)]
pub(super) struct Stream<R> {
    pub(super) reader: BufReader<R>,
    /// Number of bytes read so far.
    pub(super) position: u64,
    pub(super) size_limit: u64,
}

/// Returns the error for content that must be rejected.
pub(super) fn refuse(why: impl Into<String>) -> Error {
    Error::bad_content(why)
}

pub(super) fn truncated() -> Error {
    refuse("the archive is truncated")
}

pub(super) fn too_large(limit: u64) -> Error {
    refuse(format!("the archive is larger than the limit of {limit} bytes"))
}

impl<R: Read> Stream<R> {
    /// Reads one block; `None` at the end of the stream.
    pub(super) fn block(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(truncated()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("cannot read the archive", error)),
            }
        }
        Ok(Some(block))
    }

    pub(super) fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.read_exact(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => truncated(),
            _ => Error::io("cannot read the archive", error),
        })
    }

    pub(super) fn skip(&mut self, count: u64) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let skipped = io::copy(&mut self.take(count), &mut io::sink())
            .doing(|| "cannot read the archive".to_owned())?;
        if skipped == count { Ok(()) } else { Err(truncated()) }
    }

    /// Skips the padding of an entry's last block. An archive may end there: Go's archive/tar
    /// accepts one that was not closed if its last content is complete (`umoci insert` writes such
    /// archives).
    pub(super) fn skip_padding(&mut self, count: u64) -> Result<()> {
        io::copy(&mut self.take(count), &mut io::sink())
            .doing(|| "cannot read the archive".to_owned())?;
        Ok(())
    }

    /// Reads the data after the end of the archive.
    pub(super) fn drain(&mut self) -> Result<()> {
        io::copy(self, &mut io::sink()).doing(|| "cannot read the archive".to_owned())?;
        Ok(())
    }
}

impl<R: Read> Read for Stream<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.position += count as u64;
        if self.position > self.size_limit {
            return Err(too_large(self.size_limit).into());
        }
        Ok(count)
    }
}
