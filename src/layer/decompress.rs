//! Decompression by what the bytes are, not by what they claim to be: gzip (all members), zstd
//! (all frames), plain tar; for ADD also bzip2 and xz.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use crate::error::{IoContext, Result};

#[cfg(test)]
mod tests;

/// What a stream starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Nothing we know: taken for what it is.
    Plain,
    Gzip,
    Zstd,
    Bzip2,
    Xz,
}

/// The bytes that [`Format::sniff`] needs.
pub(crate) const SNIFF: usize = 6;

impl Format {
    /// Recognises the magic number in the first bytes (at least [`SNIFF`], if there are so many)
    /// of a stream.
    pub(crate) fn sniff(start: &[u8]) -> Self {
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

/// Memory that a zstd frame may ask for: a power of two, 128 MiB.
pub(super) const ZSTD_WINDOW_LOG: u32 = 27;

/// Memory that an xz stream may ask for, in KiB.
const XZ_MEMORY: u32 = 256 << 10;

/// Wraps `reader` into its decompressor. Output is unbounded: callers limit it.
pub(crate) fn decompress<'a>(
    mut reader: impl Read + Send + 'a,
) -> Result<(Format, Box<dyn Read + Send + 'a>)> {
    let mut start = Vec::new();
    let doing = || "cannot read the start of the archive".to_owned();
    (&mut reader)
        .take(SNIFF as u64)
        .read_to_end(&mut start)
        .doing(doing)?;
    let format = Format::sniff(&start);
    let reader = BufReader::with_capacity(256 << 10, Cursor::new(start).chain(reader));
    Ok((format, decoder(format, reader)?))
}

/// The decompressor of a format.
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

/// Reads all frames, skippable ones included.
pub(super) fn zstd_decoder<'a, R: BufRead + 'a>(
    reader: R,
) -> Result<zstd::stream::read::Decoder<'a, R>> {
    let doing = || "cannot set up zstd".to_owned();
    let mut decoder = zstd::stream::read::Decoder::with_buffer(reader).doing(doing)?;
    decoder.window_log_max(ZSTD_WINDOW_LOG).doing(doing)?;
    Ok(decoder)
}

/// Reads one gzip member after another. What follows the last one and is no member (some tools
/// pad with zeros) is left unread.
struct GzipMembers<R> {
    member: Option<flate2::bufread::GzDecoder<R>>,
}

impl<R: BufRead> GzipMembers<R> {
    fn new(reader: R) -> Self {
        Self {
            member: Some(flate2::bufread::GzDecoder::new(reader)),
        }
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
