//! What a server serves: the questions and orders of the distribution API, without HTTP.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use crate::error::Result;
use crate::image::{Algorithm, Digest};
use crate::registry::client::Target;
use crate::registry::layout::Facts;
use crate::registry::server::growing::Growing;

/// A manifest that is served.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(crate) digest: Digest,
    pub(crate) media_type: String,
    pub(crate) bytes: Bytes,
}

/// A blob that is served.
#[derive(Clone, Debug)]
pub(crate) struct BlobFile {
    pub(crate) file: Arc<File>,
    pub(crate) size: u64,
    /// Tells how much of it is there while it is still being written.
    pub(crate) growing: Option<Arc<Growing>>,
}

/// Where the content comes from. Calls block; names and tags are checked by the caller.
pub(crate) trait Backend: Send + Sync + 'static {
    /// Whether a read may take longer than a look at a local disk.
    fn may_wait(&self) -> bool {
        false
    }

    /// The manifest behind a tag or digest; `None` when the repository does not have it.
    fn manifest(&self, repository: &str, target: &Target) -> Result<Option<Served>>;

    /// Opens a blob that the repository may read.
    fn blob(&self, repository: &str, digest: &Digest) -> Result<Option<BlobFile>>;

    /// The size of a blob that the repository may read.
    fn blob_size(&self, repository: &str, digest: &Digest) -> Result<Option<u64>>;

    /// Up to `limit` tags after `after`, sorted; `None` when there is no such repository.
    fn tags(
        &self,
        repository: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Option<Vec<String>>>;

    /// Up to `limit` repositories after `after`, in a constant order.
    fn repositories(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>>;

    /// Descriptors of what refers to `subject`, in a constant order.
    fn referrers(&self, repository: &str, subject: &Digest) -> Result<Vec<Value>>;

    /// Where pushes and deletions go; `None` when nothing can be changed.
    fn intake(&self) -> Option<&dyn Intake> {
        None
    }

    /// Called now and then: sweeps what nobody will go on with.
    fn tidy(&self) -> Result<()> {
        Ok(())
    }
}

/// What has become of something that was to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// The repository does not have it any more.
    Gone,
    /// It never had it.
    Missing,
    /// It stays: something else in the repository needs it, which this says.
    Needed(String),
}

impl Deletion {
    /// Of something that is removed whenever it is there.
    pub(crate) fn of(was_there: bool) -> Self {
        match was_there {
            true => Self::Gone,
            false => Self::Missing,
        }
    }
}

/// The writing half of a backend. What has been acknowledged survives a crash.
pub(crate) trait Intake {
    /// Begins an upload; `algorithm` is that of the digest to come, if it is known.
    fn start_upload(
        &self,
        repository: &str,
        algorithm: Option<Algorithm>,
    ) -> Result<Box<dyn Arriving>>;

    /// Goes on with an upload begun before this process; `None` when there is none.
    fn resume_upload(&self, repository: &str, id: &str) -> Result<Option<Box<dyn Arriving>>>;

    /// Gives `repository` a blob that is here already, in `from` or, when that is not said,
    /// anywhere. `false`: there is no such blob.
    fn mount(&self, repository: &str, from: Option<&str>, digest: &Digest) -> Result<bool>;

    /// Puts a manifest whose digest and facts are those of `bytes`, and makes `tags` mean it.
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

    /// Removes a manifest and the tags that mean it.
    fn delete_manifest(&self, repository: &str, digest: &Digest) -> Result<Deletion>;

    /// Takes a blob from a repository.
    fn delete_blob(&self, repository: &str, digest: &Digest) -> Result<Deletion>;

    /// Bytes that can still be taken in; `None` when that is not known.
    fn free_space(&self) -> Option<u64>;
}

/// A blob on its way in. Dropped, it can be gone on with by its id.
pub(crate) trait Arriving: Send {
    /// What the upload is called.
    fn id(&self) -> &str;
    /// Bytes that are here.
    fn offset(&self) -> u64;
    /// Adds bytes at the end.
    fn append(&mut self, bytes: &[u8]) -> Result<()>;
    /// Makes it the blob `digest`; another digest is an error of kind `BadContent`.
    fn commit(&mut self, digest: &Digest) -> Result<()>;
    /// Gives it up.
    fn cancel(&mut self) -> Result<()>;
}
