//! File metadata from `stat`, in the integer widths that the rest of the crate uses.

use std::os::fd::AsFd;

use rustix::fs::{self, AtFlags, FileType, RawMode, Stat};
use rustix::io;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
    Socket,
}

impl FileKind {
    /// Converts the kernel's type; `None` for an unknown type.
    pub(crate) fn from_type(kind: FileType) -> Option<Self> {
        Some(match kind {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::CharacterDevice => Self::CharDevice,
            FileType::BlockDevice => Self::BlockDevice,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::Unknown => return None,
        })
    }
}

/// Metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    pub kind: FileKind,
    /// The twelve permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Size in bytes; for a symlink, the length of its target.
    pub size: u64,
    pub dev: u64,
    pub ino: u64,
    pub nlink: u64,
    /// Major and minor number of a device node, otherwise 0.
    pub device: (u32, u32),
    /// Seconds since 1970 and nanoseconds.
    pub mtime: (i64, u32),
    /// Seconds since 1970 and nanoseconds.
    pub ctime: (i64, u32),
}

impl Metadata {
    /// Returns the metadata of an open file.
    pub fn of(fd: impl AsFd) -> io::Result<Self> {
        fs::fstat(fd).map(|stat| Self::from_stat(&stat))
    }

    /// Returns the metadata of `name` in `directory`, without following a symlink.
    pub fn at(directory: impl AsFd, name: impl rustix::path::Arg) -> io::Result<Self> {
        fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| Self::from_stat(&stat))
    }

    /// Returns whether this is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    #[allow(
        clippy::unnecessary_cast,
        reason = "the kernel's stat has other widths on other processors"
    )]
    fn from_stat(stat: &Stat) -> Self {
        let nanoseconds = |value| u32::try_from(value).unwrap_or(0);
        Self {
            // Linux has no other types.
            kind: FileKind::from_type(FileType::from_raw_mode(stat.st_mode as RawMode))
                .unwrap_or(FileKind::Socket),
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            dev: stat.st_dev,
            ino: stat.st_ino,
            nlink: stat.st_nlink as u64,
            device: (fs::major(stat.st_rdev), fs::minor(stat.st_rdev)),
            mtime: (stat.st_mtime, nanoseconds(stat.st_mtime_nsec)),
            ctime: (stat.st_ctime, nanoseconds(stat.st_ctime_nsec)),
        }
    }
}
