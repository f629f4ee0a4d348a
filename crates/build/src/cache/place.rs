//! Where a cache is kept: a name in a registry, or a directory, behind one interface.

use std::fmt;
use std::io::Read;
use std::path::PathBuf;

use imgctl_base::error::Result;
use imgctl_base::fs::lock::Lock;
use imgctl_base::image::{Descriptor, Digest, Reference};

/// Where a cache is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A tag in a registry; the reference names one.
    Registry(Reference),
    /// A tag in an OCI image layout on disk.
    Directory { path: PathBuf, tag: String },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registry(reference) => write!(f, "{reference}"),
            Self::Directory { path, tag } => write!(f, "{}:{tag}", path.display()),
        }
    }
}

/// Opens a blob of the store from an offset on.
pub(crate) type Opener<'a> = dyn Fn(u64) -> Result<Box<dyn Read + Send + 'static>> + Sync + 'a;

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
    /// Sets the name.
    fn put_root(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()>;
    /// Keeps other writers away for as long as the value lives, where that is possible.
    fn lock(&self) -> Result<Option<Lock>>;
    /// Records where these blobs are, so that a push to the same registry need not send them.
    fn remember(&self, blobs: &[&Digest]);
}
