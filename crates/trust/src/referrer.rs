//! Documents about an image (SBOM, provenance) as artifacts that refer to it (image-spec 1.1,
//! manifest.md, "Guidelines for Artifact Usage"). Must not depend on the content of a document.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};

use crate::document_file::DocumentFile;
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest, Manifest, media_type};
use imgctl_registry::{Repository, Target};

/// image-spec's empty config.
pub(crate) const EMPTY: &[u8] = b"{}";

/// A document about an image.
#[derive(Clone, Copy, Debug)]
pub struct Attachment<'a> {
    /// Artifact type of the manifest: the kind of document.
    pub artifact_type: &'a str,
    /// Media type of the document itself.
    pub media_type: &'a str,
    pub content: Content<'a>,
    /// Annotations of the layer.
    pub annotations: &'a [(&'a str, &'a str)],
}

/// Where the bytes of a document are.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    Bytes(&'a [u8]),
    File(&'a DocumentFile),
}

impl Attachment<'_> {
    /// Returns the document as a blob.
    fn blob(&self) -> Descriptor {
        match self.content {
            Content::Bytes(bytes) => {
                Descriptor::new(self.media_type, Digest::of(bytes), bytes.len() as u64)
            }
            Content::File(file) => file.descriptor(self.media_type),
        }
    }
}

/// Builds the manifest that carries `attachment` and refers to `subject`. The same document always
/// gives the same manifest.
pub fn manifest(subject: &Descriptor, attachment: &Attachment<'_>) -> Result<Vec<u8>> {
    annotated(subject, attachment, &[])
}

/// Like [`manifest`], with annotations of the manifest.
pub(crate) fn annotated(
    subject: &Descriptor,
    attachment: &Attachment<'_>,
    annotations: &[(&str, &str)],
) -> Result<Vec<u8>> {
    let mut layer = attachment.blob();
    for (name, value) in attachment.annotations {
        layer.annotations.insert((*name).to_owned(), (*value).to_owned());
    }
    let manifest = Manifest {
        schema_version: 2,
        media_type: Some(media_type::OCI_MANIFEST.to_owned()),
        artifact_type: Some(attachment.artifact_type.to_owned()),
        config: empty(),
        layers: vec![layer],
        subject: Some(Descriptor::new(&subject.media_type, subject.digest.clone(), subject.size)),
        annotations: annotations
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect::<BTreeMap<_, _>>(),
    };
    serde_json::to_vec(&manifest)
        .map_err(|error| Error::failed("cannot write the attachment's manifest").caused_by(error))
}

/// Returns the descriptor of the empty config.
pub(crate) fn empty() -> Descriptor {
    Descriptor::new(media_type::OCI_EMPTY, Digest::of(EMPTY), EMPTY.len() as u64)
}

/// Pushes `attachment` as a referrer of `subject`, which must be in `repository`. Returns the
/// manifest's digest.
pub fn attach(
    repository: &Repository,
    subject: &Descriptor,
    attachment: &Attachment<'_>,
) -> Result<Digest> {
    let name = repository.name();
    let target = Target::Digest(subject.digest.clone());
    if repository.head(&target)?.is_none() {
        return Err(Error::new(
            Kind::NotFound,
            format!("{name}@{} does not exist", subject.digest),
        )
        .hint(
            "push the image first (without changing its compression, which changes its digest)",
        ));
    }
    let doing = || format!("cannot attach to {name}@{}", subject.digest);
    let manifest = manifest(subject, attachment)?;
    let blob = attachment.blob();
    push_blob(repository, &empty(), EMPTY).context(doing)?;
    match attachment.content {
        Content::Bytes(bytes) => push_blob(repository, &blob, bytes),
        Content::File(file) => {
            let open =
                |offset| -> Result<Box<dyn Read + Send>> { Ok(Box::new(file.reader(offset))) };
            repository.push_blob(&blob, &[], &open, &|_| {}).map(drop)
        }
    }
    .context(doing)?;
    repository.push_referrer(&subject.digest, media_type::OCI_MANIFEST, &manifest).context(doing)
}

/// Pushes a small blob from memory.
pub(crate) fn push_blob(
    repository: &Repository,
    descriptor: &Descriptor,
    bytes: &[u8],
) -> Result<()> {
    let open = |offset: u64| -> Result<Box<dyn Read + Send + 'static>> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = bytes.get(start..).unwrap_or_default().to_vec();
        Ok(Box::new(Cursor::new(rest)))
    };
    repository.push_blob(descriptor, &[], &open, &|_| {}).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_is_an_artifact_with_a_subject() {
        let mut subject = Descriptor::new(media_type::OCI_MANIFEST, Digest::of(b"i"), 7);
        subject.annotations.insert("name".to_owned(), "left out".to_owned());
        let attachment = Attachment {
            artifact_type: "application/spdx+json",
            media_type: "application/spdx+json",
            content: Content::Bytes(b"{\"a\":1}"),
            annotations: &[],
        };
        let bytes = manifest(&subject, &attachment).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(value["artifactType"], "application/spdx+json");
        assert_eq!(value["config"]["mediaType"], media_type::OCI_EMPTY);
        assert_eq!(value["subject"]["size"], 7);
        assert!(value["subject"].get("annotations").is_none());
        assert_eq!(bytes, manifest(&subject, &attachment).unwrap());
    }
}
