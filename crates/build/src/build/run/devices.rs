//! The `/dev` of a sandbox: a small tmpfs with the harmless devices, each bind-mounted from the
//! host. No other file in the sandbox can be opened as a device.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{self, FileType};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::root::{self, Tree};
use super::target::Want;
use imgctl_base::error::{Error, IoContext, Result};

/// Name, major and minor number (Linux's Documentation/admin-guide/devices.txt).
const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

/// Links that programs expect, by name and target.
const LINKS: [(&str, &str); 6] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("core", "/proc/kcore"),
    ("ptmx", "pts/ptmx"),
];

/// Mounts `/dev` and its submounts.
pub(super) fn mount(tree: &mut Tree<'_>) -> Result<()> {
    let doing = || "cannot create /dev for RUN".to_owned();
    let inert = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let dev = tree.place_exactly("/dev")?;
    // NODEV does not affect the devices bound below: they keep the flags of the host's /dev.
    tree.mount(&dev, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, "mode=755,size=64m")
        .doing(doing)?;
    for (name, _, _) in DEVICES {
        let source = open(name)?;
        let place = tree.place(format!("/dev/{name}").as_bytes(), Want::File)?;
        // Read-only affects the node, which belongs to the host: chmod fails, but writing to the
        // device still works.
        tree.bind(&source, &place, MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC)
            .doing(doing)?;
    }
    let pts = tree.place_exactly("/dev/pts")?;
    let options = "newinstance,ptmxmode=0666,mode=0620";
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    // Group 5 is `tty` by convention; a user namespace may not have it.
    match tree.mount(&pts, "devpts", flags, &format!("{options},gid=5")) {
        Err(Errno::INVAL) => tree.mount(&pts, "devpts", flags, options),
        other => other,
    }
    .doing(|| "cannot mount /dev/pts for RUN".to_owned())?;
    let shm = tree.place_exactly("/dev/shm")?;
    tree.mount(&shm, "tmpfs", inert, "mode=1777,size=64m")
        .doing(|| "cannot mount /dev/shm for RUN".to_owned())?;
    let mqueue = tree.place_exactly("/dev/mqueue")?;
    match tree.mount(&mqueue, "mqueue", inert, "") {
        // The kernel does not support POSIX message queues.
        Err(Errno::NODEV) => {}
        other => other.doing(|| "cannot mount /dev/mqueue for RUN".to_owned())?,
    }
    let dev = tree.place_exactly("/dev")?;
    for (name, target) in LINKS {
        fs::symlinkat(target, &dev.fd, name).doing(doing)?;
    }
    Ok(())
}

/// Opens one of the host's devices and verifies that it is the device that its name says.
pub(super) fn open(name: &str) -> Result<OwnedFd> {
    let path = Path::new("/dev").join(name);
    let fd = root::open_path(&path).path("open", &path)?;
    let stat = fs::fstat(&fd).path("look at", &path)?;
    let numbers = (fs::major(stat.st_rdev), fs::minor(stat.st_rdev));
    let right = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && DEVICES.iter().any(|&(known, major, minor)| known == name && numbers == (major, minor));
    if !right {
        return Err(Error::failed(format!(
            "{} on this machine is not the expected device",
            path.display()
        )));
    }
    Ok(fd)
}
