//! Manifests of a repository: stored and returned byte by byte, written in a crash-safe order,
//! listed, found by the subject that they refer to, and deleted. `gc` removes the bytes when no
//! manifest refers to them.
//!
//! Referrers are found by imgctl's own links below `_manifests/referrers`, which distribution
//! ignores, and by the indexes under the fallback tags for registries without the API
//! (distribution-spec, "Enabling the Referrers API" and "Referrers Tag Schema").

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

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

    /// Returns the descriptors of all manifests of `repository` that refer to `subject`, ordered by
    /// digest, as members of an index. Skips manifests that are missing, unreadable or do not refer
    /// to it.
    pub fn referrers(&self, repository: &str, subject: &Digest) -> Result<Vec<Value>> {
        let repository = names::repository(repository)?;
        let mut digests = self.linked_referrers(repository, subject)?;
        let tag = format!("{}-{}", subject.algorithm().as_str(), subject.hex());
        if let Ok(Some(digest)) = self.resolve_tag(repository, &tag)
            && let Ok(Some(document)) = self.manifest(repository, &digest)
            && let Ok(facts) = Facts::parse(&document.bytes)
        {
            digests.extend(facts.manifests.into_iter().map(|part| part.digest));
        }
        Ok(digests
            .iter()
            .take(MAX_REFERRERS)
            .filter_map(|digest| self.referrer(repository, subject, digest))
            .collect())
    }

    /// Returns the referrers of `subject` according to the links.
    pub(super) fn linked_referrers(
        &self,
        repository: &str,
        subject: &Digest,
    ) -> Result<BTreeSet<Digest>> {
        let links = self.linked(&paths::referrers(repository, subject))?;
        Ok(links.into_iter().map(|(digest, _)| digest).collect())
    }

    fn referrer(&self, repository: &str, subject: &Digest, digest: &Digest) -> Option<Value> {
        let document = self.manifest(repository, digest).ok()??;
        let facts = Facts::parse(&document.bytes).ok()?;
        if facts.subject.as_ref()?.digest != *subject {
            return None;
        }
        let mut descriptor = Map::new();
        descriptor.insert("mediaType".into(), facts.media_type.into());
        descriptor.insert("digest".into(), digest.to_string().into());
        descriptor.insert("size".into(), json!(document.bytes.len()));
        if let Some(artifact_type) = facts.artifact_type {
            descriptor.insert("artifactType".into(), artifact_type.into());
        }
        if let Some(annotations) = facts.annotations {
            descriptor.insert("annotations".into(), Value::Object(annotations));
        }
        Some(Value::Object(descriptor))
    }

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

/// Number of tags read per page.
const PAGE: usize = 1000;

/// Maximum number of referrers of one subject; each costs a read.
const MAX_REFERRERS: usize = 10_000;
