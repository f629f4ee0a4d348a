//! Images in and out of the store: archives now, registries with them later. Must not know the
//! command line.

pub(crate) mod convert;
mod docker_archive;
pub(crate) mod load;
mod members;
mod names;
mod oci_layout;
mod output;
pub(crate) mod save;
pub(crate) mod sink;
pub(crate) mod source;
mod verify;

pub(crate) use load::{Input, LoadOptions, load};
pub(crate) use save::{ArchiveFormat, OuterCompression, Output, SaveOptions, save};

#[cfg(test)]
mod load_tests;
#[cfg(test)]
mod save_tests;
#[cfg(test)]
mod test_archives;
