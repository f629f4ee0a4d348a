//! The registry backend of a host: serves and accepts every blob of its store, in any repository.
//!
//! A blob is uploaded to an address derived from its digest and size, so that a push resumes where
//! an earlier one ended, even one by another process. Ordinary clients push and pull images as with
//! any registry backed by the store. Must not depend on HTTP.

use std::sync::Arc;

use serde_json::Value;

use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::image::{Algorithm, Descriptor, Digest, Hasher};
use imgctl_registry::client::Target;
use imgctl_registry::layout::Facts;
use imgctl_registry::server::backend::{
    Backend, BlobFile, Deletion, Served, UploadSession, WritableBackend,
};
use imgctl_store::store::Store;
use imgctl_store::store::partial::Partial;
use imgctl_transfer::transfer::store_backend::StoreBackend;

/// A store whose blobs are served and accepted by digest alone.
pub(super) struct HostBlobs {
    store: Store,
    images: StoreBackend,
}

impl HostBlobs {
    pub(super) fn new(store: &Store) -> Self {
        Self { store: store.clone(), images: StoreBackend::new(store) }
    }
}

/// Returns the upload ID of a blob.
pub(super) fn upload_id(blob: &Descriptor) -> String {
    let digest = &blob.digest;
    format!("{}.{}.{}", digest.algorithm().as_str(), digest.hex(), blob.size)
}

fn parse_id(id: &str) -> Option<(Digest, u64)> {
    let (digest, size) = id.rsplit_once('.')?;
    let digest = Digest::parse(&digest.replacen('.', ":", 1)).ok()?;
    Some((digest, size.parse().ok()?))
}

impl Backend for HostBlobs {
    fn may_wait(&self) -> bool {
        true
    }

    fn manifest(&self, repository: &str, target: &Target) -> Result<Option<Served>> {
        self.images.manifest(repository, target)
    }

    fn blob(&self, _repository: &str, digest: &Digest) -> Result<Option<BlobFile>> {
        let file = match self.store.open_blob(digest) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            opened => opened?,
        };
        let metadata = file.metadata().path("look at", digest.to_string())?;
        Ok(Some(BlobFile { file: Arc::new(file), size: metadata.len(), growing: None }))
    }

    fn blob_size(&self, _repository: &str, digest: &Digest) -> Result<Option<u64>> {
        self.store.blob_size(digest)
    }

    fn tags(
        &self,
        repository: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Option<Vec<String>>> {
        self.images.tags(repository, after, limit)
    }

    fn repositories(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>> {
        self.images.repositories(after, limit)
    }

    fn referrers(&self, repository: &str, subject: &Digest) -> Result<Vec<Value>> {
        self.images.referrers(repository, subject)
    }

    fn intake(&self) -> Option<&dyn WritableBackend> {
        Some(self)
    }

    fn tidy(&self) -> Result<()> {
        self.images.tidy()
    }
}

impl WritableBackend for HostBlobs {
    fn start_upload(
        &self,
        repository: &str,
        algorithm: Option<Algorithm>,
    ) -> Result<Box<dyn UploadSession>> {
        self.images.start_upload(repository, algorithm)
    }

    /// Also returns `None` if the blob is already in the store.
    fn resume_upload(&self, _repository: &str, id: &str) -> Result<Option<Box<dyn UploadSession>>> {
        let Some((digest, size)) = parse_id(id) else {
            return Ok(None);
        };
        let Some(partial) = self.store.partial(&digest, size)? else {
            return Ok(None);
        };
        Ok(Some(Box::new(Upload::new(self.store.clone(), id, digest, partial)?)))
    }

    fn mount(&self, repository: &str, from: Option<&str>, digest: &Digest) -> Result<bool> {
        self.images.mount(repository, from, digest)
    }

    fn put_manifest(
        &self,
        repository: &str,
        tags: &[&str],
        digest: &Digest,
        bytes: &[u8],
        facts: &Facts,
    ) -> Result<()> {
        self.images.put_manifest(repository, tags, digest, bytes, facts)
    }

    fn delete_tag(&self, repository: &str, tag: &str) -> Result<Deletion> {
        self.images.delete_tag(repository, tag)
    }

    fn delete_manifest(&self, repository: &str, digest: &Digest) -> Result<Deletion> {
        self.images.delete_manifest(repository, digest)
    }

    fn delete_blob(&self, repository: &str, digest: &Digest) -> Result<Deletion> {
        self.images.delete_blob(repository, digest)
    }

    fn free_space(&self) -> Option<u64> {
        self.images.free_space()
    }
}

/// An incoming blob; the received part is kept when the upload is dropped.
struct Upload {
    store: Store,
    id: String,
    digest: Digest,
    partial: Option<Partial>,
    hasher: Hasher,
}

impl Upload {
    fn new(store: Store, id: &str, digest: Digest, mut partial: Partial) -> Result<Self> {
        // A range that ends with byte 0 means "nothing" to clients.
        if partial.length() == 1 {
            partial.restart()?;
        }
        let mut hasher = Hasher::with(digest.algorithm());
        partial.hash_here(&mut hasher)?;
        Ok(Self { store, id: id.to_owned(), digest, partial: Some(partial), hasher })
    }
}

fn ended() -> Error {
    Error::failed("the upload has ended")
}

impl UploadSession for Upload {
    fn id(&self) -> &str {
        &self.id
    }

    fn offset(&self) -> u64 {
        self.partial.as_ref().map_or(0, Partial::length)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.partial.as_mut().ok_or_else(ended)?.append(bytes)?;
        self.hasher.update(bytes);
        Ok(())
    }

    fn commit(&mut self, digest: &Digest) -> Result<()> {
        let mut partial = self.partial.take().ok_or_else(ended)?;
        let hasher = std::mem::replace(&mut self.hasher, Hasher::with(self.digest.algorithm()));
        let found = hasher.finish();
        if found == *digest && found == self.digest {
            return self.store.commit_partial(partial);
        }
        partial.restart()?;
        Err(Error::bad_content(format!("the blob has the digest {found}, not {digest}")))
    }

    /// Closes the upload; the next attempt resumes it.
    fn cancel(&mut self) -> Result<()> {
        self.partial = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_store::store::Options;

    #[test]
    fn an_upload_goes_on_where_another_process_ended() {
        let directory = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..100_000_u32).map(|n| (n % 253) as u8).collect();
        let blob = Descriptor::new("x/y", Digest::of(&content), content.len() as u64);
        let id = upload_id(&blob);
        let open = || {
            let store = Store::open(directory.path(), Options { sync: false }).unwrap();
            HostBlobs::new(&store)
        };
        let blobs = open();
        let mut upload = blobs.resume_upload("imgctl", &id).unwrap().unwrap();
        upload.append(&content[..40_000]).unwrap();
        drop((upload, blobs));
        let blobs = open();
        let mut upload = blobs.resume_upload("imgctl", &id).unwrap().unwrap();
        assert_eq!(upload.offset(), 40_000);
        upload.append(&content[40_000..]).unwrap();
        assert!(upload.append(b"x").is_err());
        upload.commit(&blob.digest).unwrap();
        assert!(blobs.resume_upload("imgctl", &id).unwrap().is_none());
        assert_eq!(blobs.blob_size("any", &blob.digest).unwrap(), Some(100_000));
    }

    #[test]
    fn other_bytes_are_refused_and_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), Options { sync: false }).unwrap();
        let blobs = HostBlobs::new(&store);
        let blob = Descriptor::new("x/y", Digest::of(b"right"), 5);
        let id = upload_id(&blob);
        let mut upload = blobs.resume_upload("imgctl", &id).unwrap().unwrap();
        upload.append(b"wrong").unwrap();
        let error = upload.commit(&blob.digest).unwrap_err();
        assert_eq!(error.kind(), Kind::BadContent);
        drop(upload);
        let upload = blobs.resume_upload("imgctl", &id).unwrap().unwrap();
        assert_eq!(upload.offset(), 0);
        for id in ["", "x", "sha256.ab.5", "sha256..", "../../x.1"] {
            assert!(blobs.resume_upload("imgctl", id).unwrap().is_none(), "{id}");
        }
    }
}
