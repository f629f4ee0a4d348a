//! Takes what is kept with an image of the store (signatures, attestations) along to where the image goes:
//! before the name, so that whoever finds the name finds the signatures. Must not know what they say.

use std::collections::HashSet;
use std::sync::Mutex;

use crate::transfer::layout::LayoutSink;
use crate::transfer::partial::local::LocalBlobs;
use crate::transfer::plan::Plan;
use crate::transfer::registry::RegistrySink;
use crate::transfer::sink::{ImageSink, Put};
use crate::transfer::source::{Blobs, Kept, from_offset};
use imgctl_base::error::{Context as _, Result};
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest, Verdict, media_type};
use imgctl_base::workers::lock;
use imgctl_registry::{Repository, Target};
use imgctl_store::store::Store;

/// Returns what is kept about an image and what it lists; without what is about an index that is only
/// there for its signatures.
pub(crate) fn of<'a>(store: &'a Store, image: &Descriptor) -> Result<Kept<'a>> {
    let mut artifacts = store.attached(image)?;
    let is_index = |artifact: &Descriptor| media_type::is_index(&artifact.media_type);
    let indexes: Vec<Digest> = artifacts
        .iter()
        .filter(|(_, artifact)| is_index(artifact) && artifact.digest != image.digest)
        .map(|(_, index)| index.digest.clone())
        .collect();
    artifacts.retain(|(subject, artifact)| !is_index(artifact) && !indexes.contains(subject));
    Ok(Kept { store, artifacts })
}

/// Pushes artifacts to the repository that has what they are about.
pub(crate) fn push(kept: &Kept<'_>, repository: &Repository) -> Result<()> {
    let mut all = kept.artifacts.iter();
    all.try_for_each(|(subject, artifact)| push_one(kept.store, subject, artifact, repository))
}

fn push_one(
    store: &Store,
    subject: &Digest,
    artifact: &Descriptor,
    repository: &Repository,
) -> Result<()> {
    let doing = || format!("cannot push {}, which refers to the image", artifact.digest);
    if repository.head(&Target::Digest(artifact.digest.clone())).context(doing)?.is_some() {
        return Ok(());
    }
    let bytes = store.read_blob(&artifact.digest, MAX_DOCUMENT)?;
    for part in store.artifact_parts(artifact)?.iter().skip(1) {
        let open = |offset| from_offset(store.open_blob(&part.digest)?, offset, &part.digest);
        repository.push_blob(part, &[], &open, &|_| {}).context(doing)?;
    }
    repository.push_referrer(subject, &artifact.media_type, &bytes).context(doing).map(drop)
}

/// A sink with a place for artifacts beside the image.
pub(crate) trait ArtifactSink: ImageSink {
    /// Adds an artifact of `store` about `subject`, which is there already.
    fn put_artifact(&self, store: &Store, subject: &Digest, artifact: &Descriptor) -> Result<()>;
}

impl ArtifactSink for RegistrySink {
    fn put_artifact(&self, store: &Store, subject: &Digest, artifact: &Descriptor) -> Result<()> {
        push_one(store, subject, artifact, self.repository())
    }
}

impl ArtifactSink for LayoutSink {
    fn put_artifact(&self, store: &Store, _: &Digest, artifact: &Descriptor) -> Result<()> {
        for part in store.artifact_parts(artifact)? {
            self.write(&part, || store.open_blob(&part.digest))?;
        }
        self.list_artifact(artifact)
    }
}

/// A sink that gets the artifacts about every document that it gets.
pub(crate) struct WithArtifacts<'a, S> {
    pub(crate) sink: S,
    kept: Option<Kept<'a>>,
    documents: Mutex<HashSet<Digest>>,
}

impl<'a, S: ArtifactSink> WithArtifacts<'a, S> {
    pub(crate) fn new(sink: S, kept: Option<Kept<'a>>) -> Self {
        let kept = kept.filter(|kept| !kept.artifacts.is_empty());
        Self { sink, kept, documents: Mutex::default() }
    }
}

impl<S: ArtifactSink> ImageSink for WithArtifacts<'_, S> {
    fn describe(&self) -> String {
        self.sink.describe()
    }

    fn prepare(&self, plan: &Plan, blobs: &Blobs<'_>) -> Result<HashSet<Digest>> {
        self.sink.prepare(plan, blobs)
    }

    fn local(&self) -> Option<Box<dyn LocalBlobs>> {
        self.sink.local()
    }

    fn takes_foreign_layers(&self) -> bool {
        self.sink.takes_foreign_layers()
    }

    fn put_blob(&self, descriptor: &Descriptor, blobs: &Blobs<'_>) -> Result<Put> {
        self.sink.put_blob(descriptor, blobs)
    }

    fn put_document(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
        self.sink.put_document(descriptor, bytes)?;
        lock(&self.documents).insert(descriptor.digest.clone());
        Ok(())
    }

    fn finish(&self, root: &Descriptor, bytes: &[u8], verdict: &Verdict) -> Result<()> {
        if let Some(Kept { store, artifacts }) = &self.kept {
            self.put_document(root, bytes)?;
            let documents = lock(&self.documents).clone();
            for (subject, artifact) in artifacts {
                if documents.contains(subject) {
                    self.sink.put_artifact(store, subject, artifact)?;
                }
            }
        }
        self.sink.finish(root, bytes, verdict)
    }
}
