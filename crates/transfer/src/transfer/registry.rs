//! Reads images from a registry and writes them there.

use std::io::Read;
use std::ops::Range;

use crate::transfer::sink::{ImageSink, Put};
use crate::transfer::source::{Blobs, ImageSource, SourceDocument};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Digest, Reference, Verdict};
use imgctl_registry::client::Pushed;
use imgctl_registry::{Client, Repository, Target};

/// One image in a registry.
pub struct RegistrySource {
    client: Client,
    repository: Repository,
    reference: Reference,
}

impl RegistrySource {
    /// Creates a source for the image that `reference` (with a registry) names. Sends no request
    /// yet.
    pub fn new(client: &Client, reference: &Reference) -> Result<Self> {
        Ok(Self {
            client: client.clone(),
            repository: client.repository(reference)?,
            reference: reference.clone(),
        })
    }

    /// Returns whether the registry has the image.
    pub fn exists(&self) -> Result<bool> {
        Ok(self.repository.head(&Target::of(&self.reference))?.is_some())
    }
}

impl ImageSource for RegistrySource {
    fn describe(&self) -> String {
        self.reference.to_string()
    }

    fn root(&self) -> Result<SourceDocument> {
        let document = self.repository.document(&Target::of(&self.reference))?;
        Ok(SourceDocument { bytes: document.bytes, descriptor: document.descriptor })
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        let target = Target::Digest(descriptor.digest.clone());
        Ok(self.repository.document(&target)?.bytes)
    }

    fn open(&self, descriptor: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        self.repository.blob(descriptor, offset)
    }

    fn has_ranges(&self) -> bool {
        true
    }

    fn open_ranges(
        &self,
        descriptor: &Descriptor,
        ranges: Vec<Range<u64>>,
    ) -> Result<Box<dyn Read + Send + 'static>> {
        self.repository.blob_ranges(descriptor, ranges)
    }

    fn reference(&self) -> Option<&Reference> {
        Some(&self.reference)
    }

    fn admit(&self, digest: &Digest, manifests: &[Digest]) -> Result<Verdict> {
        self.client.admit(&self.reference, digest, manifests)
    }

    fn mountable(&self, registry: &str, _digest: &Digest) -> Vec<String> {
        let same = self.reference.registry() == Some(registry);
        same.then(|| self.reference.repository().to_owned()).into_iter().collect()
    }
}

/// One name in a registry.
pub(crate) struct RegistrySink {
    repository: Repository,
    reference: Reference,
    registry: String,
    target: Target,
}

impl RegistrySink {
    /// Creates a sink for the name `reference`, which must include a registry.
    pub(crate) fn new(client: &Client, reference: &Reference) -> Result<Self> {
        let registry = reference
            .registry()
            .ok_or_else(|| Error::usage(format!("{reference} does not name a registry")))?;
        Ok(Self {
            repository: client.repository(reference)?,
            registry: registry.to_owned(),
            target: Target::of(reference),
            reference: reference.clone(),
        })
    }

    /// The destination repository.
    pub(crate) fn repository(&self) -> &Repository {
        &self.repository
    }
}

impl ImageSink for RegistrySink {
    fn describe(&self) -> String {
        self.reference.to_string()
    }

    fn put_blob(&self, descriptor: &Descriptor, blobs: &Blobs<'_>) -> Result<Put> {
        let mut mount_from = blobs.mountable(&self.registry, &descriptor.digest);
        mount_from.retain(|other| other != self.reference.repository());
        let open = |offset| blobs.open(descriptor, offset);
        // The registry verifies the digest.
        let (repository, moved) = (&self.repository, blobs.moved);
        let pushed = match blobs.file(descriptor) {
            Some(file) => repository.push_file(descriptor, &mount_from, &open, file, moved)?,
            None => repository.push_blob(descriptor, &mount_from, &open, moved)?,
        };
        Ok(match pushed {
            Pushed::Existed => Put::Existed,
            Pushed::Mounted => Put::Mounted,
            Pushed::Uploaded => Put::Copied,
        })
    }

    fn put_document(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
        let target = Target::Digest(descriptor.digest.clone());
        self.repository.push_document(&target, &descriptor.media_type, bytes).map(drop)
    }

    fn finish(&self, root: &Descriptor, bytes: &[u8], _verdict: &Verdict) -> Result<()> {
        if let Target::Digest(digest) = &self.target
            && *digest != root.digest
        {
            return Err(Error::usage(format!(
                "cannot write {}: the image's digest is {}",
                self.reference, root.digest
            ))
            .hint("use a tag instead of a digest"));
        }
        self.repository.push_document(&self.target, &root.media_type, bytes).map(drop)
    }
}
