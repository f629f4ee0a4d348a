//! Single files of this machine: written atomically, read up to a limit.

use std::borrow::Cow;
use std::fs::{DirBuilder, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::agent::part;
use crate::agent::protocol::{FileToWrite, ReadPart, WritePart};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::image::{Digest, Hasher};

/// Mode of directories created for files written in parts. These files are backups, and the files
/// beside them are private, too.
const PRIVATE_MODE: u32 = 0o700;
/// Maximum length of a part, in bytes.
const LONGEST_PART: u64 = 16 << 20;
/// Number of bytes that are hashed at a time.
const PIECE: usize = 1 << 20;
/// Mode of directories created for all other files.
const DIRECTORY_MODE: u32 = 0o755;

/// Returns `text` as a path that does not depend on the working directory.
pub(super) fn absolute(text: &str) -> Result<PathBuf> {
    let path = Path::new(text);
    let is_plain = !path.components().any(|part| matches!(part, std::path::Component::ParentDir));
    if path.is_absolute() && is_plain && !text.contains('\0') {
        Ok(path.to_owned())
    } else {
        Err(Error::usage(format!("`{text}` is not an absolute path without `..`")))
    }
}

/// Writes a file and creates its parent directories. Returns `true` if content or mode differed. A
/// symlink at the path is replaced.
pub(super) fn write(file: &FileToWrite) -> Result<bool> {
    let path = absolute(&file.path)?;
    let mode = file.mode & 0o7777;
    if is_so(&path, &file.content, mode) {
        return Ok(false);
    }
    make_parent(&path, DIRECTORY_MODE)?;
    atomic::write(&path, &file.content, mode, Durability::Durable)?;
    Ok(true)
}

fn make_parent(path: &Path, mode: u32) -> Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    let made = DirBuilder::new().recursive(true).mode(mode).create(parent);
    made.path("create the directory", parent)
}

fn check_regular(file: &File, path: &Path) -> Result<()> {
    if file.metadata().path("look at", path)?.is_file() {
        return Ok(());
    }
    Err(Error::failed(format!("cannot read {}: it is not a regular file", path.display())))
}

fn is_so(path: &Path, content: &[u8], mode: u32) -> bool {
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return false;
    };
    metadata.is_file()
        && metadata.mode() & 0o7777 == mode
        && metadata.len() == content.len() as u64
        && std::fs::read(path).is_ok_and(|old| old == content)
}

/// Reads a file of at most `limit` bytes; a longer one is an error. Returns `None` if it is
/// missing.
pub(super) fn read(path: &str, limit: u64) -> Result<Option<Vec<u8>>> {
    let path = absolute(path)?;
    // Non-blocking: opening a FIFO would block until another process writes to it.
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let opened = File::options().read(true).custom_flags(flags.cast_signed()).open(&path);
    let file = match opened {
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        opened => opened.path("open", &path)?,
    };
    check_regular(&file, &path)?;
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).path("read", &path)?;
    if bytes.len() as u64 > limit {
        return Err(Error::bad_content(format!("{} has more than {limit} bytes", path.display())));
    }
    Ok(Some(bytes))
}

pub(super) fn read_part(wanted: &ReadPart) -> Result<Vec<u8>> {
    let path = absolute(&wanted.path)?;
    let mut file = File::open(&path).path("open", &path)?;
    check_regular(&file, &path)?;
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(wanted.offset)).path("read", &path)?;
    file.take(wanted.length.min(LONGEST_PART)).read_to_end(&mut bytes).path("read", &path)?;
    if wanted.compress && !bytes.is_empty() { part::compress(&bytes) } else { Ok(bytes) }
}

/// Returns the SHA-256 digest of a file.
pub(super) fn digest(path: &str) -> Result<Digest> {
    let path = absolute(path)?;
    let mut file = File::open(&path).path("open", &path)?;
    check_regular(&file, &path)?;
    let mut hasher = Hasher::new();
    let mut bytes = vec![0; PIECE];
    loop {
        match file.read(&mut bytes).path("read", &path)? {
            0 => return Ok(hasher.finish()),
            length => hasher.update(&bytes[..length]),
        }
    }
}

/// Writes a part of a file to a temporary file beside it. The first part starts it over; the last
/// part renames it into place.
pub(super) fn write_part(part: &WritePart) -> Result<()> {
    let path = absolute(&part.path)?;
    let content = if part.compressed {
        Cow::Owned(part::decompress(&part.content, LONGEST_PART)?)
    } else {
        Cow::Borrowed(&part.content)
    };
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let partial = PathBuf::from(name);
    if part.offset == 0 {
        make_parent(&path, PRIVATE_MODE)?;
    }
    let mut file = File::options()
        .write(true)
        .create(part.offset == 0)
        .truncate(false)
        .mode(part.mode & 0o777)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(&partial)
        .path("open", &partial)?;
    if part.offset > file.metadata().path("look at", &partial)?.len() {
        return Err(Error::failed(format!("part of {} is missing", path.display())));
    }
    file.set_len(part.offset).path("cut", &partial)?;
    file.seek(SeekFrom::End(0)).path("write", &partial)?;
    file.write_all(&content).path("write", &partial)?;
    if !part.is_last {
        return Ok(());
    }
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(part.mode & 0o777))
        .path("set the mode of", &partial)?;
    file.sync_all().path("sync", &partial)?;
    std::fs::rename(&partial, &path).path("rename", &partial)?;
    match path.parent() {
        Some(parent) => atomic::sync_directory(parent),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::error::Kind;

    fn file(path: &Path, mode: u32, content: &[u8]) -> FileToWrite {
        FileToWrite { path: path.to_str().unwrap().to_owned(), mode, content: content.to_vec() }
    }

    #[test]
    fn only_what_differs_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b/c");
        for (mode, content, changed) in [
            (0o600, &b"one"[..], true),
            (0o600, b"one", false),
            (0o600, b"two", true),
            (0o755, b"two", true),
            (0o755, b"", true),
            (0o755, b"", false),
        ] {
            assert_eq!(write(&file(&path, mode, content)).unwrap(), changed);
            let text = path.to_str().unwrap();
            assert_eq!(read(text, 3).unwrap().unwrap(), content);
        }
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o755);
    }

    #[test]
    fn a_program_that_runs_is_replaced_under_itself() {
        let directory = tempfile::tempdir().unwrap();
        for in_parts in [false, true] {
            let path = directory.path().join(format!("program-{in_parts}"));
            std::fs::copy("/bin/sleep", &path).unwrap();
            let mut running = std::process::Command::new(&path).arg("60").spawn().unwrap();
            let busy = File::options().write(true).open(&path).unwrap_err();
            assert_eq!(busy.kind(), std::io::ErrorKind::ExecutableFileBusy);
            let new = std::fs::read("/bin/true").unwrap();
            if in_parts {
                write_part(&WritePart {
                    path: path.to_str().unwrap().to_owned(),
                    mode: 0o755,
                    offset: 0,
                    content: new.clone(),
                    compressed: false,
                    is_last: true,
                })
                .unwrap();
            } else {
                assert!(write(&file(&path, 0o755, &new)).unwrap());
            }
            let runs_on = running.try_wait().unwrap().is_none();
            running.kill().unwrap();
            running.wait().unwrap();
            assert!(runs_on);
            assert_eq!(std::fs::read(&path).unwrap(), new);
            assert!(std::process::Command::new(&path).status().unwrap().success());
        }
    }

    #[test]
    fn a_link_is_replaced_and_its_target_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("t"), directory.path().join("l"));
        std::fs::write(&target, "x").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(write(&file(&link, 0o644, b"x")).unwrap());
        assert!(std::fs::symlink_metadata(&link).unwrap().is_file());
        assert_eq!(std::fs::read(&target).unwrap(), b"x");
    }

    #[test]
    fn a_long_file_goes_in_parts_and_is_there_with_the_last() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/long");
        let text = path.to_str().unwrap().to_owned();
        let part = |offset: u64, content: &[u8], is_last: bool| WritePart {
            path: text.clone(),
            mode: 0o600,
            offset,
            content: content.to_vec(),
            compressed: false,
            is_last,
        };
        assert!(write_part(&part(3, b"x", false)).is_err());
        write_part(&part(0, b"abc", false)).unwrap();
        write_part(&part(3, b"def", false)).unwrap();
        // A part that is sent twice counts once.
        write_part(&part(3, b"def", false)).unwrap();
        assert!(!path.exists());
        write_part(&part(6, b"g", true)).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let read = |offset, length, compress| {
            read_part(&ReadPart { path: text.clone(), offset, length, compress }).unwrap()
        };
        assert_eq!(read(0, 4, false), b"abcd");
        assert_eq!(read(4, 4, false), b"efg");
        for compress in [false, true] {
            assert_eq!(read(9, 4, compress), b"");
        }
        // A frame that was read can be written; a damaged one is refused.
        let frame = read(0, 4, true);
        assert_ne!(frame, b"abcd");
        for (content, is_whole) in [(&frame[..], true), (&frame[..frame.len() - 1], false)] {
            let part = WritePart { compressed: true, ..part(0, content, true) };
            assert_eq!(write_part(&part).is_ok(), is_whole);
            assert_eq!(read(0, 9, false), b"abcd");
        }
        write_part(&part(0, b"abcdefg", true)).unwrap();
        assert_eq!(digest(&text).unwrap(), Digest::of(b"abcdefg"));
        assert!(digest(&format!("{text}.none")).is_err());
        assert!(digest("/dev/zero").is_err());
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let text = path.to_str().unwrap();
        assert!(read(text, 10).unwrap().is_none());
        assert!(read(&format!("{text}/under"), 10).unwrap().is_none());
        std::fs::write(&path, "12345").unwrap();
        assert!(read(&format!("{text}/under"), 10).unwrap().is_none());
        assert_eq!(read(text, 4).unwrap_err().kind(), Kind::BadContent);
        assert!(read(directory.path().to_str().unwrap(), 4).is_err());
        for wrong in ["", "relative", "/a/../b", "/a\0b"] {
            assert_eq!(read(wrong, 4).unwrap_err().kind(), Kind::Usage);
        }
    }
}
