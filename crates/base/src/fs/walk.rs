//! Walks a directory tree in layer order, by descriptor and without following symlinks. The caller
//! decides which parts to leave out.
//!
//! The order is that of the full paths as bytes (`a`, `a-b`, `a/x`). This is the order of
//! `LayerPath` and puts every directory before its content.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, IoContext, Result};
use crate::fs::directory;
use crate::fs::metadata::{FileKind, Metadata};
use crate::fs::root::Root;
use crate::fs::xattr::{self, Xattrs};

mod parallel;

pub use parallel::{Visitor, walk_in_parallel};

/// Maximum directory depth; each level holds a descriptor while the walk is below it.
const MAX_DEPTH: usize = 512;

/// What to do with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// Report it and, if it is a directory, descend into it.
    Keep,
    /// Do not report it but, if it is a directory, descend into it.
    Skip,
    /// Skip it and everything below it; a directory is not opened.
    Prune,
}

/// An entry found by [`walk`]; valid only while the callback runs.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Path from the root of the walk, separated by `/`.
    pub path: &'a [u8],
    /// Metadata of the entry itself: symlinks are not followed.
    pub metadata: Metadata,
    directory: BorrowedFd<'a>,
    name: &'a CStr,
    root: &'a Path,
}

impl Found<'_> {
    /// Opens the regular file for reading. It may have been replaced since it was examined:
    /// compare [`Metadata::of`] the file with [`Found::metadata`] where that matters.
    pub fn open(&self) -> Result<File> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        fs::openat(self.directory, self.name, flags, Mode::empty())
            .map(File::from)
            .path("open", self.shown())
    }

    /// Returns the target of the symlink.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        fs::readlinkat(self.directory, self.name, Vec::new())
            .map(CString::into_bytes)
            .path("read the link", self.shown())
    }

    /// Returns all extended attributes; makes one system call if there are none.
    pub fn xattrs(&self) -> Result<Xattrs> {
        xattr::read_at(self.directory, self.name.to_bytes())
            .path("read the extended attributes of", self.shown())
    }

    /// Returns the directory that contains the entry.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory
    }

    /// Returns the name of the entry in [`Found::directory`].
    pub fn name(&self) -> &CStr {
        self.name
    }

    /// Returns the path including that of the root, for messages.
    pub fn shown(&self) -> PathBuf {
        self.root.join(OsStr::from_bytes(self.path))
    }
}

/// Walks the tree below `root` (not reporting the root itself). `visit` is called with every path
/// and whether it is a directory; `emit` receives the entries that are kept.
///
/// A directory that cannot be read is an error that names it; a name that disappears during the
/// walk is skipped.
pub fn walk(
    root: &Root,
    visit: &mut dyn FnMut(&[u8], bool) -> Visit,
    emit: &mut dyn FnMut(Found<'_>) -> Result<()>,
) -> Result<()> {
    walk_below(root, Level::of(root)?, 1, visit, emit)
}

/// Walks `directory`, which is `depth` levels below the start of the walk, and everything below it.
fn walk_below(
    root: &Root,
    directory: Level,
    depth: usize,
    visit: &mut dyn FnMut(&[u8], bool) -> Visit,
    emit: &mut dyn FnMut(Found<'_>) -> Result<()>,
) -> Result<()> {
    let mut path = directory.path.clone();
    let mut stack = vec![directory];
    while let Some(level) = stack.last_mut() {
        let Some(event) = level.events.pop() else {
            stack.pop();
            continue;
        };
        if !event.enter {
            report(root, level, &event, &mut path, visit, emit)?;
            continue;
        }
        let Some(name) = level.names.name(&event) else { continue };
        if let Some(level) = enter(root, &level.fd, name, level.below(name))? {
            if stack.len() + depth > MAX_DEPTH {
                return Err(too_deep(root, &level.path));
            }
            stack.push(level);
        }
    }
    Ok(())
}

/// Reports an entry of `level` if it is wanted, and schedules the descent into it. `path` is a buffer
/// for its path.
fn report(
    root: &Root,
    level: &mut Level,
    event: &Event,
    path: &mut Vec<u8>,
    visit: &mut dyn FnMut(&[u8], bool) -> Visit,
    emit: &mut dyn FnMut(Found<'_>) -> Result<()>,
) -> Result<()> {
    let Some(name) = level.names.name(event) else { return Ok(()) };
    path.clear();
    path.extend_from_slice(&level.path);
    path.extend_from_slice(name.to_bytes());
    let is_directory = event.kind == FileKind::Directory;
    let decision = visit(path, is_directory);
    if is_directory && decision != Visit::Prune {
        schedule(&mut level.events, &level.names, event);
    }
    if decision != Visit::Keep {
        return Ok(());
    }
    let metadata = match Metadata::at(&level.fd, name) {
        Err(Errno::NOENT) => return Ok(()),
        metadata => metadata.path("examine", root.path().join(OsStr::from_bytes(path)))?,
    };
    emit(Found { path, metadata, directory: level.fd.as_fd(), name, root: root.path() })
}

/// Reports the entry at a path, or descends into the directory there.
#[derive(Clone, Copy)]
struct Event {
    /// Place of the name in [`Names`].
    start: usize,
    length: usize,
    kind: FileKind,
    enter: bool,
}

/// The names of a directory, each with the NUL that system calls want.
#[derive(Default)]
struct Names(Vec<u8>);

impl Names {
    fn bytes(&self, event: &Event) -> &[u8] {
        self.0.get(event.start..event.start + event.length).unwrap_or_default()
    }

    fn name(&self, event: &Event) -> Option<&CStr> {
        let bytes = self.0.get(event.start..=event.start + event.length)?;
        CStr::from_bytes_with_nul(bytes).ok()
    }

    /// Paths below a directory continue with `/`, which sorts after `-` and `.`.
    fn key(&self, event: &Event) -> impl Iterator<Item = u8> {
        let slash = event.enter.then_some(b'/');
        self.bytes(event).iter().copied().chain(slash)
    }
}

/// A directory being walked.
struct Level {
    fd: Arc<OwnedFd>,
    names: Names,
    /// Remaining events, last one first.
    events: Vec<Event>,
    /// Path of the directory, including the trailing slash.
    path: Vec<u8>,
}

impl Level {
    /// Reads the root.
    fn of(root: &Root) -> Result<Self> {
        let fd = root.open_directory(Path::new("."))?;
        Self::read(fd).path("read the directory", root.path())
    }

    /// Reads a directory that was just opened; its path is that of the root.
    fn read(fd: OwnedFd) -> rustix::io::Result<Self> {
        let mut names = Names::default();
        let mut events = Vec::new();
        directory::for_each_rest(fd.as_fd(), |name, kind| {
            let start = names.0.len();
            names.0.extend_from_slice(name.to_bytes_with_nul());
            let length = name.count_bytes();
            events.push(Event { start, length, kind, enter: false });
            Ok::<(), Errno>(())
        })?;
        events.sort_unstable_by(|a, b| names.bytes(b).cmp(names.bytes(a)));
        Ok(Self { fd: Arc::new(fd), names, events, path: Vec::new() })
    }

    /// Returns the path of a directory in this one, including the trailing slash.
    fn below(&self, name: &CStr) -> Vec<u8> {
        [&self.path, name.to_bytes(), b"/"].concat()
    }
}

/// Schedules the descent into a directory at the position of its content: usually next, but after
/// siblings such as `name-x` and `name.x`.
fn schedule(events: &mut Vec<Event>, names: &Names, directory: &Event) {
    let event = Event { enter: true, ..*directory };
    let is_before = |other: &&Event| names.key(other).lt(names.key(&event));
    let after = events.iter().rev().take_while(is_before).count();
    events.insert(events.len() - after, event);
}

/// Reads the directory `name` of `parent`; `path` ends with a slash.
fn enter(root: &Root, parent: &OwnedFd, name: &CStr, path: Vec<u8>) -> Result<Option<Level>> {
    match directory::open(parent, name).and_then(Level::read) {
        Ok(level) => Ok(Some(Level { path, ..level })),
        // Removed or replaced after it was listed.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => {
            let path = path.strip_suffix(b"/").unwrap_or(&path);
            Err(error).path("read the directory", root.path().join(OsStr::from_bytes(path)))
        }
    }
}

fn too_deep(root: &Root, path: &[u8]) -> Error {
    Error::failed(format!(
        "cannot walk {}: there are more than {MAX_DEPTH} levels of directories",
        root.path().join(OsStr::from_bytes(path)).display()
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn paths(root: &Root, mut visit: impl FnMut(&[u8], bool) -> Visit) -> Vec<String> {
        let mut paths = Vec::new();
        walk(root, &mut visit, &mut |found| {
            paths.push(String::from_utf8(found.path.to_vec()).unwrap());
            Ok(())
        })
        .unwrap();
        paths
    }

    fn tree(files: &[&str]) -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        for file in files {
            let path = directory.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, file).unwrap();
        }
        let root = Root::open(directory.path()).unwrap();
        (directory, root)
    }

    #[test]
    fn the_order_is_that_of_the_paths_as_bytes() {
        let (_directory, root) = tree(&[
            "b/c", "a/x/1", "a/x-1", "a-b", "a.b/z", "a/x.1/q", "a0", "a/y", "Z", "b/\u{e9}",
            "a+/a",
        ]);
        let found = paths(&root, |_, _| Visit::Keep);
        let mut sorted = found.clone();
        sorted.sort();
        assert_eq!(found, sorted);
        assert_eq!(found.len(), 17);
    }

    #[test]
    fn pruned_directories_are_not_opened_and_skipped_ones_are_looked_into() {
        let (directory, root) = tree(&["keep/a", "skip/a", "prune/a", "skip/deep/b"]);
        let found = paths(&root, |path, is_directory| match path {
            b"skip" | b"skip/deep" => {
                assert!(is_directory);
                Visit::Skip
            }
            b"prune" => Visit::Prune,
            path => {
                assert!(!path.starts_with(b"prune/"));
                Visit::Keep
            }
        });
        assert_eq!(found, ["keep", "keep/a", "skip/a", "skip/deep/b"]);
        drop(directory);
    }

    #[test]
    fn symlinks_are_reported_with_their_target_and_never_followed() {
        let (directory, root) = tree(&["d/file"]);
        symlink("../..", directory.path().join("d/up")).unwrap();
        let mut seen = Vec::new();
        walk(&root, &mut |_, _| Visit::Keep, &mut |found| {
            if found.metadata.kind == FileKind::Symlink {
                seen.push((found.path.to_vec(), found.read_link().unwrap()));
                assert!(found.open().is_err());
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [(b"d/up".to_vec(), b"../..".to_vec())]);
    }

    #[test]
    fn an_error_of_the_callback_ends_the_walk() {
        let (_directory, root) = tree(&["a", "b"]);
        let mut calls = 0;
        let outcome = walk(&root, &mut |_, _| Visit::Keep, &mut |found| {
            calls += 1;
            Err(Error::failed(found.shown().display().to_string()))
        });
        assert!(outcome.unwrap_err().message().ends_with("/a"));
        assert_eq!(calls, 1);
    }
}
