//! Fetches the signatures stored next to an image in its registry: at cosign's tag, and as
//! referrers.
//!
//! The registry is only trusted to provide candidates: lengths are limited and digests checked, and
//! the caller verifies the signatures.

use std::io::Read as _;

use crate::trust::attachment::{self, MAX_SIGNATURES};
use crate::trust::bundle::{self, Bundle};
use crate::trust::policy::Signature;
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::image::{Descriptor, Digest, Document};
use imgctl_registry::{Repository, Target};

/// One signature found.
pub(crate) struct Candidate {
    /// Its location: the tag, or the referrer's digest.
    pub place: String,
    /// An `Err` explains why the signature cannot be verified at all.
    pub content: Result<Content>,
}

/// Content of a candidate.
pub(super) enum Content {
    /// A simple signing payload and the signature over it.
    Simple(Signature),
    /// A sigstore bundle with an attestation.
    Bundle(Bundle),
}

/// Returns all candidates at the tag and among the referrers of `digest`; the list is empty if the
/// registry has none. Only network failures and denied requests are errors.
pub(super) fn all(repository: &Repository, digest: &Digest) -> Result<Vec<Candidate>> {
    let mut found = tagged(repository, digest)?;
    for (artifact_type, is_bundle) in [(attachment::ARTIFACT_TYPE, false), (bundle::TYPE, true)] {
        for referrer in repository
            .referrers(digest, Some(artifact_type))?
            .iter()
            // Not every registry filters by artifact type.
            .filter(|referrer| referrer.artifact_type.as_deref() == Some(artifact_type))
            .take(MAX_SIGNATURES)
        {
            let place = format!("referrer {}", referrer.digest);
            let target = Target::Digest(referrer.digest.clone());
            let layers = match repository.document(&target) {
                Ok(document) => attachment::layers(&document.bytes),
                Err(error) => Err(error),
            };
            match layers {
                Ok(layers) if is_bundle => found.extend(bundles(repository, &layers, &place)?),
                Ok(layers) => found.extend(simple(repository, &layers, &place)?),
                Err(error) => found.push(unusable(place, error)?),
            }
        }
    }
    found.truncate(MAX_SIGNATURES);
    Ok(found)
}

/// Returns the candidates at cosign's tag.
pub(super) fn tagged(repository: &Repository, digest: &Digest) -> Result<Vec<Candidate>> {
    let tag = attachment::tag(digest);
    let place = format!("tag {tag}");
    match layers_at(repository, &tag) {
        Ok(Some(layers)) => simple(repository, &layers, &place),
        Ok(None) => Ok(Vec::new()),
        Err(error) => Ok(vec![unusable(place, error)?]),
    }
}

/// Returns the layers of the signature manifest at `tag`, or `None` if the tag does not exist.
pub(crate) fn layers_at(repository: &Repository, tag: &str) -> Result<Option<Vec<Descriptor>>> {
    let document = repository.document(&Target::Tag(tag.to_owned())).found()?;
    document.map(|document| attachment::layers(&document.bytes)).transpose()
}

fn simple(repository: &Repository, layers: &[Descriptor], place: &str) -> Result<Vec<Candidate>> {
    let mut found = Vec::new();
    for entry in attachment::entries(layers) {
        let content = entry.and_then(|entry| {
            Ok(Content::Simple(Signature {
                payload: blob(repository, &entry.payload, entry.payload.size)?,
                signature: entry.signature,
            }))
        });
        found.push(match content {
            Ok(content) => Candidate { place: place.to_owned(), content: Ok(content) },
            Err(error) => unusable(place.to_owned(), error)?,
        });
    }
    Ok(found)
}

fn bundles(repository: &Repository, layers: &[Descriptor], place: &str) -> Result<Vec<Candidate>> {
    let mut found = Vec::new();
    for layer in layers.iter().take(MAX_SIGNATURES) {
        let content = blob(repository, layer, bundle::MAX_BUNDLE)
            .and_then(|bytes| bundle::parse(&bytes))
            .map(Content::Bundle);
        found.push(match content {
            Ok(content) => Candidate { place: place.to_owned(), content: Ok(content) },
            Err(error) => unusable(place.to_owned(), error)?,
        });
    }
    Ok(found)
}

/// Malformed or missing content gives a candidate that fails; a failed request is an error.
fn unusable(place: String, error: Error) -> Result<Candidate> {
    match error.kind() {
        Kind::BadContent | Kind::NotFound => Ok(Candidate { place, content: Err(error) }),
        _ => Err(error.context("cannot read the image's signatures")),
    }
}

/// Reads a small blob and verifies its digest.
pub(super) fn blob(repository: &Repository, blob: &Descriptor, limit: u64) -> Result<Vec<u8>> {
    let doing = || format!("cannot read blob {} of {}", blob.digest, repository.name());
    if blob.size > limit {
        return Err(Error::bad_content(format!(
            "blob {} has {} bytes, more than {limit}",
            blob.digest, blob.size
        )));
    }
    let mut bytes = Vec::new();
    repository
        .blob(blob, 0)
        .context(doing)?
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .doing(doing)?;
    let mut hasher = imgctl_base::image::Hasher::with(blob.digest.algorithm());
    hasher.update(&bytes);
    if hasher.finish() != blob.digest {
        return Err(Error::bad_content(format!(
            "what came as blob {} is something else",
            blob.digest
        )));
    }
    Ok(bytes)
}

/// Returns the descriptor of an index and of everything it lists, the index first; for a manifest,
/// only its own.
pub(crate) fn with_children(repository: &Repository, root: &Descriptor) -> Result<Vec<Descriptor>> {
    /// Maximum number of documents under one name.
    const MAX_DOCUMENTS: usize = 1000;
    let mut all: Vec<Descriptor> = vec![root.clone()];
    let mut next = 0;
    while let Some(descriptor) = all.get(next).cloned() {
        next += 1;
        if !imgctl_base::image::media_type::is_index(&descriptor.media_type) {
            continue;
        }
        let document = repository.document(&Target::Digest(descriptor.digest.clone()))?;
        if let Document::Index(index) =
            Document::parse(&document.bytes, Some(&document.descriptor.media_type))?
        {
            for child in index.manifests {
                if all.iter().all(|known| known.digest != child.digest) {
                    all.push(child);
                }
            }
        }
        if all.len() > MAX_DOCUMENTS {
            return Err(Error::bad_content(format!(
                "the index {} lists more than {MAX_DOCUMENTS} manifests",
                root.digest
            )));
        }
    }
    Ok(all)
}
