//! Atomic file writes: a file is either complete or absent. Writes to a temporary file, syncs and
//! renames it.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, IoContext, Result};

pub use crate::fs::remove::{remove_at, remove_tree};

/// Whether a write must survive power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The file and its directory are synced before the call returns.
    Durable,
    /// Atomic, but may be lost in a power failure (caches, `--no-sync`).
    Atomic,
}

/// Replaces `path` with `bytes` and sets `mode` regardless of the umask. A symlink at `path` is
/// replaced, not followed. Readers see either the old file or the new one, never a part of one.
pub fn write(path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> Result<()> {
    write_with(path, mode, durability, |file| file.write_all(bytes).path("write", path))
}

/// Like [`write`], with the content that `write` writes.
pub fn write_with(
    path: &Path,
    mode: u32,
    durability: Durability,
    write: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    let directory = parent_of(path);
    let temporary = Temporary::create(directory).path("create a file in", directory)?;
    let mut file = &temporary.file;
    write(&mut file)?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode)).path("set the mode of", path)?;
    if durability == Durability::Durable {
        file.sync_all().path("sync", path)?;
    }
    std::fs::rename(&temporary.path, path).path("replace", path)?;
    temporary.keep();
    if durability == Durability::Durable {
        sync_directory(directory)?;
    }
    Ok(())
}

/// Writes a durable file that only its owner may read, in directories that only the owner may
/// enter.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    make_private(parent_of(path))?;
    write(path, text.as_bytes(), 0o600, Durability::Durable)
}

/// Creates a directory that only its owner may enter, and likewise its missing parents.
pub fn make_private(directory: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(directory).path("make", directory)
}

/// Syncs a directory so that its entries survive power loss.
pub fn sync_directory(path: &Path) -> Result<()> {
    let directory = File::open(path).path("open the directory", path)?;
    match directory.sync_all() {
        // Some network and FUSE file systems do not support syncing directories and do not need it.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(()),
        synced => synced.path("sync the directory", path),
    }
}

/// Creates a new file. Anything that another process or user left under this name is removed first; links are never followed.
pub fn create_anew(path: &Path) -> Result<File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o644);
    let create = || rustix::fs::openat(CWD, path, flags, mode);
    let created = create().or_else(|error| {
        if error != Errno::EXIST {
            return Err(error);
        }
        rustix::fs::unlink(path)?;
        create()
    });
    created.map(File::from).map_err(std::io::Error::from).path("create", path)
}

/// Opens a regular file for reading and follows links. Anything else, such as a FIFO, is refused; opening it has no side effect.
pub fn open_regular(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(CWD, path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a file"));
    }
    Ok(file)
}

/// Creates the nested directories `names` in `directory`. A link in place of one is refused: in a directory that others can write to,
/// it would redirect writes and deletions.
pub fn make_below(directory: &Path, names: &[&str]) -> Result<PathBuf> {
    let mut path = directory.to_owned();
    std::fs::create_dir_all(&path).path("create the directory", &path)?;
    for name in names {
        path.push(name);
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => made.path("create the directory", &path)?,
        }
        if !std::fs::symlink_metadata(&path).path("examine", &path)?.is_dir() {
            return Err(Error::denied(format!("{} is not a directory", path.display()))
                .hint("a link in place of a directory is not followed here: remove it"));
        }
    }
    Ok(path)
}

/// Returns the parent directory of a path.
fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A file with a unique name, removed on drop unless kept.
struct Temporary {
    file: File,
    path: PathBuf,
    kept: bool,
}

impl Temporary {
    fn create(directory: &Path) -> std::io::Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = COUNTER.fetch_add(1, Ordering::Relaxed);
            let path = directory.join(format!(".imgctl-{}-{number}.tmp", std::process::id()));
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            match rustix::fs::openat(CWD, &path, flags, Mode::RUSR | Mode::WUSR) {
                Ok(fd) => {
                    return Ok(Self { file: File::from(fd), path, kept: false });
                }
                // Left behind by a killed process that had the same PID.
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.kept {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_others_put_there_is_neither_followed_nor_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("victim"), "mine").unwrap();
        symlink(at("victim"), at("part")).unwrap();
        create_anew(&at("part")).unwrap().write_all(b"new").unwrap();
        assert_eq!(std::fs::read(at("victim")).unwrap(), b"mine");
        assert_eq!(std::fs::read(at("part")).unwrap(), b"new");

        let fifo = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, at("fifo"), rustix::fs::FileType::Fifo, fifo, 0).unwrap();
        open_regular(&at("fifo")).unwrap_err();
        open_regular(directory.path()).unwrap_err();
        assert!(open_regular(&at("victim")).is_ok());

        make_below(&at("new"), &["blobs", "sha256"]).unwrap();
        make_below(&at("new"), &["blobs", "sha256"]).unwrap();
        std::fs::create_dir(at("shared")).unwrap();
        symlink(at("new"), at("shared/blobs")).unwrap();
        let error = make_below(&at("shared"), &["blobs", "sha256"]).unwrap_err();
        assert!(error.to_string().contains("shared/blobs is not a directory"), "{error}");
    }

    #[test]
    fn content_and_mode_are_replaced_and_nothing_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        for (bytes, mode, durability) in [
            (&b"one"[..], 0o600, Durability::Durable),
            (b"", 0o666, Durability::Atomic),
            (b"three", 0o444, Durability::Durable),
        ] {
            write(&path, bytes, mode, durability).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
            let metadata = std::fs::metadata(&path).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o7777, mode);
        }
        assert_eq!(names(directory.path()), ["a"]);
    }

    #[test]
    fn a_symlink_is_replaced_not_written_through() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("t"), directory.path().join("l"));
        std::fs::write(&target, "kept").unwrap();
        symlink(&target, &link).unwrap();
        write(&link, b"new", 0o644, Durability::Atomic).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"kept");
        assert!(std::fs::symlink_metadata(&link).unwrap().is_file());
    }

    #[test]
    fn a_failed_write_leaves_no_temporary() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("x"), "").unwrap();
        assert!(write(&path, b"new", 0o644, Durability::Atomic).is_err());
        assert_eq!(names(directory.path()), ["d"]);
    }
}
