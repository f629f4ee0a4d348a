//! Deltas: a blob as a recipe of ranges of blobs that the other side has, and of patches against
//! their content. A recipe yields the blob's own bytes: content is compressed again exactly as the
//! writer of layers compresses it.
//!
//! Works on files and tables of contents that callers pass in. Must not depend on the store, on
//! bundles, or on how a recipe gets to the other side.

mod apply;
mod bases;
mod create;
mod format;
mod numbers;
mod patch;
mod plan;
mod ranges;
mod segments;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{Read, Seek};
use std::sync::Arc;

use crate::{Entry, EntryKind, LayerPath, Toc, TocEntry};
use imgctl_base::error::Result;
use imgctl_base::image::Digest;

pub use apply::{Applied, apply};
pub use bases::Bases;
pub use create::{Created, Options, create, create_from};
pub use format::{Header, SourceBlob, read_header};

/// A blob that the other side has.
#[derive(Debug)]
pub struct Base {
    pub digest: Digest,
    pub blob: File,
    /// Its files. They are only hints: a table of another blob makes the recipe longer, not wrong.
    pub toc: Arc<Toc>,
    /// Whether the blob is the content of one file, not a layer.
    is_file: bool,
}

impl Base {
    /// A layer, in any compression.
    pub fn layer(digest: Digest, blob: File, toc: Arc<Toc>) -> Self {
        Self { digest, blob, toc, is_file: false }
    }

    /// The content of a regular file, which new files at `path` resemble. `content` is its BLAKE3
    /// hash, if it is known.
    pub fn file(
        digest: Digest,
        blob: File,
        path: LayerPath,
        size: u64,
        content: Option<[u8; 32]>,
    ) -> Self {
        let entry = Entry::new(path, EntryKind::File { size }, 0o644);
        let toc = Toc { entries: vec![TocEntry { entry, offset: 0, content }], ..Toc::default() };
        Self { digest, blob, toc: Arc::new(toc), is_file: true }
    }
}

/// Bytes of a blob that a recipe names.
pub trait Source: Read + Seek + Send {}

impl<T: Read + Seek + Send> Source for T {}

/// The blobs of the side that applies a recipe.
pub trait Sources {
    /// Opens a blob. Its content need not be verified: the digest of the result is.
    fn open(&self, blob: &SourceBlob) -> Result<Box<dyn Source>>;

    /// Returns the size of a blob here, in bytes; 0 if it is missing.
    fn size(&self, blob: &SourceBlob) -> Result<u64>;
}
