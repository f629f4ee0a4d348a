//! Blobs that several images share while these go to one place at the same time: each is moved
//! once, by whoever comes first, and the others find it there or have it mounted.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::sync::{Arc, Mutex};

use crate::error::Result;
use crate::image::{Descriptor, Digest};
use crate::transfer::plan::Plan;
use crate::transfer::sink::{ImageSink, Put};
use crate::transfer::source::{ImageSource, SourceDocument};
use crate::transfer::workers::lock;

/// What has been moved so far, and who is moving what.
#[derive(Default)]
pub(super) struct SharedBlobs {
    /// For each blob the repositories that have got it; locked while it moves.
    blobs: Mutex<HashMap<Digest, Arc<Mutex<Vec<String>>>>>,
}

impl SharedBlobs {
    /// `sink`, which writes to `repository`, taking its turns.
    pub(super) fn sink<'a>(&'a self, sink: &'a dyn ImageSink, repository: &'a str) -> Turns<'a> {
        Turns {
            shared: self,
            sink,
            repository,
        }
    }

    fn blob(&self, digest: &Digest) -> Arc<Mutex<Vec<String>>> {
        Arc::clone(lock(&self.blobs).entry(digest.clone()).or_default())
    }
}

/// A source that knows some more repositories to mount from.
struct Offering<'a> {
    source: &'a dyn ImageSource,
    repositories: Vec<String>,
}

impl ImageSource for Offering<'_> {
    fn describe(&self) -> String {
        self.source.describe()
    }

    fn root(&self) -> Result<SourceDocument> {
        self.source.root()
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        self.source.document(descriptor)
    }

    fn open(&self, descriptor: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        self.source.open(descriptor, offset)
    }

    fn mountable(&self, registry: &str, digest: &Digest) -> Vec<String> {
        let mut all = self.repositories.clone();
        for name in self.source.mountable(registry, digest) {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        all
    }
}

/// A sink that moves a blob only when nobody else is moving it.
pub(super) struct Turns<'a> {
    shared: &'a SharedBlobs,
    sink: &'a dyn ImageSink,
    repository: &'a str,
}

impl ImageSink for Turns<'_> {
    fn describe(&self) -> String {
        self.sink.describe()
    }

    fn prepare(
        &self,
        plan: &Plan,
        source: &dyn ImageSource,
        moved: &(dyn Fn(u64) + Sync),
    ) -> Result<HashSet<Digest>> {
        self.sink.prepare(plan, source, moved)
    }

    fn takes_foreign_layers(&self) -> bool {
        self.sink.takes_foreign_layers()
    }

    fn put_blob(
        &self,
        descriptor: &Descriptor,
        source: &dyn ImageSource,
        moved: &(dyn Fn(u64) + Sync),
    ) -> Result<Put> {
        let blob = self.shared.blob(&descriptor.digest);
        let mut have = lock(&blob);
        let offering = Offering {
            source,
            repositories: have.iter().rev().take(2).cloned().collect(),
        };
        let put = self.sink.put_blob(descriptor, &offering, moved)?;
        if have.iter().all(|name| name != self.repository) {
            have.push(self.repository.to_owned());
        }
        Ok(put)
    }

    fn put_document(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
        self.sink.put_document(descriptor, bytes)
    }

    fn finish(&self, root: &Descriptor, bytes: &[u8]) -> Result<()> {
        self.sink.finish(root, bytes)
    }
}
