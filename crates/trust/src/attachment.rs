//! The manifest in which cosign stores signatures: one layer per signature, with the payload as its
//! blob and the signature as an annotation, at the tag `sha256-<hex>.sig` or as a referrer.
//!
//! Converts documents to values and back. Must not depend on registries or keys.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::payload;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Digest, Document, Manifest, media_type};

/// Layer annotation: the base64 signature over the layer's blob.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// Artifact type of a signature manifest that is a referrer (cosign, OCI 1.1 mode).
pub(crate) const ARTIFACT_TYPE: &str = "application/vnd.dev.cosign.artifact.sig.v1+json";

/// Maximum number of signatures checked for one image.
pub const MAX_SIGNATURES: usize = 100;
/// Maximum length of a signature, in bytes.
const MAX_SIGNATURE: usize = 16 << 10;

/// One signature to verify.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The payload's blob.
    pub payload: Descriptor,
    pub signature: Vec<u8>,
}

/// A manifest and its config, ready to be pushed.
#[derive(Clone, Debug)]
pub struct Written {
    pub config: Vec<u8>,
    pub config_type: &'static str,
    pub manifest: Vec<u8>,
}

/// Returns the tag that holds the signatures of the manifest `digest`.
pub fn tag(digest: &Digest) -> String {
    format!("{}-{}.sig", digest.algorithm().as_str(), digest.hex())
}

/// Returns the layers of a signature manifest, unchanged.
pub fn layers(manifest: &[u8]) -> Result<Vec<Descriptor>> {
    match Document::parse(manifest, None)? {
        Document::Manifest(manifest) => Ok(manifest.layers),
        Document::Index(_) => Err(Error::bad_content("the manifest of the signatures is an index")),
    }
}

/// Returns the signatures among `layers`; a layer with a missing or malformed signature gives an
/// error.
pub fn entries(layers: &[Descriptor]) -> Vec<Result<Entry>> {
    layers.iter().take(MAX_SIGNATURES).map(entry).collect()
}

fn entry(layer: &Descriptor) -> Result<Entry> {
    let refuse = |why: &str| Error::bad_content(format!("layer {} {why}", layer.digest));
    if layer.media_type != payload::MEDIA_TYPE {
        return Err(refuse("is not a simple signing payload"));
    }
    if layer.size > payload::MAX_PAYLOAD {
        return Err(refuse("is too long for a payload"));
    }
    let text = layer
        .annotations
        .get(SIGNATURE)
        .filter(|text| text.len() <= MAX_SIGNATURE)
        .ok_or_else(|| refuse("has no signature"))?;
    let signature =
        STANDARD.decode(text.trim()).map_err(|_| refuse("has a signature that is not base64"))?;
    Ok(Entry { payload: layer.clone(), signature })
}

/// Builds the layer for a signature over a payload.
pub fn layer(payload_bytes: &[u8], signature: &[u8]) -> Descriptor {
    let size = payload_bytes.len() as u64;
    let mut layer = Descriptor::new(payload::MEDIA_TYPE, Digest::of(payload_bytes), size);
    layer.annotations.insert(SIGNATURE.to_owned(), STANDARD.encode(signature));
    layer
}

/// Builds the manifest for the tag, with all of `layers`.
pub fn tagged(layers: Vec<Descriptor>) -> Result<Written> {
    write(layers, None)
}

/// Builds a manifest that refers to `subject`.
pub fn referrer(layers: Vec<Descriptor>, subject: &Descriptor) -> Result<Written> {
    let bare = Descriptor::new(&subject.media_type, subject.digest.clone(), subject.size);
    write(layers, Some(bare))
}

fn write(layers: Vec<Descriptor>, subject: Option<Descriptor>) -> Result<Written> {
    let ids: Vec<&Digest> = layers.iter().map(|layer| &layer.digest).collect();
    // cosign's config: an image config that contains only the payloads' digests.
    let config = json!({
        "architecture": "",
        "config": {},
        "created": "0001-01-01T00:00:00Z",
        "history": [{ "created": "0001-01-01T00:00:00Z" }],
        "os": "",
        "rootfs": { "type": "layers", "diff_ids": ids },
    })
    .to_string()
    .into_bytes();
    let is_referrer = subject.is_some();
    let config_type = if is_referrer { ARTIFACT_TYPE } else { media_type::OCI_CONFIG };
    let manifest = Manifest {
        schema_version: 2,
        media_type: Some(media_type::OCI_MANIFEST.to_owned()),
        artifact_type: is_referrer.then(|| ARTIFACT_TYPE.to_owned()),
        config: Descriptor::new(config_type, Digest::of(&config), config.len() as u64),
        layers,
        subject,
        annotations: std::collections::BTreeMap::new(),
    };
    let manifest = serde_json::to_vec(&manifest)
        .map_err(|error| Error::failed("cannot write the signatures' manifest").caused_by(error))?;
    Ok(Written { config, config_type, manifest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_survive_the_manifest() {
        let layer = layer(b"payload", b"signature");
        let written = tagged(vec![layer.clone()]).unwrap();
        let entries = entries(&layers(&written.manifest).unwrap());
        assert_eq!(entries.len(), 1);
        let entry = entries.into_iter().next().unwrap().unwrap();
        assert_eq!(entry.signature, b"signature");
        assert_eq!(entry.payload, layer);
        let subject = Descriptor::new(media_type::OCI_MANIFEST, Digest::of(b"i"), 1);
        let referrer = referrer(vec![layer], &subject).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&referrer.manifest).unwrap();
        assert_eq!(value["artifactType"], ARTIFACT_TYPE);
        assert_eq!(value["subject"]["digest"], Digest::of(b"i").to_string());
    }

    #[test]
    fn layers_that_are_no_signatures_say_why() {
        let good = layer(b"p", b"s");
        let (mut other, mut long, mut bare, mut broken) =
            (good.clone(), good.clone(), good.clone(), good.clone());
        other.media_type = media_type::OCI_LAYER.to_owned();
        long.size = u64::MAX;
        bare.annotations.clear();
        broken.annotations.insert(SIGNATURE.to_owned(), "%".to_owned());
        for (bad, why) in
            [(other, "payload"), (long, "too long"), (bare, "no signature"), (broken, "base64")]
        {
            let error = entries(&[bad]).remove(0).unwrap_err();
            assert!(error.message().contains(why), "{error}");
        }
        let many = vec![good; MAX_SIGNATURES + 1];
        assert_eq!(entries(&many).len(), MAX_SIGNATURES);
    }

    #[test]
    fn the_tag_is_that_of_cosign() {
        let digest = Digest::of(b"");
        assert_eq!(tag(&digest), format!("sha256-{}.sig", digest.hex()));
    }
}
