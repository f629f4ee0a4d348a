//! A layer's table of contents: all entries with the offsets of their contents, collected while the
//! layer is streamed, so `ls`, `cat`, `diff`, `COPY --from` and parent look-ups need no unpacking.

use std::io::{Read, Write};

use crate::layer::Entry;
use crate::layer::LayerPath;
use imgctl_base::error::{Error, IoContext, Result};

mod codec;
#[cfg(test)]
mod tests;

/// An entry and the location of its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TocEntry {
    pub entry: Entry,
    /// Offset of the content in the uncompressed tar, in bytes; 0 for entries without content and
    /// for sparse files, whose content is stored in pieces.
    pub offset: u64,
    /// BLAKE3 hash of the content of regular files, including empty ones; `None` for everything
    /// else.
    pub content: Option<[u8; 32]>,
}

/// A position where decompression can start: a zstd frame, or a run of deflate blocks in a gzip
/// member that does not refer to earlier data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartPoint {
    /// Offset in the compressed blob, in bytes.
    pub compressed: u64,
    /// Offset in the uncompressed tar, in bytes.
    pub uncompressed: u64,
}

/// The table of contents, in the order of the tar. Foreign layers may contain duplicate paths: the
/// last one wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toc {
    pub entries: Vec<TocEntry>,
    /// Positions where decompression can start; empty for foreign compressed layers and for plain
    /// tars.
    pub restarts: Vec<RestartPoint>,
}

impl Toc {
    /// Returns the last entry with the path `path`. Scans all entries: for many look-ups, build a
    /// [`crate::layer::Tree`].
    pub fn find(&self, path: &LayerPath) -> Option<&TocEntry> {
        self.entries.iter().rev().find(|listed| listed.entry.path == *path)
    }

    /// Writes the compact binary format, which is versioned and checksummed.
    pub(crate) fn write_to(&self, writer: &mut dyn Write) -> Result<()> {
        let doing = || "cannot write a table of contents".to_owned();
        let body = self.encode();
        let mut file = Vec::with_capacity(HEADER + body.len() + CHECKSUM);
        file.extend_from_slice(MAGIC);
        file.extend_from_slice(&(body.len() as u64).to_le_bytes());
        file.extend_from_slice(&body);
        let checksum = blake3::hash(&file);
        file.extend_from_slice(checksum.as_bytes());
        writer.write_all(&file).doing(doing)?;
        writer.flush().doing(doing)
    }

    /// Reads the output of [`Toc::write_to`]; fails on any damage (the table is then rebuilt).
    pub fn read_from(reader: &mut dyn Read) -> Result<Self> {
        // The stored length is not trusted: memory grows only with the data that actually exists.
        let mut file = Vec::new();
        let doing = || "cannot read a table of contents".to_owned();
        reader.take(MAX_FILE).read_to_end(&mut file).doing(doing)?;
        let (signed, checksum) =
            file.split_last_chunk::<CHECKSUM>().ok_or_else(|| damaged("is truncated"))?;
        if blake3::hash(signed) != *checksum {
            return Err(damaged("does not match its checksum"));
        }
        let body = signed.strip_prefix(MAGIC).ok_or_else(|| damaged("is of another version"))?;
        let (length, body) =
            body.split_first_chunk::<8>().ok_or_else(|| damaged("is truncated"))?;
        if u64::from_le_bytes(*length) != body.len() as u64 {
            return Err(damaged("has a wrong length"));
        }
        Self::decode(body).ok_or_else(|| damaged("is malformed"))
    }
}

/// Name and version of the format.
const MAGIC: &[u8] = b"imgctl toc 2\n";
const HEADER: usize = MAGIC.len() + 8;
const CHECKSUM: usize = blake3::OUT_LEN;

/// Maximum size of a file, in bytes: ten million entries of a few hundred bytes.
const MAX_FILE: u64 = 4 << 30;

fn damaged(how: &str) -> Error {
    Error::bad_content(format!("a table of contents {how}"))
}
