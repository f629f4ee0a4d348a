//! Reads an image from the store.

use std::io::{Read, Seek, SeekFrom};

use crate::transfer::source::{ImageSource, SourceDocument};
use imgctl_base::error::{IoContext, Result};
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest};
use imgctl_store::store::{Lease, Named, Store};

/// One image in the store.
pub(crate) struct StoreSource {
    store: Store,
    name: String,
    descriptor: Descriptor,
    lease: Lease,
}

impl StoreSource {
    /// Creates a source for the image `named`. All its content is protected from `prune` while this
    /// value lives.
    pub(crate) fn new(store: &Store, named: &Named) -> Result<Self> {
        let descriptor = Descriptor {
            annotations: std::collections::BTreeMap::new(),
            ..named.descriptor.clone()
        };
        let source = Self {
            store: store.clone(),
            name: match &named.reference {
                Some(reference) => reference.to_string(),
                None => descriptor.digest.to_string(),
            },
            descriptor,
            lease: store.lease()?,
        };
        let parts = store.parts(&source.descriptor)?;
        source.lease.hold_all(parts.keys())?;
        Ok(source)
    }

    /// Sets another name for messages.
    pub(crate) fn called(mut self, name: String) -> Self {
        self.name = name;
        self
    }
}

impl ImageSource for StoreSource {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn root(&self) -> Result<SourceDocument> {
        Ok(SourceDocument {
            bytes: self.document(&self.descriptor)?,
            descriptor: self.descriptor.clone(),
        })
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        self.store.read_blob(&descriptor.digest, MAX_DOCUMENT)
    }

    fn open(&self, descriptor: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        let digest: &Digest = &descriptor.digest;
        let mut file = self.store.open_blob(digest)?;
        if offset > 0 {
            file.seek(SeekFrom::Start(offset)).doing(|| format!("cannot read blob {digest}"))?;
        }
        Ok(Box::new(file))
    }
}
