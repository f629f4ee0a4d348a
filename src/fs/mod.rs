//! Safe file access: directory-relative, symlink-safe, atomic, locked.
//!
//! Works on paths and descriptors of the operating system. Must not depend on layers, images or the
//! store. Names are bytes throughout.

pub(crate) mod atomic;
pub(crate) mod directory;
pub(crate) mod lock;
pub(crate) mod metadata;
mod remove;
pub(crate) mod root;
mod root_compat;
pub(crate) mod walk;
pub(crate) mod xattr;
