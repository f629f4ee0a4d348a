//! Adds the content of `registry/` in layers to the host's registry directory.
//!
//! Blobs are stored under their digest: an existing blob of the right length is left alone; a new
//! one is hashed while it is written, and rejected if the digest does not match its name. Links and
//! tags are replaced as whole files, so that a registry serving the directory never reads a partial
//! one. Nothing is ever removed: whiteouts are ignored. Nothing is written outside of the
//! directory, whatever the paths are: every call names one component of a directory that was
//! reached without following links.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::agent::tree::registry_layers::{Brought, is_tag, is_tag_whole};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::directory;
use imgctl_base::fs::metadata::{FileKind, Metadata};
use imgctl_base::image::{Algorithm, Digest, Hasher};
use imgctl_layer::whiteout::{Marker, marker};
use imgctl_layer::{Entry, EntryKind, LayerPath};

/// Directory in images that holds the registry's data.
const REGISTRY: &[u8] = b"registry";
/// Suffix of a file's name until the file is complete.
const TEMPORARY: &str = ".imgctl-part";

pub(super) fn is_registry(path: &LayerPath) -> bool {
    path.components().next() == Some(REGISTRY)
}

/// Writes to one registry directory.
pub(super) struct RegistryData {
    root: PathBuf,
    top: OwnedFd,
    /// The directory last written to, with its path. Cached because entries are grouped by
    /// directory.
    last: Option<(LayerPath, OwnedFd)>,
    /// Files added by the current layer.
    brought: Vec<Brought>,
    /// The current layer has been applied before: existing tags belong to later layers.
    repairs: bool,
    /// Number of new bytes.
    pub(super) written: u64,
    pub(super) notes: Vec<String>,
}

impl RegistryData {
    /// Opens `root`, creating it if it is missing.
    pub(super) fn open(root: &Path) -> Result<Self> {
        std::fs::create_dir_all(root).path("create the directory", root)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = fs::openat(CWD, root, flags, Mode::empty()).path("open the directory", root)?;
        Ok(Self {
            root: root.to_owned(),
            top,
            last: None,
            brought: Vec::new(),
            repairs: false,
            written: 0,
            notes: Vec::new(),
        })
    }

    /// Starts a layer; `repairs` says that the layer has been applied before and was damaged since.
    pub(super) fn begin(&mut self, repairs: bool) {
        self.repairs = repairs;
        self.brought.clear();
    }

    /// Ends the layer and returns the files that it added.
    pub(super) fn end(&mut self) -> Vec<Brought> {
        std::mem::take(&mut self.brought)
    }

    /// Applies one entry below `registry`.
    pub(super) fn apply(&mut self, entry: &Entry, content: &mut dyn BufRead) -> Result<()> {
        if marker(&entry.path)? != Marker::None {
            return Ok(());
        }
        let inner = inner(&entry.path)?;
        match &entry.kind {
            EntryKind::Directory => self.enter(&inner).map(drop),
            EntryKind::File { .. } => {
                self.file(&inner, entry.size(), content)?;
                self.brings(inner, Some(entry.size()));
                Ok(())
            }
            EntryKind::HardLink { target } => {
                self.hard_link(&inner, target)?;
                self.brings(inner, None);
                Ok(())
            }
            _ => {
                if self.notes.len() < 10 {
                    self.notes
                        .push(format!("skipped {} of the registry: it is not a file", entry.path));
                }
                Ok(())
            }
        }
    }

    fn brings(&mut self, path: LayerPath, size: Option<u64>) {
        self.brought.push(Brought { path, size });
    }

    /// Opens a directory, creating missing components.
    fn enter(&mut self, path: &LayerPath) -> Result<&OwnedFd> {
        if self.last.as_ref().is_none_or(|(last, _)| last != path) {
            let shown = self.root.join(path.as_path());
            let mut fd = self.top.try_clone().path("open the directory", &self.root)?;
            for name in path.components() {
                match fs::mkdirat(&fd, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error).path("create the directory", &shown),
                }
                fd = directory::open(&fd, name).path("open the directory", &shown)?;
            }
            self.last = Some((path.clone(), fd));
        }
        match &self.last {
            Some((_, fd)) => Ok(fd),
            None => Ok(&self.top),
        }
    }

    fn file(&mut self, path: &LayerPath, size: u64, content: &mut dyn BufRead) -> Result<()> {
        let shown = self.root.join(path.as_path());
        let name = file_name(path)?.to_owned();
        let digest = blob_digest(path);
        let is_tag_of_others = self.repairs && is_tag(path) && is_tag_whole(&self.root, path);
        let directory = self.enter(&path.parent().unwrap_or_default())?;
        let is_here = Metadata::at(directory, &*name)
            .is_ok_and(|found| found.kind == FileKind::File && found.size == size);
        if digest.is_some() && is_here || is_tag_of_others {
            return Ok(());
        }
        let written = write(directory, &name, digest.as_ref(), content);
        let written = written.map_err(|error| match error {
            Failed::Io(error) => Error::io(format!("cannot write {}", shown.display()), error),
            Failed::Digest(found) => Error::bad_content(format!(
                "{} has the digest {found}: the image is damaged",
                shown.display()
            ))
            .hint("build or pull the image again, then run the same command"),
        })?;
        self.written += written;
        Ok(())
    }

    /// Creates a hard link inside the registry; a target outside of it is rejected.
    fn hard_link(&mut self, path: &LayerPath, target: &LayerPath) -> Result<()> {
        let shown = self.root.join(path.as_path());
        if !is_registry(target) {
            return Err(Error::bad_content(format!(
                "{path} is a symlink to {target}, which is not in the registry"
            )));
        }
        let target = inner(target)?;
        let source = self
            .enter(&target.parent().unwrap_or_default())?
            .try_clone()
            .path("open the directory of", &shown)?;
        let name = file_name(path)?.to_owned();
        let directory = self.enter(&path.parent().unwrap_or_default())?;
        let temporary = temporary(&name);
        let _ = fs::unlinkat(directory, &*temporary, fs::AtFlags::empty());
        fs::linkat(&source, file_name(&target)?, directory, &*temporary, fs::AtFlags::empty())
            .and_then(|()| fs::renameat(directory, &*temporary, directory, &*name))
            .path("link", &shown)?;
        // Renaming a file onto another link to the same file leaves both names.
        let _ = fs::unlinkat(directory, &*temporary, fs::AtFlags::empty());
        Ok(())
    }
}

enum Failed {
    Io(io::Error),
    Digest(Digest),
}

impl<E: Into<io::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::Io(error.into())
    }
}

fn write(
    directory: &OwnedFd,
    name: &[u8],
    digest: Option<&Digest>,
    content: &mut dyn BufRead,
) -> std::result::Result<u64, Failed> {
    let temporary = temporary(name);
    match fs::unlinkat(directory.as_fd(), &*temporary, fs::AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = fs::openat(directory, &*temporary, flags, Mode::from_raw_mode(0o644))?;
    let mut file = File::from(fd);
    let mut hasher = digest.map(|digest| Hasher::with(digest.algorithm()));
    let mut total = 0;
    let copied = (|| -> io::Result<()> {
        loop {
            let bytes = content.fill_buf()?;
            if bytes.is_empty() {
                return fs::fchmod(&file, Mode::from_raw_mode(0o644)).map_err(Into::into);
            }
            if let Some(hasher) = &mut hasher {
                hasher.update(bytes);
            }
            file.write_all(bytes)?;
            let count = bytes.len();
            content.consume(count);
            total += count as u64;
        }
    })();
    let found = hasher.map(Hasher::finish);
    let wrong = found.filter(|found| Some(found) != digest);
    if copied.is_err() || wrong.is_some() {
        let _ = fs::unlinkat(directory, &*temporary, fs::AtFlags::empty());
    }
    copied?;
    if let Some(found) = wrong {
        return Err(Failed::Digest(found));
    }
    fs::renameat(directory, &*temporary, directory, name)?;
    Ok(total)
}

/// The name need not be unique, because only one checkout at a time writes here.
fn temporary(name: &[u8]) -> Vec<u8> {
    let mut temporary = name.get(..name.len().min(200)).unwrap_or(name).to_vec();
    temporary.extend_from_slice(TEMPORARY.as_bytes());
    temporary
}

fn file_name(path: &LayerPath) -> Result<&[u8]> {
    path.file_name().ok_or_else(|| Error::bad_content("the image's registry is not a directory"))
}

/// Returns the path below `registry`.
fn inner(path: &LayerPath) -> Result<LayerPath> {
    let bytes = path.as_bytes();
    LayerPath::parse(bytes.get(REGISTRY.len()..).unwrap_or_default())
}

/// Returns the digest that a blob's path names: `docker/registry/v2/blobs/sha256/ab/abcd…/data`.
fn blob_digest(path: &LayerPath) -> Option<Digest> {
    let text = std::str::from_utf8(path.as_bytes()).ok()?;
    let rest = text.strip_prefix("docker/registry/v2/blobs/")?;
    let mut parts = rest.split('/');
    let (algorithm, two, hex, data) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if data != "data" || parts.next().is_some() || !hex.starts_with(two) {
        return None;
    }
    let known = [Algorithm::Sha256, Algorithm::Sha384, Algorithm::Sha512];
    known.iter().find(|known| known.as_str() == algorithm)?;
    Digest::parse(&format!("{algorithm}:{hex}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, content: &str) -> Entry {
        let size = content.len() as u64;
        Entry::new(LayerPath::parse(path.as_bytes()).unwrap(), EntryKind::File { size }, 0o644)
    }

    fn apply(data: &mut RegistryData, path: &str, content: &str) -> Result<()> {
        data.apply(&file(path, content), &mut content.as_bytes())
    }

    fn blob(content: &str) -> String {
        let digest = Digest::of(content.as_bytes());
        format!(
            "registry/docker/registry/v2/blobs/sha256/{}/{}/data",
            &digest.hex()[..2],
            digest.hex()
        )
    }

    #[test]
    fn blobs_are_checked_and_kept_and_links_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let mut data = RegistryData::open(&directory.path().join("registry")).unwrap();
        let path = blob("content");
        apply(&mut data, &path, "content").unwrap();
        assert_eq!(data.written, 7);
        let inode = |path: &str| {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(directory.path().join(path)).unwrap().ino()
        };
        let before = inode(&path);
        apply(&mut data, &path, "content").unwrap();
        assert_eq!((data.written, inode(&path)), (7, before));
        let link = "registry/docker/registry/v2/repositories/a/_manifests/tags/v1/current/link";
        for content in ["sha256:aa", "sha256:bb"] {
            apply(&mut data, link, content).unwrap();
            assert_eq!(std::fs::read_to_string(directory.path().join(link)).unwrap(), content);
        }
        let error = apply(&mut data, &blob("other"), "wrong").unwrap_err();
        assert!(error.to_string().contains("damaged"), "{error}");
        assert!(!directory.path().join(blob("other")).exists());
        // A whiteout removes nothing.
        apply(&mut data, "registry/docker/.wh.registry", "").unwrap();
        assert!(directory.path().join(&path).exists());
    }

    #[test]
    fn a_repair_leaves_what_later_layers_mean_by_a_tag() {
        let directory = tempfile::tempdir().unwrap();
        let mut data = RegistryData::open(&directory.path().join("registry")).unwrap();
        let tag = "registry/docker/registry/v2/repositories/a/_manifests/tags/v1/current/link";
        let now = || std::fs::read_to_string(directory.path().join(tag)).unwrap();
        let (first, second) = (Digest::of(b"1").to_string(), Digest::of(b"2").to_string());
        for (repairs, there, brought, left) in [
            (false, "", &first, &first),
            (false, "", &second, &second),
            (true, "", &first, &second),
            (true, "sha256:torn", &first, &first),
        ] {
            if !there.is_empty() {
                std::fs::write(directory.path().join(tag), there).unwrap();
            }
            data.begin(repairs);
            apply(&mut data, tag, brought).unwrap();
            assert_eq!(&now(), left);
            let said = data.end();
            assert_eq!(said.len(), 1);
            assert_eq!(said[0].size, Some(brought.len() as u64));
        }
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        let mut data = RegistryData::open(&directory.path().join("registry")).unwrap();
        std::os::unix::fs::symlink(&outside, directory.path().join("registry/docker")).unwrap();
        assert!(apply(&mut data, "registry/docker/x", "y").is_err());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }
}
