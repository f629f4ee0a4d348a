//! Fills the blocks of a pipeline: bytes in, a compressed stream out. Compresses data that is not a
//! layer (a whole archive) directly; a layer's writer frames its tar on top of it.

use std::io::{self, Read, Write};

use crate::Compression;
use crate::block::{Held, Segment};
use crate::decompress::decompress;
use crate::pipe::{Buffer, fill};
use crate::pipeline::{ListedFrame, Output, Pipeline};
use imgctl_base::error::{IoContext, Result};

/// Splits its input into blocks, which are compressed in parallel. The output depends only on the
/// input bytes and where the caller cuts them, not on how they are split into calls or on the number
/// of threads. Without cuts, a block is one segment.
#[derive(Debug)]
pub struct BlockWriter<W> {
    pipeline: Pipeline<W>,
    /// The current block; the first `filled` bytes are in use.
    block: Option<Buffer>,
    filled: usize,
    /// The segments of the current block that have been cut off; they hold `cut` bytes.
    segments: Vec<Segment>,
    cut: usize,
    /// What segments hold if the caller does not say.
    held: Held,
}

impl<W: Write + Send + 'static> BlockWriter<W> {
    /// Compresses into `sink` with as many threads as the machine supports, without hashing.
    pub fn compressing(sink: W, compression: Compression) -> Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self::new(Pipeline::start(sink, compression, threads, false)?))
    }

    pub(super) fn new(pipeline: Pipeline<W>) -> Self {
        let segments = Vec::new();
        Self { pipeline, block: None, filled: 0, segments, cut: 0, held: Held::Between }
    }

    /// Lists all segments.
    pub(super) fn list_all(&mut self) {
        self.held = Held::Run;
    }

    /// Copies `reader` to its end and returns the number of bytes copied.
    pub fn read_from(&mut self, reader: &mut dyn Read) -> io::Result<u64> {
        let mut copied = 0;
        loop {
            match reader.read(self.room()?) {
                Ok(0) => return Ok(copied),
                Ok(count) => {
                    copied += count as u64;
                    self.advance(count)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Compresses the rest, waits until everything is written and returns the sink. After an error
    /// or a drop, no threads remain.
    pub fn finish(self) -> Result<W> {
        self.flushed()?.finish_unhashed()
    }

    pub(super) fn finish_hashed(
        self,
        trailer: impl FnOnce(&[ListedFrame], u64) -> Result<Vec<u8>>,
    ) -> Result<Output<W>> {
        self.flushed()?.finish(trailer)
    }

    fn flushed(mut self) -> Result<Pipeline<W>> {
        self.push_block()?;
        Ok(self.pipeline)
    }

    pub(super) fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
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

    /// Returns the free part of the current block, which is never empty.
    pub(super) fn room(&mut self) -> Result<&mut [u8]> {
        let block = match self.block.take() {
            Some(block) => block,
            None => self.pipeline.buffer()?,
        };
        Ok(&mut self.block.insert(block).bytes_mut()[self.filled..])
    }

    /// Counts `count` bytes written to [`BlockWriter::room`] and sends a full block on.
    pub(super) fn advance(&mut self, count: usize) -> Result<()> {
        self.filled += count;
        let is_full = |block: &mut Buffer| self.filled == block.bytes_mut().len();
        if self.block.as_mut().is_some_and(is_full) {
            self.push_full_block()?;
        }
        Ok(())
    }

    /// Ends a segment with content after the first `count` bytes of [`BlockWriter::room`], before they are
    /// counted. A segment must not be longer than a block.
    pub(super) fn cut_content_at(&mut self, count: usize) {
        let held = if self.held == Held::Run { Held::Run } else { Held::Content };
        self.cut_at(count, held);
    }

    /// Ends a segment here, which does not hold content alone.
    pub(super) fn cut_here(&mut self) {
        self.cut_at(0, self.held);
    }

    fn cut_at(&mut self, count: usize, held: Held) {
        let end = self.filled + count;
        if end > self.cut {
            self.segments.push(Segment { length: end - self.cut, held });
            self.cut = end;
        }
    }

    /// Number of bytes since the last cut. A full block without a cut counts as one.
    pub(super) fn uncut(&self) -> usize {
        self.filled - self.cut
    }

    /// Sends the segments of the current block on. What has not been cut off moves to the next
    /// block, so that its segment does not depend on where blocks end.
    fn push_full_block(&mut self) -> Result<()> {
        if self.cut == 0 || self.cut == self.filled {
            return self.push_block();
        }
        let mut next = self.pipeline.buffer()?;
        let uncut = self.cut..self.filled;
        let length = uncut.len();
        if let Some(block) = &mut self.block {
            next.bytes_mut()[..length].copy_from_slice(&block.bytes_mut()[uncut]);
        }
        self.filled = self.cut;
        self.push_block()?;
        self.block = Some(next);
        self.filled = length;
        Ok(())
    }

    fn push_block(&mut self) -> Result<()> {
        self.cut_here();
        self.cut = 0;
        let filled = std::mem::take(&mut self.filled);
        let segments = std::mem::take(&mut self.segments);
        match self.block.take() {
            Some(_) if filled == 0 => Ok(()),
            Some(block) => self.pipeline.push(&block.freeze(filled), segments),
            None => Ok(()),
        }
    }
}

impl<W: Write + Send + 'static> Write for BlockWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes)?;
        Ok(bytes.len())
    }

    /// Does nothing, because the end of a block is visible in the output.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Decompresses `blob`, whatever its compression, and writes it to `sink` with another one.
pub fn recompress<W: Write + Send + 'static>(
    blob: impl Read + Send,
    sink: W,
    compression: Compression,
    threads: usize,
) -> Result<Output<W>> {
    let (_, mut tar) = decompress(blob)?;
    let mut pipeline = Pipeline::start(sink, compression, threads, true)?;
    loop {
        let mut buffer = pipeline.buffer()?;
        let filled =
            fill(&mut *tar, buffer.bytes_mut()).doing(|| "cannot decompress".to_owned())?;
        if filled == 0 {
            break;
        }
        pipeline
            .push(&buffer.freeze(filled), vec![Segment { length: filled, held: Held::Between }])?;
    }
    pipeline.finish(|_, _| Ok(Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decompress::Format;
    use imgctl_base::image::Digest;

    /// Returns text followed by incompressible data, like an archive of compressed layers.
    fn content() -> Vec<u8> {
        let mut bytes = b"all work and no play ".repeat(120_000);
        let mut noise = vec![0; 5 << 20];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        bytes.extend(noise);
        bytes
    }

    #[test]
    fn the_stream_depends_on_the_content_alone_and_what_is_compressed_is_stored() {
        let content = content();
        for (compression, format) in
            [(Compression::Gzip { level: 6 }, Format::Gzip), (Compression::default(), Format::Zstd)]
        {
            let mut outputs = Vec::new();
            for (threads, cut) in [(1, 1 << 20), (2, 7777), (3, content.len())] {
                let pipeline = Pipeline::start(Vec::new(), compression, threads, false).unwrap();
                let mut writer = BlockWriter::new(pipeline);
                for part in content.chunks(cut) {
                    writer.write_all(part).unwrap();
                }
                outputs.push(writer.finish().unwrap());
            }
            let mut writer = BlockWriter::compressing(Vec::new(), compression).unwrap();
            let copied = writer.read_from(&mut &content[..]).unwrap();
            assert_eq!(copied, content.len() as u64);
            outputs.push(writer.finish().unwrap());
            assert!(outputs.iter().all(|output| *output == outputs[0]));
            let (found, mut reader) = decompress(&outputs[0][..]).unwrap();
            assert_eq!(found, format);
            let mut back = Vec::new();
            reader.read_to_end(&mut back).unwrap();
            assert!(back == content);
            // The noise is stored; the text adds almost nothing.
            let noise = 5 << 20;
            assert!((noise..noise + (100 << 10)).contains(&outputs[0].len()));
        }
    }

    #[test]
    fn gzip_is_one_member_and_nothing_is_nothing() {
        let content = content();
        let gzip = Compression::Gzip { level: 6 };
        let mut writer = BlockWriter::compressing(Vec::new(), gzip).unwrap();
        writer.write_all(&content).unwrap();
        let bytes = writer.finish().unwrap();
        // A decoder that stops after the first member reads all of the data.
        let mut member = flate2::bufread::GzDecoder::new(&bytes[..]);
        let mut back = Vec::new();
        member.read_to_end(&mut back).unwrap();
        assert!(back == content && member.into_inner().is_empty());
        let empty = BlockWriter::compressing(Vec::new(), gzip).unwrap();
        let mut back = Vec::new();
        flate2::bufread::GzDecoder::new(&empty.finish().unwrap()[..])
            .read_to_end(&mut back)
            .unwrap();
        assert!(back.is_empty());
    }

    #[test]
    fn a_sink_that_fails_ends_it_with_its_own_error() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut writer = BlockWriter::compressing(Full, Compression::Gzip { level: 1 }).unwrap();
        let content = content();
        let written = (0..50).try_for_each(|_| writer.append(&content));
        let outcome = written.and_then(|()| writer.finish().map(drop));
        assert!(outcome.is_err());
    }

    #[test]
    fn the_way_there_does_not_show() {
        let tar: Vec<u8> = (0_u32..700_000).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let gzip = Compression::Gzip { level: 6 };
        let direct = recompress(&tar[..], Vec::new(), gzip, 1).unwrap();
        assert_eq!(direct.diff_id, Digest::of(&tar));
        assert_eq!(direct.digest, Digest::of(&direct.sink));
        assert!(direct.sink.len() < tar.len());
        let zstd = recompress(&tar[..], Vec::new(), Compression::default(), 2).unwrap();
        let around = recompress(&zstd.sink[..], Vec::new(), gzip, 3).unwrap();
        assert_eq!(around.sink, direct.sink);
        let plain = recompress(&around.sink[..], Vec::new(), Compression::None, 1).unwrap();
        assert_eq!(plain.sink, tar);
    }
}
