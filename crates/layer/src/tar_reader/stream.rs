//! The archive as a stream of blocks: counts the position and detects truncation and exceeded
//! limits.

use std::io::{self, BufRead, Read};

use crate::plain_list;
use crate::tar_header::{self as header, BLOCK};
use imgctl_base::error::{Error, IoContext, Result};

/// The archive and the current position in it.
#[derive(Debug)]
pub(super) struct Stream<R> {
    pub(super) reader: R,
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

impl<R: BufRead> Stream<R> {
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
        if self.pass(count)? == count { Ok(()) } else { Err(truncated()) }
    }

    /// Skips the padding of an entry's last block. An archive may end there: Go's archive/tar
    /// accepts one that was not closed if its last content is complete (`umoci insert` writes such
    /// archives).
    pub(super) fn skip_padding(&mut self, count: u64) -> Result<()> {
        self.pass(count).map(drop)
    }

    /// Reads the data after the end of the archive.
    pub(super) fn drain(&mut self) -> Result<()> {
        self.pass(u64::MAX).map(drop)
    }

    /// Reads the data after the end of a layer's archive: zeros, or the list of a layer without
    /// compression. Anything else would be another archive to readers that ignore zeros.
    pub(super) fn finish(&mut self) -> Result<()> {
        let end = self.position;
        let behind = || {
            let more = "bytes that are not zero follow the end of the archive";
            refuse(more).hint("some readers take them for more entries: write the archive again")
        };
        let mut rest = Vec::new();
        loop {
            let position = self.position;
            let here = self.fill_buf().doing(|| "cannot read the archive".to_owned())?;
            let count = here.len();
            if count == 0 {
                break;
            }
            if !rest.is_empty() || here.iter().any(|byte| *byte != 0) {
                // A list begins with the length of a run: no more zeros than a number has.
                let zeros = usize::try_from(position - end).unwrap_or(usize::MAX);
                if rest.is_empty() && zeros > size_of::<u64>() {
                    return Err(behind());
                }
                if rest.is_empty() {
                    rest.resize(zeros, 0);
                }
                rest.extend_from_slice(here);
                if rest.len() as u64 > plain_list::MOST_BEHIND {
                    return Err(behind());
                }
            }
            self.consume(count);
        }
        let has_header = || rest.as_chunks::<BLOCK>().0.iter().any(header::checksum_holds);
        if rest.is_empty() || (plain_list::is_list(&rest, end) && !has_header()) {
            Ok(())
        } else {
            Err(behind())
        }
    }

    /// Skips at most `count` bytes, and returns how many there were.
    fn pass(&mut self, count: u64) -> Result<u64> {
        let mut left = count;
        while left > 0 {
            let here = self.fill_buf().doing(|| "cannot read the archive".to_owned())?.len();
            if here == 0 {
                break;
            }
            let here = usize::try_from(left).map_or(here, |left| here.min(left));
            self.consume(here);
            left -= here as u64;
        }
        Ok(count - left)
    }

    fn check_limit(&self) -> io::Result<()> {
        if self.position > self.size_limit {
            return Err(too_large(self.size_limit).into());
        }
        Ok(())
    }
}

impl<R: BufRead> Read for Stream<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.position += count as u64;
        self.check_limit()?;
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Stream<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        // What was consumed last may have been too much.
        self.check_limit()?;
        loop {
            match self.reader.fill_buf() {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.reader.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.reader.consume(count);
        self.position += count as u64;
    }
}
