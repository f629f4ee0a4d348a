//! The directories on the way to the current entry, held open: each was opened by one name relative
//! to the one above, never through a symlink. Archives usually list the entries of a directory
//! together, so most need no look-up.
//!
//! A directory's time is restored when it is left, to undo the effect of changes in it. Must not
//! depend on whiteouts and layers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, Mode, Timestamps};
use rustix::io::{self, Errno};

use crate::Entry;
use imgctl_base::fs::atomic::remove_at;
use imgctl_base::fs::directory;
use imgctl_base::fs::metadata::Metadata;

use super::attributes::{EPOCH, Identity, timestamps};

/// Handling of a missing directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// Create it (0755, root, time 0), replacing a non-directory.
    Create,
    /// Leave everything unchanged.
    Leave,
}

/// The result of [`Parents::reach`].
pub(super) enum Reach {
    Directory(OwnedFd),
    Absent,
    /// A component of the path is not a directory.
    Blocked,
}

/// The result of [`Parents::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entered {
    /// Whether the directory is now the current one (always with [`Missing::Create`]).
    pub(super) found: bool,
    /// Length of the path at which a directory replaced something else.
    pub(super) replaced: Option<usize>,
}

struct Level {
    fd: OwnedFd,
    /// Length of its path.
    end: usize,
    /// The times to set when the directory is left.
    times: Timestamps,
    /// The directory's group, which new files inherit on some mounts.
    gid: u32,
    changed: bool,
}

impl Level {
    fn of(fd: OwnedFd, end: usize) -> io::Result<Self> {
        let metadata = Metadata::of(&fd)?;
        Ok(Self {
            fd,
            end,
            times: timestamps(metadata.mtime.0, metadata.mtime.1),
            gid: metadata.gid,
            changed: false,
        })
    }

    fn leave(self) -> io::Result<()> {
        if self.changed {
            fs::futimens(&self.fd, &self.times)?;
        }
        Ok(())
    }
}

/// The open directories from the root to the current one.
pub(super) struct Parents {
    root: Level,
    below: Vec<Level>,
    /// The path of the last of `below`.
    path: Vec<u8>,
    identity: Identity,
}

impl Parents {
    /// Creates the state with `root` as the current directory.
    pub(super) fn new(root: OwnedFd, identity: Identity) -> io::Result<Self> {
        Ok(Self { root: Level::of(root, 0)?, below: Vec::new(), path: Vec::new(), identity })
    }

    /// Returns the current directory.
    pub(super) fn top(&self) -> BorrowedFd<'_> {
        self.level().fd.as_fd()
    }

    /// Returns the group of the current directory.
    pub(super) fn gid(&self) -> u32 {
        self.level().gid
    }

    /// Returns the open directory whose path has `end` bytes, on the way to the current one.
    pub(super) fn at(&self, end: usize) -> BorrowedFd<'_> {
        let level = self.below.iter().find(|level| level.end == end);
        level.unwrap_or(&self.root).fd.as_fd()
    }

    /// Returns the next name on the way from the current directory down to `path`.
    pub(super) fn next_below<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        components(path, self.path.len()).next()
    }

    /// Returns the path of `name` in the current directory.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        if self.path.is_empty() {
            return name.to_vec();
        }
        [&self.path, &b"/"[..], name].concat()
    }

    /// Records that the current directory is being changed.
    pub(super) fn changed(&mut self) {
        self.level_mut().changed = true;
    }

    /// Sets the times that the current directory gets when it is left.
    pub(super) fn set_times(&mut self, times: Timestamps) {
        let level = self.level_mut();
        level.times = times;
        level.changed = true;
    }

    /// Records the times and group that `entry` gave to the current directory.
    pub(super) fn describe(&mut self, entry: &Entry) {
        self.set_times(timestamps(entry.mtime.seconds, entry.mtime.nanoseconds));
        let gid = self.identity.gid_of(entry.gid, self.level().gid);
        self.level_mut().gid = gid;
    }

    /// Enters `name`, just opened as `fd` and described by `entry`.
    pub(super) fn push(&mut self, name: &[u8], fd: OwnedFd, entry: &Entry) {
        let gid = self.gid();
        self.push_level(name, |end| Level { fd, end, times: EPOCH, gid, changed: true });
        self.describe(entry);
    }

    /// Enters the directory `path`. If that fails (only with [`Missing::Leave`]), the current
    /// directory is one on the way there.
    pub(super) fn enter(&mut self, path: &[u8], missing: Missing) -> io::Result<Entered> {
        let (keep, mut done) = self.shared(path);
        self.leave(keep)?;
        let mut replaced = None;
        for name in components(path, done) {
            done += usize::from(done > 0) + name.len();
            match directory::open(self.top(), name) {
                Ok(fd) => {
                    let level = Level::of(fd, done)?;
                    self.push_level(name, |_| level);
                }
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if missing == Missing::Leave => {
                    return Ok(Entered { found: false, replaced: None });
                }
                Err(Errno::NOENT) => self.create(name)?,
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    remove_at(self.top(), name)?;
                    self.create(name)?;
                    replaced = Some(done);
                }
                Err(error) => return Err(error),
            }
        }
        if missing == Missing::Create {
            self.changed();
        }
        Ok(Entered { found: true, replaced })
    }

    /// Opens the directory `path` without entering it.
    pub(super) fn reach(&self, path: &[u8]) -> io::Result<Reach> {
        let (keep, done) = self.shared(path);
        let start = match keep.checked_sub(1).and_then(|index| self.below.get(index)) {
            Some(level) => level.fd.as_fd(),
            None => self.root.fd.as_fd(),
        };
        let mut current = start.try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        for name in components(path, done) {
            current = match directory::open(&current, name) {
                Err(Errno::NOENT) => return Ok(Reach::Absent),
                Err(Errno::NOTDIR | Errno::LOOP) => return Ok(Reach::Blocked),
                opened => opened?,
            };
        }
        Ok(Reach::Directory(current))
    }

    /// Leaves all directories including the root, and sets their times.
    pub(super) fn leave_all(&mut self) -> io::Result<()> {
        self.leave(0)?;
        if self.root.changed {
            fs::futimens(&self.root.fd, &self.root.times)?;
        }
        Ok(())
    }

    /// Returns how many of the open directories are on the way to `path`, and how many bytes of it
    /// they cover.
    fn shared(&self, path: &[u8]) -> (usize, usize) {
        let (mut keep, mut done) = (0, 0);
        for level in &self.below {
            let same = path.get(done..level.end) == self.path.get(done..level.end);
            if !same || !matches!(path.get(level.end), None | Some(b'/')) {
                break;
            }
            keep += 1;
            done = level.end;
        }
        (keep, done)
    }

    fn leave(&mut self, keep: usize) -> io::Result<()> {
        while self.below.len() > keep {
            if let Some(level) = self.below.pop() {
                level.leave()?;
            }
        }
        let end = self.level().end;
        self.path.truncate(end);
        Ok(())
    }

    fn create(&mut self, name: &[u8]) -> io::Result<()> {
        let inherited = self.gid();
        self.changed();
        fs::mkdirat(self.top(), name, Mode::RWXU)?;
        let fd = directory::open(self.top(), name)?;
        self.identity.give(&fd, (0, 0), inherited)?;
        fs::fchmod(&fd, Mode::from_raw_mode(0o755))?;
        let gid = self.identity.gid_of(0, inherited);
        self.push_level(name, |end| Level { fd, end, times: EPOCH, gid, changed: true });
        Ok(())
    }

    fn push_level(&mut self, name: &[u8], level: impl FnOnce(usize) -> Level) {
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        self.below.push(level(self.path.len()));
    }

    fn level(&self) -> &Level {
        self.below.last().unwrap_or(&self.root)
    }

    fn level_mut(&mut self) -> &mut Level {
        self.below.last_mut().unwrap_or(&mut self.root)
    }
}

/// Returns the components of `path` after its first `done` bytes.
fn components(path: &[u8], done: usize) -> impl Iterator<Item = &[u8]> {
    path.get(done..).unwrap_or_default().split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}
