//! Reads and replaces files of a tree without leaving the tree.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::fs::directory;
use imgctl_base::fs::metadata::{FileKind, Metadata};
use imgctl_base::fs::root::Root;
use imgctl_layer::LayerPath;

/// Maximum size of a file, in bytes.
const LONGEST: u64 = 32 << 20;
/// Suffix of a file's temporary name while it is being written.
const TEMPORARY: &[u8] = b".imgctl-render";

pub(super) struct Files {
    root: Root,
}

pub(super) struct Found {
    pub(super) bytes: Vec<u8>,
    /// Permission bits.
    pub(super) mode: u32,
}

impl Files {
    pub(super) fn open(root: &Path) -> Result<Self> {
        Ok(Self { root: Root::open(root)? })
    }

    /// Reads a file and follows links inside the tree. Returns `None` if the file does not exist.
    pub(super) fn read(&self, path: &LayerPath) -> Result<Option<Found>> {
        let file = match self.root.open_file(path.as_path()) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            file => file?,
        };
        let metadata = Metadata::of(&file).path("examine", path.as_path())?;
        let mut bytes = Vec::new();
        file.take(LONGEST + 1).read_to_end(&mut bytes).path("read", path.as_path())?;
        if bytes.len() as u64 > LONGEST {
            return Err(Error::bad_content(format!(
                "cannot render {path}: it is longer than {LONGEST} bytes"
            )));
        }
        Ok(Some(Found { bytes, mode: metadata.mode & 0o7777 }))
    }

    /// Atomically replaces a file, or the link in its place. Creates missing parent directories.
    pub(super) fn write(&self, path: &LayerPath, bytes: &[u8], mode: u32) -> Result<()> {
        let Some(name) = path.file_name() else {
            return Err(Error::usage("the tree itself is not a file"));
        };
        let parent = self.directory(&path.parent().unwrap_or_default())?;
        let temporary = [name.get(..name.len().min(200)).unwrap_or(name), TEMPORARY].concat();
        let _ = fs::unlinkat(&parent, &*temporary, AtFlags::empty());
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let written = fs::openat(&parent, &*temporary, flags, Mode::RUSR | Mode::WUSR)
            .map_err(std::io::Error::from)
            .and_then(|fd| {
                let mut file = File::from(fd);
                file.write_all(bytes)?;
                fs::fchmod(&file, Mode::from_raw_mode(mode))?;
                fs::renameat(&parent, &*temporary, &parent, name)?;
                Ok(())
            });
        if written.is_err() {
            let _ = fs::unlinkat(&parent, &*temporary, AtFlags::empty());
        }
        written.path("write", path.as_path())
    }

    /// Opens a directory and follows links inside the tree. Creates missing directories.
    fn directory(&self, path: &LayerPath) -> Result<OwnedFd> {
        let top = self.root.as_fd().try_clone_to_owned();
        let mut current = top.path("open", self.root.path())?;
        let mut sofar = LayerPath::root();
        for name in path.components() {
            sofar = sofar.join(name);
            current = match self.root.open_directory(sofar.as_path()) {
                Err(error) if error.kind() == Kind::NotFound => {
                    match fs::mkdirat(&current, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => {
                            return Err(error).path("create the directory", sofar.as_path());
                        }
                    }
                    directory::open(&current, name).path("open the directory", sofar.as_path())?
                }
                opened => opened?,
            };
        }
        Ok(current)
    }

    /// Returns the files and links in and below `top` whose path matches `wanted`, sorted. Returns
    /// nothing if `top` does not exist.
    pub(super) fn find(
        &self,
        top: &LayerPath,
        wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<LayerPath>> {
        let mut found = Vec::new();
        match self.root.metadata(top.as_path()) {
            Ok(metadata) if metadata.is_directory() => {}
            _ => return Ok(found),
        }
        let mut pending = vec![top.clone()];
        while let Some(path) = pending.pop() {
            let fd = self.root.open_directory(path.as_path())?;
            for name in directory::names(&fd).path("list", path.as_path())? {
                let inner = path.join(name.name.to_bytes());
                match name.kind {
                    FileKind::Directory => pending.push(inner),
                    FileKind::File | FileKind::Symlink if wanted(inner.as_bytes()) => {
                        found.push(inner);
                    }
                    _ => {}
                }
            }
        }
        found.sort();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> LayerPath {
        LayerPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn links_lead_nowhere_outside() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        let outside = directory.path().join("outside");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("secret"), "s").unwrap();
        std::os::unix::fs::symlink(&outside, root.join("etc/out")).unwrap();
        std::os::unix::fs::symlink(outside.join("secret"), root.join("etc/file")).unwrap();
        let files = Files::open(&root).unwrap();
        assert!(files.read(&path("etc/file")).unwrap().is_none());
        assert!(files.read(&path("etc/out/secret")).unwrap().is_none());
        assert!(files.write(&path("etc/out/new"), b"x", 0o644).is_err());
        // Writing replaces the link itself.
        files.write(&path("etc/file"), b"x", 0o640).unwrap();
        assert_eq!(files.read(&path("etc/file")).unwrap().unwrap().mode, 0o640);
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
        assert_eq!(std::fs::read(outside.join("secret")).unwrap(), b"s");
        files.write(&path("a/b/c"), b"new", 0o755).unwrap();
        let all = files.find(&path("etc"), &|_| true).unwrap();
        assert_eq!(all, [path("etc/file"), path("etc/out")]);
        assert!(files.find(&path("none"), &|_| true).unwrap().is_empty());
    }
}
