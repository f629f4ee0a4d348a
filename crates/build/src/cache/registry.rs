//! A cache in a registry, under a tag. Registries have no locks: writers look at the tag again.

use std::collections::HashSet;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::place::{CachePlace, Named, Opener};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::fs::lock::Lock;
use imgctl_base::image::{Descriptor, Digest, Reference};
use imgctl_registry::{Client, Repository, Target};
use imgctl_store::store::Store;
use imgctl_transfer::transfer::known_blobs::KnownBlobs;

/// Maximum number of tags of a repository from which old manifests are removed.
const MAX_TAGS: usize = 100;

/// A tag of a repository.
pub(crate) struct RegistryPlace {
    repository: Repository,
    reference: Reference,
    target: Target,
    known: KnownBlobs,
}

impl RegistryPlace {
    /// Sends no request yet.
    pub(crate) fn new(store: &Store, client: &Client, reference: &Reference) -> Result<Self> {
        if reference.registry().is_none() {
            return Err(Error::usage(format!("`{reference}` does not name a registry")));
        }
        Ok(Self {
            repository: client.repository(reference)?,
            reference: reference.clone(),
            target: Target::of(reference),
            known: KnownBlobs::of(store),
        })
    }
}

impl RegistryPlace {
    /// Removes manifests to which no tag refers: removing one removes its tags. The registry's
    /// own garbage collection removes their blobs.
    fn remove(&self, old: &[Digest]) -> Result<()> {
        let tags = self.repository.tags()?;
        if tags.len() > MAX_TAGS {
            return Ok(());
        }
        let mut named = HashSet::new();
        for tag in tags {
            named.extend(self.repository.head(&Target::Tag(tag))?.map(|entry| entry.digest));
        }
        for digest in old.iter().filter(|digest| !named.contains(*digest)) {
            self.repository.delete(&Target::Digest(digest.clone()))?;
        }
        Ok(())
    }
}

impl CachePlace for RegistryPlace {
    fn digest(&self) -> Result<Option<Digest>> {
        Ok(self.repository.head(&self.target)?.map(|descriptor| descriptor.digest))
    }

    fn root(&self) -> Result<Option<(Descriptor, Vec<u8>)>> {
        match self.repository.document(&self.target) {
            Ok(document) => Ok(Some((document.descriptor, document.bytes))),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        let target = Target::Digest(descriptor.digest.clone());
        Ok(self.repository.document(&target)?.bytes)
    }

    fn open(&self, blob: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        self.repository.blob(blob, offset)
    }

    fn put_blob(&self, blob: &Descriptor, open: &Opener<'_>) -> Result<u64> {
        let registry = self.reference.registry().unwrap_or_default();
        let mut mount_from = self.known.repositories(registry, &blob.digest);
        mount_from.retain(|name| name != self.reference.repository());
        let sent = AtomicU64::new(0);
        let count = |bytes| {
            sent.fetch_add(bytes, Ordering::Relaxed);
        };
        self.repository.push_blob(blob, &mount_from, open, &count)?;
        Ok(sent.into_inner())
    }

    fn has_blob(&self, blob: &Descriptor) -> Result<bool> {
        Ok(self.repository.blob_size(&blob.digest)? == Some(blob.size))
    }

    fn put_document(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<()> {
        let target = Target::Digest(descriptor.digest.clone());
        self.repository.push_document(&target, &descriptor.media_type, bytes).map(drop)
    }

    fn put_root(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<Named> {
        self.repository.push_document(&self.target, &descriptor.media_type, bytes)?;
        Ok(Named::Perhaps)
    }

    fn remove_documents(&self, old: &[Digest]) {
        if let Err(error) = self.remove(old) {
            tracing::debug!("cannot remove the old manifests of {}: {error}", self.reference);
        }
    }

    fn lock(&self) -> Result<Option<Lock>> {
        Ok(None)
    }

    fn repository(&self) -> Option<&Reference> {
        Some(&self.reference)
    }

    fn remember(&self, blobs: &[&Digest]) {
        if let Err(error) = self.known.remember(&self.reference, blobs.iter().copied()) {
            tracing::debug!("cannot record where the blobs of {} are: {error}", self.reference);
        }
    }
}
