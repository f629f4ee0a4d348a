//! A directory as the root of lookups that cannot leave it: `openat2(RESOLVE_IN_ROOT)`, or a
//! no-follow walk if the kernel lacks openat2. For image trees, mounts and build contexts.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{self, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::{self, Errno};

use crate::error::{Error, IoContext, Result};
use crate::fs::metadata::{FileKind, Metadata};

/// Maximum number of retries: the kernel returns EAGAIN during concurrent renames in the tree,
/// which is brief.
const ATTEMPTS: usize = 64;

/// An open directory. Every path is resolved inside it, including symlinks: an absolute path or
/// target starts at this root, and `..` stops there, as after `chroot`.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    path: PathBuf,
}

impl Root {
    /// Opens `path` as a root. Symlinks in `path` itself are followed.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = fs::openat(CWD, path, flags, Mode::empty()).path("open the directory", path)?;
        Ok(Self::from_fd(fd, path))
    }

    /// Wraps an open directory; messages name it `path`.
    pub fn from_fd(fd: OwnedFd, path: &Path) -> Self {
        Self { fd, path: path.to_owned() }
    }

    /// Returns the path with which it was opened, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file for reading; symlinks are resolved inside the root. Directories, devices, FIFOs
    /// and sockets are refused, and opening one has no effect on it.
    pub fn open_file(&self, path: &Path) -> Result<File> {
        let shown = self.shown(path);
        // Non-blocking; otherwise, opening a FIFO would block until a process writes to it.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = self.resolve(path, flags).path("open", &shown)?;
        let metadata = Metadata::of(&fd).path("examine", &shown)?;
        if metadata.kind != FileKind::File {
            return Err(Error::failed(format!(
                "cannot read {}: it is {}, not a regular file",
                shown.display(),
                describe(metadata.kind)
            )));
        }
        Ok(File::from(fd))
    }

    /// Opens a directory; symlinks are resolved inside the root.
    pub fn open_directory(&self, path: &Path) -> Result<OwnedFd> {
        self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)
            .path("open the directory", self.shown(path))
    }

    /// Returns the metadata of `path`, following symlinks inside the root.
    pub fn metadata(&self, path: &Path) -> Result<Metadata> {
        self.resolve(path, OFlags::PATH).and_then(Metadata::of).path("examine", self.shown(path))
    }

    /// Returns the metadata of `path` itself: symlinks along the path are followed, a final one is
    /// not.
    pub fn symlink_metadata(&self, path: &Path) -> Result<Metadata> {
        self.resolve(path, OFlags::PATH | OFlags::NOFOLLOW)
            .and_then(Metadata::of)
            .path("examine", self.shown(path))
    }

    /// Returns the target of the symlink `path`, as stored.
    pub fn read_link(&self, path: &Path) -> Result<OsString> {
        self.resolve(path, OFlags::PATH | OFlags::NOFOLLOW)
            .and_then(|fd| fs::readlinkat(fd, "", Vec::new()))
            .map(|target| OsString::from_vec(target.into_bytes()))
            .path("read the link", self.shown(path))
    }

    /// Opens `path` inside the root with `flags`.
    fn resolve(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..ATTEMPTS {
            match fs::openat2(&self.fd, path, flags, Mode::empty(), inside) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                // Linux before 5.6, or a sandbox that filters the call.
                Err(Errno::NOSYS | Errno::PERM) => break,
                outcome => return outcome,
            }
        }
        walk_to(self.fd.as_fd(), path, flags)
    }

    fn shown(&self, path: &Path) -> PathBuf {
        let bytes = path.as_os_str().as_bytes();
        let start = bytes.iter().take_while(|byte| **byte == b'/').count();
        self.path.join(OsStr::from_bytes(bytes.get(start..).unwrap_or_default()))
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn describe(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "a file",
        FileKind::Directory => "a directory",
        FileKind::Symlink => "a symlink",
        FileKind::CharDevice | FileKind::BlockDevice => "a device",
        FileKind::Fifo => "a FIFO",
        FileKind::Socket => "a socket",
    }
}

/// Maximum number of symlinks followed in one lookup, as in the kernel.
const MAX_LINKS: usize = 40;
/// Maximum number of directories held open in one lookup.
const MAX_DEPTH: usize = 512;

/// Opens `path` in `root` with `flags`, as `openat2` with `RESOLVE_IN_ROOT` does.
fn walk_to(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::error::Kind;

    type Resolver = fn(&Root, &Path, OFlags) -> io::Result<OwnedFd>;

    /// The kernel's resolution and the compatibility walk.
    const BOTH: [(&str, Resolver); 2] = [
        ("openat2", Root::resolve),
        ("walk", |root, path, flags| walk_to(root.fd.as_fd(), path, flags | OFlags::CLOEXEC)),
    ];

    fn tree() -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("secret"), "outside").unwrap();
        let root = directory.path().join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("secret"), "inside").unwrap();
        std::fs::write(root.join("a/b/file"), "file").unwrap();
        for (target, link) in [
            ("../../../secret", "a/b/up"),
            ("/secret", "a/absolute"),
            ("b", "a/to-b"),
            ("/a/to-b/file", "chain"),
            ("loop", "loop"),
            ("/", "top"),
            ("../..", "a/b/out"),
            ("nowhere", "dangling"),
        ] {
            symlink(target, root.join(link)).unwrap();
        }
        let opened = Root::open(&root).unwrap();
        (directory, opened)
    }

    fn content(fd: OwnedFd) -> String {
        let mut text = String::new();
        File::from(fd).read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn both_resolvers_stay_inside() {
        let (_directory, root) = tree();
        for (path, expected) in [
            ("secret", Ok("inside")),
            ("/secret", Ok("inside")),
            ("../secret", Ok("inside")),
            ("../../../../../secret", Ok("inside")),
            ("a/b/up", Ok("inside")),
            ("a/absolute", Ok("inside")),
            ("a/../secret", Ok("inside")),
            ("a/to-b/../to-b/./file", Ok("file")),
            ("chain", Ok("file")),
            ("top/secret", Ok("inside")),
            ("a/b/out/secret", Ok("inside")),
            ("a/b/out/../secret", Ok("inside")),
            ("loop", Err(Errno::LOOP)),
            ("loop/x", Err(Errno::LOOP)),
            ("dangling", Err(Errno::NOENT)),
            ("secret/x", Err(Errno::NOTDIR)),
            ("secret/", Err(Errno::NOTDIR)),
            ("secret/..", Err(Errno::NOTDIR)),
            ("none/../secret", Err(Errno::NOENT)),
        ] {
            for (resolver, resolve) in BOTH {
                let got = resolve(&root, Path::new(path), OFlags::RDONLY).map(content);
                assert_eq!(got.as_deref().map_err(|e| *e), expected, "{resolver} {path}");
            }
        }
    }

    #[test]
    fn both_resolvers_agree_on_links_and_directories() {
        let (_directory, root) = tree();
        let nofollow = OFlags::PATH | OFlags::NOFOLLOW;
        let folder = OFlags::RDONLY | OFlags::DIRECTORY;
        for (path, flags) in [
            ("a/to-b", nofollow),
            ("loop", nofollow),
            ("a/to-b", OFlags::PATH),
            ("a/to-b/", nofollow),
            ("top", folder),
            (".", folder),
            ("..", folder),
            ("a/b/out", folder),
            ("secret", folder),
            ("a/to-b", folder | OFlags::NOFOLLOW),
        ] {
            let [kernel, ours] = BOTH.map(|(_, resolve)| {
                resolve(&root, Path::new(path), flags)
                    .and_then(Metadata::of)
                    .map(|found| (found.kind, found.ino))
            });
            assert_eq!(kernel, ours, "{path}");
        }
    }

    #[test]
    fn only_regular_files_are_opened_and_a_fifo_does_not_block() {
        let (_directory, root) = tree();
        fs::mkfifoat(&root, "fifo", Mode::RUSR).unwrap();
        for (path, says) in [("fifo", "a FIFO"), ("a", "a directory")] {
            let error = root.open_file(Path::new(path)).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        let error = root.open_file(Path::new("/none")).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.message().ends_with("root/none"), "{error}");
    }

    #[test]
    fn links_are_read_and_examined_without_following() {
        let (_directory, root) = tree();
        let link = Path::new("a/to-b");
        assert_eq!(root.read_link(link).unwrap(), "b");
        assert_eq!(root.symlink_metadata(link).unwrap().kind, FileKind::Symlink);
        assert!(root.metadata(link).unwrap().is_directory());
        assert!(root.read_link(Path::new("secret")).is_err());
    }
}
