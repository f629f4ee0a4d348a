//! Images as directories: overlay mounts, checkouts, their records.
//!
//! Must not know how images are built or moved, nor the command line.

mod detach;
pub(crate) mod fs_context;
mod implied;
mod mountinfo;
pub(crate) mod overlay;
mod overlay_compat;
mod path_serde;
pub(crate) mod privilege;
pub(crate) mod record;
pub(crate) mod stack;
mod workspace;

pub(crate) use overlay::{OverlaySpec, Upper, attach};
