//! Files that a user names for output. What is there already decides how they are written: a regular
//! file is replaced at once, also behind a symlink, which stays; a device, a pipe or a descriptor
//! (`/dev/stdout`) is written to. Files of imgctl's own use `atomic` alone: nothing may redirect them.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, IoContext, Result};
use crate::fs::atomic;

pub use crate::fs::atomic::Durability;

/// How to write to a path.
#[derive(Debug)]
pub enum Target {
    /// Make a new file and rename it to this path, which is no symlink.
    Replace(PathBuf),
    /// Write to what is there.
    Through(File),
}

/// Maximum number of symlinks in a row, as in Linux.
const MAX_SYMLINKS: usize = 40;

/// Decides how to write to `path`. Opening a pipe waits for its reader.
///
/// # Errors
/// If `path` is a directory, or leads to one; if it cannot be opened for writing. Like any program
/// that opens a file, refuses a symlink that another user put into a directory such as `/tmp`, where the
/// kernel does (`fs.protected_symlinks`).
pub fn target(path: &Path) -> Result<Target> {
    let there = match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Target::Replace(path.to_owned()));
        }
        found => found.path("look at", path)?,
    };
    if there.is_file() {
        return Ok(Target::Replace(path.to_owned()));
    }
    if path.is_dir() {
        return Err(Error::usage(format!("{} is a directory", path.display()))
            .hint("name the file to write"));
    }
    let (end, is_descriptor) = end_of_links(path)?;
    // What another program writes to a descriptor comes before.
    let mut options = OpenOptions::new();
    options.write(true).append(is_descriptor);
    let file = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound && there.is_symlink() => {
            return Ok(Target::Replace(end));
        }
        opened => opened.path("open", path)?,
    };
    let opened = file.metadata().path("look at", path)?;
    let same = |found: &std::fs::Metadata| {
        (found.dev(), found.ino()) == (opened.dev(), opened.ino()) && found.is_file()
    };
    let is_file = !is_descriptor && end.symlink_metadata().is_ok_and(|found| same(&found));
    Ok(if is_file { Target::Replace(end) } else { Target::Through(file) })
}

/// Writes a document. `mode` is for a new file; durability as well.
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
    match target(path)? {
        Target::Replace(path) => atomic::write_with(&path, mode, durability, write),
        Target::Through(mut file) => write(&mut file),
    }
}

/// Returns where the symlinks at `path` end, and whether this is a descriptor of a process.
fn end_of_links(path: &Path) -> Result<(PathBuf, bool)> {
    let mut path = path.to_owned();
    for _ in 0..MAX_SYMLINKS {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new(".")).to_owned();
        let is_descriptor = directory.canonicalize().is_ok_and(|real| real.starts_with("/proc"));
        match path.read_link() {
            Ok(_) if is_descriptor => return Ok((path, true)),
            Ok(target) => path = directory.join(target),
            Err(_) => return Ok((path, is_descriptor)),
        }
    }
    Err(Error::usage(format!("too many symbolic links lead on from {}", path.display())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn put(path: &Path) -> Result<()> {
        write(path, b"new", 0o600, Durability::Atomic)
    }

    #[test]
    fn a_regular_file_is_replaced_and_its_links_stay() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir(at("d")).unwrap();
        std::fs::write(at("d/file"), "a longer old text").unwrap();
        std::fs::hard_link(at("d/file"), at("other-name")).unwrap();
        symlink("d/file", at("relative")).unwrap();
        symlink(at("relative"), at("twice")).unwrap();
        symlink("d/new", at("dangling")).unwrap();
        for (name, end) in
            [("twice", "d/file"), ("relative", "d/file"), ("dangling", "d/new"), ("plain", "plain")]
        {
            put(&at(name)).unwrap();
            assert_eq!(std::fs::read_to_string(at(end)).unwrap(), "new", "{name}");
            assert_eq!(at(name).is_symlink(), name != "plain", "{name}");
            assert_eq!(std::fs::metadata(at(end)).unwrap().mode() & 0o777, 0o600);
        }
        // A reader who has it open, or by another name, has the whole old one.
        assert_eq!(std::fs::read_to_string(at("other-name")).unwrap(), "a longer old text");
        let mut names: Vec<_> = std::fs::read_dir(directory.path().join("d"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["file", "new"]);
    }

    #[test]
    fn pipes_and_descriptors_are_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        symlink("pipe", at("link")).unwrap();
        for name in ["pipe", "link"] {
            let reader = std::thread::spawn({
                let pipe = at("pipe");
                move || std::fs::read_to_string(pipe).unwrap()
            });
            put(&at(name)).unwrap();
            assert_eq!(reader.join().unwrap(), "new");
        }
        assert!(at("link").is_symlink() && !at("pipe").is_file());
        // As a shell's `>>` leaves it: what is there stays.
        std::fs::write(at("log"), "before ").unwrap();
        let log = File::options().append(true).open(at("log")).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&log);
        symlink(format!("/proc/self/fd/{number}"), at("stdout")).unwrap();
        for name in [at("stdout"), format!("/dev/fd/{number}").into()] {
            put(&name).unwrap();
        }
        assert_eq!(std::fs::read_to_string(at("log")).unwrap(), "before newnew");
    }

    #[test]
    fn a_device_stays_one() {
        if !crate::testing::needs_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let device = directory.path().join("null");
        let number = rustix::fs::makedev(1, 3);
        mknodat(CWD, &device, FileType::CharacterDevice, Mode::from_raw_mode(0o666), number)
            .unwrap();
        symlink("null", directory.path().join("link")).unwrap();
        for name in ["null", "link"] {
            // A file system may forbid devices; then the attempt fails, and the node stays as well.
            let _ = put(&directory.path().join(name));
            assert_eq!(device.symlink_metadata().unwrap().rdev(), number);
        }
        assert!(directory.path().join("link").is_symlink());
    }

    #[test]
    fn directories_and_endless_links_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir(at("d")).unwrap();
        symlink("d", at("to-d")).unwrap();
        symlink("loop", at("loop")).unwrap();
        for (name, message) in
            [("d", "is a directory"), ("to-d", "is a directory"), ("loop", "too many")]
        {
            let error = put(&at(name)).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
        assert!(at("to-d").is_symlink() && at("loop").is_symlink());
    }
}
