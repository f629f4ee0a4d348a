//! A cache in a directory: an OCI image layout, each file written aside and renamed. Writers hold its
//! lock; readers need none.

use std::collections::HashSet;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cache::place::{CachePlace, Named, Opener};
use crate::cache::records::ARTIFACT;
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::image::descriptor::REF_NAME;
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest, Document, Index};

/// File name prefix of a blob that is being written.
const PART: &str = ".part-";

/// A tag in a layout.
pub(crate) struct DirectoryPlace {
    path: PathBuf,
    tag: String,
    parts: AtomicU32,
}

impl DirectoryPlace {
    /// Does not access the directory yet.
    pub(crate) fn new(path: &Path, tag: &str) -> Self {
        Self { path: path.to_owned(), tag: tag.to_owned(), parts: AtomicU32::new(0) }
    }

    fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.path.join("blobs").join(digest.algorithm().as_str()).join(digest.hex())
    }

    fn index(&self) -> Result<Option<Index>> {
        let path = self.path.join("index.json");
        let Some(bytes) = read(&path)? else { return Ok(None) };
        Index::parse(&bytes).map(Some).map_err(|error| {
            Error::bad_content(format!("{} is malformed", path.display())).caused_by(error)
        })
    }

    fn entry(&self) -> Result<Option<Descriptor>> {
        let index = self.index()?;
        let mut entries = index.into_iter().flat_map(|index| index.manifests);
        Ok(entries.find(|entry| entry.ref_name() == Some(&self.tag)))
    }

    fn prepare(&self) -> Result<()> {
        atomic::make_below(&self.path, &["blobs", "sha256"])?;
        let version = self.path.join("oci-layout");
        if !version.exists() {
            let text = br#"{"imageLayoutVersion":"1.0.0"}"#;
            atomic::write(&version, text, 0o644, Durability::Atomic)?;
        }
        Ok(())
    }

    /// Removes blobs that no cache in the directory names. A directory with anything else in it is
    /// left alone.
    fn sweep(&self, index: &Index) -> Result<()> {
        let mut named = HashSet::new();
        let mut pending = index.manifests.clone();
        while let Some(entry) = pending.pop() {
            named.insert(entry.digest.clone());
            let bytes = self.document(&entry)?;
            let (artifact, parts) = match Document::parse(&bytes, Some(&entry.media_type))? {
                Document::Index(index) => {
                    pending.extend(index.manifests);
                    (index.artifact_type, Vec::new())
                }
                Document::Manifest(manifest) => {
                    let mut parts = manifest.layers;
                    parts.push(manifest.config);
                    (manifest.artifact_type, parts)
                }
            };
            if artifact.as_deref() != Some(ARTIFACT) {
                return Ok(());
            }
            named.extend(parts.into_iter().map(|part| part.digest));
        }
        let directory = atomic::make_below(&self.path, &["blobs", "sha256"])?;
        for entry in std::fs::read_dir(&directory).path("list", &directory)? {
            let entry = entry.path("list", &directory)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let digest = Digest::parse(&format!("sha256:{name}"));
            if name.starts_with(PART) || digest.is_ok_and(|digest| !named.contains(&digest)) {
                let path = entry.path();
                std::fs::remove_file(&path).path("remove", &path)?;
            }
        }
        Ok(())
    }
}

impl CachePlace for DirectoryPlace {
    fn digest(&self) -> Result<Option<Digest>> {
        Ok(self.entry()?.map(|entry| entry.digest))
    }

    fn root(&self) -> Result<Option<(Descriptor, Vec<u8>)>> {
        let Some(entry) = self.entry()? else { return Ok(None) };
        let bytes = self.document(&entry)?;
        Ok(Some((entry, bytes)))
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        let path = self.blob_path(&descriptor.digest);
        let bytes = read(&path)?
            .ok_or_else(|| Error::not_found(format!("{} does not exist", path.display())))?;
        if Digest::of(&bytes) != descriptor.digest {
            return Err(Error::bad_content(format!("{} has other content", path.display())));
        }
        Ok(bytes)
    }

    fn open(&self, blob: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        let path = self.blob_path(&blob.digest);
        let mut file = atomic::open_regular(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                Error::not_found(format!("{} does not exist", path.display()))
            }
            _ => Error::io(format!("cannot open {}", path.display()), error),
        })?;
        file.seek(SeekFrom::Start(offset)).path("read", &path)?;
        Ok(Box::new(file))
    }

    fn put_blob(&self, blob: &Descriptor, open: &Opener<'_>) -> Result<u64> {
        if self.has_blob(blob)? {
            return Ok(0);
        }
        self.prepare()?;
        let path = self.blob_path(&blob.digest);
        let directory =
            atomic::make_below(&self.path, &["blobs", blob.digest.algorithm().as_str()])?;
        let number = self.parts.fetch_add(1, Ordering::Relaxed);
        let part = directory.join(format!("{PART}{}-{number}", std::process::id()));
        let written = copy(open, &part, blob.size);
        let renamed = written.and_then(|()| std::fs::rename(&part, &path).path("create", &path));
        if renamed.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        renamed.map(|()| blob.size)
    }

    fn has_blob(&self, blob: &Descriptor) -> Result<bool> {
        let path = self.blob_path(&blob.digest);
        Ok(std::fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() == blob.size))
    }

    fn put_document(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
        self.prepare()?;
        atomic::write(&self.blob_path(&descriptor.digest), bytes, 0o644, Durability::Atomic)
    }

    fn put_root(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<Named> {
        self.put_document(descriptor, bytes)?;
        let mut index = match self.index() {
            Ok(index) => index.unwrap_or_else(|| Index::new(Vec::new())),
            // The table of a cache is replaced when it is damaged, as the cache itself is.
            Err(error) if error.kind() == Kind::BadContent => Index::new(Vec::new()),
            Err(error) => return Err(error),
        };
        index.manifests.retain(|entry| entry.ref_name() != Some(&self.tag));
        let mut entry = descriptor.clone();
        entry.artifact_type = Some(ARTIFACT.to_owned());
        entry.annotations.insert(REF_NAME.to_owned(), self.tag.clone());
        index.manifests.push(entry);
        let text = serde_json::to_vec(&index)
            .map_err(|error| Error::failed("cannot write index.json").caused_by(error))?;
        atomic::write(&self.path.join("index.json"), &text, 0o644, Durability::Atomic)?;
        if let Err(error) = self.sweep(&index) {
            tracing::debug!("cannot remove old blobs from {}: {error}", self.path.display());
        }
        Ok(Named::Surely)
    }

    fn lock(&self) -> Result<Option<Lock>> {
        self.prepare()?;
        let waiting = &mut || {
            tracing::info!("waiting for another process that writes {}", self.path.display());
        };
        Lock::acquire(&self.path.join(".imgctl.lock"), Mode::Exclusive, waiting).map(Some)
    }

    fn remember(&self, _blobs: &[&Digest]) {}
}

fn copy(open: &Opener<'_>, to: &Path, size: u64) -> Result<()> {
    let mut file = atomic::create_anew(to)?;
    let copied = io::copy(&mut open(0)?, &mut file).path("write", to)?;
    if copied != size {
        return Err(Error::bad_content(format!("{copied} bytes came instead of {size}")));
    }
    Ok(())
}

/// Reads a document; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let file = match atomic::open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format!("cannot open {}", path.display()), error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_DOCUMENT + 1).read_to_end(&mut bytes).path("read", path)?;
    if bytes.len() as u64 > MAX_DOCUMENT {
        return Err(Error::bad_content(format!("{} is too large", path.display())));
    }
    Ok(Some(bytes))
}
