//! Safe file access: directory-relative, symlink-safe, atomic, locked.
//!
//! Works on paths and descriptors of the operating system. Must not depend on layers, images or the
//! store. Names are bytes throughout.

pub mod atomic;
pub mod directory;
pub mod file_at;
pub mod lock;
pub mod metadata;
pub mod output;
mod remove;
pub mod root;
pub mod secret_file;
pub mod space;
pub mod walk;
pub mod watch;
pub mod xattr;
