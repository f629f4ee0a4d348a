//! A layer's table of contents: every entry with where its bytes lie, made while the layer
//! streams by, so that `ls`, `cat`, `diff`, `COPY --from` and parent look-ups need no unpacking.

use std::io::{Read, Write};

use crate::error::{Error, IoContext, Result};
use crate::layer::Entry;
#[cfg(test)]
use crate::layer::LayerPath;

mod codec;
#[cfg(test)]
mod tests;

/// One entry and its content's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TocEntry {
    pub(crate) entry: Entry,
    /// Offset of the content in the uncompressed tar, in bytes; 0 without content, and for sparse
    /// files, whose content lies there in pieces.
    pub(crate) offset: u64,
    /// BLAKE3 of the content of regular files, empty ones too; `None` for everything else.
    pub(crate) content: Option<[u8; 32]>,
}

/// A place where decompression can start: a zstd frame, or a run of deflate blocks in a gzip
/// member that refers to nothing before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RestartPoint {
    /// Offset in the compressed blob, in bytes.
    pub(crate) compressed: u64,
    /// Offset in the uncompressed tar, in bytes.
    pub(crate) uncompressed: u64,
}

/// The table, in the order of the tar. Duplicate paths are possible in foreign layers: the last wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Toc {
    pub(crate) entries: Vec<TocEntry>,
    /// Where decompression can start; empty for foreign compressed layers and for plain tars.
    pub(crate) restarts: Vec<RestartPoint>,
}

impl Toc {
    #[cfg(test)]
    /// The entry called `path` (the last one of that name). Looks at every entry: for many
    /// look-ups make a [`crate::layer::Tree`].
    pub(crate) fn find(&self, path: &LayerPath) -> Option<&TocEntry> {
        self.entries
            .iter()
            .rev()
            .find(|listed| listed.entry.path == *path)
    }

    /// Writes the compact binary form: versioned, checksummed.
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

    /// Reads what [`Toc::write_to`] wrote; any damage is an error (the table is then made again).
    pub(crate) fn read_from(reader: &mut dyn Read) -> Result<Self> {
        // The length is not believed: memory grows only with what is really there.
        let mut file = Vec::new();
        let doing = || "cannot read a table of contents".to_owned();
        reader.take(MAX_FILE).read_to_end(&mut file).doing(doing)?;
        let (signed, checksum) = file
            .split_last_chunk::<CHECKSUM>()
            .ok_or_else(|| damaged("is cut off"))?;
        if blake3::hash(signed) != *checksum {
            return Err(damaged("does not match its checksum"));
        }
        let body = signed
            .strip_prefix(MAGIC)
            .ok_or_else(|| damaged("is of another version"))?;
        let (length, body) = body
            .split_first_chunk::<8>()
            .ok_or_else(|| damaged("is cut off"))?;
        if u64::from_le_bytes(*length) != body.len() as u64 {
            return Err(damaged("has a wrong length"));
        }
        Self::decode(body).ok_or_else(|| damaged("is malformed"))
    }
}

/// Name and version of the form.
const MAGIC: &[u8] = b"imgctl toc 2\n";
const HEADER: usize = MAGIC.len() + 8;
const CHECKSUM: usize = blake3::OUT_LEN;

/// Bytes of a file that we are willing to read: ten million entries of a few hundred bytes.
const MAX_FILE: u64 = 4 << 30;

fn damaged(how: &str) -> Error {
    Error::bad_content(format!("a table of contents {how}"))
}
