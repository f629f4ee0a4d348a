//! Decompression by the actual format of the data, regardless of its declared type: gzip (all
//! members), zstd (all frames), plain tar; for ADD also bzip2 and xz.

use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Limits;
use crate::tar_header::{BLOCK, checksum_holds};
use imgctl_base::error::{Error, IoContext, Result};

#[cfg(test)]
mod tests;

/// The format at the start of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// No known compression: used as it is.
    Plain,
    Gzip,
    Zstd,
    Bzip2,
    Xz,
}

/// Number of bytes that [`Format::of_start`] looks at.
const FIRST: usize = BLOCK;
/// Number of bytes that [`Format::sniff`] needs.
pub(crate) const SNIFF: usize = 6;

impl Format {
    /// Recognises the magic number in the first bytes of a stream (at least [`SNIFF`], if
    /// available).
    pub fn sniff(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // A zstd stream may begin with a skippable frame.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Self::Bzip2,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            _ => Self::Plain,
        }
    }
}

impl Format {
    /// Recognises the format of a stream by its first [`FIRST`] bytes, or fewer of a shorter stream.
    ///
    /// # Errors
    /// If programs that know zstd by its usual frames alone read a tar archive there, whose first name is the
    /// magic number of another frame.
    pub(crate) fn of_start(start: &[u8]) -> Result<Self> {
        let format = Self::sniff(start);
        let block = start.first_chunk::<BLOCK>();
        if format == Self::Zstd && !start.starts_with(&ZSTD) && block.is_some_and(checksum_holds) {
            return Err(Error::bad_content(
                "it begins as a tar archive and as a frame of zstd: programs read different files",
            ));
        }
        Ok(format)
    }
}

/// Magic number of a frame with content.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Maximum window size of a zstd frame as a power of two: 128 MiB.
pub(super) const ZSTD_WINDOW_LOG: u32 = 27;

/// Maximum memory of an xz stream, in KiB.
const XZ_MEMORY: u32 = 256 << 10;

/// Wraps `reader` in its decompressor. The output is unlimited; callers must limit it.
pub fn decompress<'a>(
    mut reader: impl Read + Send + 'a,
) -> Result<(Format, Box<dyn Read + Send + 'a>)> {
    let mut start = Vec::new();
    let doing = || "cannot read the start of the archive".to_owned();
    (&mut reader).take(FIRST as u64).read_to_end(&mut start).doing(doing)?;
    let format = Format::of_start(&start)?;
    let reader = BufReader::with_capacity(256 << 10, Cursor::new(start).chain(reader));
    Ok((format, decoder(format, reader)?))
}

/// Like [`decompress`], but reading fails if the output exceeds `limits.size`, or `limits.ratio`
/// times the input (checked from 1 GiB on).
pub fn decompress_within<'a>(
    reader: impl Read + Send + 'a,
    limits: Limits,
) -> Result<(Format, Box<dyn Read + Send + 'a>)> {
    let input = Arc::new(AtomicU64::new(0));
    let counted = Counted { reader, count: Arc::clone(&input) };
    let (format, reader) = decompress(counted)?;
    let bounded = Bounded { reader, input, output: 0, limits };
    Ok((format, Box::new(bounded)))
}

struct Counted<R> {
    reader: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.count.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

struct Bounded<R> {
    reader: R,
    input: Arc<AtomicU64>,
    output: u64,
    limits: Limits,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.output += count as u64;
        check_ratio(self.output, self.input.load(Ordering::Relaxed), self.limits)?;
        Ok(count)
    }
}

/// Fails if `output` exceeds the size limit or the ratio limit for `input` bytes.
pub(super) fn check_ratio(output: u64, input: u64, limits: Limits) -> Result<()> {
    if output > limits.size {
        return Err(Error::bad_content(format!(
            "it expands to more than the limit of {} bytes",
            limits.size
        )));
    }
    if output > limits.ratio_from && output / limits.ratio.max(1) > input {
        return Err(Error::bad_content(format!(
            "it expands to more than {} times its size",
            limits.ratio
        )));
    }
    Ok(())
}

/// Returns the decompressor of a format.
pub(super) fn decoder<'a>(
    format: Format,
    reader: impl BufRead + Send + 'a,
) -> Result<Box<dyn Read + Send + 'a>> {
    Ok(match format {
        Format::Plain => Box::new(reader),
        Format::Gzip => Box::new(GzipMembers::new(reader)),
        Format::Zstd => Box::new(zstd_decoder(reader)?),
        Format::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(reader)),
        Format::Xz => Box::new(lzma_rust2::XzReader::new_mem_limit(reader, true, XZ_MEMORY)),
    })
}

/// Returns a decoder for all frames, including skippable ones.
pub(super) fn zstd_decoder<'a, R: BufRead + 'a>(
    reader: R,
) -> Result<zstd::stream::read::Decoder<'a, R>> {
    let doing = || "cannot set up zstd".to_owned();
    let mut decoder = zstd::stream::read::Decoder::with_buffer(reader).doing(doing)?;
    decoder.window_log_max(ZSTD_WINDOW_LOG).doing(doing)?;
    Ok(decoder)
}

/// Reads one gzip member after another. Data after the last member that is not a member (some tools
/// pad with zeros) is left unread.
struct GzipMembers<R> {
    member: Option<flate2::bufread::GzDecoder<R>>,
}

impl<R: BufRead> GzipMembers<R> {
    fn new(reader: R) -> Self {
        Self { member: Some(flate2::bufread::GzDecoder::new(reader)) }
    }
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while let Some(member) = &mut self.member {
            let count = member.read(buffer)?;
            if count > 0 {
                return Ok(count);
            }
            let next_is_member = member.get_mut().fill_buf()?.first() == Some(&0x1f);
            self.member = self
                .member
                .take()
                .filter(|_| next_is_member)
                .map(|ended| flate2::bufread::GzDecoder::new(ended.into_inner()));
        }
        Ok(0)
    }
}
