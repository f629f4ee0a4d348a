//! Backups as OCI artifacts: what one is made of, how it is packed and read, and the places that keep
//! it.
//!
//! Every part is verified by its digest before it is used. Must not know what is in the parts: that is
//! the business of clusters. docs/backup.md describes the format.

mod directory;
mod document;
mod pack;
pub mod place;
mod read;

pub use document::{Config, Details, Kept, PartRecord, is_name};
pub use pack::{Packed, Packer};
pub use read::{Found, Opened};

#[cfg(test)]
mod tests;
