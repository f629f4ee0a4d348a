//! Writes an image to a registry.

use crate::transfer::sink::{ImageSink, Put};
use crate::transfer::source::Blobs;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Reference};
use imgctl_registry::client::Pushed;
use imgctl_registry::{Client, Repository, Target};

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
        let pushed = self.repository.push_blob(descriptor, &mount_from, &open, blobs.moved)?;
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

    fn finish(&self, root: &Descriptor, bytes: &[u8]) -> Result<()> {
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
