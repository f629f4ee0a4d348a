//! Fetches the signatures stored next to an image: at cosign's tag of its registry, and as referrers,
//! wherever the image is.
//!
//! A registry, a store or a layout is only trusted to provide candidates: lengths are limited and
//! digests checked, and the caller verifies the signatures.

use std::io::Read as _;

use crate::policy::Signature;
use crate::{attachment, attachment::MAX_SIGNATURES};
use crate::{bundle, bundle::Bundle};
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::image::config::MAX_CONFIG;
use imgctl_base::image::{Descriptor, Digest, Document, media_type};
use imgctl_registry::client::Shelf;
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

/// Artifact types of signatures, and whether each is a bundle.
const TYPES: [(&str, bool); 2] = [(attachment::ARTIFACT_TYPE, false), (bundle::TYPE, true)];

/// Returns all candidates at the tag and among the referrers of `digest`; the list is empty if the
/// registry has none. Only network failures and denied requests are errors.
pub(super) fn all(
    shelf: &dyn Shelf,
    repository: Option<&Repository>,
    digest: &Digest,
) -> Result<Vec<Candidate>> {
    let mut found = match repository {
        Some(repository) => tagged(repository, digest)?,
        None => Vec::new(),
    };
    for (artifact_type, is_bundle) in TYPES {
        let referrers = match listed(shelf, digest, artifact_type) {
            // One valid signature is enough, so those at the tag count without this list.
            Err(error) if !found.is_empty() => {
                let place = "the referrers".to_owned();
                found.push(Candidate { place, content: Err(error) });
                break;
            }
            referrers => referrers?,
        };
        for referrer in referrers {
            let place = format!("referrer {}", referrer.digest);
            let layers =
                shelf.manifest(&referrer.digest).and_then(|manifest| attachment::layers(&manifest));
            match layers {
                Ok(layers) if is_bundle => found.extend(bundles(shelf, &layers, &place)?),
                Ok(layers) => found.extend(simple(shelf, &layers, &place)?),
                Err(error) => found.push(unusable(place, error)?),
            }
        }
    }
    found.truncate(MAX_SIGNATURES);
    Ok(found)
}

fn listed(shelf: &dyn Shelf, digest: &Digest, artifact_type: &str) -> Result<Vec<Descriptor>> {
    let mut listed = shelf.referrers(digest, artifact_type)?;
    // Not every registry filters by artifact type.
    listed.retain(|referrer| referrer.artifact_type.as_deref() == Some(artifact_type));
    listed.truncate(MAX_SIGNATURES);
    Ok(listed)
}

/// Returns the digests whose signatures count for the image `digest` of this machine: its own, and those
/// of kept indexes that list it.
pub(super) fn vouching(shelf: &dyn Shelf, digest: &Digest) -> Result<Vec<Digest>> {
    let mut found = vec![digest.clone()];
    for index in shelf.referrers(digest, media_type::OCI_INDEX)?.iter().take(MAX_SIGNATURES) {
        if shelf.manifest(&index.digest).is_ok_and(|text| lists(&text, digest)) {
            found.push(index.digest.clone());
        }
    }
    Ok(found)
}

/// Returns whether `document` is an index that lists `digest`.
pub(super) fn lists(document: &[u8], digest: &Digest) -> bool {
    match Document::parse(document, None) {
        Ok(Document::Index(index)) => index.manifests.iter().any(|entry| entry.digest == *digest),
        _ => false,
    }
}

/// Copies all signatures of `digest` from its repository to `shelf`. Returns whether there are any;
/// those that cannot be used are left out.
pub(super) fn copy(repository: &Repository, digest: &Digest, shelf: &dyn Shelf) -> Result<bool> {
    let subject = repository.document(&Target::Digest(digest.clone()))?.descriptor;
    let mut any = false;
    let mut put = |manifest: &[u8], config: Option<(Descriptor, Vec<u8>)>| -> Result<()> {
        let Document::Manifest(parsed) = Document::parse(manifest, None)? else {
            return Err(Error::bad_content("it is an index"));
        };
        let mut blobs: Vec<(Descriptor, Vec<u8>)> = Vec::new();
        match config {
            Some(config) => blobs.push(config),
            None => {
                let bytes = blob(repository, &parsed.config, MAX_CONFIG)?;
                blobs.push((parsed.config, bytes));
            }
        }
        for layer in parsed.layers.into_iter().take(MAX_SIGNATURES) {
            let bytes = blob(repository, &layer, bundle::MAX_BUNDLE)?;
            blobs.push((layer, bytes));
        }
        let blobs: Vec<(Descriptor, &[u8])> =
            blobs.iter().map(|(blob, bytes)| (blob.clone(), &**bytes)).collect();
        shelf.attach(&subject, &blobs, manifest)?;
        any = true;
        Ok(())
    };
    let mut outcomes = Vec::new();
    for (artifact_type, _) in TYPES {
        for referrer in listed(repository, digest, artifact_type)? {
            let manifest = Shelf::manifest(repository, &referrer.digest);
            outcomes.push(manifest.and_then(|manifest| put(&manifest, None)));
        }
    }
    // What is at the tag becomes a referrer, the form in which it can be kept.
    if let Some(layers) = layers_at(repository, &attachment::tag(digest)).unwrap_or_default() {
        let written = attachment::referrer(layers, &subject)?;
        let size = written.config.len() as u64;
        let config = Descriptor::new(written.config_type, Digest::of(&written.config), size);
        outcomes.push(put(&written.manifest, Some((config, written.config))));
    }
    for outcome in outcomes {
        match outcome {
            Err(error) if !matches!(error.kind(), Kind::BadContent | Kind::NotFound) => {
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(any)
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

fn simple(shelf: &dyn Shelf, layers: &[Descriptor], place: &str) -> Result<Vec<Candidate>> {
    let mut found = Vec::new();
    for entry in attachment::entries(layers) {
        let content = entry.and_then(|entry| {
            Ok(Content::Simple(Signature {
                payload: blob(shelf, &entry.payload, entry.payload.size)?,
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

fn bundles(shelf: &dyn Shelf, layers: &[Descriptor], place: &str) -> Result<Vec<Candidate>> {
    let mut found = Vec::new();
    for layer in layers.iter().take(MAX_SIGNATURES) {
        let content = blob(shelf, layer, bundle::MAX_BUNDLE)
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
pub(super) fn blob(shelf: &dyn Shelf, blob: &Descriptor, limit: u64) -> Result<Vec<u8>> {
    let doing = || format!("cannot read blob {} of {}", blob.digest, shelf.name());
    if blob.size > limit {
        return Err(Error::bad_content(format!(
            "blob {} has {} bytes, more than {limit}",
            blob.digest, blob.size
        )));
    }
    let mut bytes = Vec::new();
    shelf.open(blob).context(doing)?.take(limit + 1).read_to_end(&mut bytes).doing(doing)?;
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
pub(crate) fn with_children(shelf: &dyn Shelf, root: &Descriptor) -> Result<Vec<Descriptor>> {
    /// Maximum number of documents under one name.
    const MAX_DOCUMENTS: usize = 1000;
    let mut all: Vec<Descriptor> = vec![root.clone()];
    let mut next = 0;
    while let Some(descriptor) = all.get(next).cloned() {
        next += 1;
        if !media_type::is_index(&descriptor.media_type) {
            continue;
        }
        let document = shelf.manifest(&descriptor.digest)?;
        if let Document::Index(index) = Document::parse(&document, Some(&descriptor.media_type))? {
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
