//! The documents that refer to an image in a store, and what they say. Nothing is verified.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::cut;
use imgctl_base::error::{Kind, Result};
use imgctl_base::image::{Descriptor, Digest, Document, media_type};
use imgctl_report::model::image::{Attachment, Detail};
use imgctl_store::store::{Image, Store};
use imgctl_trust::{attachment, payload, provenance, sbom};

/// Maximum number of documents.
const MOST: usize = 200;
/// Maximum size of a document that is read, in bytes.
const MOST_READ: u64 = 16 << 20;
/// Maximum length of a value that is shown, in bytes.
const LONGEST: usize = 500;
/// Prefix of the media types of Sigstore bundles.
const BUNDLE: &str = "application/vnd.dev.sigstore.bundle";

/// Returns the documents kept with an image, with the list of images that names it, and with what that
/// lists.
pub(super) fn all(store: &Store, image: &Image) -> Result<Vec<Attachment>> {
    let mut roots = vec![image.descriptor.clone()];
    if let Some(name) = &image.reference {
        // The image may be one of several platforms.
        roots.extend(store.resolve(&name.to_string()).ok().map(|named| named.descriptor));
    }
    let mut found: Vec<Attachment> = Vec::new();
    for root in roots {
        for (subject, artifact) in store.attached(&root)? {
            let digest = artifact.digest.to_string();
            let is_new = found.iter().all(|known| known.digest != digest);
            if !is_new || media_type::is_index(&artifact.media_type) || found.len() >= MOST {
                continue;
            }
            match one(store, &subject, &artifact) {
                Ok(one) => found.push(one),
                // It may be gone or damaged: the image is not.
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::BadContent) => {
                    tracing::debug!("{digest} is not described: {error}");
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(found)
}

fn one(store: &Store, subject: &Digest, artifact: &Descriptor) -> Result<Attachment> {
    let Document::Manifest(manifest) = store.document(artifact)? else {
        return Ok(described(subject, artifact, "other", String::new(), 0, Vec::new()));
    };
    let artifact_type =
        manifest.artifact_type.clone().unwrap_or_else(|| manifest.config.media_type.clone());
    let size = manifest.layers.iter().map(|layer| layer.size).fold(0, u64::saturating_add);
    let mut kind = "other";
    let mut details = Vec::new();
    for layer in manifest.layers.iter().take(attachment::MAX_SIGNATURES) {
        let content = if layer.size <= MOST_READ {
            store.read_blob(&layer.digest, MOST_READ).ok()
        } else {
            None
        };
        let value: Option<Value> =
            content.and_then(|content| serde_json::from_slice(&content).ok());
        let value = value.unwrap_or(Value::Null);
        let (of_layer, says) = match layer.media_type.as_str() {
            payload::MEDIA_TYPE => ("signature", of_payload(&value)),
            sbom::MEDIA_TYPE => ("sbom", of_spdx(&value)),
            provenance::MEDIA_TYPE => of_statement(&value),
            media if media.starts_with(BUNDLE) => of_bundle(&value),
            _ => continue,
        };
        kind = of_layer;
        details.extend(says);
    }
    Ok(described(subject, artifact, kind, artifact_type, size, details))
}

fn described(
    subject: &Digest,
    artifact: &Descriptor,
    kind: &str,
    artifact_type: String,
    size: u64,
    details: Vec<Detail>,
) -> Attachment {
    Attachment {
        kind: kind.to_owned(),
        artifact_type,
        digest: artifact.digest.to_string(),
        subject: subject.to_string(),
        size,
        details,
    }
}

/// Returns a detail for each name with a text or number at its pointer.
fn details(value: &Value, names: &[(&str, &str)]) -> Vec<Detail> {
    let detail = |(name, pointer): &(&str, &str)| {
        let text = match value.pointer(pointer)? {
            Value::String(text) => text.clone(),
            Value::Array(list) => list.len().to_string(),
            Value::Null | Value::Object(_) => return None,
            other => other.to_string(),
        };
        Some(Detail { name: (*name).to_owned(), value: cut(&text, LONGEST) })
    };
    names.iter().filter_map(detail).collect()
}

fn of_payload(payload: &Value) -> Vec<Detail> {
    let names = [
        ("Format", "/critical/type"),
        ("Signed as", "/critical/identity/docker-reference"),
        ("Signed digest", "/critical/image/docker-manifest-digest"),
    ];
    details(payload, &names)
}

fn of_spdx(document: &Value) -> Vec<Detail> {
    let names = [
        ("Format", "/spdxVersion"),
        ("Name", "/name"),
        ("Created", "/creationInfo/created"),
        ("Packages", "/packages"),
        ("Files", "/files"),
    ];
    details(document, &names)
}

fn of_statement(statement: &Value) -> (&'static str, Vec<Detail>) {
    let names = [
        ("Predicate", "/predicateType"),
        ("Build type", "/predicate/buildDefinition/buildType"),
        ("Builder", "/predicate/runDetails/builder/id"),
        ("Materials", "/predicate/buildDefinition/resolvedDependencies"),
    ];
    let predicate = statement["predicateType"].as_str().unwrap_or_default();
    let kind = if predicate.starts_with("https://slsa.dev/provenance/") {
        "provenance"
    } else if predicate.contains("spdx") || predicate.contains("cyclonedx") {
        "sbom"
    } else if predicate.starts_with("https://sigstore.dev/cosign/sign/") {
        "signature"
    } else {
        "other"
    };
    (kind, details(statement, &names))
}

fn of_bundle(bundle: &Value) -> (&'static str, Vec<Detail>) {
    let payload = bundle.pointer("/dsseEnvelope/payload").and_then(Value::as_str);
    let payload = payload.and_then(|text| STANDARD.decode(text).ok());
    let statement: Option<Value> =
        payload.and_then(|payload| serde_json::from_slice(&payload).ok());
    let (kind, mut says) = match &statement {
        Some(statement) => of_statement(statement),
        None => ("signature", Vec::new()),
    };
    let material = &bundle["verificationMaterial"];
    let by = match material.get("publicKey") {
        Some(_) => "a key",
        None => "a certificate",
    };
    says.insert(0, Detail { name: "Signed by".to_owned(), value: by.to_owned() });
    let entries = material["tlogEntries"].as_array().map_or(0, Vec::len);
    says.push(Detail { name: "Log entries".to_owned(), value: entries.to_string() });
    (kind, says)
}
