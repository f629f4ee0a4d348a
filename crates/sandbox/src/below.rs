//! What is mounted below the source of a bind mount: it stays visible, but without any right to write,
//! and views of the kernel are covered. Does not know which mounts a step has.
//!
//! In a user namespace the kernel binds a directory only together with the mounts below it, and a
//! change of flags affects one mount. mount_setattr(2) changes all of them in one call, but no library
//! offers it without `unsafe`; the walk here does the same on every kernel. It cannot miss a mount:
//! the namespace is private, and no process of the step exists yet.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::mount::{self, MountFlags};

use super::target::{fd_path, open_path};
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_store::mount::mountinfo::{self, MountPoint};

/// File systems that hold files. All others (`proc`, `sysfs`, `cgroup2`, `debugfs`, `devpts`…) show
/// processes, devices or settings of this machine: a step has its own, or none.
const STORAGE: [&str; 27] = [
    "9p", "bcachefs", "btrfs", "ceph", "cifs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs",
    "fuse", "fuseblk", "iso9660", "jfs", "nfs", "nfs4", "ntfs3", "overlay", "ramfs", "smb3",
    "squashfs", "tmpfs", "vfat", "virtiofs", "xfs", "zfs",
];

/// Makes every mount below the mount `top` that `stays` read-only, without devices and set-user-ID
/// programs, and covers the others (`null` is for [`cover`]). Flags that a mount already has are kept.
pub(super) fn seal(top: &OwnedFd, stays: fn(&MountPoint) -> bool, null: &OwnedFd) -> Result<()> {
    let table = mountinfo::read()?;
    let mut parents = vec![mount_id(top)?];
    while let Some(parent) = parents.pop() {
        for below in table.iter().filter(|below| below.parent == parent) {
            let doing = || format!("cannot make {} read-only for RUN", below.path.display());
            let Some(fd) = open(below).context(doing)? else {
                parents.push(below.id);
                continue;
            };
            if stays(below) {
                let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
                mount::mount_remount(fd_path(&fd), flags | below.flags | MountFlags::BIND, c"")
                    .doing(doing)?;
                parents.push(below.id);
            } else {
                cover(&fd, null).context(doing)?;
            }
        }
    }
    Ok(())
}

/// Whether a mount holds files, so that it stays visible below the source of a bind mount.
pub(super) fn holds_files(mount: &MountPoint) -> bool {
    let name = mount.file_system.to_string_lossy();
    STORAGE.contains(&&*name) || name.starts_with("fuse.")
}

/// Opens the root of a mount; `None` if another mount covers it, so that no path leads there.
fn open(mount: &MountPoint) -> Result<Option<OwnedFd>> {
    let fd = match open_path(&mount.path) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        Err(errno) => {
            return Err(Error::io(format!("cannot open {}", mount.path.display()), errno)
                .hint("unmount it, or exclude it from the context with an ignore file"));
        }
    };
    Ok((mount_id(&fd)? == mount.id).then_some(fd))
}

/// Returns the number of the mount that a descriptor is on (proc(5), fdinfo).
fn mount_id(fd: &OwnedFd) -> Result<u64> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let mut text = String::new();
    File::open(&path).and_then(|mut file| file.read_to_string(&mut text)).path("read", &path)?;
    text.lines()
        .find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
        .ok_or_else(|| Error::failed(format!("{path} names no mount")))
}

/// Hides what is at a place: a directory becomes empty, anything else is replaced by `null`, a file
/// on a read-only mount.
pub(super) fn cover(place: &OwnedFd, null: &OwnedFd) -> Result<()> {
    let doing = || "cannot cover it".to_owned();
    let stat = rustix::fs::fstat(place).doing(doing)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        let flags =
            MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        return mount::mount("tmpfs", fd_path(place), "tmpfs", flags, Some(c"nr_inodes=2,size=4k"))
            .doing(doing);
    }
    mount::mount_bind(fd_path(null), fd_path(place)).doing(doing)
}
