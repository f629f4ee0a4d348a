//! Finds and creates mount points inside an untrusted root, and removes them. Every step handles
//! one component relative to a directory descriptor without following links: a symbolic link is
//! text that is resolved here, inside the root. Does not know about mounting.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

use super::spec::Stub;
use imgctl_base::error::{Error, IoContext, Result};

/// Maximum number of links in one path, as in the kernel.
const LINKS: usize = 40;
/// PATH_MAX of Linux; also limits the expansion of links.
const LONGEST_PATH: usize = 4096;

/// Required type of a mount point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// A directory; created if missing.
    Directory,
    /// Anything except a directory; if missing, an empty file is created.
    File,
}

/// A place inside the root.
pub(super) struct Place {
    /// Opened with `O_PATH`, without following links.
    pub(super) fd: OwnedFd,
    /// Components from the root, free of links.
    pub(super) components: Vec<Vec<u8>>,
}

/// Finds `target` inside `root`, resolving links as if `root` were `/`, and creates what is
/// missing. Every created entry is pushed to `stubs`, even if a later step fails.
pub(super) fn place(
    root: BorrowedFd<'_>,
    target: &[u8],
    want: Want,
    stubs: &mut Vec<Stub>,
) -> Result<Place> {
    let shown = String::from_utf8_lossy(target).into_owned();
    let mut pending: VecDeque<Vec<u8>> = split(target, &shown)?.into();
    let mut stack: Vec<(Vec<u8>, OwnedFd)> = Vec::new();
    let mut links = 0;
    while let Some(name) = pending.pop_front() {
        if name == b".." {
            stack.pop();
            continue;
        }
        let parent = stack.last().map_or(root, |(_, fd)| fd.as_fd());
        let last = pending.is_empty();
        let fd = match open_entry(parent, &name) {
            Err(Errno::NOENT) => {
                let directory = !last || want == Want::Directory;
                let path = join(stack.iter().map(|(name, _)| name), &name);
                stubs.push(make(parent, &name, directory, path).doing(|| cannot_make(&shown))?);
                open_entry(parent, &name).doing(|| cannot_make(&shown))?
            }
            other => other.doing(|| format!("cannot open mount point {shown}"))?,
        };
        let kind = kind_of(&fd).doing(|| format!("cannot inspect mount point {shown}"))?;
        if kind == FileType::Symlink {
            links += 1;
            let link = fs::readlinkat(&fd, "", Vec::new())
                .doing(|| format!("cannot read a link in mount point {shown}"))?
                .into_bytes();
            if links > LINKS {
                return Err(Error::bad_content(format!(
                    "mount point {shown} goes through more than {LINKS} symbolic links"
                )));
            }
            if link.starts_with(b"/") {
                stack.clear();
            }
            for component in split(&link, &shown)?.into_iter().rev() {
                pending.push_front(component);
            }
        } else if kind == FileType::Directory || last {
            stack.push((name, fd));
        } else {
            return Err(Error::bad_content(format!(
                "mount point {shown} goes through `{}`, which is not a directory",
                String::from_utf8_lossy(&name)
            )));
        }
    }
    finish(stack, want, &shown)
}

fn finish(stack: Vec<(Vec<u8>, OwnedFd)>, want: Want, shown: &str) -> Result<Place> {
    let (components, mut fds): (Vec<_>, Vec<_>) = stack.into_iter().unzip();
    let Some(fd) = fds.pop() else {
        return Err(Error::usage(format!("cannot mount on {shown}: it is the root directory")));
    };
    let directory = kind_of(&fd).doing(|| format!("cannot inspect mount point {shown}"))?
        == FileType::Directory;
    match (directory, want) {
        (true, Want::File) => Err(Error::usage(format!(
            "cannot mount a file on {shown}: it is a directory in the image"
        ))),
        (false, Want::Directory) => Err(Error::usage(format!(
            "cannot mount a directory on {shown}: it is a file in the image"
        ))),
        _ => Ok(Place { fd, components }),
    }
}

/// Opens a path without links below `root` with `O_PATH`; returns the topmost mount at the path.
pub(super) fn reopen<N: AsRef<[u8]>>(
    root: BorrowedFd<'_>,
    components: impl IntoIterator<Item = N>,
) -> Result<OwnedFd, Errno> {
    let mut here = fs::openat(root, ".", PATH, Mode::empty())?;
    for name in components {
        here = open_entry(here.as_fd(), name.as_ref())?;
        if kind_of(&here)? == FileType::Symlink {
            return Err(Errno::LOOP);
        }
    }
    Ok(here)
}

/// Removes what [`place`] created, in reverse order, and restores the modification times of the
/// parent directories. Entries that have become something else in the meantime (not empty, another
/// file, reached through a link) are left alone: the step changed them, and a clean-up that follows
/// links would delete files of the host.
pub(super) fn remove_stubs(root: BorrowedFd<'_>, stubs: &[Stub]) -> Result<()> {
    for stub in stubs.iter().rev() {
        match remove_stub(root, stub) {
            Ok(())
            | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::LOOP | Errno::NOTDIR) => {}
            Err(error) => {
                return Err(Error::io(
                    format!(
                        "cannot remove the mount point /{} that was made for a RUN step",
                        stub.path.as_path().display()
                    ),
                    error,
                ));
            }
        }
    }
    Ok(())
}

fn remove_stub(root: BorrowedFd<'_>, stub: &Stub) -> Result<(), Errno> {
    let mut components: Vec<&[u8]> = stub.path.0.split(|&byte| byte == b'/').collect();
    let Some(name) = components.pop() else {
        return Ok(());
    };
    let parent = reopen(root, components)?;
    // An O_PATH descriptor cannot set times.
    let parent = fs::openat(
        &parent,
        ".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let now = mtime(&fs::fstat(&parent)?);
    let flags = if stub.directory {
        AtFlags::REMOVEDIR
    } else {
        let stat = fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let ours = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_size == 0
            && stat.st_ino == stub.inode;
        if !ours {
            return Ok(());
        }
        AtFlags::empty()
    };
    fs::unlinkat(&parent, name, flags)?;
    let (seconds, nanoseconds) = if now == stub.parent_after { stub.parent_before } else { now };
    fs::futimens(
        &parent,
        &Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
        },
    )
}

/// Returns a path for a descriptor that mount(2) accepts. `/proc` is still the host's.
pub(super) fn fd_path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Opens a host path for mounting from or onto it.
pub(super) fn open_path(path: &Path) -> Result<OwnedFd, Errno> {
    fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

const PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn open_entry(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    fs::openat(parent, name, PATH, Mode::empty())
}

fn make(
    parent: BorrowedFd<'_>,
    name: &[u8],
    directory: bool,
    path: Vec<u8>,
) -> Result<Stub, Errno> {
    let parent_before = mtime(&fs::fstat(parent)?);
    let mut inode = 0;
    if directory {
        fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
    } else {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(parent, name, flags, Mode::from_raw_mode(0o644))?;
        inode = fs::fstat(file)?.st_ino;
    }
    let parent_after = mtime(&fs::fstat(parent)?);
    Ok(Stub { path: path.into(), directory, inode, parent_before, parent_after })
}

/// Returns the components of a path, without empty ones and `.`.
fn split(path: &[u8], shown: &str) -> Result<Vec<Vec<u8>>> {
    if path.len() >= LONGEST_PATH {
        return Err(Error::bad_content(format!(
            "mount point {shown} is longer than {LONGEST_PATH} bytes"
        )));
    }
    if path.contains(&0) {
        return Err(Error::usage(format!("mount point {shown} contains a NUL byte")));
    }
    Ok(path
        .split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .map(<[u8]>::to_vec)
        .collect())
}

fn join<'a>(parents: impl Iterator<Item = &'a Vec<u8>>, name: &[u8]) -> Vec<u8> {
    let mut path = Vec::new();
    for parent in parents {
        path.extend_from_slice(parent);
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

fn kind_of(fd: &OwnedFd) -> Result<FileType, Errno> {
    Ok(FileType::from_raw_mode(fs::fstat(fd)?.st_mode))
}

fn mtime(stat: &Stat) -> (i64, i64) {
    (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0))
}

fn cannot_make(shown: &str) -> String {
    format!("cannot create mount point {shown}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs as std_fs;
    use std::os::unix::fs::symlink;

    fn open(path: &Path) -> OwnedFd {
        fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    fn root() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std_fs::create_dir_all(dir.path().join("root/etc")).unwrap();
        std_fs::create_dir(dir.path().join("outside")).unwrap();
        dir
    }

    #[test]
    fn links_are_resolved_inside_the_root() {
        let cases = [
            ("/etc/x", "etc/x"),
            ("/abs/x", "etc/x"),
            ("/up/x", "outside/x"),
            ("../../etc/x", "etc/x"),
            ("/dangling", "run/resolve/stub.conf"),
            ("/a//./b/../c", "a/c"),
        ];
        for (target, expected) in cases {
            let dir = root();
            let base = dir.path().join("root");
            symlink("/etc", base.join("abs")).unwrap();
            symlink("../../../outside", base.join("up")).unwrap();
            symlink("../run/resolve/stub.conf", base.join("dangling")).unwrap();
            let root = open(&base);
            let mut stubs = Vec::new();
            let place = place(root.as_fd(), target.as_bytes(), Want::File, &mut stubs).unwrap();
            assert_eq!(place.components.join(&b'/'), expected.as_bytes(), "{target}");
            assert!(base.join(expected).is_file(), "{target}");
            assert!(std_fs::read_dir(dir.path().join("outside")).unwrap().next().is_none());
            remove_stubs(root.as_fd(), &stubs).unwrap();
            assert!(!base.join(expected).exists(), "{target}");
        }
    }

    #[test]
    fn stubs_leave_no_trace_not_even_in_times() {
        let dir = root();
        let base = dir.path().join("root");
        let etc = open(&base.join("etc"));
        let before = fs::fstat(&etc).unwrap();
        let root = open(&base);
        let mut stubs = Vec::new();
        for target in ["/etc/hosts", "/etc/resolv.conf", "/etc/a/b/c"] {
            place(root.as_fd(), target.as_bytes(), Want::File, &mut stubs).unwrap();
        }
        assert_eq!(stubs.len(), 5);
        remove_stubs(root.as_fd(), &stubs).unwrap();
        let after = fs::fstat(&etc).unwrap();
        assert_eq!(mtime(&before), mtime(&after));
        assert!(std_fs::read_dir(base.join("etc")).unwrap().next().is_none());
    }

    #[test]
    fn a_directory_that_the_step_changed_keeps_the_time_of_that_change() {
        let dir = root();
        let base = dir.path().join("root");
        let root = open(&base);
        let mut stubs = Vec::new();
        place(root.as_fd(), b"/etc/hosts", Want::File, &mut stubs).unwrap();
        std_fs::write(base.join("etc/new"), "x").unwrap();
        let changed = (1_700_000_000, 5);
        let etc = std_fs::File::open(base.join("etc")).unwrap();
        let time = Timespec { tv_sec: changed.0, tv_nsec: changed.1 };
        fs::futimens(&etc, &Timestamps { last_access: time, last_modification: time }).unwrap();
        remove_stubs(root.as_fd(), &stubs).unwrap();
        assert_eq!(mtime(&fs::fstat(&etc).unwrap()), changed);
        assert!(!base.join("etc/hosts").exists());
    }

    #[test]
    fn what_became_something_else_is_left_alone() {
        let dir = root();
        let base = dir.path().join("root");
        let root = open(&base);
        let mut stubs = Vec::new();
        place(root.as_fd(), b"/m/victim", Want::File, &mut stubs).unwrap();
        // The step replaces the parent with a link to a directory of the host.
        std_fs::rename(base.join("m"), base.join("n")).unwrap();
        std_fs::write(dir.path().join("outside/victim"), "").unwrap();
        symlink(dir.path().join("outside"), base.join("m")).unwrap();
        remove_stubs(root.as_fd(), &stubs).unwrap();
        assert!(dir.path().join("outside/victim").exists());

        let mut stubs = Vec::new();
        place(root.as_fd(), b"/filled/file", Want::File, &mut stubs).unwrap();
        std_fs::write(base.join("filled/file"), "data").unwrap();
        remove_stubs(root.as_fd(), &stubs).unwrap();
        assert_eq!(std_fs::read(base.join("filled/file")).unwrap(), b"data");
    }

    #[test]
    fn what_cannot_be_a_mount_point_is_said() {
        let dir = root();
        let base = dir.path().join("root");
        std_fs::write(base.join("file"), "x").unwrap();
        symlink("loop", base.join("loop")).unwrap();
        let root = open(&base);
        let cases: [(&[u8], Want, &str); 7] = [
            (b"/", Want::Directory, "the root directory"),
            (b"/etc/..", Want::Directory, "the root directory"),
            (b"/etc", Want::File, "it is a directory"),
            (b"/file", Want::Directory, "it is a file"),
            (b"/file/x", Want::File, "not a directory"),
            (b"/loop/x", Want::File, "more than 40"),
            (b"/a\0b", Want::File, "NUL"),
        ];
        for (target, want, message) in cases {
            let result = place(root.as_fd(), target, want, &mut Vec::new());
            let error = result.err().expect("must fail").to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
