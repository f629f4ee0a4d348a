//! Layers: converts an ordered stream of entries to tar with compression and two digests in one
//! pass, and back.
//!
//! Works only on streams and directory descriptors that callers pass in. Must not depend on the
//! store, images or Kubefiles.

mod blob_reader;
mod block;
mod block_writer;
pub mod chunked;
mod chunker;
pub mod compress;
mod crc64;
pub mod decompress;
pub mod delta;
pub mod entry;
mod leb128;
mod links;
mod pax;
mod pipe;
mod pipeline;
mod plain_list;
mod random_access;
mod runs;
pub mod scan;
pub mod snapshot_diff;
mod sparse;
mod tar_header;
pub mod tar_reader;
pub mod tar_writer;
pub mod toc;
pub mod tree;
pub mod unpack;
pub mod whiteout;
pub mod writer;
mod zstd_frames;

pub use block_writer::{BlockWriter, recompress};
pub use compress::Compression;
pub use entry::{Entry, EntryKind, LayerPath, Mtime};
pub use random_access::ContentReader;
pub use scan::{Expected, scan};
pub use tar_reader::{Limits, Names, TarReader};
pub use toc::{PackedToc, Table, Toc, TocEntry};
pub use tree::{Found, Tree};
pub use writer::{LayerWriter, planned};
