//! Backend of a server: the operations of the distribution API, without HTTP.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use crate::client::Target;
use crate::layout::Facts;
use crate::server::growing::Growing;
use imgctl_base::error::Result;
use imgctl_base::image::{Algorithm, Digest};

/// A manifest to serve.
#[derive(Clone, Debug)]
pub struct Served {
    pub digest: Digest,
    pub media_type: String,
    pub bytes: Bytes,
}

/// A blob to serve.
#[derive(Clone, Debug)]
pub struct BlobFile {
    pub file: Arc<File>,
    pub size: u64,
    /// Progress of a blob that is still being written.
    pub growing: Option<Arc<Growing>>,
}

/// Source of the content. Calls block; the caller checks names and tags.
pub trait Backend: Send + Sync + 'static {
    /// Returns whether a read may take longer than a local disk access.
    fn may_wait(&self) -> bool {
        false
    }

    /// Returns the manifest of a tag or digest; `None` if the repository does not have it.
    fn manifest(&self, repository: &str, target: &Target) -> Result<Option<Served>>;

    /// Opens a blob that the repository may read.
    fn blob(&self, repository: &str, digest: &Digest) -> Result<Option<BlobFile>>;

    /// Returns the size of a blob that the repository may read.
    fn blob_size(&self, repository: &str, digest: &Digest) -> Result<Option<u64>>;

    /// Returns up to `limit` tags after `after`, sorted; `None` if the repository does not exist.
    fn tags(
        &self,
        repository: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Option<Vec<String>>>;

    /// Returns up to `limit` repositories after `after`, in a stable order.
    fn repositories(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>>;

    /// Returns the descriptors of the referrers of `subject`, in a stable order.
    fn referrers(&self, repository: &str, subject: &Digest) -> Result<Vec<Value>>;

    /// Returns the writable backend for pushes and deletions; `None` if the content is read-only.
    fn intake(&self) -> Option<&dyn WritableBackend> {
        None
    }

    /// Called periodically: removes abandoned uploads.
    fn tidy(&self) -> Result<()> {
        Ok(())
    }
}

/// Result of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The object has been removed from the repository.
    Gone,
    /// The repository did not have the object.
    Missing,
    /// The object is kept, because another object in the repository needs it. The text names that
    /// object.
    Needed(String),
}

impl Deletion {
    /// Returns the result for an object that is removed whenever it exists.
    pub fn of(was_there: bool) -> Self {
        if was_there { Self::Gone } else { Self::Missing }
    }
}

/// Writable backend. Acknowledged writes survive a crash.
pub trait WritableBackend {
    /// Begins an upload. `algorithm` is the algorithm of the expected digest, if known.
    fn start_upload(
        &self,
        repository: &str,
        algorithm: Option<Algorithm>,
    ) -> Result<Box<dyn UploadSession>>;

    /// Resumes an upload that an earlier process began; `None` if it does not exist.
    fn resume_upload(&self, repository: &str, id: &str) -> Result<Option<Box<dyn UploadSession>>>;

    /// Links an existing blob into `repository`, from the repository `from` or, if not given, from
    /// any. Returns `false` if the blob does not exist.
    fn mount(&self, repository: &str, from: Option<&str>, digest: &Digest) -> Result<bool>;

    /// Stores a manifest and points `tags` to it. The digest and facts must be those of `bytes`.
    fn put_manifest(
        &self,
        repository: &str,
        tags: &[&str],
        digest: &Digest,
        bytes: &[u8],
        facts: &Facts,
    ) -> Result<()>;

    /// Removes a tag.
    fn delete_tag(&self, repository: &str, tag: &str) -> Result<Deletion>;

    /// Removes a manifest and the tags that point to it.
    fn delete_manifest(&self, repository: &str, digest: &Digest) -> Result<Deletion>;

    /// Removes a blob from a repository.
    fn delete_blob(&self, repository: &str, digest: &Digest) -> Result<Deletion>;

    /// Returns the number of bytes that can still be stored; `None` if unknown.
    fn free_space(&self) -> Option<u64>;
}

/// A blob that is being received. After a drop, it can be resumed by its ID.
pub trait UploadSession: Send {
    /// Returns the ID of the upload.
    fn id(&self) -> &str;
    /// Returns the number of received bytes.
    fn offset(&self) -> u64;
    /// Appends bytes.
    fn append(&mut self, bytes: &[u8]) -> Result<()>;
    /// Turns the upload into the blob `digest`. A different digest is an error of kind
    /// `BadContent`.
    fn commit(&mut self, digest: &Digest) -> Result<()>;
    /// Cancels the upload.
    fn cancel(&mut self) -> Result<()>;
}
