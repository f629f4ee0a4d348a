//! Recompresses a tar for registries and archive formats that need gzip.
//!
//! The output depends only on the tar, not on its previous compression.

use std::io::{ErrorKind, Read, Write};

use crate::layer::Compression;
use crate::layer::decompress::decompress;
use crate::layer::pipeline::Pipeline;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Digest;

/// A recompressed layer.
#[derive(Debug)]
pub struct Recompressed<W> {
    pub sink: W,
    /// Digest of the compressed bytes.
    pub digest: Digest,
    /// Size of the compressed blob, in bytes.
    pub size: u64,
    /// Digest of the tar; the caller compares it with the expected one.
    pub diff_id: Digest,
}

/// Decompresses `blob`, whatever its compression, and writes it to `sink` with another one.
pub fn recompress<W: Write + Send + 'static>(
    blob: impl Read + Send,
    sink: W,
    compression: Compression,
    threads: usize,
) -> Result<Recompressed<W>> {
    let (_, mut tar) = decompress(blob)?;
    let mut pipeline = Pipeline::start(sink, compression, threads)?;
    loop {
        let mut buffer = pipeline.buffer()?;
        let filled = fill(&mut *tar, buffer.bytes_mut())?;
        if filled == 0 {
            break;
        }
        pipeline.push(&buffer.freeze(filled))?;
    }
    let output = pipeline.finish()?;
    Ok(Recompressed {
        sink: output.sink,
        digest: output.digest,
        size: output.size,
        diff_id: output.diff_id,
    })
}

/// Reads until `buffer` is full or the stream ends: only the last block may be short.
fn fill(reader: &mut dyn Read, buffer: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("cannot decompress", error)),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

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
