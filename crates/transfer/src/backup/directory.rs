//! Backups in a directory: an OCI image layout that other tools read as well. Blobs of removed backups
//! go unless another entry names them.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::backup::document::Kept;
use crate::transfer::layout::LayoutSink;
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::image::manifest::{MAX_DOCUMENT, Manifest};
use imgctl_base::image::{Descriptor, Digest, Document, Hasher, Index, media_type};
use imgctl_store::store::blobs::copy_hashed;

/// Keeps other backups away while one is written or removed. The layout's own lock is held only while
/// its index changes.
const LOCK: &str = ".imgctl-backup.lock";

pub(super) struct BackupDirectory {
    path: PathBuf,
}

impl BackupDirectory {
    /// Fails if others could read a backup that is not encrypted.
    pub(super) fn check(path: &Path, is_encrypted: bool) -> Result<()> {
        if is_encrypted {
            return Ok(());
        }
        // The blobs are what is secret; a directory that is made now is closed to others.
        for directory in [path.join("blobs"), path.to_owned()] {
            let Ok(metadata) = std::fs::metadata(&directory) else { continue };
            if metadata.permissions().mode() & 0o077 == 0 {
                return Ok(());
            }
            if directory == path {
                let is_empty = std::fs::read_dir(path).is_ok_and(|mut all| all.next().is_none());
                if is_empty {
                    return Ok(());
                }
            }
        }
        if !path.exists() {
            return Ok(());
        }
        Err(Error::denied(format!(
            "others may enter {}, and the backup is not encrypted: it contains the keys of the \
             cluster",
            path.display()
        ))
        .hint(format!("chmod 700 {}, or pass --encrypt-to", path.display())))
    }

    /// Creates the directory if it is missing, and locks it against other backups.
    pub(super) fn prepare(path: &Path) -> Result<Lock> {
        atomic::make_private(path)?;
        let is_new = std::fs::read_dir(path).path("list", path)?.next().is_none();
        LayoutSink::open(path, None)?;
        if is_new {
            let blobs = path.join("blobs");
            std::fs::set_permissions(&blobs, std::fs::Permissions::from_mode(0o700))
                .path("close to others", &blobs)?;
        }
        let waiting = &mut || {
            tracing::info!("waiting for another backup that writes {}", path.display());
        };
        let lock = Lock::acquire(&path.join(LOCK), Mode::Exclusive, waiting)?;
        sweep(&path.join("blobs/sha256"));
        Ok(lock)
    }

    pub(super) fn open(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned() })
    }

    fn index(&self) -> Result<Index> {
        let path = self.path.join("index.json");
        let Some(bytes) = read(&path)? else { return Ok(Index::new(Vec::new())) };
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::bad_content(format!("{} is malformed", path.display())).caused_by(error)
        })
    }

    fn blob(&self, digest: &Digest) -> PathBuf {
        self.path.join("blobs").join(digest.algorithm().as_str()).join(digest.hex())
    }

    fn document(&self, entry: &Descriptor) -> Result<Document> {
        let path = self.blob(&entry.digest);
        let bytes = read(&path)?
            .ok_or_else(|| Error::not_found(format!("{} does not exist", path.display())))?;
        if Digest::of(&bytes) != entry.digest {
            return Err(Error::bad_content(format!("{} has other content", path.display())));
        }
        Document::parse(&bytes, Some(&entry.media_type))
    }

    /// Reads the manifest and all that it names.
    pub(super) fn verify(&self, root: &Descriptor, tag: &str) -> Result<()> {
        let index = self.index()?;
        let entry = index.manifests.iter().find(|entry| entry.ref_name() == Some(tag));
        if entry.is_none_or(|entry| entry.digest != root.digest) {
            return Err(Error::busy(format!(
                "{tag} does not refer to it in {}",
                self.path.display()
            )));
        }
        let Document::Manifest(manifest) = self.document(root)? else {
            return Err(Error::bad_content("its manifest is an index"));
        };
        for blob in blobs(&manifest) {
            let path = self.blob(&blob.digest);
            let mut file = File::open(&path).path("open", &path)?;
            let mut hasher = Hasher::with(blob.digest.algorithm());
            let length = copy_hashed(&mut file, &mut hasher, &mut std::io::sink())?;
            if length != blob.size || hasher.finish() != blob.digest {
                return Err(Error::bad_content(format!("{} has other content", path.display()))
                    .hint("remove that file, check the disk, and make the backup again"));
            }
        }
        Ok(())
    }

    pub(super) fn list(&self) -> Result<Vec<Kept>> {
        let mut found = Vec::new();
        for entry in self.index()?.manifests {
            let Some(tag) = entry.ref_name() else { continue };
            match self.document(&entry) {
                Ok(Document::Manifest(manifest)) => {
                    found.extend(Kept::of(tag, &entry.digest, &manifest));
                }
                Ok(Document::Index(_)) => {}
                // One damaged backup must not hide the others.
                Err(error) => tracing::warn!("{tag} in {}: {error}", self.path.display()),
            }
        }
        Ok(found)
    }

    /// Returns the manifest that has this tag.
    pub(super) fn tagged(&self, tag: &str) -> Result<Option<Digest>> {
        let entries = self.index()?.manifests.into_iter();
        let mut named = entries.filter(|entry| entry.ref_name() == Some(tag));
        Ok(named.next().map(|entry| entry.digest))
    }

    /// Removes backups with these manifests, whether the index still lists them or not, and blobs that
    /// only they have named.
    pub(super) fn remove(&self, digests: &[Digest]) -> Result<()> {
        let _alone = Lock::of_directory(&self.path, Mode::Exclusive)?;
        let mut index = self.index()?;
        index.manifests.retain(|entry| !digests.contains(&entry.digest));
        let gone = digests
            .iter()
            .map(|digest| Descriptor::new(media_type::OCI_MANIFEST, digest.clone(), 0));
        let bytes = serde_json::to_vec(&index)
            .map_err(|error| Error::failed("cannot encode the index").caused_by(error))?;
        // First the names, then what they named.
        atomic::write(&self.path.join("index.json"), &bytes, 0o644, Durability::Durable)?;
        let kept = self.reachable(&index)?;
        let mut removable = Vec::new();
        for entry in gone {
            if let Ok(Document::Manifest(manifest)) = self.document(&entry) {
                removable.extend(blobs(&manifest).map(|blob| blob.digest.clone()));
            }
            removable.push(entry.digest);
        }
        for digest in removable.iter().filter(|digest| !kept.contains(digest)) {
            let path = self.blob(digest);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).path("remove", &path);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the digests of everything that the index names.
    fn reachable(&self, index: &Index) -> Result<HashSet<Digest>> {
        let mut found = HashSet::new();
        let mut pending = index.manifests.clone();
        while let Some(entry) = pending.pop() {
            if !found.insert(entry.digest.clone()) {
                continue;
            }
            match self.document(&entry) {
                Ok(Document::Manifest(manifest)) => {
                    found.extend(blobs(&manifest).map(|blob| blob.digest.clone()));
                }
                Ok(Document::Index(index)) => pending.extend(index.manifests),
                // Other tools list entries of which they have no content.
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => return Err(error.context("no blob is removed")),
            }
        }
        Ok(found)
    }
}

/// Age of an unfinished file that nobody writes any more: longer than any clock is wrong.
const OLD: Duration = Duration::from_secs(3600);

/// Removes what processes of this machine that were killed have left: the snapshot of a cluster may have
/// gigabytes.
fn sweep(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix(".imgctl-").filter(|name| name.ends_with(".tmp"));
        let Some((process, _)) = process.and_then(|name| name.split_once('-')) else { continue };
        let is_alive = Path::new("/proc").join(process).exists();
        let written = entry.metadata().and_then(|metadata| metadata.modified());
        let age = written.ok().and_then(|written| written.elapsed().ok());
        if !is_alive && age.is_some_and(|age| age > OLD) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn blobs(manifest: &Manifest) -> impl Iterator<Item = &Descriptor> {
    manifest.layers.iter().chain([&manifest.config])
}

/// Reads a document; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).path("open", path),
    };
    let mut bytes = Vec::new();
    file.take(MAX_DOCUMENT + 1).read_to_end(&mut bytes).path("read", path)?;
    if bytes.len() as u64 > MAX_DOCUMENT {
        return Err(Error::bad_content(format!("{} is too large", path.display())));
    }
    Ok(Some(bytes))
}
