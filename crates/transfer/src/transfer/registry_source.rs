//! Reads an image from a registry.

use std::io::Read;

use crate::transfer::source::{ImageSource, SourceDocument};
use imgctl_base::error::Result;
use imgctl_base::image::{Descriptor, Digest, Reference};
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

    fn admit(&self, digest: &Digest, manifests: &[Digest]) -> Result<()> {
        self.client.admit(&self.reference, digest, manifests)
    }

    fn mountable(&self, registry: &str, _digest: &Digest) -> Vec<String> {
        let same = self.reference.registry() == Some(registry);
        same.then(|| self.reference.repository().to_owned()).into_iter().collect()
    }
}
