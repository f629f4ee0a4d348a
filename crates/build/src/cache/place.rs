//! The interface of a place that keeps a cache. Must not know which places there are.

use std::io::Read;

use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::fs::lock::Lock;
use imgctl_base::image::{Descriptor, Digest, Hasher, Reference};

/// Opens a blob of the store from an offset on.
pub(crate) type Opener<'a> = dyn Fn(u64) -> Result<Box<dyn Read + Send + 'static>> + Sync + 'a;

/// What is certain after a writer has set the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// No other writer has come between.
    Surely,
    /// Another writer may have set it at the same time; the name must be read again.
    Perhaps,
    /// Another writer was first, and this one has changed nothing.
    Beaten,
}

/// Reads and writes a cache at one place.
pub(crate) trait CachePlace: Send + Sync {
    /// Returns the digest that the name refers to now; `None` if there is no cache.
    fn digest(&self) -> Result<Option<Digest>>;
    /// Returns the document that the name refers to.
    fn root(&self) -> Result<Option<(Descriptor, Vec<u8>)>>;
    /// Returns a document by its digest, which is verified.
    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>>;
    /// Opens a blob from `offset` on; the caller verifies its digest.
    fn open(&self, blob: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>>;
    /// Writes a blob unless it is there; returns the number of bytes that were sent.
    fn put_blob(&self, blob: &Descriptor, open: &Opener<'_>) -> Result<u64>;
    /// Reports whether a blob is there.
    fn has_blob(&self, blob: &Descriptor) -> Result<bool>;
    /// Writes a document under its digest.
    fn put_document(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()>;
    /// Writes the document that the name will refer to, unless that is all the name is.
    fn prepare_root(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
        self.put_document(descriptor, bytes)
    }
    /// Sets the name, which had the value that [`CachePlace::digest`] has returned last.
    fn put_root(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<Named>;
    /// Removes documents that nothing refers to any more, where the place allows that. They cost
    /// space at worst.
    fn remove_documents(&self, _old: &[Digest]) {}
    /// Keeps other writers away for as long as the value lives, where that is possible.
    fn lock(&self) -> Result<Option<Lock>>;
    /// Returns the repository that has the blobs, if a push can have a registry take them from there.
    fn repository(&self) -> Option<&Reference> {
        None
    }
    /// Records where these blobs are, so that a push to the same registry need not send them.
    fn remember(&self, blobs: &[&Digest]);
}

/// Reads a blob of at most `limit` bytes into memory and verifies it.
pub(crate) fn small_blob(place: &dyn CachePlace, blob: &Descriptor, limit: u64) -> Result<Vec<u8>> {
    if blob.size > limit {
        return Err(Error::bad_content(format!(
            "blob {} has {} bytes; at most {limit} are allowed",
            blob.digest, blob.size
        )));
    }
    let mut bytes = Vec::new();
    place
        .open(blob, 0)?
        .take(blob.size + 1)
        .read_to_end(&mut bytes)
        .doing(|| format!("cannot read blob {}", blob.digest))?;
    let mut hasher = Hasher::with(blob.digest.algorithm());
    hasher.update(&bytes);
    if bytes.len() as u64 != blob.size || hasher.finish() != blob.digest {
        return Err(Error::bad_content(format!("blob {} has other content", blob.digest)));
    }
    Ok(bytes)
}
