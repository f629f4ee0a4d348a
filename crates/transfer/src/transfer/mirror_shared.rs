//! Shares blobs among images that are copied to one place in parallel: the first image to need a
//! blob copies it, and the others find it there or mount it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use crate::transfer::plan::Plan;
use crate::transfer::sink::{ImageSink, Put};
use crate::transfer::source::Blobs;
use crate::transfer::workers::lock;
use imgctl_base::error::Result;
use imgctl_base::image::{Descriptor, Digest};

/// The blobs copied so far, and those being copied.
#[derive(Default)]
pub(super) struct SharedBlobs {
    /// Repositories that have each blob; the inner lock is held while the blob is copied.
    blobs: Mutex<HashMap<Digest, Arc<Mutex<Vec<String>>>>>,
}

impl SharedBlobs {
    /// Wraps `sink`, which writes to `repository`, so that it takes turns on shared blobs.
    pub(super) fn sink<'a>(&'a self, sink: &'a dyn ImageSink, repository: &'a str) -> Turns<'a> {
        Turns { shared: self, sink, repository }
    }

    fn blob(&self, digest: &Digest) -> Arc<Mutex<Vec<String>>> {
        Arc::clone(lock(&self.blobs).entry(digest.clone()).or_default())
    }
}

/// A sink that copies a blob only while no other image is copying it.
pub(super) struct Turns<'a> {
    shared: &'a SharedBlobs,
    sink: &'a dyn ImageSink,
    repository: &'a str,
}

impl ImageSink for Turns<'_> {
    fn describe(&self) -> String {
        self.sink.describe()
    }

    fn prepare(&self, plan: &Plan, blobs: &Blobs<'_>) -> Result<HashSet<Digest>> {
        self.sink.prepare(plan, blobs)
    }

    fn takes_foreign_layers(&self) -> bool {
        self.sink.takes_foreign_layers()
    }

    fn put_blob(&self, descriptor: &Descriptor, blobs: &Blobs<'_>) -> Result<Put> {
        let blob = self.shared.blob(&descriptor.digest);
        let mut have = lock(&blob);
        let mount_from = have.iter().rev().take(2).cloned().collect();
        let put = self.sink.put_blob(descriptor, &Blobs { mount_from, ..blobs.clone() })?;
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
