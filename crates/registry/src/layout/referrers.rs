//! Referrers: manifests of a repository that refer to another manifest as their subject.
//!
//! Found by imgctl's own links below `_manifests/referrers`, which distribution ignores, and by the
//! indexes under the fallback tags for registries without the API (distribution-spec, "Enabling the
//! Referrers API" and "Referrers Tag Schema").

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::layout::{Facts, Layout, names, paths};
use imgctl_base::error::Result;
use imgctl_base::image::Digest;

/// Maximum number of referrers of one subject; each costs a read.
const MAX_REFERRERS: usize = 10_000;

impl Layout {
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
}
