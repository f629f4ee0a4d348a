//! Removes whole trees by descriptor: never through a symlink, of any depth and width, with bounded
//! memory and descriptors. Trees with image-controlled content are removed only here.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{self, AtFlags, CWD, Mode, OFlags};
use rustix::io::{self, Errno};

use crate::error::{IoContext, Result};
use crate::fs::directory;
use crate::fs::metadata::{FileKind, Metadata};

/// Maximum number of open directories. Deeper directories are first moved to the top of the tree.
const MAX_OPEN: usize = 64;
/// Maximum number of passes over a directory that keeps gaining entries.
const MAX_PASSES: usize = 1000;

/// Removes a tree without following a symlink out of it; a missing tree is not an error.
pub fn remove_tree(path: &Path) -> Result<()> {
    remove_at(CWD, path.as_os_str().as_bytes()).path("remove", path)
}

/// Removes `name` in `parent`, whether tree or file; a missing one is not an error.
pub fn remove_at(parent: impl AsFd, name: &[u8]) -> io::Result<()> {
    let parent = parent.as_fd();
    let name = &*CString::new(name).map_err(|_| Errno::INVAL)?;
    match fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // POSIX specifies EPERM where Linux returns EISDIR.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    remove_directory(parent, name)
}

/// Treats a missing name as done, because another process may be removing the same tree.
fn unless_gone<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(Errno::NOENT) => Ok(None),
        outcome => outcome.map(Some),
    }
}

struct Frame {
    fd: OwnedFd,
    name: CString,
    /// Directories that were found but not yet removed.
    pending: Vec<CString>,
    /// Number of passes over the directory since the last progress.
    passes: usize,
}

fn remove_directory(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let mut stack = Vec::from_iter(unless_gone(open_frame(parent, name))?);
    let mut moved = 0_u64;
    loop {
        let depth = stack.len();
        let (top, rest) = match stack.as_mut_slice() {
            [] => return Ok(()),
            [rest @ .., top] => (top, rest),
        };
        match (top.pending.pop(), rest.first_mut()) {
            // A rename within one file system reduces the depth and keeps the number of descriptors
            // low.
            (Some(child), Some(first)) if depth >= MAX_OPEN => {
                unless_gone(lift(top.fd.as_fd(), &child, first.fd.as_fd(), &mut moved))?;
                first.passes = 0;
                continue;
            }
            (Some(child), _) => {
                let frame = unless_gone(open_frame(top.fd.as_fd(), &child))?;
                stack.extend(frame);
                continue;
            }
            (None, _) => {}
        }
        let above = rest.last().map_or(parent, |frame| frame.fd.as_fd());
        match fs::unlinkat(above, &top.name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {
                stack.pop();
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) if top.passes < MAX_PASSES => {
                top.passes += 1;
                top.pending = unless_gone(empty(&top.fd))?.unwrap_or_default();
            }
            Err(error) => return Err(error),
        }
    }
}

/// Unlinks everything in `directory` that is not a directory; returns the names of the directories.
fn empty(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut directories = Vec::new();
    directory::for_each(directory, |name, kind| {
        if kind == FileKind::Directory {
            directories.push(name.to_owned());
            return Ok(());
        }
        match fs::unlinkat(directory, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            outcome => outcome,
        }
    })?;
    Ok(directories)
}

fn open_frame(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<Frame> {
    let fd = match directory::open(parent, name) {
        Err(Errno::ACCESS) => {
            make_accessible(parent, name)?;
            directory::open(parent, name)?
        }
        // Unlink returned EPERM for something that is not a directory: an immutable file.
        Err(Errno::NOTDIR) => return Err(Errno::PERM),
        opened => opened?,
    };
    if Metadata::of(&fd)?.mode & 0o700 != 0o700 {
        // If this fails, unlinking fails as well and reports the cause.
        let _ = fs::fchmod(&fd, Mode::RWXU);
    }
    let pending = empty(&fd)?;
    Ok(Frame { fd, name: name.to_owned(), pending, passes: 0 })
}

/// Grants the owner all permissions on a directory that cannot be opened. Calls `chmod` through the
/// descriptor's name in /proc, because `fchmodat` would follow a symlink created there in the
/// meantime.
fn make_accessible(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = fs::openat(parent, name, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
    fs::chmod(path, Mode::RWXU)
}

/// Moves `name` to the top of the tree under an unused name.
fn lift(from: BorrowedFd<'_>, name: &CStr, top: BorrowedFd<'_>, moved: &mut u64) -> io::Result<()> {
    loop {
        let target = format!(".imgctl-removing-{moved}");
        *moved += 1;
        let flags = fs::RenameFlags::NOREPLACE;
        match fs::renameat_with(from, name, top, target.as_str(), flags) {
            Err(Errno::EXIST) => {}
            Err(Errno::NOENT) => return Ok(()),
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn symlinks_go_their_targets_stay() {
        let directory = tempfile::tempdir().unwrap();
        let (outside, tree) = (directory.path().join("out"), directory.path().join("tree"));
        std::fs::create_dir_all(tree.join("a/b")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "").unwrap();
        symlink(&outside, tree.join("a/link")).unwrap();
        symlink("kept", tree.join("file-link")).unwrap();
        std::fs::write(tree.join("a/b/c"), "").unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert!(outside.join("kept").exists());
        remove_tree(&tree).unwrap();

        symlink(&outside, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(outside.join("kept").exists() && std::fs::symlink_metadata(&tree).is_err());
    }

    #[test]
    fn trees_deeper_than_paths_and_descriptors_go() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        let mut current = directory::open(CWD, &tree).unwrap();
        for level in 0..3000 {
            fs::mkdirat(&current, "a-fairly-long-name", Mode::RWXU).unwrap();
            if level % 100 == 0 {
                fs::mkdirat(&current, "second", Mode::RWXU).unwrap();
            }
            current = directory::open(&current, "a-fairly-long-name").unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn several_remove_one_tree() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        for number in 0..200 {
            let inner = tree.join(format!("{}/{number}/deep/deeper", number % 7));
            std::fs::create_dir_all(&inner).unwrap();
            std::fs::write(inner.join("file"), "").unwrap();
        }
        std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(|| remove_tree(&tree)));
            for thread in threads {
                thread.join().unwrap().unwrap();
            }
        });
        assert!(!tree.exists());
    }

    #[test]
    fn many_files_and_a_file_itself_go() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        for number in 0..3000 {
            std::fs::write(tree.join(number.to_string()), "").unwrap();
        }
        remove_tree(&tree).unwrap();
        std::fs::write(&tree, "").unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }
}
