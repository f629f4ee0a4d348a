//! Layers: converts an ordered stream of entries to tar with compression and two digests in one
//! pass, and back.
//!
//! Works only on streams and directory descriptors that callers pass in. Must not depend on the
//! store, images or Kubefiles.

mod blob_reader;
mod block;
pub(crate) mod block_writer;
pub(crate) mod compare;
pub(crate) mod compress;
pub(crate) mod decompress;
pub(crate) mod entry;
mod frame_share;
mod pax;
mod pipe;
mod pipeline;
pub(crate) mod random_access;
pub(crate) mod recompress;
pub(crate) mod scan;
pub(crate) mod snapshot_diff;
mod sparse;
mod tar_header;
pub(crate) mod tar_reader;
pub(crate) mod tar_writer;
pub(crate) mod toc;
pub(crate) mod tree;
pub(crate) mod unpack;
pub(crate) mod whiteout;
pub(crate) mod writer;
mod zstd_frames;

pub(crate) use block_writer::BlockWriter;
pub(crate) use compress::Compression;
pub(crate) use entry::{Entry, EntryKind, LayerPath, Mtime};
pub(crate) use random_access::ContentReader;
pub(crate) use scan::{Expected, scan};
pub(crate) use tar_reader::{Limits, Names, TarReader};
pub(crate) use toc::{Toc, TocEntry};
pub(crate) use tree::{Found, Tree};
pub(crate) use writer::LayerWriter;
