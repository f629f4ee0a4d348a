//! Images as directories: overlay mounts, checkouts and their records.
//!
//! Must not depend on how images are built or transferred, or on the command line.

pub mod checkout;
mod create;
pub(crate) mod erofs;
pub(crate) mod fs_context;
pub mod layers;
mod lower_files;
mod merge;
pub mod mountinfo;
mod mounts;
pub mod overlay;
mod path_serde;
pub mod privilege;
mod shapes;
pub mod snapshots;
mod stack;
pub mod tar_export;
mod umount;
mod workspace;

pub use create::{CreateOptions, create};
pub use mounts::{BuildMount, Listed, Options, State, list, mount};
pub use overlay::{OverlaySpec, Upper, attach};
pub use umount::{umount, umount_all};
pub use workspace::{Backend, Record, sweep};

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
