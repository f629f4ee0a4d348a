//! Unmounting: all mounts of one ID, wherever they were moved or bound to.

use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::mount::mountinfo::{self, MountPoint};
use imgctl_base::error::{Error, Kind, Result};

/// Prefix of the source of each of our mounts in the mount table. The ID follows.
pub(super) const SOURCE: &str = "imgctl:";

/// Returns whether `mount` belongs to the mount `id`, whose directory is `directory`: overlays have
/// the ID as their source, and all other mounts of imgctl are in the directory.
pub(super) fn belongs(mount: &MountPoint, id: &str, directory: &Path) -> bool {
    let source = mount.source.as_encoded_bytes();
    source.strip_prefix(SOURCE.as_bytes()) == Some(id.as_bytes())
        || mount.path.starts_with(directory)
}

/// Unmounts everything that belongs to the mount `id`, the latest first. With `lazy`, also unmounts
/// what is in use: it disappears immediately and is freed with its last user.
pub(crate) fn everything_of(id: &str, directory: &Path, lazy: bool) -> Result<()> {
    let directory = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let mut ours: Vec<MountPoint> =
        mountinfo::read()?.into_iter().filter(|mount| belongs(mount, id, &directory)).collect();
    while let Some(mount) = ours.pop() {
        one(&mount.path, lazy)?;
    }
    Ok(())
}

fn one(path: &Path, lazy: bool) -> Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    if lazy {
        flags |= UnmountFlags::DETACH;
    }
    match unmount(path, flags) {
        // Already unmounted by another process.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::BUSY) => Err(busy(path)),
        Err(errno) => Err(Error::io(format!("cannot unmount {}", path.display()), errno)),
    }
}

/// Returns the error for a mount that is in use.
fn busy(path: &Path) -> Error {
    Error::new(Kind::Busy, format!("cannot unmount {}: it is in use", path.display()))
        .hint(format!(
            "run `fuser -vm {0}` or `lsof +f -- {0}` to see which processes use it",
            path.display()
        ))
        .hint(
            "`imgctl umount --lazy` detaches it now and frees it when no process uses it any more",
        )
}
