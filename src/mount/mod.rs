//! Images as directories: overlay mounts, checkouts and their records.
//!
//! Must not depend on how images are built or transferred, or on the command line.

mod build_mount;
pub(crate) mod checkout;
mod command_line;
mod create;
mod detach;
mod dressing;
pub(crate) mod erofs;
pub(crate) mod fs_context;

pub(crate) mod layers;
mod lower_files;
mod merge;
mod mountinfo;
mod mounts;
pub(crate) mod overlay;
mod overlay_compat;
mod path_serde;
pub(crate) mod privilege;
mod record;
mod shapes;
pub(crate) mod snapshots;
mod stack;
pub(crate) mod tar_export;
mod umount;
mod workspace;

pub(crate) use build_mount::BuildMount;
pub(crate) use create::{CreateOptions, create};
pub(crate) use mounts::{Listed, Options, State, list, mount};
pub(crate) use overlay::{OverlaySpec, Upper, attach};
pub(crate) use record::{Backend, Record};
pub(crate) use umount::{umount, umount_all};
pub(crate) use workspace::sweep;

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod test_images;
#[cfg(test)]
mod tests;
