//! Destinations of images: registry, store, archive and directory behind one interface for the
//! engine.

use std::collections::HashSet;

use crate::transfer::partial::local::LocalBlobs;
use crate::transfer::plan::Plan;
use crate::transfer::source::Blobs;
use imgctl_base::error::Result;
use imgctl_base::image::{Descriptor, Digest, Verdict};

/// What happened to a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It already existed; nothing was copied.
    Existed,
    /// The receiver mounted it from another of its repositories.
    Mounted,
    Copied,
}

/// A destination that receives an image: first the blobs, in any order and from several threads,
/// then the documents, children first, then the name.
pub trait ImageSink: Sync {
    /// Name for messages: `docker://quay.io/a/b:v1`.
    fn describe(&self) -> String;
    /// Announces the plan once, before the first blob. A sink that cannot hold the image fails
    /// here. A sink that can do better than one blob at a time (by unpacking during the download)
    /// imports blobs here and returns their digests.
    fn prepare(&self, plan: &Plan, blobs: &Blobs<'_>) -> Result<HashSet<Digest>> {
        let _ = (plan, blobs);
        Ok(HashSet::new())
    }
    /// Returns the blobs that are here with the sink's, of which parts may be parts of new blobs.
    fn local(&self) -> Option<Box<dyn LocalBlobs>> {
        None
    }
    /// Whether the sink accepts layers that must not be distributed (those with `urls`).
    fn takes_foreign_layers(&self) -> bool {
        false
    }
    /// Copies a blob and verifies it; reports bytes as they are copied.
    fn put_blob(&self, descriptor: &Descriptor, blobs: &Blobs<'_>) -> Result<Put>;
    /// Stores a document.
    fn put_document(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()>;
    /// Sets the image's name, which takes a verdict; always the last call. Everything is durable afterwards.
    fn finish(&self, root: &Descriptor, bytes: &[u8], verdict: &Verdict) -> Result<()>;
}
