//! The list of frames at the end of a zstd layer, in the form of zstd:chunked (containers/storage,
//! pkg/chunked): readers that know it fetch only the frames that they lack. Three skippable frames,
//! which other readers ignore: the table of contents, the headers of the tar in the form of
//! tar-split, and a footer that says where the two are. Layers without compression have a list of
//! their own (`plain_list.rs`).
//!
//! In that form a file has a frame and some hundred bytes of the list, which would make a layer of
//! small files half as large again. Those share frames, and their layer has a list of the frames
//! alone, with a footer and annotations of its own: other readers see an ordinary layer.
//!
//! Must not depend on how frames are cut or compressed, or on where blobs are stored.

mod compare;
mod item;
mod lists;
mod parts;
mod read;
mod write;

pub use crate::runs::{Index, Part, Runs};
pub(crate) use compare::{Comparison, Sums};
pub(crate) use lists::List;
pub use lists::check_annotations;
pub use parts::parts;
pub use read::{FOOTER, Position, Table, runs_of};
pub(crate) use write::{list, list_runs};

#[cfg(test)]
mod tests;

/// The annotations of a descriptor that say where the list is.
pub const ANNOTATIONS: [&str; 5] =
    [CHECKSUM, POSITION, HEADERS_POSITION, RUNS_CHECKSUM, RUNS_POSITION];
/// Digest of the compressed table of contents.
pub const CHECKSUM: &str = "io.github.containers.zstd-chunked.manifest-checksum";
/// `OFFSET:COMPRESSED:UNCOMPRESSED:TYPE` of the table of contents.
pub const POSITION: &str = "io.github.containers.zstd-chunked.manifest-position";
/// `OFFSET:COMPRESSED:UNCOMPRESSED` of the headers.
pub const HEADERS_POSITION: &str = "io.github.containers.zstd-chunked.tarsplit-position";

/// Names of the same annotations in containers/storage before 1.44 and in stargz-snapshotter.
const OLD_CHECKSUM: &str = "io.containers.zstd-chunked.manifest-checksum";
const OLD_POSITION: &str = "io.containers.zstd-chunked.manifest-position";

/// [`CHECKSUM`] of a list of frames alone.
pub const RUNS_CHECKSUM: &str = "io.imgctl.layer.frames-checksum";
/// [`POSITION`] of a list of frames alone.
pub const RUNS_POSITION: &str = "io.imgctl.layer.frames-position";

const SKIPPABLE: [u8; 4] = [0x50, 0x2a, 0x4d, 0x18];
/// The kind of table: that of CRFS.
const TABLE_TYPE: u64 = 1;
const FOOTER_MAGIC: [u8; 8] = *b"GnUlInUx";
/// The end of the footer of a list of frames alone.
const RUNS_MAGIC: [u8; 8] = *b"imgctlFr";
