//! Files that are either there whole or not at all: write to a temporary, sync, rename.

use std::path::Path;

use crate::error::Result;

/// Whether a write must survive power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// File and directory are synced before we go on.
    Durable,
    /// Atomic, but may be lost in a power cut (caches, `--no-sync`).
    Atomic,
}

/// Replaces `path` with `bytes`, mode `mode`.
pub(crate) fn write(
    _path: &Path,
    _bytes: &[u8],
    _mode: u32,
    _durability: Durability,
) -> Result<()> {
    todo!()
}

/// Syncs a directory, so that names in it survive power loss.
pub(crate) fn sync_directory(_path: &Path) -> Result<()> {
    todo!()
}

/// Removes a tree without ever following a symlink out of it; a missing tree is fine.
pub(crate) fn remove_tree(_path: &Path) -> Result<()> {
    todo!()
}
