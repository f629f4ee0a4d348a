//! Checks for free space before a tree is written.

use std::path::{Path, PathBuf};

use crate::agent::protocol::CheckoutLayer;
use imgctl_base::error::{Error, IoContext, Kind, Result};

/// Rejects a checkout whose layers alone are larger than the free space.
pub(super) fn check<'a>(
    root: &Path,
    layers: impl Iterator<Item = &'a CheckoutLayer>,
) -> Result<()> {
    let needed: u64 = layers.map(|layer| layer.descriptor.size).sum();
    let free = free(root)?;
    if needed <= free {
        return Ok(());
    }
    Err(full(root, Some(needed)))
}

/// Returns the error for a full file system, with the known details.
pub(super) fn full(root: &Path, needed: Option<u64>) -> Error {
    let free = free(root).unwrap_or(0);
    let needed = needed.map_or(String::new(), |needed| {
        format!("the layers need at least {} and ", megabytes(needed))
    });
    Error::new(
        Kind::NoSpace,
        format!(
            "not enough space for {}: {needed}{} are free on the file system at {}",
            root.display(),
            megabytes(free),
            mount_point(root).display()
        ),
    )
    .hint("free space there, or put the data elsewhere (SEALOS_DATA_ROOT)")
}

/// Returns the number of bytes available to this process.
fn free(path: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(path).path("examine the file system of", path)?;
    let blocks = if rustix::process::geteuid().is_root() { stat.f_bfree } else { stat.f_bavail };
    Ok(blocks.saturating_mul(stat.f_frsize))
}

/// Returns the topmost directory above `path` on the same file system.
fn mount_point(path: &Path) -> PathBuf {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let own = device(path);
    path.ancestors()
        .take_while(|ancestor| device(ancestor) == own)
        .last()
        .unwrap_or(path)
        .to_owned()
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}
