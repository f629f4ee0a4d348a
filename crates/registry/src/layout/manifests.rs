//! Manifests: stored and returned byte by byte, and written in a crash-safe order.

use crate::layout::{Facts, Layout, MAX_MANIFEST, names, paths};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Digest, Hasher};

/// A manifest or index from the tree, with a verified digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredManifest {
    pub media_type: String,
    pub bytes: Vec<u8>,
}

impl Layout {
    /// Returns the manifest `digest` of `repository`; `None` if the repository does not have it.
    pub fn manifest(&self, repository: &str, digest: &Digest) -> Result<Option<StoredManifest>> {
        if !self.has_revision(repository, digest)? {
            return Ok(None);
        }
        self.document(digest)
    }

    /// Returns the manifest regardless of the repository that has it.
    pub(super) fn document(&self, digest: &Digest) -> Result<Option<StoredManifest>> {
        let path = paths::blob_data(digest);
        let Some(bytes) = self.tree.read(&path, MAX_MANIFEST)? else {
            return Ok(None);
        };
        let mut hasher = Hasher::with(digest.algorithm());
        hasher.update(&bytes);
        if hasher.finish() != *digest {
            let path = self.tree.shown(&path);
            return Err(Error::bad_content(format!(
                "{} is damaged: its content has another digest",
                path.display()
            ))
            .hint("imgctl registry scrub finds everything that is damaged"));
        }
        Ok(Some(StoredManifest { media_type: Facts::parse(&bytes)?.media_type, bytes }))
    }

    /// Stores a manifest and points `tags` to it. The caller has computed `digest` over `bytes` and
    /// parsed `facts` from them.
    pub fn put_manifest(
        &self,
        repository: &str,
        tags: &[&str],
        digest: &Digest,
        bytes: &[u8],
        facts: &Facts,
    ) -> Result<()> {
        let repository = names::repository(repository)?;
        let _together = self.changes.read();
        let mut files = Vec::new();
        if self.blob_size(digest)? != Some(bytes.len() as u64) {
            files.push(self.tree.prepare(&paths::blob_data(digest), bytes)?);
        }
        if let Some(subject) = &facts.subject {
            let link = paths::referrer_link(repository, &subject.digest, digest);
            files.extend(self.new_link(&link, digest)?);
        }
        files.extend(self.new_link(&paths::revision_link(repository, digest), digest)?);
        for tag in tags {
            let history = paths::tag_history_link(repository, names::tag(tag)?, digest);
            files.extend(self.new_link(&history, digest)?);
        }
        self.tree.commit(files)?;
        let mut current = Vec::new();
        for tag in tags {
            current.extend(self.new_link(&paths::tag_link(repository, tag), digest)?);
        }
        self.tree.commit(current)
    }
}
