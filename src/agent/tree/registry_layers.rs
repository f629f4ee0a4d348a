//! The record of registry layers that have been applied on this host.

use std::path::{Path, PathBuf};

use crate::error::{IoContext, Result};
use crate::fs::atomic::{self, Durability};
use crate::image::Digest;

/// Whether the layer's registry data is in `<root>/registry`. Data that somebody has removed is not
/// there, whatever the records say.
pub(super) fn is_applied(root: &Path, layer: &Digest) -> bool {
    data_is_there(root) && file(root, layer).exists()
}

/// Records a layer whose data is durable.
pub(super) fn record(root: &Path, layer: &Digest) -> Result<()> {
    let directory = root.join("registry-layers");
    std::fs::create_dir_all(&directory).path("create the directory", &directory)?;
    atomic::write(&file(root, layer), b"", 0o644, Durability::Durable)
}

/// Forgets all layers if the data they stand for is gone.
pub(super) fn forget_if_gone(root: &Path) -> Result<()> {
    if data_is_there(root) {
        return Ok(());
    }
    atomic::remove_tree(&root.join("registry-layers"))
}

fn data_is_there(root: &Path) -> bool {
    root.join("registry").is_dir()
}

fn file(root: &Path, layer: &Digest) -> PathBuf {
    let name = format!("{}-{}", layer.algorithm().as_str(), layer.hex());
    root.join("registry-layers").join(name)
}
