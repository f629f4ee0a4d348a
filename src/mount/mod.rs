//! Images as directories: overlay mounts, checkouts, their records.
//!
//! Must not know how images are built or moved, nor the command line.

pub(crate) mod fs_context;
pub(crate) mod overlay;
mod overlay_compat;
mod path_serde;

pub(crate) use overlay::{OverlaySpec, Upper, attach};
