//! Advisory locks between imgctl processes (flock). The kernel releases them when the holder exits,
//! so that no lock is stale.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::error::{IoContext, Result};

/// `f_type` of NFS, where flock can block forever if the lock daemon is unreachable.
const NFS_MAGIC: i128 = 0x6969;

/// A held lock; dropping it releases it.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Shared,
    Exclusive,
}

impl Lock {
    /// Returns device and inode of the locked file, which identify the lock on this machine.
    pub fn place(&self) -> io::Result<(u64, u64)> {
        self.file.metadata().map(|file| (file.dev(), file.ino()))
    }

    /// Waits for the lock; `waiting` is called once if another process holds it.
    ///
    /// On file systems without locks (and on NFS), the lock is granted immediately, because failing
    /// there would make imgctl unusable.
    pub fn acquire(path: &Path, mode: Mode, waiting: &mut dyn FnMut()) -> Result<Self> {
        let mut waited = false;
        loop {
            let file = open(path)?;
            if !try_lock(&file, mode).path("lock", path)? {
                if !waited {
                    waiting();
                    waited = true;
                }
                lock(&file, mode).path("lock", path)?;
            }
            if is_still(&file, path) {
                return Ok(Self { file });
            }
        }
    }

    /// Waits for the lock of a directory, where no lock file may be created.
    pub fn of_directory(path: &Path, mode: Mode) -> Result<Self> {
        let file = File::open(path).path("open", path)?;
        if !try_lock(&file, mode).path("lock", path)? {
            lock(&file, mode).path("lock", path)?;
        }
        Ok(Self { file })
    }

    /// Acquires the lock if it is free.
    pub fn try_acquire(path: &Path, mode: Mode) -> Result<Option<Self>> {
        loop {
            let file = open(path)?;
            if !try_lock(&file, mode).path("lock", path)? {
                return Ok(None);
            }
            if is_still(&file, path) {
                return Ok(Some(Self { file }));
            }
        }
    }
}

/// Returns whether a process holds a lock on the file. Takes no lock itself, which another process could
/// meet: it reads the kernel's list. `false` if that cannot be told.
pub fn is_held(path: &Path) -> bool {
    let Ok(file) = std::fs::metadata(path) else { return false };
    let Ok(locks) = std::fs::read_to_string("/proc/locks") else { return false };
    let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
    let place = format!("{major:02x}:{minor:02x}:{}", file.ino());
    // proc_locks(5): number, kind, ADVISORY, mode, process, place, range.
    locks.lines().any(|line| {
        let mut words = line.split_ascii_whitespace();
        line.contains("FLOCK") && words.any(|word| word == place)
    })
}

fn open(path: &Path) -> Result<File> {
    // Following a link could create a file anywhere, and opening a FIFO could block.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags)
        .open(path);
    match opened {
        // A read-only store can still be locked if the file exists.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|_| error)
        }
        opened => opened,
    }
    .path("open the lock file", path)
}

fn try_lock(file: &File, mode: Mode) -> io::Result<bool> {
    if has_no_locks(file) {
        return Ok(true);
    }
    let result = match mode {
        Mode::Shared => file.try_lock_shared(),
        Mode::Exclusive => file.try_lock(),
    };
    match result {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) if is_unsupported(&error) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn lock(file: &File, mode: Mode) -> io::Result<()> {
    match mode {
        Mode::Shared => file.lock_shared(),
        Mode::Exclusive => file.lock(),
    }
}

fn has_no_locks(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|stat| i128::from(stat.f_type) == NFS_MAGIC)
}

fn is_unsupported(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    error.kind() == io::ErrorKind::Unsupported
        || matches!(errno, Some(Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK))
}

/// Returns whether `path` still names the locked file: the previous holder may have removed it.
fn is_still(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(ours), Ok(named)) => (ours.dev(), ours.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusive_excludes_shared_shares_and_dropping_releases() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let exclusive = Lock::try_acquire(&path, Mode::Exclusive).unwrap().unwrap();
        assert!(Lock::try_acquire(&path, Mode::Shared).unwrap().is_none());
        drop(exclusive);
        let first = Lock::try_acquire(&path, Mode::Shared).unwrap().unwrap();
        let second = Lock::try_acquire(&path, Mode::Shared).unwrap().unwrap();
        assert!(Lock::try_acquire(&path, Mode::Exclusive).unwrap().is_none());
        drop((first, second));
        assert!(Lock::try_acquire(&path, Mode::Exclusive).unwrap().is_some());
    }

    #[test]
    fn a_held_lock_is_seen_without_taking_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        assert!(!is_held(&path));
        let held = Lock::try_acquire(&path, Mode::Exclusive).unwrap().unwrap();
        assert!(is_held(&path));
        drop(held);
        assert!(!is_held(&path));
    }

    #[test]
    fn a_directory_is_locked_itself() {
        let directory = tempfile::tempdir().unwrap();
        let held = Lock::of_directory(directory.path(), Mode::Exclusive).unwrap();
        let is_free = || try_lock(&File::open(directory.path()).unwrap(), Mode::Shared).unwrap();
        assert!(!is_free());
        drop(held);
        assert!(is_free());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_waiter_is_told_once_and_gets_the_lock_even_if_the_file_was_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = Lock::try_acquire(&path, Mode::Exclusive).unwrap().unwrap();
        let (told, wait_for_telling) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn({
            let path = path.clone();
            move || {
                let mut times = 0;
                let lock = Lock::acquire(&path, Mode::Exclusive, &mut || {
                    times += 1;
                    told.send(()).unwrap();
                });
                (lock, times)
            }
        });
        wait_for_telling.recv().unwrap();
        std::fs::remove_file(&path).unwrap();
        drop(held);
        let (lock, times) = waiter.join().unwrap();
        assert_eq!(times, 1);
        assert!(Lock::try_acquire(&path, Mode::Shared).unwrap().is_none());
        drop(lock.unwrap());
    }
}
