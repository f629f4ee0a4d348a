//! An image in a registry, to be read.

use std::io::Read;

use crate::error::{Error, Result};
use crate::image::{Descriptor, Digest, Reference};
use crate::registry::{Client, Repository, Target};
use crate::transfer::source::{ImageSource, SourceDocument};

/// One image of a registry.
pub(crate) struct RegistrySource {
    client: Client,
    repository: Repository,
    reference: Reference,
}

impl RegistrySource {
    /// The image that `reference` (with a registry, and a tag or digest) means. Asks nothing yet.
    pub(crate) fn new(client: &Client, reference: &Reference) -> Result<Self> {
        Ok(Self {
            client: client.clone(),
            repository: client.repository(reference)?,
            reference: reference.clone(),
        })
    }

    /// Whether the registry has it.
    pub(crate) fn exists(&self) -> Result<bool> {
        Ok(self.repository.head(&target(&self.reference)?)?.is_some())
    }
}

/// What a reference asks a repository for: its digest, which is more exact, before its tag.
pub(crate) fn target(reference: &Reference) -> Result<Target> {
    match (reference.digest(), reference.tag()) {
        (Some(digest), _) => Ok(Target::Digest(digest.clone())),
        (None, Some(tag)) => Ok(Target::Tag(tag.to_owned())),
        (None, None) => Err(Error::usage(format!(
            "{reference} has neither a tag nor a digest"
        ))),
    }
}

impl ImageSource for RegistrySource {
    fn describe(&self) -> String {
        self.reference.to_string()
    }

    fn root(&self) -> Result<SourceDocument> {
        let document = self.repository.document(&target(&self.reference)?)?;
        Ok(SourceDocument {
            bytes: document.bytes,
            descriptor: document.descriptor,
        })
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
        same.then(|| self.reference.repository().to_owned())
            .into_iter()
            .collect()
    }
}
