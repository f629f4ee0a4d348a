//! Backend of a server: the operations of the distribution API, without HTTP.

use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use bytes::Bytes;
use serde_json::Value;

use crate::client::Target;
use crate::layout::Facts;
use imgctl_base::error::Result;
use imgctl_base::image::{Algorithm, Digest};

pub use crate::layout::UploadSession;

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

    /// Returns the repository that a client means, which named the registry `namespace` in containerd's
    /// parameter `ns`; `None` if no such registry is served. By default, there is only one.
    fn repository(&self, name: &str, _namespace: Option<&str>) -> Option<String> {
        Some(name.to_owned())
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

    fn delete_tag(&self, repository: &str, tag: &str) -> Result<Deletion>;

    /// Removes a manifest and the tags that point to it.
    fn delete_manifest(&self, repository: &str, digest: &Digest) -> Result<Deletion>;

    fn delete_blob(&self, repository: &str, digest: &Digest) -> Result<Deletion>;

    /// Returns the number of bytes that can still be stored; `None` if unknown.
    fn free_space(&self) -> Option<u64>;
}

/// Progress of the writer.
#[derive(Debug, Default)]
pub struct Growing {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    written: u64,
    verified: bool,
    failed: bool,
}

impl Growing {
    /// Reports that `written` bytes are available.
    pub(crate) fn grow(&self, written: u64) {
        self.change(|state| state.written = written);
    }

    /// Reports that all bytes are available and have the correct digest.
    pub fn finish(&self) {
        self.change(|state| state.verified = true);
    }

    /// Reports that the remaining bytes will not arrive.
    pub fn fail(&self) {
        self.change(|state| state.failed = true);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Waits for bytes after `at` and returns the offset up to which they are available. Holds back
    /// the last byte of `size` until the digest is verified, so that no client takes a corrupt blob
    /// for a complete one.
    pub(super) fn wait(&self, at: u64, size: u64) -> io::Result<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let readable =
                if state.verified { size } else { state.written.min(size.saturating_sub(1)) };
            if readable > at || (state.verified && at >= size) {
                return Ok(readable);
            }
            if state.failed {
                return Err(io::Error::other("the blob could not be fetched"));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_last_byte_waits_for_the_digest() {
        let growing = Arc::new(Growing::default());
        growing.grow(10);
        assert_eq!(growing.wait(0, 10).unwrap(), 9);
        let reader = std::thread::spawn({
            let growing = Arc::clone(&growing);
            move || growing.wait(9, 10)
        });
        growing.finish();
        assert_eq!(reader.join().unwrap().unwrap(), 10);
        let broken = Growing::default();
        broken.grow(4);
        broken.fail();
        assert_eq!(broken.wait(3, 10).unwrap(), 4);
        assert!(broken.wait(4, 10).is_err());
    }
}
