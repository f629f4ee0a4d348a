//! Uploads that any process can resume: each blob has its own upload, whose ID is its digest and
//! size. Must not depend on HTTP.

use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Digest, Hasher};
use imgctl_registry::server::backend::UploadSession;
use imgctl_store::store::Store;
use imgctl_store::store::partial::Partial;

/// Returns the upload ID of a blob.
pub fn upload_id(blob: &Descriptor) -> String {
    let digest = &blob.digest;
    format!("{}.{}.{}", digest.algorithm().as_str(), digest.hex(), blob.size)
}

fn parse_id(id: &str) -> Option<(Digest, u64)> {
    let (digest, size) = id.rsplit_once('.')?;
    let digest = Digest::parse(&digest.replacen('.', ":", 1)).ok()?;
    Some((digest, size.parse().ok()?))
}

/// Resumes or begins the upload `id`. Returns `None` if it is not the ID of a blob, or if the blob
/// is already in the store.
pub(super) fn resume(store: &Store, id: &str) -> Result<Option<Box<dyn UploadSession>>> {
    let Some((digest, size)) = parse_id(id) else {
        return Ok(None);
    };
    let Some(mut partial) = store.partial(&digest, size)? else {
        return Ok(None);
    };
    // A range that ends with byte 0 means "nothing" to clients.
    if partial.length() == 1 {
        partial.restart()?;
    }
    let mut hasher = Hasher::with(digest.algorithm());
    partial.hash_here(&mut hasher)?;
    let (store, id) = (store.clone(), id.to_owned());
    Ok(Some(Box::new(Upload { store, id, digest, partial: Some(partial), hasher })))
}

/// An incoming blob; the received part is kept when the upload is dropped.
struct Upload {
    store: Store,
    id: String,
    digest: Digest,
    partial: Option<Partial>,
    hasher: Hasher,
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
    use crate::transfer::store_backend::StoreBackend;
    use imgctl_base::error::Kind;
    use imgctl_registry::server::backend::{Backend, WritableBackend};
    use imgctl_store::store::Options;

    #[test]
    fn an_upload_goes_on_where_another_process_ended() {
        let directory = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..100_000_u32).map(|n| (n % 253) as u8).collect();
        let blob = Descriptor::new("x/y", Digest::of(&content), content.len() as u64);
        let id = upload_id(&blob);
        let open = || {
            let store = Store::open(directory.path(), Options { sync: false }).unwrap();
            StoreBackend::by_digest(&store)
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
        let blobs = StoreBackend::by_digest(&store);
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
