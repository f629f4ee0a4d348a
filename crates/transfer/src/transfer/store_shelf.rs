//! The documents that are kept with images of the store: signatures, attestations. Must not know what they
//! say.

use std::io::Read;

use imgctl_base::error::{Error, Result};
use imgctl_base::image::manifest::MAX_DOCUMENT;
use imgctl_base::image::{Descriptor, Digest, Document, media_type};
use imgctl_registry::client::Shelf;
use imgctl_store::store::Store;

/// Returns the descriptor by which an artifact is listed: with its type and annotations.
pub(crate) fn entry(manifest: &[u8]) -> Result<Descriptor> {
    match Document::parse(manifest, None)? {
        Document::Manifest(parsed) => {
            let media = parsed.media_type.as_deref().unwrap_or(media_type::OCI_MANIFEST);
            let size = manifest.len() as u64;
            let mut entry = Descriptor::new(media, Digest::of(manifest), size);
            entry.artifact_type = Some(parsed.artifact_type.unwrap_or(parsed.config.media_type));
            entry.annotations = parsed.annotations;
            Ok(entry)
        }
        Document::Index(_) => Err(Error::bad_content("an index is not an artifact")),
    }
}

/// The documents kept with images of the store.
pub struct StoreShelf<'a> {
    store: &'a Store,
}

impl<'a> StoreShelf<'a> {
    /// Returns the shelf of `store`.
    pub fn new(store: &'a Store) -> Self {
        Self { store }
    }

    /// Keeps an index that lists `manifest`, which is in the store without it: a signature of the index
    /// counts for what it lists.
    pub(crate) fn keep_index(&self, manifest: &Digest, index: &[u8]) -> Result<()> {
        let digest = self.store.put_blob(index)?;
        let entry = Descriptor::new(media_type::OCI_INDEX, digest, index.len() as u64);
        self.store.attach(manifest, &entry)
    }
}

impl Shelf for StoreShelf<'_> {
    fn name(&self) -> String {
        "the store".to_owned()
    }

    fn manifest(&self, digest: &Digest) -> Result<Vec<u8>> {
        self.store.read_blob(digest, MAX_DOCUMENT)
    }

    fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Descriptor>> {
        let mut found = self.store.referrers(subject)?;
        // An index has no artifact type; its media type asks for it.
        found.retain(|entry| {
            entry.artifact_type.as_deref().unwrap_or(&entry.media_type) == artifact_type
        });
        Ok(found)
    }

    fn open(&self, blob: &Descriptor) -> Result<Box<dyn Read + Send + 'static>> {
        Ok(Box::new(self.store.open_blob(&blob.digest)?))
    }

    fn attach(
        &self,
        subject: &Descriptor,
        blobs: &[(Descriptor, &[u8])],
        manifest: &[u8],
    ) -> Result<Digest> {
        for (blob, bytes) in blobs {
            self.store.import_blob(&mut &**bytes, &blob.digest, blob.size)?;
        }
        let entry = entry(manifest)?;
        self.store.put_blob(manifest)?;
        self.store.attach(&subject.digest, &entry)?;
        Ok(entry.digest)
    }
}
