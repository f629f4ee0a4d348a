//! The mount table of the calling thread's namespace, read from `/proc` (proc(5), mountinfo), and
//! the unmounting of what in it belongs to imgctl.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, unmount};

use imgctl_base::error::{Error, IoContext, Kind, Result};

const TABLE: &str = "/proc/thread-self/mountinfo";
const NAMESPACE: &str = "/proc/thread-self/ns/mnt";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// One mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Its number in the table.
    pub id: u64,
    /// The number of the mount that it is attached to.
    pub parent: u64,
    /// Where it is attached.
    pub path: PathBuf,
    /// What the mount forbids or leaves out; a file system may have restrictions of its own.
    pub flags: MountFlags,
    /// `overlay`, `erofs`, `ext4`…
    pub file_system: OsString,
    /// The mounted source; for overlays, an arbitrary name chosen by the mounter.
    pub source: OsString,
}

/// Returns all mounts in the order they were created; a later one may cover an earlier one.
pub fn read() -> Result<Vec<MountPoint>> {
    let table = std::fs::read(TABLE).path("read", TABLE)?;
    Ok(parse(&table))
}

/// Returns the name of this thread's mount namespace (`mnt:[4026531841]`); unique for the lifetime
/// of the namespace.
pub(super) fn namespace() -> Result<String> {
    let name = std::fs::read_link(NAMESPACE).path("read", NAMESPACE)?;
    Ok(name.to_string_lossy().into_owned())
}

/// Returns a process in `namespace`, if one is visible from here.
pub(crate) fn process_in(namespace: &str) -> Option<u32> {
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let name = std::fs::read_link(entry.path().join("ns/mnt")).ok()?;
        (name.to_str() == Some(namespace)).then_some(pid)
    })
}

/// Returns the boot ID, which changes with every boot. A reboot ends all mounts.
pub(super) fn boot_id() -> Result<String> {
    let id = std::fs::read_to_string(BOOT_ID).path("read", BOOT_ID)?;
    Ok(id.trim_end().to_owned())
}

/// Parses the table and skips malformed lines, which the kernel never writes.
fn parse(table: &[u8]) -> Vec<MountPoint> {
    table
        .split(|b| *b == b'\n')
        .filter_map(|line| {
            let mut fields = line.split(|b| *b == b' ');
            let id = number(fields.next()?)?;
            let parent = number(fields.next()?)?;
            let path = fields.nth(2)?;
            let options = fields.next()?;
            // Optional fields end with a lone `-`.
            fields.find(|field| *field == b"-")?;
            let file_system = fields.next()?;
            let source = fields.next()?;
            Some(MountPoint {
                id,
                parent,
                path: PathBuf::from(unescape(path)),
                flags: flags(options),
                file_system: unescape(file_system),
                source: unescape(source),
            })
        })
        .collect()
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Returns the options that mount(2) has flags for. Those of access times are left out: a remount
/// that names none of them keeps them.
fn flags(options: &[u8]) -> MountFlags {
    let flag = |option: &[u8]| match option {
        b"ro" => MountFlags::RDONLY,
        b"nosuid" => MountFlags::NOSUID,
        b"nodev" => MountFlags::NODEV,
        b"noexec" => MountFlags::NOEXEC,
        b"nosymfollow" => MountFlags::NOSYMFOLLOW,
        _ => MountFlags::empty(),
    };
    options.split(|b| *b == b',').map(flag).collect()
}

/// Decodes blanks, tabs, newlines and backslashes, which are written as `\` and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        if *first == b'\\'
            && let [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] = tail
        {
            bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
            rest = after;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    OsString::from_vec(bytes)
}

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
pub(crate) fn unmount_all_of(id: &str, directory: &Path, lazy: bool) -> Result<()> {
    let directory = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let mut ours: Vec<MountPoint> =
        read()?.into_iter().filter(|mount| belongs(mount, id, &directory)).collect();
    while let Some(mount) = ours.pop() {
        unmount_one(&mount.path, lazy)?;
    }
    Ok(())
}

fn unmount_one(path: &Path, lazy: bool) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn optional_fields_and_escapes_are_understood() {
        let table = b"36 35 98:0 /mnt1 /a\\040b\\134c rw,noatime master:1 shared:2 - ext3 /dev/x\\011y rw\n\
            37 35 0:40 / /plain ro,nodev,relatime - overlay imgctl:0123 ro,lowerdir=/a - b\n\
            broken line\n";
        let mounts = parse(table);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].path, Path::new("/a b\\c"));
        assert_eq!(mounts[0].source, "/dev/x\ty");
        assert_eq!((mounts[0].id, mounts[0].parent), (36, 35));
        assert_eq!(mounts[0].flags, MountFlags::empty());
        assert_eq!(mounts[1].flags, MountFlags::RDONLY | MountFlags::NODEV);
        assert_eq!(mounts[1].file_system, "overlay");
        assert_eq!(mounts[1].source, "imgctl:0123");
    }

    #[test]
    fn this_machine_has_a_root() {
        assert!(read().unwrap().iter().any(|mount| mount.path == Path::new("/")));
        assert!(process_in(&namespace().unwrap()).is_some());
        assert_eq!(process_in("mnt:[1]"), None);
    }
}
