//! Statements about an image in the form in which BuildKit adds them to an index: a manifest for each
//! platform, with in-toto statements as its layers, that names the image's manifest in an annotation
//! (docs.docker.com/build/metadata/attestations/attestation-storage). Must not depend on the content of
//! a statement.

use serde_json::{Value, json};

use crate::trust::provenance::{self, STATEMENT, digest_set};
use crate::trust::sbom;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Digest, Manifest, Platform, Reference, media_type};
use imgctl_store::store::Store;

/// Type of the predicate of an SBOM.
const SPDX: &str = "https://spdx.dev/Document";

/// Annotations of an entry in the index.
const REFERENCE_TYPE: &str = "vnd.docker.reference.type";
const REFERENCE_DIGEST: &str = "vnd.docker.reference.digest";
const ATTESTATION: &str = "attestation-manifest";
/// Annotation of a layer.
const PREDICATE_TYPE: &str = "in-toto.io/predicate-type";
/// Stands for the platform of an entry that is not an image.
const UNKNOWN: &str = "unknown";

/// A document about an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// An SPDX document.
    Sbom(Vec<u8>),
    /// An in-toto statement with SLSA provenance.
    Provenance(Vec<u8>),
}

impl Document {
    /// Returns the document as written.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Sbom(bytes) | Self::Provenance(bytes) => bytes,
        }
    }

    /// Returns the document's media type, which is also its artifact type as a referrer.
    pub fn media_type(&self) -> &'static str {
        match self {
            Self::Sbom(_) => sbom::MEDIA_TYPE,
            Self::Provenance(_) => provenance::MEDIA_TYPE,
        }
    }

    /// Returns the name of the file that BuildKit writes beside exported files.
    pub fn file_name(&self) -> &'static str {
        match self {
            Self::Sbom(_) => "sbom.spdx.json",
            Self::Provenance(_) => "provenance.json",
        }
    }

    fn predicate_type(&self) -> &'static str {
        match self {
            Self::Sbom(_) => SPDX,
            Self::Provenance(_) => provenance::PREDICATE,
        }
    }

    /// Returns the in-toto statement about `subject`.
    fn statement(&self, subject: &Descriptor, name: Option<&Reference>) -> Result<Vec<u8>> {
        let spdx = match self {
            Self::Provenance(statement) => return Ok(statement.clone()),
            Self::Sbom(spdx) => spdx,
        };
        let broken =
            |error| Error::failed("cannot write the statement of the SBOM").caused_by(error);
        let predicate: Value = serde_json::from_slice(spdx).map_err(broken)?;
        let name = name.map_or_else(|| subject.digest.to_string(), Reference::name);
        let statement = json!({
            "_type": STATEMENT,
            "subject": [{ "name": name, "digest": digest_set(&subject.digest) }],
            "predicateType": SPDX,
            "predicate": predicate,
        });
        serde_json::to_vec(&statement).map_err(broken)
    }
}

/// Stores the manifest that carries `documents` about the image `subject`; returns its entry in the
/// index. The same documents always give the same manifest.
pub fn write(
    store: &Store,
    subject: &Descriptor,
    name: Option<&Reference>,
    documents: &[Document],
) -> Result<Descriptor> {
    let mut layers = Vec::new();
    for document in documents {
        let statement = document.statement(subject, name)?;
        let digest = store.put_blob(&statement)?;
        let mut layer = Descriptor::new(provenance::MEDIA_TYPE, digest, statement.len() as u64);
        layer.annotations.insert(PREDICATE_TYPE.to_owned(), document.predicate_type().to_owned());
        layers.push(layer);
    }
    let ids: Vec<&Digest> = layers.iter().map(|layer| &layer.digest).collect();
    let config = json!({
        "architecture": UNKNOWN,
        "os": UNKNOWN,
        "config": {},
        "rootfs": { "type": "layers", "diff_ids": ids },
    });
    let manifest = Manifest {
        schema_version: 2,
        media_type: Some(media_type::OCI_MANIFEST.to_owned()),
        artifact_type: None,
        config: store.put_document(media_type::OCI_CONFIG, &config)?,
        layers,
        subject: None,
        annotations: std::collections::BTreeMap::new(),
    };
    let mut entry = store.put_document(media_type::OCI_MANIFEST, &manifest)?;
    entry.platform = Some(Platform::new(UNKNOWN, UNKNOWN, None));
    let digest = subject.digest.to_string();
    entry.annotations.insert(REFERENCE_DIGEST.to_owned(), digest);
    entry.annotations.insert(REFERENCE_TYPE.to_owned(), ATTESTATION.to_owned());
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_store::store::Options;

    #[test]
    fn documents_become_statements_of_one_manifest() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), Options { sync: false }).unwrap();
        let subject = Descriptor::new(media_type::OCI_MANIFEST, Digest::of(b"i"), 1);
        let documents = [
            Document::Sbom(b"{\"spdxVersion\":\"SPDX-2.3\"}".to_vec()),
            Document::Provenance(b"{}".to_vec()),
        ];
        let name = Reference::parse("reg.io/a:v1").unwrap();
        let entry = write(&store, &subject, Some(&name), &documents).unwrap();
        assert_eq!(entry.annotations[REFERENCE_DIGEST], subject.digest.to_string());
        assert_eq!(entry.platform.as_ref().unwrap().os, "unknown");
        let read = |digest: &str| -> Value {
            let digest = Digest::parse(digest).unwrap();
            serde_json::from_slice(&store.read_blob(&digest, 1 << 20).unwrap()).unwrap()
        };
        let manifest = read(&entry.digest.to_string());
        assert_eq!(manifest["layers"][1]["annotations"][PREDICATE_TYPE], provenance::PREDICATE);
        let statement = read(manifest["layers"][0]["digest"].as_str().unwrap());
        assert_eq!(statement["predicate"]["spdxVersion"], "SPDX-2.3");
        assert_eq!(statement["subject"][0]["digest"]["sha256"], subject.digest.hex());
        assert_eq!(write(&store, &subject, Some(&name), &documents).unwrap(), entry);
    }
}
