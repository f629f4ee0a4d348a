//! Statements about an image in the form in which BuildKit adds them to an index: a manifest for each
//! platform, with in-toto statements as its layers, that names the image's manifest in an annotation
//! (docs.docker.com/build/metadata/attestations/attestation-storage). Must not depend on the content of
//! a statement.

use serde_json::json;

use crate::document_file::DocumentFile;
use crate::{
    provenance,
    provenance::{STATEMENT, digest_set},
};
use crate::{sbom, sbom::Sbom};
use imgctl_base::error::{IoContext as _, Result};
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
#[derive(Clone, Debug)]
pub struct Document {
    sort: Sort,
    content: DocumentFile,
    /// The in-toto statement with this content.
    statement: DocumentFile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    /// An SPDX document.
    Sbom,
    /// An in-toto statement with SLSA provenance.
    Provenance,
}

impl Document {
    /// Returns an SBOM of the image `subject`, and its statement.
    pub fn sbom(
        store: &Store,
        sbom: &Sbom<'_>,
        subject: &Descriptor,
        name: Option<&Reference>,
    ) -> Result<Self> {
        let name = name.map_or_else(|| subject.digest.to_string(), Reference::name);
        let subjects = json!([{ "name": name, "digest": digest_set(&subject.digest) }]);
        let statement = DocumentFile::write(store, |out| {
            let doing = || "cannot write the statement of the SBOM".to_owned();
            write!(
                out,
                r#"{{"_type":"{STATEMENT}","subject":{subjects},"predicateType":"{SPDX}","predicate":"#
            )
            .doing(doing)?;
            sbom.write_inside(out)?;
            out.write_all(b"}").doing(doing)
        })?;
        Ok(Self { sort: Sort::Sbom, content: sbom.document(store)?, statement })
    }

    /// Returns a document for a statement of provenance.
    pub fn provenance(store: &Store, statement: &[u8]) -> Result<Self> {
        let statement = DocumentFile::write(store, |out| {
            out.write_all(statement).doing(|| "cannot write the provenance".to_owned())
        })?;
        Ok(Self { sort: Sort::Provenance, content: statement.clone(), statement })
    }

    /// Returns the document as written.
    pub fn content(&self) -> &DocumentFile {
        &self.content
    }

    /// Returns the document's media type, which is also its artifact type as a referrer.
    pub fn media_type(&self) -> &'static str {
        match self.sort {
            Sort::Sbom => sbom::MEDIA_TYPE,
            Sort::Provenance => provenance::MEDIA_TYPE,
        }
    }

    /// Returns the name of the file that BuildKit writes beside exported files.
    pub fn file_name(&self) -> &'static str {
        match self.sort {
            Sort::Sbom => "sbom.spdx.json",
            Sort::Provenance => "provenance.json",
        }
    }

    fn predicate_type(&self) -> &'static str {
        match self.sort {
            Sort::Sbom => SPDX,
            Sort::Provenance => provenance::PREDICATE,
        }
    }
}

/// Stores the manifest that carries `documents` about the image `subject`; returns its entry in the
/// index. The same documents always give the same manifest.
pub fn write(store: &Store, subject: &Descriptor, documents: &[Document]) -> Result<Descriptor> {
    let mut layers = Vec::new();
    for document in documents {
        let mut layer = document.statement.descriptor(provenance::MEDIA_TYPE);
        store.import_blob(&mut document.statement.reader(0), &layer.digest, layer.size)?;
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
    use serde_json::Value;

    use super::*;
    use imgctl_base::progress::Silent;
    use imgctl_layer::{Compression, Entry, EntryKind, LayerPath, LayerWriter};
    use imgctl_store::store::Options;

    fn image(store: &Store) -> Descriptor {
        let ingest = store.ingest().unwrap();
        let mut writer = LayerWriter::start(ingest, Compression::None, 1).unwrap();
        let path = LayerPath::parse(b"etc/\"quoted\"").unwrap();
        let entry = Entry::new(path, EntryKind::File { size: 1 }, 0o644);
        writer.add(entry, &mut &b"x"[..]).unwrap();
        let (ingest, layer) = writer.finish().unwrap();
        store.commit(ingest, &layer.digest).unwrap();
        let descriptor = Descriptor::new(media_type::OCI_LAYER, layer.digest, layer.size);
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "rootfs": { "type": "layers", "diff_ids": [layer.diff_id] },
        });
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": media_type::OCI_MANIFEST,
            "config": store.put_document(media_type::OCI_CONFIG, &config).unwrap(),
            "layers": [descriptor],
        });
        store.put_document(media_type::OCI_MANIFEST, &manifest).unwrap()
    }

    #[test]
    fn documents_become_statements_of_one_manifest() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), Options { sync: false }).unwrap();
        let subject = image(&store);
        let name = Reference::parse("reg.io/a:v1").unwrap();
        let taken = store.image_at(&subject, None).unwrap();
        let options = sbom::SbomOptions { files: true, timestamp: None };
        let of_contents = Sbom::of(&store, &taken, &options, &Silent, |sbom| {
            Document::sbom(&store, sbom, &subject, Some(&name))
        })
        .unwrap();
        let documents = [of_contents, Document::provenance(&store, b"{}").unwrap()];
        let entry = write(&store, &subject, &documents).unwrap();
        assert_eq!(entry.annotations[REFERENCE_DIGEST], subject.digest.to_string());
        assert_eq!(entry.platform.as_ref().unwrap().os, "unknown");
        let read = |digest: &str| {
            let digest = Digest::parse(digest).unwrap();
            store.read_blob(&digest, 1 << 20).unwrap()
        };
        let value = |bytes: &[u8]| -> Value { serde_json::from_slice(bytes).unwrap() };
        let manifest = value(&read(&entry.digest.to_string()));
        assert_eq!(manifest["layers"][1]["annotations"][PREDICATE_TYPE], provenance::PREDICATE);
        let bytes = read(manifest["layers"][0]["digest"].as_str().unwrap());
        let statement = value(&bytes);
        assert_eq!(statement["subject"][0]["digest"]["sha256"], subject.digest.hex());
        assert_eq!(statement["subject"][0]["name"], "reg.io/a");
        // It is the SPDX document, and JSON without white space.
        let mut spdx = Vec::new();
        documents[0].content().copy_to(&mut spdx).unwrap();
        assert_eq!(statement["predicate"], value(&spdx));
        assert_eq!(statement["predicate"]["files"][0]["fileName"], "./etc/\"quoted\"");
        assert_eq!(serde_json::to_vec(&statement).unwrap(), bytes);
        assert_eq!(write(&store, &subject, &documents).unwrap(), entry);
    }
}
