//! Sources of images: registry, store, archive and directory behind one interface for the engine.

use std::io::{self, Read};

use imgctl_base::error::Result;
use imgctl_base::image::{Descriptor, Digest};

/// A document as stored, with the descriptor computed from its bytes.
#[derive(Clone, Debug)]
pub struct SourceDocument {
    pub bytes: Vec<u8>,
    pub descriptor: Descriptor,
}

/// One readable image (or index).
pub trait ImageSource: Sync {
    /// Name for messages: `docker://quay.io/a/b:v1`.
    fn describe(&self) -> String;
    /// The manifest or index that the source's name refers to.
    fn root(&self) -> Result<SourceDocument>;
    /// Returns a document below the root, with its digest verified.
    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>>;
    /// Whether a document that an index lists is known to be missing: sources on disk may hold only
    /// some platforms of an index.
    fn lacks(&self, descriptor: &Descriptor) -> bool {
        let _ = descriptor;
        false
    }
    /// Opens a blob from `offset` on; the blob has exactly `descriptor.size` bytes in total. The
    /// receiver verifies the digest.
    fn open(&self, descriptor: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>>;
    /// Fails unless the policy admits the image. `digest` is that of [`ImageSource::root`];
    /// `manifests` are the selected manifests at or below the root. Called before any blob is
    /// copied.
    fn admit(&self, digest: &Digest, manifests: &[Digest]) -> Result<()> {
        let _ = (digest, manifests);
        Ok(())
    }
    /// Repositories of `registry` that are known to have this blob and from which it can be
    /// mounted.
    fn mountable(&self, registry: &str, digest: &Digest) -> Vec<String> {
        let _ = (registry, digest);
        Vec::new()
    }
}

/// A reader of a blob that reports bytes to `moved` as they are read.
pub fn counted<'a>(
    reader: Box<dyn Read + Send + 'static>,
    moved: &'a (dyn Fn(u64) + Sync),
) -> Box<dyn Read + Send + 'a> {
    Box::new(Counted { reader, moved })
}

struct Counted<'a> {
    reader: Box<dyn Read + Send + 'static>,
    moved: &'a (dyn Fn(u64) + Sync),
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        (self.moved)(count as u64);
        Ok(count)
    }
}
