//! Where images go: a registry, the store, an archive, a directory; all alike to the engine.

use std::collections::HashSet;

use crate::error::Result;
use crate::image::{Descriptor, Digest};
use crate::transfer::plan::Plan;
use crate::transfer::source::ImageSource;

/// What became of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// It was there; nothing was moved.
    Existed,
    /// The receiver took it from itself.
    Mounted,
    Copied,
}

/// A place that takes an image: blobs first and in any order, from several threads, then documents
/// children first, then its name.
pub(crate) trait ImageSink: Sync {
    /// For messages: `docker://quay.io/a/b:v1`.
    fn describe(&self) -> String;
    /// Told once, before any blob is asked for, what is going to come. A place that cannot hold it
    /// says so here; one that does better than blob by blob (unpacking while it downloads) brings
    /// blobs in here and returns which, having told `moved` the bytes.
    fn prepare(
        &self,
        plan: &Plan,
        source: &dyn ImageSource,
        moved: &(dyn Fn(u64) + Sync),
    ) -> Result<HashSet<Digest>> {
        let _ = (plan, source, moved);
        Ok(HashSet::new())
    }
    /// Whether layers that must not be distributed (those with `urls`) are wanted.
    fn takes_foreign_layers(&self) -> bool {
        false
    }
    /// Brings a blob in from `source`, verified; `moved` is told the bytes as they go.
    fn put_blob(
        &self,
        descriptor: &Descriptor,
        source: &dyn ImageSource,
        moved: &(dyn Fn(u64) + Sync),
    ) -> Result<Put>;
    /// Brings a document in.
    fn put_document(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()>;
    /// Gives the image its name; the last call. Everything is durable afterwards.
    fn finish(&self, root: &Descriptor, bytes: &[u8]) -> Result<()>;
}
