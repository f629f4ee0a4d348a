//! The list of frames at the end of a zstd layer, in the form of zstd:chunked (containers/storage,
//! pkg/chunked): readers that know it fetch only the frames that they lack. Three skippable frames,
//! which other readers ignore: the table of contents, the headers of the tar in the form of
//! tar-split, and a footer that says where the two are.
//!
//! Must not depend on how frames are cut or compressed, or on where blobs are stored.

mod item;
mod parts;
mod read;
mod write;

pub use parts::{Part, parts};
pub use read::{FOOTER, Position, Table};
pub(in crate::layer) use write::list;

#[cfg(test)]
mod tests;

/// Digest of the compressed table of contents.
pub const CHECKSUM: &str = "io.github.containers.zstd-chunked.manifest-checksum";
/// `OFFSET:COMPRESSED:UNCOMPRESSED:TYPE` of the table of contents.
pub const POSITION: &str = "io.github.containers.zstd-chunked.manifest-position";
/// `OFFSET:COMPRESSED:UNCOMPRESSED` of the headers.
pub const HEADERS_POSITION: &str = "io.github.containers.zstd-chunked.tarsplit-position";

const SKIPPABLE: [u8; 4] = [0x50, 0x2a, 0x4d, 0x18];
/// The kind of table: that of CRFS.
const TABLE_TYPE: u64 = 1;
const FOOTER_MAGIC: [u8; 8] = *b"GNUlInUx";
