//! Manifests of a repository that no tag and no index refers to: they can be pulled only by digest.

use std::collections::BTreeSet;

use crate::layout::{Facts, Layout, names, paths};
use imgctl_base::error::Result;
use imgctl_base::image::Digest;

/// Number of tags read per page.
const PAGE: usize = 1000;

impl Layout {
    /// Returns all manifests of `repository`, tagged or not.
    pub fn revisions(&self, repository: &str) -> Result<BTreeSet<Digest>> {
        let repository = names::repository(repository)?;
        let directory = format!("{}/_manifests/revisions", paths::repository(repository));
        let mut digests = BTreeSet::new();
        for algorithm in self.tree.directories(&directory)? {
            for hex in self.tree.directories(&format!("{directory}/{algorithm}"))? {
                let Ok(digest) = Digest::parse(&format!("{algorithm}:{hex}")) else {
                    continue;
                };
                // A deleted manifest leaves its directory without a link.
                if self.has_revision(repository, &digest)? {
                    digests.insert(digest);
                }
            }
        }
        Ok(digests)
    }

    /// Returns the manifests of `repository` that have no tag and that no index of the repository
    /// lists.
    pub fn lone_manifests(&self, repository: &str) -> Result<BTreeSet<Digest>> {
        let all = self.revisions(repository)?;
        let mut lone = all.clone();
        let mut after: Option<String> = None;
        loop {
            let tags = self.tags(repository, after.as_deref(), PAGE)?;
            let tags = tags.unwrap_or_default();
            let Some(last) = tags.last() else { break };
            after = Some(last.clone());
            for tag in &tags {
                if let Some(digest) = self.resolve_tag(repository, tag)? {
                    lone.remove(&digest);
                }
            }
        }
        if lone.is_empty() {
            return Ok(lone);
        }
        for digest in &all {
            // A manifest that cannot be read causes an error when it is copied itself.
            if let Ok(Some(document)) = self.manifest(repository, digest)
                && let Ok(facts) = Facts::parse(&document.bytes)
            {
                for child in facts.manifests {
                    lone.remove(&child.digest);
                }
            }
        }
        Ok(lone)
    }
}
