//! Backend for the tree on disk, with an in-memory cache of manifests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use crate::client::Target;
use crate::layout::{Facts, Layout};
use crate::server::backend::{Backend, BlobFile, Deletion, Served, UploadSession, WritableBackend};
use imgctl_base::error::Result;
use imgctl_base::image::{Algorithm, Digest};

/// Maximum total size of cached manifests, and maximum size of one, in bytes.
const CACHE: usize = 8 << 20;
const CACHED_MANIFEST: usize = 256 << 10;
/// Age after which uploads without activity are removed, as in distribution.
const STALE_UPLOAD: Duration = Duration::from_secs(7 * 24 * 3600);

/// Serves a [`Layout`].
pub struct LayoutBackend {
    layout: Layout,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    manifests: HashMap<Digest, Served>,
    bytes: usize,
}

impl LayoutBackend {
    /// Serves `layout`.
    pub fn new(layout: Layout) -> Self {
        Self { layout, cache: Mutex::default() }
    }

    /// Returns the served tree.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    fn cached(&self, digest: &Digest) -> Option<Served> {
        self.cache.lock().ok()?.manifests.get(digest).cloned()
    }

    fn keep(&self, served: &Served) {
        if served.bytes.len() > CACHED_MANIFEST {
            return;
        }
        if let Ok(mut cache) = self.cache.lock() {
            if cache.bytes + served.bytes.len() > CACHE {
                *cache = Cache::default();
            }
            cache.bytes += served.bytes.len();
            cache.manifests.insert(served.digest.clone(), served.clone());
        }
    }
}

impl Backend for LayoutBackend {
    fn manifest(&self, repository: &str, target: &Target) -> Result<Option<Served>> {
        let digest = match target {
            Target::Digest(digest) => digest.clone(),
            Target::Tag(tag) => match self.layout.resolve_tag(repository, tag)? {
                Some(digest) => digest,
                None => return Ok(None),
            },
        };
        if let Some(served) = self.cached(&digest) {
            let has = self.layout.has_revision(repository, &digest)?;
            return Ok(has.then_some(served));
        }
        let Some(stored) = self.layout.manifest(repository, &digest)? else {
            return Ok(None);
        };
        let served =
            Served { digest, media_type: stored.media_type, bytes: Bytes::from(stored.bytes) };
        self.keep(&served);
        Ok(Some(served))
    }

    fn blob(&self, repository: &str, digest: &Digest) -> Result<Option<BlobFile>> {
        if !self.layout.has_layer(repository, digest)? {
            return Ok(None);
        }
        let opened = self.layout.open_blob(digest)?;
        Ok(opened.map(|(file, size)| BlobFile { file: Arc::new(file), size, growing: None }))
    }

    fn blob_size(&self, repository: &str, digest: &Digest) -> Result<Option<u64>> {
        if !self.layout.has_layer(repository, digest)? {
            return Ok(None);
        }
        self.layout.blob_size(digest)
    }

    fn tags(
        &self,
        repository: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Option<Vec<String>>> {
        self.layout.tags(repository, after, limit)
    }

    fn repositories(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>> {
        self.layout.repositories(after, limit)
    }

    fn referrers(&self, repository: &str, subject: &Digest) -> Result<Vec<Value>> {
        self.layout.referrers(repository, subject)
    }

    fn intake(&self) -> Option<&dyn WritableBackend> {
        Some(self)
    }

    fn tidy(&self) -> Result<()> {
        self.layout.sweep_all_uploads(STALE_UPLOAD).map(|_| ())
    }
}

impl WritableBackend for LayoutBackend {
    fn start_upload(
        &self,
        repository: &str,
        algorithm: Option<Algorithm>,
    ) -> Result<Box<dyn UploadSession>> {
        Ok(Box::new(self.layout.start_upload(repository, algorithm)?))
    }

    fn resume_upload(&self, repository: &str, id: &str) -> Result<Option<Box<dyn UploadSession>>> {
        let upload = self.layout.resume_upload(repository, id)?;
        Ok(upload.map(|upload| Box::new(upload) as Box<dyn UploadSession>))
    }

    fn mount(&self, repository: &str, from: Option<&str>, digest: &Digest) -> Result<bool> {
        if let Some(from) = from
            && !self.layout.has_layer(from, digest)?
        {
            return Ok(false);
        }
        if self.layout.blob_size(digest)?.is_none() {
            return Ok(false);
        }
        self.layout.link_layer(repository, digest)?;
        Ok(true)
    }

    fn put_manifest(
        &self,
        repository: &str,
        tags: &[&str],
        digest: &Digest,
        bytes: &[u8],
        facts: &Facts,
    ) -> Result<()> {
        self.layout.put_manifest(repository, tags, digest, bytes, facts)
    }

    fn delete_tag(&self, repository: &str, tag: &str) -> Result<Deletion> {
        self.layout.delete_tag(repository, tag).map(Deletion::of)
    }

    fn delete_manifest(&self, repository: &str, digest: &Digest) -> Result<Deletion> {
        self.layout.delete_manifest(repository, digest).map(Deletion::of)
    }

    fn delete_blob(&self, repository: &str, digest: &Digest) -> Result<Deletion> {
        self.layout.delete_layer(repository, digest).map(Deletion::of)
    }

    fn free_space(&self) -> Option<u64> {
        self.layout.free_space()
    }
}
