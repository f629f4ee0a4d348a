//! Blobs: bytes stored by digest, and the links that say which repository may read which blob, and
//! which manifests its tags point to.

use std::fs::File;
use std::io::{Read, Write};

use crate::layout::tree::Fresh;
use crate::layout::{Layout, names, paths};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::{Digest, Hasher};

/// Size of the copy buffer, in bytes.
const BUFFER: usize = 256 << 10;

impl Layout {
    /// Returns the size of an existing blob, in bytes.
    pub fn blob_size(&self, digest: &Digest) -> Result<Option<u64>> {
        let metadata = self.tree.metadata(&paths::blob_data(digest))?;
        Ok(metadata.map(|metadata| metadata.size))
    }

    /// Opens a blob and returns its size; `None` if it does not exist.
    pub fn open_blob(&self, digest: &Digest) -> Result<Option<(File, u64)>> {
        let opened = self.tree.open_file(&paths::blob_data(digest))?;
        Ok(opened.map(|(file, metadata)| (file, metadata.size)))
    }

    /// Stores a blob of exactly `size` bytes with this digest, or fails without storing anything.
    /// If a blob of that size exists, it is kept and `content` is not read.
    pub fn put_blob(&self, content: &mut dyn Read, digest: &Digest, size: u64) -> Result<()> {
        if self.blob_size(digest)? == Some(size) {
            return Ok(());
        }
        let path = paths::blob_data(digest);
        let mut fresh = self.tree.create(&path)?;
        let mut hasher = Hasher::with(digest.algorithm());
        let mut buffer = vec![0; BUFFER];
        let mut left = size;
        loop {
            let count = match content.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::io(format!("cannot read blob {digest}"), error)),
            };
            let bytes = buffer.get(..count).unwrap_or_default();
            left = left.checked_sub(count as u64).ok_or_else(|| {
                Error::bad_content(format!("blob {digest} is longer than its {size} bytes"))
            })?;
            hasher.update(bytes);
            fresh.file.write_all(bytes).path("write", self.tree.shown(&path))?;
        }
        if left > 0 {
            return Err(Error::bad_content(format!("blob {digest} ends {left} bytes early")));
        }
        let found = hasher.finish();
        if found != *digest {
            return Err(Error::bad_content(format!("blob {digest} has another content: {found}")));
        }
        self.tree.commit(vec![fresh])
    }

    /// Allows `repository` to read a blob other than a manifest (layer or config).
    pub fn link_layer(&self, repository: &str, digest: &Digest) -> Result<()> {
        self.write_link(&paths::layer_link(names::repository(repository)?, digest), digest)
    }

    /// Points `tag` to `digest`. Writes the history before the current link.
    pub(crate) fn set_tag(&self, repository: &str, tag: &str, digest: &Digest) -> Result<()> {
        let (repository, tag) = (names::repository(repository)?, names::tag(tag)?);
        let history = self.new_link(&paths::tag_history_link(repository, tag, digest), digest)?;
        self.tree.commit(history.into_iter().collect())?;
        self.write_link(&paths::tag_link(repository, tag), digest)
    }

    /// Returns the digest that a tag points to; `None` if the tag does not exist.
    pub fn resolve_tag(&self, repository: &str, tag: &str) -> Result<Option<Digest>> {
        self.read_link(&paths::tag_link(names::repository(repository)?, names::tag(tag)?))
    }

    /// Returns whether `repository` may read the blob (whose bytes may be missing).
    pub fn has_layer(&self, repository: &str, digest: &Digest) -> Result<bool> {
        let link = paths::layer_link(names::repository(repository)?, digest);
        Ok(self.read_link(&link)?.as_ref() == Some(digest))
    }

    /// Returns whether `repository` has the manifest (whose bytes may be missing).
    pub fn has_revision(&self, repository: &str, digest: &Digest) -> Result<bool> {
        let link = paths::revision_link(names::repository(repository)?, digest);
        Ok(self.read_link(&link)?.as_ref() == Some(digest))
    }

    /// Returns the digest in a link file. An empty file was truncated by a power failure and is
    /// ignored.
    pub(super) fn read_link(&self, path: &str) -> Result<Option<Digest>> {
        let Some(bytes) = self.tree.read(path, MAX_LINK)? else {
            return Ok(None);
        };
        // distribution writes no newline, but editors do.
        let text = bytes.trim_ascii();
        if text.is_empty() {
            return Ok(None);
        }
        let digest = std::str::from_utf8(text).ok().and_then(|text| Digest::parse(text).ok());
        digest.map(Some).ok_or_else(|| {
            let path = self.tree.shown(path);
            Error::bad_content(format!("{} contains no digest", path.display()))
        })
    }

    /// Writes a link unless it already exists.
    fn write_link(&self, path: &str, digest: &Digest) -> Result<()> {
        let link = self.new_link(path, digest)?;
        self.tree.commit(link.into_iter().collect())
    }

    /// Prepares a link to be committed; `None` if it already exists.
    pub(super) fn new_link(&self, path: &str, digest: &Digest) -> Result<Option<Fresh>> {
        let text = digest.to_string();
        match self.tree.read(path, MAX_LINK) {
            Ok(Some(old)) if old == text.as_bytes() => Ok(None),
            _ => self.tree.prepare(path, text.as_bytes()).map(Some),
        }
    }
}

/// Maximum size of a link file, in bytes.
const MAX_LINK: u64 = 512;
