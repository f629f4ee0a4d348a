//! Removes tags, manifests and blobs from a repository. `gc` removes the bytes when no manifest
//! refers to them.

use crate::layout::{Facts, Layout, names, paths};
use imgctl_base::error::Result;
use imgctl_base::image::Digest;

impl Layout {
    /// Removes a tag but not its manifest. Returns whether the tag existed.
    pub fn delete_tag(&self, repository: &str, tag: &str) -> Result<bool> {
        let (repository, tag) = (names::repository(repository)?, names::tag(tag)?);
        let _alone = self.changes.write();
        let was_there = self.tree.remove(&paths::tag_link(repository, tag))?;
        self.tree.remove(&paths::tag(repository, tag))?;
        Ok(was_there)
    }

    /// Removes a manifest and the tags that point to it. Returns whether it existed.
    pub fn delete_manifest(&self, repository: &str, digest: &Digest) -> Result<bool> {
        let repository = names::repository(repository)?;
        let _alone = self.changes.write();
        if !self.has_revision(repository, digest)? {
            return Ok(false);
        }
        for tag in self.tree.directories(&paths::tags(repository))? {
            if names::is_tag(&tag) && self.resolve_tag(repository, &tag)?.as_ref() == Some(digest) {
                self.tree.remove(&paths::tag_link(repository, &tag))?;
                self.tree.remove(&paths::tag(repository, &tag))?;
            }
        }
        self.remove_revision(repository, digest)?;
        Ok(true)
    }

    /// Removes the links of one manifest.
    pub(super) fn remove_revision(&self, repository: &str, digest: &Digest) -> Result<()> {
        let subject = self
            .document(digest)
            .ok()
            .flatten()
            .and_then(|document| Facts::parse(&document.bytes).ok())
            .and_then(|facts| facts.subject);
        self.tree.remove(&paths::revision_link(repository, digest))?;
        self.tree.remove(&paths::revision(repository, digest))?;
        if let Some(subject) = subject {
            let link = paths::referrer_link(repository, &subject.digest, digest);
            let directory = link.trim_end_matches("/link");
            self.tree.remove(directory)?;
            if let Some((parent, _)) = directory.rsplit_once('/') {
                self.tree.remove_empty(parent, &paths::repository(repository));
            }
        }
        Ok(())
    }

    /// Removes a blob from a repository. Returns whether it existed.
    pub(crate) fn delete_layer(&self, repository: &str, digest: &Digest) -> Result<bool> {
        let link = paths::layer_link(names::repository(repository)?, digest);
        let was_there = self.tree.remove(&link)?;
        self.tree.remove(link.trim_end_matches("/link"))?;
        Ok(was_there)
    }
}
