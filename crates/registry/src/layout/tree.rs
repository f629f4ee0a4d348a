//! File access below the tree's root without following symlinks: directory-relative, atomic,
//! durable.
//!
//! `paths` builds the paths from checked names. Does not know about the meaning of files.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{self, AtFlags, CWD, FlockOperation, Mode, OFlags, ResolveFlags};
use rustix::io::{self, Errno};

use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::fs::directory::{self, Name};
use imgctl_base::fs::metadata::{FileKind, Metadata};

/// Maximum number of attempts: the kernel returns EAGAIN during a concurrent rename in the tree,
/// which is brief.
const ATTEMPTS: usize = 64;
/// Suffix of files that are being written; readers ignore them.
pub(super) const TEMPORARY: &str = ".tmp";

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// An open root directory.
#[derive(Debug)]
pub(super) struct Tree {
    root: OwnedFd,
    path: PathBuf,
    sync: bool,
}

impl Tree {
    /// Opens `path`, which may itself be a symlink. `sync`: writes survive power loss.
    pub(super) fn open(path: &Path, sync: bool) -> Result<Self> {
        let flags = DIRECTORY | OFlags::CLOEXEC;
        let root = fs::openat(CWD, path, flags, Mode::empty()).path("open the directory", path)?;
        Ok(Self { root, path: path.to_owned(), sync })
    }

    /// Returns the name of `path` in messages.
    pub(super) fn shown(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }

    /// Opens a regular file for reading; `None` if it is missing.
    pub(super) fn open_file(&self, path: &str) -> Result<Option<(File, Metadata)>> {
        // Non-blocking; otherwise opening a FIFO would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Some(fd) = self.found(self.resolve(path, flags), path)? else {
            return Ok(None);
        };
        let metadata = Metadata::of(&fd).path("look at", self.shown(path))?;
        if metadata.kind != FileKind::File {
            return Err(self.odd(path, "not a regular file"));
        }
        Ok(Some((File::from(fd), metadata)))
    }

    /// Returns the metadata of the regular file or directory at `path`; `None` if it is missing.
    pub(super) fn metadata(&self, path: &str) -> Result<Option<Metadata>> {
        let Some(fd) = self.found(self.resolve(path, OFlags::PATH), path)? else {
            return Ok(None);
        };
        Metadata::of(fd).map(Some).path("look at", self.shown(path))
    }

    /// Reads a regular file. Fails if it has more than `limit` bytes.
    pub(super) fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let Some((file, metadata)) = self.open_file(path)? else {
            return Ok(None);
        };
        if metadata.size > limit {
            return Err(self.odd(path, &format!("longer than the {limit} bytes allowed")));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(metadata.size).unwrap_or(0));
        file.take(limit).read_to_end(&mut bytes).path("read", self.shown(path))?;
        Ok(Some(bytes))
    }

    /// Returns the names in a directory, sorted; `None` if it is missing.
    pub(super) fn list(&self, path: &str) -> Result<Option<Vec<Name>>> {
        let Some(fd) = self.found(self.resolve(path, DIRECTORY), path)? else {
            return Ok(None);
        };
        let mut names = directory::names(fd).path("list", self.shown(path))?;
        names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(Some(names))
    }

    /// Returns the UTF-8 names of the directories in `path`, sorted; empty if it is missing.
    pub(super) fn directories(&self, path: &str) -> Result<Vec<String>> {
        let names = self.list(path)?.unwrap_or_default();
        Ok(names
            .into_iter()
            .filter(|name| name.kind == FileKind::Directory)
            .filter_map(|name| name.name.into_string().ok())
            .collect())
    }

    /// Creates a directory and its parents.
    pub(super) fn make_directory(&self, path: &str) -> Result<OwnedFd> {
        let mut changed = Vec::new();
        let directory = self.directory(path, &mut changed)?;
        self.sync_directories(&changed).path("sync", self.shown(path))?;
        Ok(directory)
    }

    /// Opens a directory, creating it and its parents if missing. Adds the directories that this
    /// changes to `changed`.
    fn directory(&self, path: &str, changed: &mut Vec<OwnedFd>) -> Result<OwnedFd> {
        match self.resolve(path, DIRECTORY) {
            Err(Errno::NOENT) => self.make_missing(path, changed),
            outcome => outcome,
        }
        .path("create the directory", self.shown(path))
    }

    fn make_missing(&self, path: &str, changed: &mut Vec<OwnedFd>) -> io::Result<OwnedFd> {
        let mut parent = fs::openat(&self.root, ".", DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        for name in path.split('/') {
            let mut is_new = false;
            let next = match directory::open(&parent, name) {
                Err(Errno::NOENT) => {
                    match fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => is_new = true,
                        Err(error) => return Err(error),
                    }
                    directory::open(&parent, name)?
                }
                outcome => outcome?,
            };
            let above = std::mem::replace(&mut parent, next);
            if is_new {
                changed.push(above);
            }
        }
        Ok(parent)
    }

    /// Writes a file that is named `path` when it is committed.
    pub(super) fn prepare(&self, path: &str, bytes: &[u8]) -> Result<Fresh> {
        let mut fresh = self.create(path)?;
        fresh.file.write_all(bytes).path("write", self.shown(path))?;
        Ok(fresh)
    }

    /// Creates a file that is named `path` when it is committed.
    pub(super) fn create(&self, path: &str) -> Result<Fresh> {
        let (parent, name) = split(path);
        let mut changed = Vec::new();
        let mut outcome = Err(Errno::NOENT);
        // Another process may remove the directory between its creation and its use.
        for _ in 0..ATTEMPTS {
            let directory = self.directory(parent, &mut changed)?;
            let temporary = format!("{name}.{}{TEMPORARY}", unique());
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            outcome = fs::openat(&directory, &*temporary, flags, Mode::from_raw_mode(0o644));
            match outcome {
                Ok(fd) => {
                    return Ok(Fresh {
                        file: File::from(fd),
                        directory,
                        temporary,
                        name: name.to_owned(),
                        path: path.to_owned(),
                        changed,
                        kept: false,
                    });
                }
                Err(Errno::NOENT | Errno::EXIST) => {}
                Err(_) => break,
            }
        }
        outcome.map(|_| ()).path("create a file in", self.shown(parent))?;
        Err(Error::failed(format!("cannot create {}", self.shown(path).display())))
    }

    /// Renames files into place, in order, replacing existing ones. All content is durable before
    /// the first rename, and the names are durable before this function returns. Committing many
    /// files together costs a file system little more than committing one.
    pub(super) fn commit(&self, mut files: Vec<Fresh>) -> Result<()> {
        for fresh in &files {
            self.sync_file(&fresh.file).path("sync", self.shown(&fresh.path))?;
        }
        for fresh in &mut files {
            let (directory, temporary) = (&fresh.directory, &*fresh.temporary);
            fs::renameat(directory, temporary, directory, &*fresh.name)
                .path("put in place", self.shown(&fresh.path))?;
            fresh.kept = true;
        }
        for fresh in &files {
            self.sync_directories(&fresh.changed)
                .and_then(|()| self.sync_directory(&fresh.directory))
                .path("sync the directory of", self.shown(&fresh.path))?;
        }
        Ok(())
    }

    /// Renames a file within the tree, replacing an existing one and creating its directories. The
    /// change becomes durable with `beside`, which must be committed next.
    pub(super) fn rename(&self, from: &str, to: &str, beside: &mut Fresh) -> Result<()> {
        let (old_parent, old_name) = split(from);
        let (new_parent, new_name) = split(to);
        let old = self.resolve(old_parent, DIRECTORY).path("open", self.shown(old_parent))?;
        let mut outcome = Err(Errno::NOENT);
        for _ in 0..ATTEMPTS {
            let new = self.directory(new_parent, &mut beside.changed)?;
            outcome = fs::renameat(&old, old_name, &new, new_name);
            beside.changed.push(new);
            let source_is_there = || Metadata::at(&old, old_name).is_ok();
            if outcome != Err(Errno::NOENT) || !source_is_there() {
                break;
            }
        }
        outcome.path("put in place", self.shown(to))
    }

    /// Opens the file at `path` for writing without changing it; `None` if it is missing.
    pub(super) fn open_writable(&self, path: &str) -> Result<Option<File>> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Some(fd) = self.found(self.resolve(path, flags), path)? else {
            return Ok(None);
        };
        let metadata = Metadata::of(&fd).path("look at", self.shown(path))?;
        if metadata.kind != FileKind::File {
            return Err(self.odd(path, "not a regular file"));
        }
        Ok(Some(File::from(fd)))
    }

    /// Creates an empty file at `path`, which must not exist, and its directories. The file may be
    /// lost in a power failure.
    pub(super) fn create_in_place(&self, path: &str) -> Result<File> {
        let (parent, name) = split(path);
        let directory = self.directory(parent, &mut Vec::new())?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        fs::openat(&directory, name, flags, Mode::from_raw_mode(0o644))
            .map(File::from)
            .path("create", self.shown(path))
    }

    /// Removes a file or a directory tree durably. Returns whether it existed.
    pub(super) fn remove(&self, path: &str) -> Result<bool> {
        match self.remove_from(path)? {
            Some(directory) => {
                self.sync_directory(directory).path("remove", self.shown(path)).map(|()| true)
            }
            None => Ok(false),
        }
    }

    /// Removes a file or a directory tree that may reappear after a power failure. Returns whether
    /// it existed.
    pub(super) fn discard(&self, path: &str) -> Result<bool> {
        self.remove_from(path).map(|directory| directory.is_some())
    }

    fn remove_from(&self, path: &str) -> Result<Option<OwnedFd>> {
        let (parent, name) = split(path);
        let Some(directory) = self.found(self.resolve(parent, DIRECTORY), parent)? else {
            return Ok(None);
        };
        if matches!(Metadata::at(&directory, name), Err(Errno::NOENT)) {
            return Ok(None);
        }
        imgctl_base::fs::atomic::remove_at(&directory, name.as_bytes())
            .path("remove", self.shown(path))?;
        Ok(Some(directory))
    }

    /// Removes the directory `path` and its parents up to `top` if they are empty.
    pub(super) fn remove_empty(&self, path: &str, top: &str) {
        let mut path = path;
        while path.len() > top.len() && path.starts_with(top) {
            let (parent, name) = split(path);
            let Ok(directory) = self.resolve(parent, DIRECTORY) else {
                return;
            };
            if fs::unlinkat(directory, name, AtFlags::REMOVEDIR).is_err() {
                return;
            }
            path = parent;
        }
    }

    /// Syncs a file's content.
    pub(super) fn sync_file(&self, file: &File) -> io::Result<()> {
        if self.sync {
            fs::fdatasync(file)?;
        }
        Ok(())
    }

    fn sync_directories(&self, directories: &[OwnedFd]) -> io::Result<()> {
        directories.iter().try_for_each(|directory| self.sync_directory(directory))
    }

    fn sync_directory(&self, directory: impl AsFd) -> io::Result<()> {
        if !self.sync {
            return Ok(());
        }
        match fs::fsync(directory) {
            // Some network and FUSE file systems cannot sync directories and do not need to.
            Err(Errno::INVAL) => Ok(()),
            outcome => outcome,
        }
    }

    /// Acquires the advisory lock of the directory `path`; `None` if another process holds it.
    pub(super) fn lock(&self, path: &str, operation: FlockOperation) -> Result<Option<OwnedFd>> {
        let fd = self.resolve(path, DIRECTORY).path("open the directory", self.shown(path))?;
        match fs::flock(&fd, operation) {
            // File systems without locks; NFS requires a file opened for writing.
            Ok(()) | Err(Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK | Errno::BADF) => Ok(Some(fd)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => {
                Err(Error::io(format!("cannot lock {}", self.shown(path).display()), error))
            }
        }
    }

    /// Returns the number of bytes that an unprivileged user can still write to the file system.
    pub(super) fn free_space(&self) -> Option<u64> {
        let stat = fs::fstatvfs(&self.root).ok()?;
        stat.f_bavail.checked_mul(stat.f_frsize)
    }

    /// Opens `path` without following any symlink.
    fn resolve(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        let inside =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..ATTEMPTS {
            match fs::openat2(&self.root, path, flags, Mode::empty(), inside) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                // Linux before 5.6, or a sandbox that filters the call.
                Err(Errno::NOSYS | Errno::PERM) => break,
                outcome => return outcome,
            }
        }
        self.walk(path, flags)
    }

    fn walk(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let (parents, name) = split(path);
        let mut directory: Option<OwnedFd> = None;
        for component in parents.split('/').filter(|component| *component != ".") {
            let from = directory.as_ref().unwrap_or(&self.root);
            let flags = DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            directory = Some(fs::openat(from, component, flags, Mode::empty())?);
        }
        let from = directory.as_ref().unwrap_or(&self.root);
        fs::openat(from, name, flags | OFlags::NOFOLLOW, Mode::empty())
    }

    fn found<T>(&self, outcome: io::Result<T>, path: &str) -> Result<Option<T>> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(Errno::LOOP) => Err(self.odd(path, "reached through a symlink")),
            Err(error) => {
                Err(Error::io(format!("cannot open {}", self.shown(path).display()), error))
            }
        }
    }

    fn odd(&self, path: &str, what: &str) -> Error {
        let path = self.shown(path);
        Error::new(Kind::BadContent, format!("cannot use {}: it is {what}", path.display()))
    }
}

/// A file that is being written. Removed on drop unless committed.
#[derive(Debug)]
pub(super) struct Fresh {
    pub(super) file: File,
    directory: OwnedFd,
    temporary: String,
    name: String,
    path: String,
    /// Directories to sync together with the file.
    changed: Vec<OwnedFd>,
    kept: bool,
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::unlinkat(&self.directory, &*self.temporary, AtFlags::empty());
        }
    }
}

/// Returns the directory and the last component.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or((".", path))
}

/// Returns a name that no other process on this machine uses at the same time.
fn unique() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let now = fs_time();
    format!("{:x}-{now:x}-{number:x}", std::process::id())
}

fn fs_time() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.as_secs().rotate_left(30) ^ u64::from(time.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(tree: &Tree, path: &str, bytes: &[u8]) -> Result<()> {
        tree.commit(vec![tree.prepare(path, bytes)?])
    }

    #[test]
    fn nothing_is_reached_through_a_symlink() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        std::fs::create_dir_all(root.join("a")).unwrap();
        std::fs::create_dir_all(directory.path().join("out")).unwrap();
        std::fs::write(directory.path().join("out/data"), "secret").unwrap();
        std::fs::write(root.join("a/data"), "mine").unwrap();
        symlink("../out", root.join("link")).unwrap();
        symlink("data", root.join("a/inner")).unwrap();
        let tree = Tree::open(&root, false).unwrap();
        for path in ["link/data", "a/inner"] {
            assert!(tree.read(path, 100).is_err(), "{path}");
            assert!(tree.walk(path, OFlags::RDONLY).is_err(), "{path}");
        }
        assert!(write(&tree, "link/data", b"x").is_err());
        assert!(write(&tree, "link/new/x", b"x").is_err());
        assert!(tree.remove("link/data").is_err());
        assert_eq!(tree.read("a/data", 4).unwrap().unwrap(), b"mine");
        assert!(tree.read("a/data", 3).is_err());
        assert!(tree.walk("a/data", OFlags::RDONLY).is_ok());
        let outside = std::fs::read(directory.path().join("out/data")).unwrap();
        assert_eq!(outside, b"secret");
    }

    #[test]
    fn files_appear_whole_and_go_with_their_empty_directories() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::open(directory.path(), true).unwrap();
        write(&tree, "a/b/c", b"one").unwrap();
        write(&tree, "a/b/c", b"two").unwrap();
        drop(tree.create("a/b/d").unwrap());
        assert_eq!(tree.list("a/b").unwrap().unwrap().len(), 1);
        let mut beside = tree.prepare("x/z", b"").unwrap();
        tree.rename("a/b/c", "x/y", &mut beside).unwrap();
        tree.commit(vec![beside]).unwrap();
        assert_eq!(tree.read("x/y", 10).unwrap().unwrap(), b"two");
        tree.remove_empty("a/b", "");
        assert!(tree.metadata("a").unwrap().is_none());
        assert!(tree.remove("x").unwrap());
        assert!(!tree.remove("x").unwrap());
    }
}
