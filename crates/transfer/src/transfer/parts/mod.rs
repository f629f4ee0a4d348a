//! Archives in parts, for media that are smaller than the archive (docs/distribution.md).
//!
//! The parts are the archive's bytes and nothing else, so that `cat` joins them. The list beside
//! them (`ARCHIVE.parts.json`) has the name, size and digest of each; it is written last, so parts
//! without a list are incomplete. Must not know what is in an archive.

pub mod list;
pub mod set;
pub mod write;
