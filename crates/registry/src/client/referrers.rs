//! Referrers of a manifest: the referrers API of distribution-spec 1.1, and the fallback tag for
//! registries without it.

use crate::client::Target;
use crate::client::challenge::Scopes;
use crate::client::hosts::Place;
use crate::client::place::Address;
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest, Document, Index, Manifest, media_type};

/// Maximum number of referrers of one manifest.
const MAX_REFERRERS: usize = 100_000;
/// Number of times the tag is written again after a concurrent change.
const ROUNDS: usize = 4;

/// Returns the fallback tag for the referrers API (distribution-spec, "Referrers Tag Schema").
fn fallback_tag(subject: &Digest) -> Target {
    let hex: String = subject.hex().chars().take(64).collect();
    Target::Tag(format!("{}-{hex}", subject.algorithm().as_str()))
}

impl Place {
    /// Returns the referrers of `subject`, filtered by `artifact_type` if given.
    pub(super) async fn referrers(
        &self,
        subject: &Digest,
        artifact_type: Option<&str>,
    ) -> Result<Vec<Descriptor>> {
        let mut found = match self.referrers_by_api(subject, artifact_type).await {
            Err(error) if error.kind() == Kind::NotFound => self.referrers_by_tag(subject).await?,
            other => other?,
        };
        // Registries are not required to filter.
        found.retain(|entry| {
            artifact_type.is_none_or(|wanted| entry.artifact_type.as_deref() == Some(wanted))
        });
        Ok(found)
    }

    async fn referrers_by_api(
        &self,
        subject: &Digest,
        artifact_type: Option<&str>,
    ) -> Result<Vec<Descriptor>> {
        let doing = format!("cannot list what refers to {subject} in {}", self.name());
        let query = artifact_type.map(|wanted| ("artifactType", wanted.to_owned()));
        let first = Address::Path(format!("referrers/{subject}"), query.into_iter().collect());
        let scopes = Scopes::repository(&self.repository, "pull");
        let mut found = Vec::new();
        self.pages(&doing, first, &scopes, |body| {
            found.extend(index(body)?.manifests);
            if found.len() > MAX_REFERRERS {
                return Err(Error::bad_content(format!("there are more than {MAX_REFERRERS}")));
            }
            Ok(())
        })
        .await?;
        Ok(found)
    }

    async fn referrers_by_tag(&self, subject: &Digest) -> Result<Vec<Descriptor>> {
        match self.document(&fallback_tag(subject)).await {
            Ok(document) => Ok(index(&document.bytes)?.manifests),
            Err(error) if error.kind() == Kind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Pushes a manifest that refers to `subject`.
    pub(super) async fn put_referrer(
        &self,
        subject: &Digest,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<Digest> {
        let digest = Digest::of(bytes);
        let indexed = self.put_document(&Target::Digest(digest.clone()), media_type, bytes).await?;
        if !indexed {
            let entry = entry(media_type, &digest, bytes)?;
            self.add_to_tag(subject, entry).await.context(|| {
                format!("cannot add {digest} to what refers to {subject} in {}", self.name())
            })?;
        }
        Ok(digest)
    }

    /// Adds an entry to the tag's index and verifies that it is still there afterwards, because the
    /// tag cannot be locked.
    async fn add_to_tag(&self, subject: &Digest, entry: Descriptor) -> Result<()> {
        for round in 0.. {
            let mut manifests = self.referrers_by_tag(subject).await?;
            if manifests.iter().any(|known| known.digest == entry.digest) {
                return Ok(());
            }
            if round == ROUNDS {
                break;
            }
            manifests.push(entry.clone());
            let bytes = serde_json::to_vec(&Index::new(manifests))
                .map_err(|error| Error::failed("cannot write an index").caused_by(error))?;
            self.put_document(&fallback_tag(subject), media_type::OCI_INDEX, &bytes).await?;
        }
        Err(Error::new(
            Kind::Busy,
            format!(
                "other clients changed the list of referrers of {subject} each time it was \
                     written"
            ),
        )
        .hint("try again"))
    }
}

fn index(bytes: &[u8]) -> Result<Index> {
    match Document::parse(bytes, None)? {
        Document::Index(index) => Ok(index),
        Document::Manifest(_) => Err(Error::bad_content("the list of referrers is not an index")),
    }
}

/// Returns the entry for a manifest in the list of its subject (distribution-spec, "Listing
/// Referrers").
fn entry(media_type: &str, digest: &Digest, bytes: &[u8]) -> Result<Descriptor> {
    let mut entry = Descriptor::new(media_type, digest.clone(), bytes.len() as u64);
    match Document::parse(bytes, Some(media_type))? {
        Document::Manifest(Manifest { artifact_type, config, annotations, .. }) => {
            entry.artifact_type = Some(artifact_type.unwrap_or(config.media_type));
            entry.annotations = annotations;
        }
        Document::Index(Index { artifact_type, annotations, .. }) => {
            entry.artifact_type = artifact_type;
            entry.annotations = annotations;
        }
    }
    Ok(entry)
}
