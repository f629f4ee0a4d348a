//! Sigstore bundles (v0.3) with a DSSE envelope around an in-toto statement, as cosign 3 attaches
//! them to images: parsed, written, and verified by key.
//!
//! Knows only the format. The module `sigstore` decides what certificates, log entries and
//! timestamps are worth.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::keys::PublicKey;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::Digest;

/// Media type of a bundle, and the artifact type of the manifest that refers to the image.
pub(crate) const TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
/// Media types of the versions that are read.
const TYPES: [&str; 4] = [
    TYPE,
    "application/vnd.dev.sigstore.bundle+json;version=0.3",
    "application/vnd.dev.sigstore.bundle+json;version=0.2",
    "application/vnd.dev.sigstore.bundle+json;version=0.1",
];
/// Maximum size of a bundle, in bytes.
pub(crate) const MAX_BUNDLE: u64 = 4 << 20;
/// Maximum number of signatures, log entries or timestamps in a bundle.
const MAX_PARTS: usize = 16;

/// Media type of the signed statement.
pub(crate) const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
/// What cosign 3 states about an image that it signs.
pub(crate) const SIGN_PREDICATE: &str = "https://sigstore.dev/cosign/sign/v1";
const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";

/// One envelope, and what proves who signed it.
#[derive(Clone, Debug)]
pub(crate) struct Bundle {
    pub(crate) statement: Vec<u8>,
    pub(crate) signatures: Vec<Vec<u8>>,
    pub(crate) material: Material,
}

/// Verification material: who signed, and when.
#[derive(Clone, Debug, Default)]
pub(crate) struct Material {
    /// DER of the signing certificate; `None` if a key signed.
    pub(crate) certificate: Option<Vec<u8>>,
    pub(crate) entries: Vec<LogEntry>,
    /// RFC 3161 responses.
    pub(crate) timestamps: Vec<Vec<u8>>,
}

/// An entry of a transparency log, in the protocol's JSON.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LogEntry {
    #[serde(default, deserialize_with = "number", serialize_with = "decimal")]
    pub(crate) log_index: u64,
    pub(crate) log_id: LogId,
    pub(crate) kind_version: KindVersion,
    #[serde(default, deserialize_with = "number", serialize_with = "decimal")]
    pub(crate) integrated_time: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inclusion_promise: Option<InclusionPromise>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inclusion_proof: Option<InclusionProof>,
    pub(crate) canonicalized_body: Bytes,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LogId {
    pub(crate) key_id: Bytes,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct KindVersion {
    pub(crate) kind: String,
    pub(crate) version: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InclusionPromise {
    pub(crate) signed_entry_timestamp: Bytes,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InclusionProof {
    #[serde(default, deserialize_with = "number", serialize_with = "decimal")]
    pub(crate) log_index: u64,
    pub(crate) root_hash: Bytes,
    #[serde(default, deserialize_with = "number", serialize_with = "decimal")]
    pub(crate) tree_size: u64,
    #[serde(default)]
    pub(crate) hashes: Vec<Bytes>,
    pub(crate) checkpoint: Checkpoint,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Checkpoint {
    pub(crate) envelope: String,
}

/// Bytes that JSON carries as base64.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(Self).map_err(serde::de::Error::custom)
    }
}

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

/// 64-bit numbers are strings in the JSON of protocol buffers; numbers are read too.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let wrong = || serde::de::Error::custom("a number is expected");
    match Value::deserialize(deserializer)? {
        Value::String(text) => text.parse().map_err(|_| wrong()),
        other => other.as_u64().ok_or_else(wrong),
    }
}

fn decimal<S: serde::Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&number.to_string())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    verification_material: WrittenMaterial,
    dsse_envelope: Option<Envelope>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenMaterial {
    certificate: Option<RawBytes>,
    x509_certificate_chain: Option<Chain>,
    tlog_entries: Vec<LogEntry>,
    timestamp_verification_data: Option<Timestamps>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawBytes {
    raw_bytes: Bytes,
}

#[derive(Deserialize)]
struct Chain {
    certificates: Vec<RawBytes>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Timestamps {
    rfc3161_timestamps: Vec<Timestamp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Timestamp {
    signed_timestamp: Bytes,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload: Bytes,
    payload_type: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Deserialize)]
struct EnvelopeSignature {
    sig: Bytes,
}

/// Parses a bundle.
pub(crate) fn parse(bytes: &[u8]) -> Result<Bundle> {
    let malformed = |why: &str| Error::bad_content(format!("the sigstore bundle {why}"));
    let written: Written = serde_json::from_slice(bytes)
        .map_err(|error| malformed("is malformed").caused_by(error))?;
    if !TYPES.contains(&&*written.media_type) {
        return Err(malformed("has an unknown media type"));
    }
    let envelope = written.dsse_envelope.ok_or_else(|| malformed("has no DSSE envelope"))?;
    if envelope.payload_type != PAYLOAD_TYPE {
        return Err(malformed("contains something other than an in-toto statement"));
    }
    let material = written.verification_material;
    let timestamps = material.timestamp_verification_data.unwrap_or_default().rfc3161_timestamps;
    if [envelope.signatures.len(), material.tlog_entries.len(), timestamps.len()]
        .iter()
        .any(|count| *count > MAX_PARTS)
    {
        return Err(malformed("has too many signatures, log entries or timestamps"));
    }
    // Bundles before v0.3 carry a chain, the signing certificate first.
    let chain = material.x509_certificate_chain;
    let certificate = material
        .certificate
        .or_else(|| chain.and_then(|chain| chain.certificates.into_iter().next()));
    Ok(Bundle {
        statement: envelope.payload.0,
        signatures: envelope.signatures.into_iter().map(|signature| signature.sig.0).collect(),
        material: Material {
            certificate: certificate.map(|certificate| certificate.raw_bytes.0),
            entries: material.tlog_entries,
            timestamps: timestamps.into_iter().map(|stamp| stamp.signed_timestamp.0).collect(),
        },
    })
}

impl Bundle {
    /// The bytes that are signed.
    pub(crate) fn message(&self) -> Vec<u8> {
        encoding(PAYLOAD_TYPE, &self.statement)
    }

    /// Returns the envelope as JSON.
    pub(crate) fn envelope(&self) -> Value {
        let signatures: Vec<Value> = self
            .signatures
            .iter()
            .map(|signature| json!({ "sig": STANDARD.encode(signature) }))
            .collect();
        json!({
            "payload": STANDARD.encode(&self.statement),
            "payloadType": PAYLOAD_TYPE,
            "signatures": signatures,
        })
    }

    /// Encodes the bundle. `hint` names the key if there is no certificate.
    pub(crate) fn to_json(&self, hint: &str) -> Result<Vec<u8>> {
        let mut material = match &self.material.certificate {
            Some(der) => json!({ "certificate": { "rawBytes": STANDARD.encode(der) } }),
            None => json!({ "publicKey": { "hint": hint } }),
        };
        let failed = |error| Error::failed("cannot write the sigstore bundle").caused_by(error);
        if !self.material.entries.is_empty() {
            material["tlogEntries"] =
                serde_json::to_value(&self.material.entries).map_err(failed)?;
        }
        if !self.material.timestamps.is_empty() {
            let stamps: Vec<Value> = self
                .material
                .timestamps
                .iter()
                .map(|stamp| json!({ "signedTimestamp": STANDARD.encode(stamp) }))
                .collect();
            material["timestampVerificationData"] = json!({ "rfc3161Timestamps": stamps });
        }
        serde_json::to_vec(&json!({
            "mediaType": TYPE,
            "verificationMaterial": material,
            "dsseEnvelope": self.envelope(),
        }))
        .map_err(failed)
    }
}

/// Writes the statement by which an image is signed. It is a function of its arguments, so that the
/// same claim gives the same bytes.
pub(crate) fn statement(
    name: &str,
    digest: &Digest,
    annotations: &BTreeMap<String, String>,
) -> Vec<u8> {
    let mut subject =
        json!({ "name": name, "digest": { digest.algorithm().as_str(): digest.hex() } });
    if !annotations.is_empty() {
        subject["annotations"] = json!(annotations);
    }
    json!({
        "_type": STATEMENT_TYPE,
        "subject": [subject],
        "predicateType": SIGN_PREDICATE,
        "predicate": {},
    })
    .to_string()
    .into_bytes()
}

/// Returns the statement if one of `keys` signed it and its subject is `digest`.
pub(crate) fn open(bundle: &Bundle, keys: &[PublicKey], digest: &Digest) -> Result<Value> {
    let message = bundle.message();
    let by_one = |signature: &Vec<u8>| keys.iter().any(|key| key.verifies(&message, signature));
    if !bundle.signatures.iter().any(by_one) {
        return Err(Error::new(Kind::Denied, "an attestation was signed with another key"));
    }
    about(bundle, digest)
}

/// Returns the statement if its subject is `digest`. The caller has verified the signature.
pub(crate) fn about(bundle: &Bundle, digest: &Digest) -> Result<Value> {
    let statement: Value = serde_json::from_slice(&bundle.statement)
        .map_err(|error| Error::bad_content("the signed statement is not JSON").caused_by(error))?;
    if subject(&statement, digest).is_some() {
        Ok(statement)
    } else {
        Err(Error::new(Kind::Denied, "an attestation is about another image"))
    }
}

/// Fails unless the statement vouches for its subject. Others may say anything, even that it is bad.
pub(crate) fn vouches(statement: &Value) -> Result<()> {
    const VOUCHES: [&str; 2] = [SIGN_PREDICATE, "https://slsa.dev/provenance/v1"];
    let predicate = statement["predicateType"].as_str().unwrap_or_default();
    if VOUCHES.contains(&predicate) {
        return Ok(());
    }
    let shown: String = predicate.chars().filter(|c| !c.is_control()).take(200).collect();
    Err(Error::new(
        Kind::Denied,
        format!("an attestation of type `{shown}` is neither a signature nor a provenance"),
    ))
}

/// Returns the subject of the statement that has this digest.
pub(crate) fn subject<'a>(statement: &'a Value, digest: &Digest) -> Option<&'a Value> {
    statement["subject"].as_array()?.iter().find(|subject| {
        subject["digest"][digest.algorithm().as_str()].as_str() == Some(digest.hex())
    })
}

/// DSSE's pre-authentication encoding.
fn encoding(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len());
    [head.as_bytes(), payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::PrivateKey;

    #[test]
    fn only_signatures_and_provenances_vouch() {
        let about = |predicate: Value| vouches(&serde_json::json!({ "predicateType": predicate }));
        about(SIGN_PREDICATE.into()).unwrap();
        about("https://slsa.dev/provenance/v1".into()).unwrap();
        for other in [
            "https://in-toto.io/attestation/test-result/v0.1",
            "https://slsa.dev/verification_summary/v1",
            "https://slsa.dev/provenance/v1.1",
            "https://sigstore.dev/cosign/sign/v1 ",
            "https://spdx.dev/Document",
            "https://cosign.sigstore.dev/attestation/vuln/v1",
            "",
        ] {
            let error = about(other.into()).unwrap_err().to_string();
            assert!(error.contains(&format!("`{other}`")), "{error}");
        }
        about(Value::Null).unwrap_err();
        assert!(!about("a\u{1b}[2Jb".into()).unwrap_err().to_string().contains('\u{1b}'));
    }

    #[test]
    fn a_bundle_counts_for_its_key_and_its_subject() {
        let (key, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        let digest = Digest::of(b"image");
        assert_eq!(encoding("http://x", b"hello"), b"DSSEv1 8 http://x 5 hello");
        let mut bundle = Bundle {
            statement: statement("q.io/a", &digest, &BTreeMap::new()),
            signatures: Vec::new(),
            material: Material::default(),
        };
        bundle.signatures.push(key.sign(&bundle.message()).unwrap());
        let bundle = parse(&bundle.to_json("hint").unwrap()).unwrap();
        let (ours, others) = ([key.public().unwrap()], [other.public().unwrap()]);
        open(&bundle, &ours, &digest).unwrap();
        assert!(open(&bundle, &others, &digest).is_err());
        assert!(open(&bundle, &ours, &Digest::of(b"other")).is_err());
        assert!(parse(b"{}").is_err());
    }

    #[test]
    fn material_survives_and_numbers_are_strings() {
        let entry = LogEntry {
            log_index: u64::MAX,
            integrated_time: 7,
            canonicalized_body: Bytes(b"body".to_vec()),
            ..LogEntry::default()
        };
        let bundle = Bundle {
            statement: b"{}".to_vec(),
            signatures: vec![b"s".to_vec()],
            material: Material {
                certificate: Some(b"der".to_vec()),
                entries: vec![entry],
                timestamps: vec![b"stamp".to_vec()],
            },
        };
        let text = bundle.to_json("").unwrap();
        let value: Value = serde_json::from_slice(&text).unwrap();
        let entry = &value["verificationMaterial"]["tlogEntries"][0];
        assert_eq!(entry["logIndex"], u64::MAX.to_string());
        let again = parse(&text).unwrap();
        assert_eq!(again.material.entries[0].log_index, u64::MAX);
        assert_eq!(again.material.certificate.unwrap(), b"der");
        assert_eq!(again.material.timestamps, [b"stamp"]);
    }

    #[test]
    fn nothing_that_is_read_panics() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let _ = parse(bytes);
        });
        let many = json!({ "mediaType": TYPE, "dsseEnvelope": {
            "payload": "", "payloadType": PAYLOAD_TYPE,
            "signatures": vec![json!({ "sig": "" }); MAX_PARTS + 1],
        }});
        assert!(parse(many.to_string().as_bytes()).is_err());
    }
}
