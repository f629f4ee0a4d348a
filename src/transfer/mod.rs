//! Copies images between registries, the store, archives and directories. Must not depend on the
//! command line.

pub(crate) mod convert;
pub(crate) mod copy;
mod docker_archive;
pub(crate) mod engine;
mod known_blobs;
pub(crate) mod layout_sink;
pub(crate) mod layout_source;
pub(crate) mod load;
pub(crate) mod location;
pub(crate) mod manifest_list;
pub(crate) mod manifest_list_members;
mod members;
pub(crate) mod mirror;
pub(crate) mod mirror_images;
pub(crate) mod mirror_place;
mod mirror_shared;
mod names;
mod oci_layout;
mod output;
pub(crate) mod plan;
pub(crate) mod pull;
pub(crate) mod push;
mod push_source;
pub(crate) mod recompress_image;
pub(crate) mod registry_sink;
pub(crate) mod registry_source;
pub(crate) mod save;
pub(crate) mod sink;
pub(crate) mod source;
pub(crate) mod store_backend;
pub(crate) mod store_sink;
pub(crate) mod store_source;
pub(crate) mod tree_sink;
pub(crate) mod tree_source;
mod verify;
pub(crate) mod workers;

pub(crate) use load::{Input, LoadOptions, load};
pub(crate) use save::{ArchiveFormat, OuterCompression, Output, SaveOptions, save};

#[cfg(test)]
mod load_tests;
#[cfg(test)]
mod save_tests;
#[cfg(test)]
mod test_archives;
