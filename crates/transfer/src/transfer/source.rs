//! Sources of images: registry, store, archive and directory behind one interface for the engine.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::{Descriptor, Digest, Reference, Verdict};
use imgctl_registry::client::BlobFile;
use imgctl_store::store::Store;

/// A document as stored, with the descriptor computed from its bytes.
#[derive(Clone, Debug)]
pub struct SourceDocument {
    pub bytes: Vec<u8>,
    pub descriptor: Descriptor,
}

/// Artifacts of a store about an image, each with its subject.
pub struct Kept<'a> {
    pub(super) store: &'a Store,
    pub(super) artifacts: Vec<(Digest, Descriptor)>,
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
    /// Opens the file that is the blob, if it is one on this machine.
    fn local_file(&self, descriptor: &Descriptor) -> Option<File> {
        let _ = descriptor;
        None
    }
    /// Whether [`ImageSource::open_ranges`] may work.
    fn has_ranges(&self) -> bool {
        false
    }
    /// Opens ranges of a blob, which are read one after another. The receiver verifies what it makes of
    /// them. Fails with [`Kind::BadContent`](imgctl_base::error::Kind::BadContent) if the source turns out to give whole blobs only.
    fn open_ranges(
        &self,
        descriptor: &Descriptor,
        ranges: Vec<Range<u64>>,
    ) -> Result<Box<dyn Read + Send + 'static>> {
        let _ = ranges;
        let digest = &descriptor.digest;
        Err(Error::failed(format!("{} has no ranges of blob {digest}", self.describe())))
    }
    /// Returns the image's name in a registry.
    fn reference(&self) -> Option<&Reference> {
        None
    }
    /// Asks the policy about the image. `digest` is that of [`ImageSource::root`]; `manifests` are the
    /// selected manifests at or below the root. Called before any blob is copied.
    fn admit(&self, digest: &Digest, manifests: &[Digest]) -> Result<Verdict>;
    /// Returns what is kept with the image on this machine.
    fn kept(&self) -> Result<Option<Kept<'_>>> {
        Ok(None)
    }
    /// Repositories of `registry` that are known to have this blob and from which it can be
    /// mounted.
    fn mountable(&self, registry: &str, digest: &Digest) -> Vec<String> {
        let _ = (registry, digest);
        Vec::new()
    }
}

/// The blobs of a source as a sink receives them.
#[derive(Clone)]
pub struct Blobs<'a> {
    pub(super) source: &'a dyn ImageSource,
    /// Once it is set, another part of the copy has failed, and reading fails as well.
    pub(super) stop: Arc<AtomicBool>,
    /// Receives the number of bytes as they are copied.
    pub(super) moved: &'a (dyn Fn(u64) + Sync),
    /// Repositories that have the blob, in addition to those that the source knows.
    pub(super) mount_from: Vec<String>,
}

impl<'a> Blobs<'a> {
    /// Opens a blob like [`ImageSource::open`]; the caller reports the bytes to `moved`.
    pub(super) fn open(
        &self,
        blob: &Descriptor,
        offset: u64,
    ) -> Result<Box<dyn Read + Send + 'static>> {
        let (reader, stop) = (self.source.open(blob, offset)?, Arc::clone(&self.stop));
        Ok(Box::new(Stoppable { reader, stop }))
    }

    /// Opens a blob like [`ImageSource::local_file`].
    pub(super) fn file(&self, blob: &Descriptor) -> Option<BlobFile> {
        let file = self.source.local_file(blob)?;
        Some(BlobFile { file, stop: Arc::clone(&self.stop) })
    }

    /// Opens a blob and reports the bytes as they are read.
    pub(super) fn read(&self, blob: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'a>> {
        Ok(counted(self.open(blob, offset)?, self.moved))
    }

    /// Returns the repositories of `registry` from which the blob can be mounted.
    pub(super) fn mountable(&self, registry: &str, digest: &Digest) -> Vec<String> {
        let mut all = self.mount_from.clone();
        for name in self.source.mountable(registry, digest) {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        all
    }
}

struct Stoppable {
    reader: Box<dyn Read + Send + 'static>,
    stop: Arc<AtomicBool>,
}

impl Read for Stoppable {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::failed("stopped because another part has failed").into());
        }
        self.reader.read(buffer)
    }
}

/// The bytes of a blob's file from `offset` on.
pub(super) fn from_offset(
    mut file: File,
    offset: u64,
    digest: &Digest,
) -> Result<Box<dyn Read + Send + 'static>> {
    if offset > 0 {
        file.seek(SeekFrom::Start(offset)).doing(|| format!("cannot read blob {digest}"))?;
    }
    Ok(Box::new(file))
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
