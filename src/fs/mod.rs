//! File access that cannot be led astray: directory-relative, symlink-safe, atomic, locked.

pub(crate) mod atomic;
pub(crate) mod lock;
pub(crate) mod root;
