//! Images as directories: overlay mounts, checkouts and their records.
//!
//! Must not depend on how images are built or transferred, or on the command line.

mod build_mount;
pub mod checkout;
mod command_line;
mod create;
mod detach;
mod dir_metadata;
pub(crate) mod erofs;
pub(crate) mod fs_context;

pub mod layers;
mod lower_files;
mod merge;
mod mountinfo;
mod mounts;
pub mod overlay;
mod path_serde;
pub mod privilege;
mod record;
mod shapes;
pub mod snapshots;
mod stack;
pub mod tar_export;
mod umount;
mod workspace;

pub use build_mount::BuildMount;
pub use create::{CreateOptions, create};
pub use mounts::{Listed, Options, State, list, mount};
pub use overlay::{OverlaySpec, Upper, attach};
pub use record::{Backend, Record};
pub use umount::{umount, umount_all};
pub use workspace::sweep;

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
