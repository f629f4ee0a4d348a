//! One blob of a repository, brought into a store: of a layer, only the parts that other layers of
//! the store do not have. Must not know which image a blob belongs to.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;

use crate::transfer::partial::Partial;
use crate::transfer::partial::local::LocalBlobs;
use crate::transfer::source::{ImageSource, SourceDocument};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest, Reference, Verdict};
use imgctl_registry::Repository;
use imgctl_store::store::Store;

/// Brings `blob` into the store, resuming an earlier attempt, and verifies its digest. `held` are
/// layers of the store that the blob may have parts in common with. `fetched` gets the number of
/// bytes as they come from the repository; the fetch stops if it returns `false`.
pub fn fetch(
    store: &Store,
    repository: &Repository,
    blob: &Descriptor,
    held: &[Descriptor],
    fetched: &(dyn Fn(u64) -> bool + Sync),
) -> Result<()> {
    let local: Box<dyn LocalBlobs> = Box::new(Held { store: store.clone(), layers: held.to_vec() });
    let source = OneRepository { repository: repository.clone() };
    let source = Partial::new(&source, vec![local]);
    let rest = |offset| -> Result<Box<dyn Read + Send + '_>> {
        let reader = source.open(blob, offset)?;
        Ok(Box::new(Counted { reader, source: &source, reused: source.counts().0, fetched }))
    };
    let bring = || store.complete_blob(&blob.digest, blob.size, &rest).map(drop);
    match bring() {
        Err(error) if source.distrust(Some(&blob.digest), &error) => bring(),
        brought => brought,
    }
}

struct OneRepository {
    repository: Repository,
}

impl OneRepository {
    fn no_documents<T>(&self) -> Result<T> {
        Err(Error::failed(format!("only blobs of {} are read", self.describe())))
    }
}

impl ImageSource for OneRepository {
    fn describe(&self) -> String {
        self.repository.name()
    }

    fn root(&self) -> Result<SourceDocument> {
        self.no_documents()
    }

    fn document(&self, _: &Descriptor) -> Result<Vec<u8>> {
        self.no_documents()
    }

    fn open(&self, blob: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        self.repository.blob(blob, offset)
    }

    fn has_ranges(&self) -> bool {
        true
    }

    fn open_ranges(
        &self,
        blob: &Descriptor,
        ranges: Vec<Range<u64>>,
    ) -> Result<Box<dyn Read + Send + 'static>> {
        self.repository.blob_ranges(blob, ranges)
    }

    fn admit(&self, _: &Digest, _: &[Digest]) -> Result<Verdict> {
        self.no_documents()
    }
}

struct Held {
    store: Store,
    layers: Vec<Descriptor>,
}

impl LocalBlobs for Held {
    fn layers(&self, _: Option<&Reference>, related: bool) -> Result<Vec<Descriptor>> {
        Ok(if related { self.layers.clone() } else { Vec::new() })
    }

    fn open(&self, blob: &Descriptor) -> Result<Option<File>> {
        match self.store.open_blob(&blob.digest) {
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }
}

/// Reports what comes from the repository, not what comes from blobs of the store.
struct Counted<'a> {
    reader: Box<dyn Read + Send + 'static>,
    source: &'a Partial<'a>,
    /// Number of bytes that had come from the store at the last report.
    reused: u64,
    fetched: &'a (dyn Fn(u64) -> bool + Sync),
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        let (reused, _) = self.source.counts();
        let own = reused.saturating_sub(self.reused);
        self.reused = reused;
        if (self.fetched)((count as u64).saturating_sub(own)) {
            Ok(count)
        } else {
            Err(Error::new(Kind::Interrupted, "stopped on request").into())
        }
    }
}
