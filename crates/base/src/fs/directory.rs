//! Lists directories, opens them by descriptor, and reads small files that may be missing.

use std::ffi::{CStr, CString};
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self, CWD, Mode, OFlags, RawDir, SeekFrom};
use rustix::io;

use crate::error::IoContext;
use crate::fs::metadata::{FileKind, Metadata};

/// Buffer size for one `getdents` call: a few hundred names.
const BUFFER: usize = 32 * 1024;

/// Flags with which directories are opened everywhere: for listing, never through a symlink.
pub(crate) const OPEN_DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory entry and its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub name: CString,
    pub kind: FileKind,
}

/// Opens the directory `name` of `parent`; a symlink fails with ENOTDIR (or ELOOP).
pub fn open(parent: impl AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    fs::openat(parent, name, OPEN_DIRECTORY, Mode::empty())
}

/// Opens the directory `path`, following symlinks.
pub fn open_path(path: &Path) -> crate::error::Result<OwnedFd> {
    let flags = OPEN_DIRECTORY.difference(OFlags::NOFOLLOW);
    fs::openat(CWD, path, flags, Mode::empty()).path("open", path)
}

/// Calls `each` for every name in `directory` except `.` and `..`, in file system order. Reads from
/// the start and moves the descriptor's position.
pub fn for_each<E: From<io::Errno>>(
    directory: impl AsFd,
    each: impl FnMut(&CStr, FileKind) -> Result<(), E>,
) -> Result<(), E> {
    let directory = directory.as_fd();
    fs::seek(directory, SeekFrom::Start(0))?;
    for_each_rest(directory, each)
}

/// [`for_each`] from the descriptor's position, which is the start for one that was just opened.
pub(crate) fn for_each_rest<E: From<io::Errno>>(
    directory: BorrowedFd<'_>,
    mut each: impl FnMut(&CStr, FileKind) -> Result<(), E>,
) -> Result<(), E> {
    let mut buffer = [MaybeUninit::<u8>::uninit(); BUFFER];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let kind = match FileKind::from_type(entry.file_type()) {
            Some(kind) => kind,
            // Some file systems do not report the type; a name removed in the meantime is skipped.
            None => match Metadata::at(directory, name) {
                Ok(metadata) => metadata.kind,
                Err(io::Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            },
        };
        each(name, kind)?;
    }
    Ok(())
}

/// Returns all names in `directory` except `.` and `..`, unsorted.
pub fn names(directory: impl AsFd) -> io::Result<Vec<Name>> {
    let mut names = Vec::new();
    for_each(directory, |name, kind| {
        names.push(Name { name: name.to_owned(), kind });
        Ok::<(), io::Errno>(())
    })?;
    Ok(names)
}

/// Reads a text of ours or of the user's, at most `longest` bytes of it; `None` if the file does not
/// exist.
pub fn read_text(path: &Path, longest: u64) -> crate::error::Result<Option<String>> {
    let file = match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.path("open", path)?,
    };
    let mut text = String::new();
    file.take(longest).read_to_string(&mut text).path("read", path)?;
    Ok(Some(text))
}

/// Returns the paths in a directory of ours or of the user's, sorted by name; none if the directory
/// does not exist.
pub fn list(directory: &Path) -> crate::error::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.path("list", directory)?,
    };
    let paths: std::io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths.path("list", directory)?;
    paths.sort();
    Ok(paths)
}
