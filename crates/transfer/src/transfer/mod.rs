//! Copies images between registries, the store, archives and directories. Must not depend on the
//! command line.

pub mod convert;
pub mod copy;
mod docker_archive;
pub mod engine;
mod known_blobs;
pub(crate) mod layout_sink;
pub(crate) mod layout_source;
pub mod load;
pub mod location;
pub mod manifest_list;
pub mod manifest_list_members;
mod members;
pub mod mirror;
pub mod mirror_images;
pub mod mirror_place;
mod mirror_shared;
pub mod mirror_sources;
mod names;
mod oci_layout;
mod output;
pub mod plan;
pub mod pull;
pub mod push;
mod push_source;
pub mod recompress_image;
pub(crate) mod registry_sink;
pub mod registry_source;
pub mod save;
pub mod sink;
pub mod source;
pub mod store_backend;
pub(crate) mod store_sink;
pub(crate) mod store_source;
pub(crate) mod tree_sink;
pub(crate) mod tree_source;
mod verify;
pub mod workers;

pub use load::{Input, LoadOptions, load};
pub use save::{ArchiveFormat, OuterCompression, Output, SaveOptions, save};

#[cfg(test)]
mod load_tests;
#[cfg(test)]
mod save_tests;
#[cfg(test)]
mod testing;
