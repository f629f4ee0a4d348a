//! Blobs: bytes stored by digest, regardless of which repository may read them.

use std::fs::File;
use std::io::{Read, Write};

use crate::layout::{Layout, paths};
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
}
