//! Path resolution inside a root without openat2: opens each component with `O_PATH|O_NOFOLLOW`,
//! and reads and resolves symlinks in user space. Only [`super::root`] uses it.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{self, Mode, OFlags};
use rustix::io::{self, Errno};

use crate::fs::metadata::{FileKind, Metadata};

/// Maximum number of symlinks followed in one lookup, as in the kernel.
const MAX_LINKS: usize = 40;
/// Maximum number of directories held open in one lookup.
const MAX_DEPTH: usize = 512;

/// Opens `path` in `root` with `flags`, as `openat2` with `RESOLVE_IN_ROOT` does.
pub(super) fn resolve(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let mut walk = Walk { root, stack: Vec::new(), pending: Vec::new(), links: 0 };
    walk.push(path.as_os_str().as_bytes());
    while let Some(component) = walk.pending.pop() {
        match component.as_bytes() {
            b"." => {}
            b".." => {
                walk.stack.pop();
            }
            _ => {
                if let Some(opened) = walk.step(&component, flags)? {
                    return Ok(opened);
                }
            }
        }
    }
    let flags = flags.difference(OFlags::NOFOLLOW);
    fs::openat(walk.top(), ".", flags, Mode::empty())
}

struct Walk<'a> {
    root: BorrowedFd<'a>,
    /// Directories from the root to the current one.
    stack: Vec<OwnedFd>,
    /// Remaining components of the path, last one first. A trailing slash counts as `.`.
    pending: Vec<CString>,
    links: usize,
}

impl Walk<'_> {
    fn top(&self) -> BorrowedFd<'_> {
        self.stack.last().map_or(self.root, AsFd::as_fd)
    }

    /// Prepends `path` to the remaining components.
    fn push(&mut self, path: &[u8]) {
        let trailing = path.ends_with(b"/").then_some(&b"."[..]);
        let components = path.split(|byte| *byte == b'/').filter(|c| !c.is_empty());
        let components: Vec<&[u8]> = components.chain(trailing).collect();
        for component in components.into_iter().rev() {
            // Paths from the operating system contain no NUL.
            self.pending.extend(CString::new(component));
        }
    }

    /// Enters `name`, or returns it opened if it is the end of the path.
    fn step(&mut self, name: &CString, flags: OFlags) -> io::Result<Option<OwnedFd>> {
        let peek = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(self.top(), name, peek, Mode::empty())?;
        let last = self.pending.is_empty();
        match Metadata::of(&fd)?.kind {
            FileKind::Symlink if last && flags.contains(OFlags::NOFOLLOW) => {
                // With O_PATH, opens the link itself; otherwise returns the kernel's error for a
                // link.
                fs::openat(self.top(), name, flags, Mode::empty()).map(Some)
            }
            FileKind::Symlink => self.follow(&fd).map(|()| None),
            FileKind::Directory => {
                if self.stack.len() >= MAX_DEPTH {
                    return Err(Errno::NAMETOOLONG);
                }
                self.stack.push(fd);
                Ok(None)
            }
            _ if last => {
                // If a symlink has replaced it in the meantime, O_NOFOLLOW rejects it.
                let flags = flags | OFlags::NOFOLLOW;
                fs::openat(self.top(), name, flags, Mode::empty()).map(Some)
            }
            _ => Err(Errno::NOTDIR),
        }
    }

    fn follow(&mut self, link: &OwnedFd) -> io::Result<()> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        let target = fs::readlinkat(link, "", Vec::new())?;
        let target = OsStr::from_bytes(target.as_bytes());
        if target.is_empty() {
            return Err(Errno::NOENT);
        }
        if Path::new(target).is_absolute() {
            self.stack.clear();
        }
        self.push(target.as_bytes());
        Ok(())
    }
}
