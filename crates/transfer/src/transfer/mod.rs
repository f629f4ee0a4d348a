//! Copies images between registries, the store, archives and directories. Must not depend on the
//! command line.

pub mod arbiter;
pub mod archive;
mod artifacts;
pub mod copy;
pub mod deltas;
mod docker_archive;
pub mod engine;
pub mod known_blobs;
pub(crate) mod layout;
pub mod load;
#[cfg(test)]
mod load_tests;
pub mod location;
pub mod manifest_list;
mod members;
pub mod mirror;
pub mod mirror_place;
pub mod mirror_sources;
mod names;
mod oci_layout;
mod output;
pub mod partial;
pub mod parts;
pub mod plan;
pub mod publish;
pub mod pull;
pub mod push;
pub mod recompress_image;
pub mod registry;
pub mod request;
pub mod save;
#[cfg(test)]
mod save_tests;
pub mod shelf;
pub mod single_blob;
pub mod sink;
pub mod source;
pub(crate) mod store;
pub mod store_backend;
mod store_shelf;
mod temporary;
#[cfg(test)]
mod testing;
pub(crate) mod tree;
mod verify;

pub use archive::Archive;
pub use load::{Input, LoadOptions, load};
pub use location::archives;
pub use parts::write::Split;
pub use request::Request;
pub use save::{ArchiveFormat, OuterCompression, Output, SaveOptions, save};
