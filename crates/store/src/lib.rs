//! Images on this machine: the layer format, the content-addressed store and mounts of images.
//!
//! Must not depend on registries, builds or clusters.

pub mod mount;
pub mod store;
