//! Reads single files from a layer blob without unpacking it, using the offsets and restart points
//! of its table of contents.
//!
//! Files requested in the order of the tar are read in one pass. Must not depend on where blobs are
//! stored.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;

use crate::decompress::{self, Format, SNIFF};
use crate::toc::RestartPoint;
use crate::{EntryKind, Limits, Names, TarReader, Toc, TocEntry};
use imgctl_base::error::{Error, IoContext, Result};

#[cfg(test)]
mod tests;

/// Reads files of one layer.
pub struct ContentReader {
    blob: File,
    format: Format,
    toc: Arc<Toc>,
    /// The tar, opened at some offset and read up to its current position.
    tar: Option<OpenTar>,
}

struct OpenTar {
    reader: Box<dyn Read + Send>,
    position: u64,
}

impl ContentReader {
    /// Creates a reader for `blob`, whose table of contents is `toc`. Does not check the blob's
    /// digest, but checks the content of every file.
    pub fn new(mut blob: File, toc: Arc<Toc>) -> Result<Self> {
        let doing = || "cannot read the layer".to_owned();
        let mut start = Vec::new();
        blob.rewind().doing(doing)?;
        (&mut blob).take(SNIFF as u64).read_to_end(&mut start).doing(doing)?;
        Ok(Self { format: Format::sniff(&start), blob, toc, tar: None })
    }

    /// Opens a regular file. The last read fails if the content has changed since the table of
    /// contents was created.
    pub fn open(&mut self, listed: &TocEntry) -> Result<Content<'_>> {
        let EntryKind::File { size } = listed.entry.kind else {
            return Err(Error::not_found(format!("`{}` is not a regular file", listed.entry.path)));
        };
        let reader: Box<dyn Read + Send + '_> = if size == 0 {
            Box::new(io::empty())
        } else if listed.offset == 0 {
            Box::new(self.open_sparse(listed)?)
        } else {
            Box::new(self.seek(listed.offset)?.take(size))
        };
        Ok(Content {
            reader,
            left: size,
            hasher: blake3::Hasher::new(),
            expected: listed.content,
            name: listed.entry.path.to_string(),
        })
    }

    /// Opens a sparse file. It is stored in pieces, so the tar is read from the start up to it.
    fn open_sparse(&mut self, listed: &TocEntry) -> Result<TarReader<BufReader<&mut OpenTar>>> {
        self.tar = None;
        let mut tar = TarReader::new(self.seek(0)?, Limits::default(), Names::Layer);
        while let Some(entry) = tar.next_entry()? {
            if entry == listed.entry {
                return Ok(tar);
            }
        }
        Err(Error::not_found(format!(
            "`{}` is not in the layer although its table of contents lists it",
            listed.entry.path
        )))
    }

    /// Returns the tar at byte `offset`.
    fn seek(&mut self, offset: u64) -> Result<&mut OpenTar> {
        let doing = || "cannot read the layer".to_owned();
        let restart = self.restart_before(offset);
        // Continue from here unless a restart point lies in between.
        let kept =
            self.tar.take().filter(|tar| (restart.uncompressed..=offset).contains(&tar.position));
        let mut tar = match kept {
            Some(tar) => tar,
            None => self.open_at(restart)?,
        };
        let distance = offset - tar.position;
        let skipped = io::copy(&mut (&mut tar).take(distance), &mut io::sink()).doing(doing)?;
        if skipped < distance {
            return Err(Error::bad_content("the layer is truncated"));
        }
        Ok(self.tar.insert(tar))
    }

    fn restart_before(&self, offset: u64) -> RestartPoint {
        if self.format == Format::Plain {
            return RestartPoint { compressed: offset, uncompressed: offset };
        }
        let restarts = &self.toc.restarts;
        let index = restarts.partition_point(|restart| restart.uncompressed <= offset);
        let start = RestartPoint { compressed: 0, uncompressed: 0 };
        index.checked_sub(1).and_then(|index| restarts.get(index)).map_or(start, |restart| *restart)
    }

    fn open_at(&mut self, restart: RestartPoint) -> Result<OpenTar> {
        let doing = || "cannot read the layer".to_owned();
        self.blob.seek(SeekFrom::Start(restart.compressed)).doing(doing)?;
        let blob = self.blob.try_clone().doing(doing)?;
        let blob = BufReader::with_capacity(128 << 10, blob);
        let reader: Box<dyn Read + Send> = match self.format {
            // Inside the member, after the header: raw deflate data.
            Format::Gzip if restart.compressed > 0 => {
                Box::new(flate2::bufread::DeflateDecoder::new(blob))
            }
            format => decompress::decoder(format, blob)?,
        };
        Ok(OpenTar { reader, position: restart.uncompressed })
    }
}

impl Read for OpenTar {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.position += count as u64;
        Ok(count)
    }
}

/// The content of one file, verified while it is read.
pub struct Content<'a> {
    reader: Box<dyn Read + Send + 'a>,
    left: u64,
    hasher: blake3::Hasher,
    expected: Option<[u8; 32]>,
    name: String,
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.left = self.left.saturating_sub(count as u64);
        let has_ended = self.left == 0 || (count == 0 && !buffer.is_empty());
        if has_ended && let Some(expected) = self.expected.take() {
            let is_whole = self.left == 0 && self.hasher.finalize() == expected;
            if !is_whole {
                let message = format!("the content of `{}` is damaged", self.name);
                return Err(Error::bad_content(message)
                    .hint("run `imgctl scrub` to list the damaged layers")
                    .into());
            }
        }
        Ok(count)
    }
}
