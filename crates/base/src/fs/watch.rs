//! Changes in directories, as the kernel reports them (inotify). Waiting for one costs nothing.
//! Must not know what the files are.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// Watches directories, but not their subdirectories.
#[derive(Debug)]
pub struct Watch(OwnedFd);

/// What happened in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// An entry appeared, disappeared or was replaced.
    Entry(&'a [u8]),
    /// A file that was open for writing has been closed.
    Closed(&'a [u8]),
    /// Events were lost, or a directory has disappeared.
    Unknown,
}

impl Watch {
    /// Starts without directories. Fails if this user has too many watches.
    pub fn new() -> io::Result<Self> {
        Ok(Self(inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?))
    }

    /// Adds a directory, or adds it again if it was replaced. Ignores one that does not exist.
    pub fn add(&self, directory: &Path) -> io::Result<()> {
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ONLYDIR;
        match inotify::add_watch(&self.0, directory, flags) {
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for a change. Returns `false` if `end`, the reading end of a pipe, closes first.
    pub fn wait(&self, end: impl AsFd) -> io::Result<bool> {
        let mut both = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(&end, PollFlags::IN)];
        loop {
            match poll(&mut both, None) {
                Ok(_) => {
                    let [_, end] = &both;
                    return Ok(end.revents().is_empty());
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Passes all changes since the last call to `pass`. Fails with `WouldBlock` if there are none.
    pub fn read(&self, mut pass: impl FnMut(Change<'_>)) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.0, &mut buffer);
        let mut has_any = false;
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) if has_any => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            has_any = true;
            pass(match event.file_name().map(CStr::to_bytes) {
                None => Change::Unknown,
                Some(name) if event.events().contains(ReadFlags::CLOSE_WRITE) => {
                    Change::Closed(name)
                }
                Some(name) => Change::Entry(name),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_once_and_directories_may_come_later() {
        let directory = tempfile::tempdir().unwrap();
        let late = directory.path().join("late");
        // Each user may have 128, and the hosts of a test bed need some of them.
        let watch = match Watch::new() {
            Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
                return crate::testing::skip("root has too many watches");
            }
            watch => watch.unwrap(),
        };
        watch.add(directory.path()).unwrap();
        watch.add(&late).unwrap();
        let read = || {
            let mut seen = Vec::new();
            let told = watch.read(|change| seen.push(format!("{change:?}")));
            told.map(|()| seen).map_err(|error| error.kind())
        };
        assert_eq!(read(), Err(io::ErrorKind::WouldBlock));
        let file = std::fs::File::create(directory.path().join("a")).unwrap();
        assert_eq!(read().unwrap().len(), 1);
        drop(file);
        assert!(read().unwrap()[0].starts_with("Closed"));
        std::fs::create_dir(&late).unwrap();
        watch.add(&late).unwrap();
        std::fs::write(late.join("b"), "x").unwrap();
        std::fs::rename(late.join("b"), late.join("c")).unwrap();
        let seen = read().unwrap();
        assert_eq!(seen.len(), 5, "{seen:?}");
        assert_eq!(read(), Err(io::ErrorKind::WouldBlock));
        let (end, open) = io::pipe().unwrap();
        std::fs::write(late.join("d"), "").unwrap();
        assert!(watch.wait(&end).unwrap());
        read().unwrap();
        let waits = std::thread::spawn(move || watch.wait(&end).unwrap());
        drop(open);
        assert!(!waits.join().unwrap());
    }
}
