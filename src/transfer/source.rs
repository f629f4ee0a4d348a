//! Where images come from: a registry, the store, an archive, a directory; all alike to the engine.

use std::io::{self, Read};

use crate::error::Result;
use crate::image::{Descriptor, Digest};

/// A document as it is kept, with the descriptor computed over its bytes.
#[derive(Clone, Debug)]
pub(crate) struct SourceDocument {
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptor: Descriptor,
}

/// One image (or index) that can be read.
pub(crate) trait ImageSource: Sync {
    /// For messages: `docker://quay.io/a/b:v1`.
    fn describe(&self) -> String;
    /// The manifest or index that the source's name means.
    fn root(&self) -> Result<SourceDocument>;
    /// A document below the root, digest checked.
    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>>;
    /// Whether a document that an index lists is known not to be here: places on disk may hold some
    /// platforms of an index only.
    fn lacks(&self, descriptor: &Descriptor) -> bool {
        let _ = descriptor;
        false
    }
    /// A blob's bytes from `offset` on; exactly `descriptor.size` in all. The receiver hashes.
    fn open(&self, descriptor: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>>;
    /// Fails unless the image may be used. `digest` is that of [`ImageSource::root`], `manifests`
    /// are those of it, or listed below it, that are wanted. Asked before anything is moved.
    fn admit(&self, digest: &Digest, manifests: &[Digest]) -> Result<()> {
        let _ = (digest, manifests);
        Ok(())
    }
    /// The repositories of `registry` that are known to have this blob, for mounting it from there.
    fn mountable(&self, registry: &str, digest: &Digest) -> Vec<String> {
        let _ = (registry, digest);
        Vec::new()
    }
}

/// A reader of a blob that tells `moved` the bytes as they come.
pub(super) fn counted<'a>(
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
