//! Independently compressed segments of a tar: the same input always gives the same bytes.
//!
//! zstd segments are whole frames; gzip blocks are runs of deflate blocks that end on a byte boundary
//! and do not refer to earlier data, so they can be concatenated into one member. Segments that do
//! not shrink are stored. The output is a function of the segment, the level and the exact versions
//! of the codecs (pinned in Cargo.toml; the golden digests in `writer/tests.rs` detect changes).

use std::io::{self, Cursor, Write};

use flate2::{Compress, Crc, FlushCompress, Status};
use zstd::bulk::Compressor;

use crate::Compression;
use crate::crc64;
use crate::pipe::Block;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Sha256Sum;

/// A part of a block that is compressed on its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// Number of bytes of the tar.
    pub(super) length: usize,
    pub(super) held: Held,
}

/// What a segment holds, which decides what the list of frames says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// What lies between contents: not listed.
    Between,
    /// Content of a file, the whole or a chunk of it, and nothing else.
    Content,
    /// Any part of the tar of a layer whose list does not know files.
    Run,
}

/// A compressed segment.
#[derive(Debug)]
pub(super) struct PackedSegment {
    /// Number of bytes of the tar.
    pub(super) length: usize,
    /// Number of bytes in [`Packed::compressed`]; `None` if the segment is stored uncompressed.
    pub(super) compressed: Option<usize>,
    /// Checksums of what is listed.
    pub(super) sums: Option<Sums>,
}

/// Checksums of a listed segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) digest: Sha256Sum,
    /// Only of content.
    pub(super) crc64: u64,
}

impl Sums {
    fn of(bytes: &[u8], held: Held) -> Option<Self> {
        let crc64 = match held {
            Held::Between => return None,
            Held::Content => crc64::checksum(bytes),
            Held::Run => 0,
        };
        Some(Self { digest: Sha256Sum::of(bytes), crc64 })
    }
}

/// The result of packing a block.
#[derive(Debug)]
pub(super) struct Packed {
    /// The original block; `None` if all of its segments are compressed.
    pub(super) block: Option<Block>,
    pub(super) segments: Vec<PackedSegment>,
    /// The compressed segments, one after another.
    pub(super) compressed: Vec<u8>,
    /// CRC-32 of the block (gzip only).
    pub(super) crc: Crc,
}

impl Packed {
    /// Returns a block stored uncompressed, without checking whether it shrinks.
    pub(super) fn stored(block: Block) -> Self {
        let whole = PackedSegment { length: block.len(), compressed: None, sums: None };
        Self { block: Some(block), segments: vec![whole], compressed: Vec::new(), crc: Crc::new() }
    }
}

/// Returns the number of bytes in one block; it affects the digest of a layer.
pub(super) fn block_size(compression: Compression) -> usize {
    match compression {
        Compression::None | Compression::Gzip { .. } => 1 << 20,
        Compression::Zstd { .. } => 4 << 20,
    }
}

/// Compresses blocks one after another, reusing its memory.
pub(super) struct Packer {
    codec: Codec,
    probe: Compressor<'static>,
    probed: Vec<u8>,
}

enum Codec {
    None,
    Gzip { deflate: Compress, level: u32 },
    Zstd(Compressor<'static>),
}

impl Packer {
    /// Allocates the codec's memory.
    pub(super) fn new(compression: Compression) -> Result<Self> {
        let codec = match compression {
            Compression::None => Codec::None,
            Compression::Gzip { level } => Codec::Gzip { deflate: new_deflate(level), level },
            Compression::Zstd { level } => Codec::Zstd(new_zstd(level)?),
        };
        Ok(Self { codec, probe: new_zstd(1)?, probed: Vec::with_capacity(2 * SAMPLE) })
    }

    /// Compresses each segment of `block` into `spare`, or leaves it uncompressed. The segments
    /// make up the block.
    pub(super) fn pack(
        &mut self,
        block: Block,
        segments: &[Segment],
        mut spare: Vec<u8>,
    ) -> Result<Packed> {
        let mut crc = Crc::new();
        if matches!(self.codec, Codec::Gzip { .. }) {
            crc.update(&block);
        }
        spare.clear();
        if matches!(self.codec, Codec::Zstd(_)) {
            // Enough for all segments: what grows piece by piece takes twice the memory.
            spare.reserve(zstd::zstd_safe::compress_bound(block.len()) + (1 << 10));
        }
        let mut packed = Vec::with_capacity(segments.len());
        let mut rest: &[u8] = &block;
        for segment in segments {
            let (bytes, after) = rest.split_at(segment.length.min(rest.len()));
            rest = after;
            let start = spare.len();
            let is_smaller = self.pack_segment(bytes, &mut spare)?;
            packed.push(PackedSegment {
                length: bytes.len(),
                compressed: is_smaller.then_some(spare.len() - start),
                sums: Sums::of(bytes, segment.held),
            });
        }
        // Without stored segments, the block can be filled again at once.
        let is_needed = packed.iter().any(|segment| segment.compressed.is_none());
        let block = is_needed.then_some(block);
        Ok(Packed { block, segments: packed, compressed: spare, crc })
    }

    /// Appends a compressed segment, or nothing if it does not shrink; returns whether it does.
    pub(super) fn pack_segment(&mut self, bytes: &[u8], output: &mut Vec<u8>) -> Result<bool> {
        let start = output.len();
        let is_smaller = self.shrinks(bytes)? && self.compress(bytes, output)?;
        if !is_smaller {
            output.truncate(start);
        }
        Ok(is_smaller)
    }

    /// Appends the compressed `block`; returns whether it is smaller.
    fn compress(&mut self, block: &[u8], output: &mut Vec<u8>) -> Result<bool> {
        match &mut self.codec {
            Codec::None => Ok(false),
            Codec::Gzip { deflate, level } => {
                let start = output.len();
                deflate.reset();
                // Space for the worst case: nine bits per byte.
                output.reserve(block.len() + block.len() / 8 + (64 << 10));
                // The output depends on how a block is split into calls, so it is always a single
                // call.
                let status = deflate
                    .compress_vec(block, output, FlushCompress::Full)
                    .map_err(|error| Error::failed("cannot deflate").caused_by(error))?;
                let all_in = deflate.total_in() == block.len() as u64;
                let all_out = output.len() < output.capacity();
                if !(status == Status::Ok && all_in && all_out) {
                    // In zlib-rs 0.6.8, a reset does not discard pending output.
                    *deflate = new_deflate(*level);
                    return Ok(false);
                }
                Ok(output.len() - start < block.len())
            }
            Codec::Zstd(zstd) => {
                let start = output.len();
                output.reserve(zstd::zstd_safe::compress_bound(block.len()));
                let mut end = Cursor::new(output);
                end.set_position(start as u64);
                let length = zstd
                    .compress_to_buffer(block, &mut end)
                    .map_err(|error| Error::io("cannot compress with zstd", error))?;
                Ok(length < block.len())
            }
        }
    }

    /// Returns whether compression is worthwhile, judging by a few samples. Registry blobs and
    /// other archives are already compressed and would cost as much time as everything else
    /// together.
    fn shrinks(&mut self, block: &[u8]) -> Result<bool> {
        if matches!(self.codec, Codec::None) {
            return Ok(false);
        }
        if block.len() < 2 * SAMPLES * SAMPLE {
            return Ok(true);
        }
        let mut probed = 0;
        let stride = (block.len() - SAMPLE) / (SAMPLES - 1);
        for sample in block.windows(SAMPLE).step_by(stride) {
            self.probed.clear();
            self.probe
                .compress_to_buffer(sample, &mut self.probed)
                .map_err(|error| Error::io("cannot compress with zstd", error))?;
            probed += self.probed.len();
        }
        Ok(probed * 100 <= SAMPLES * SAMPLE * 97)
    }
}

/// Number of samples that decide whether a block shrinks, and bytes in each.
const SAMPLES: usize = 8;
const SAMPLE: usize = 8 << 10;

fn new_deflate(level: u32) -> Compress {
    Compress::new(flate2::Compression::new(level), false)
}

fn new_zstd(level: i32) -> Result<Compressor<'static>> {
    Compressor::new(level).map_err(|error| Error::io("cannot set up zstd", error))
}

/// Writes a block that did not shrink, in the codec's form for uncompressed data.
pub(super) fn write_stored(
    compression: Compression,
    block: &[u8],
    output: &mut dyn Write,
) -> io::Result<()> {
    match compression {
        Compression::None => output.write_all(block),
        Compression::Gzip { .. } => write_stored_deflate(block, output),
        Compression::Zstd { .. } => write_stored_zstd(block, output),
    }
}

/// RFC 1951, 3.2.4: blocks of at most 65535 bytes, none of them the last.
fn write_stored_deflate(block: &[u8], output: &mut dyn Write) -> io::Result<()> {
    for chunk in block.chunks(usize::from(u16::MAX)) {
        let length = u16::try_from(chunk.len()).map_err(io::Error::other)?;
        let mut header = [0; 5];
        header[1..3].copy_from_slice(&length.to_le_bytes());
        header[3..5].copy_from_slice(&(!length).to_le_bytes());
        output.write_all(&header)?;
        output.write_all(chunk)?;
    }
    Ok(())
}

/// RFC 8878, 3.1.1: a single-segment frame with a four-byte content size and raw blocks.
fn write_stored_zstd(block: &[u8], output: &mut dyn Write) -> io::Result<()> {
    const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    const SINGLE_SEGMENT_SIZE_IN_FOUR: u8 = 0xa0;
    const RAW_BLOCK: usize = 128 << 10;
    let size = u32::try_from(block.len()).map_err(io::Error::other)?;
    let mut header = MAGIC.to_vec();
    header.push(SINGLE_SEGMENT_SIZE_IN_FOUR);
    header.extend_from_slice(&size.to_le_bytes());
    output.write_all(&header)?;
    let last = block.len().saturating_sub(1) / RAW_BLOCK;
    for (index, chunk) in block.chunks(RAW_BLOCK).enumerate() {
        let length = u32::try_from(chunk.len()).map_err(io::Error::other)?;
        let header = length << 3 | u32::from(index == last);
        output.write_all(&header.to_le_bytes()[..3])?;
        output.write_all(chunk)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipe::Pool;

    fn noise(length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    fn pack(compression: Compression, bytes: &[u8]) -> Packed {
        let mut buffer = Pool::new(1, bytes.len()).take().unwrap();
        buffer.bytes_mut().copy_from_slice(bytes);
        let block = buffer.freeze(bytes.len());
        let mut packer = Packer::new(compression).unwrap();
        // Pack twice: the second time with reused memory.
        let whole = [Segment { length: block.len(), held: Held::Content }];
        let first = packer.pack(block.clone(), &whole, Vec::new()).unwrap();
        let second = packer.pack(block, &whole, Vec::new()).unwrap();
        assert_eq!(first.compressed, second.compressed);
        second
    }

    /// Data that misleads the probe grows at level 1, which encodes most bytes in nine bits.
    #[test]
    fn blocks_that_grow_leave_nothing_behind() {
        let mut deceiving = noise(1 << 20);
        let stride = (deceiving.len() - SAMPLE) / (SAMPLES - 1);
        for start in (0..deceiving.len()).step_by(stride).take(6) {
            let end = (start + SAMPLE).min(deceiving.len());
            deceiving[start..end].fill(0);
        }
        for level in [1, 6] {
            let mut packer = Packer::new(Compression::Gzip { level }).unwrap();
            let mut outputs = Vec::new();
            for bytes in [&b"text ".repeat(100_000), &deceiving, &b"text ".repeat(100_000)] {
                let mut buffer = Pool::new(1, bytes.len()).take().unwrap();
                buffer.bytes_mut().copy_from_slice(bytes);
                let whole = [Segment { length: bytes.len(), held: Held::Between }];
                let packed = packer.pack(buffer.freeze(bytes.len()), &whole, Vec::new()).unwrap();
                outputs.push(packed.compressed);
            }
            assert_eq!(outputs[0], outputs[2]);
            assert!(!outputs[0].is_empty());
            assert_eq!(outputs[1].is_empty(), level == 1);
        }
    }

    /// The bytes of a segment do not depend on what else is in its block.
    #[test]
    fn segments_do_not_depend_on_their_neighbours() {
        let parts = [b"text ".repeat(10_000), noise(5000), b"other text ".repeat(20_000), vec![0]];
        let bytes = parts.concat();
        let mut buffer = Pool::new(1, bytes.len()).take().unwrap();
        buffer.bytes_mut().copy_from_slice(&bytes);
        let block = buffer.freeze(bytes.len());
        for compression in [Compression::Zstd { level: 3 }, Compression::Gzip { level: 6 }] {
            let segments =
                parts.each_ref().map(|part| Segment { length: part.len(), held: Held::Content });
            let mut packer = Packer::new(compression).unwrap();
            let packed = packer.pack(block.clone(), &segments, Vec::new()).unwrap();
            let mut rest = &packed.compressed[..];
            for (part, segment) in parts.iter().zip(&packed.segments) {
                let alone = pack(compression, part);
                assert_eq!(segment.length, part.len());
                assert_eq!(segment.sums.as_ref().unwrap().digest, Sha256Sum::of(part));
                assert_eq!(segment.sums, alone.segments[0].sums);
                assert_eq!(segment.compressed, alone.segments[0].compressed);
                if let Some(length) = segment.compressed {
                    assert!(rest[..length] == alone.compressed);
                    rest = &rest[length..];
                }
            }
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn what_shrinks_is_compressed_and_the_rest_is_stored() {
        let text = b"all work and no play ".repeat(50_000);
        let mut repeated = noise(1 << 20);
        repeated.extend_from_within(..);
        for compression in [Compression::Zstd { level: 3 }, Compression::Gzip { level: 6 }] {
            assert!(pack(compression, &text).segments[0].compressed.is_some());
            assert!(pack(compression, &noise(1 << 20)).segments[0].compressed.is_none());
            assert!(pack(compression, &noise(1000)).segments[0].compressed.is_none());
            assert!(pack(compression, b"x").segments[0].compressed.is_none());
            // The probe does not detect repetitions that are far apart: storing the block is
            // correct, but not optimal.
            assert!(pack(compression, &repeated).segments[0].compressed.is_none());
        }
        assert!(pack(Compression::None, &text).segments[0].compressed.is_none());
    }
}
