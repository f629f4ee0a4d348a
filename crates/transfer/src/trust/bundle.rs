//! sigstore bundles (v0.3) with a DSSE envelope around an in-toto statement, as cosign 3 attaches
//! them: parsed, and verified by key. Certificates and log entries are ignored.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

use crate::trust::keys::PublicKey;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::Digest;

/// Media type of a bundle, and the artifact type of the manifest that refers to the image.
pub(super) const TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
/// Maximum size of a bundle, in bytes.
pub(crate) const MAX_BUNDLE: u64 = 4 << 20;
/// Maximum number of signatures tried per envelope.
const MAX_SIGNATURES: usize = 16;

const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

/// One envelope.
#[derive(Clone, Debug)]
pub(super) struct Bundle {
    statement: Vec<u8>,
    signatures: Vec<Vec<u8>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    dsse_envelope: Option<Envelope>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Deserialize)]
struct EnvelopeSignature {
    sig: String,
}

/// Parses a bundle.
pub(super) fn parse(bytes: &[u8]) -> Result<Bundle> {
    let malformed = |why: &str| Error::bad_content(format!("the sigstore bundle {why}"));
    let written: Written = serde_json::from_slice(bytes)
        .map_err(|error| malformed("is malformed").caused_by(error))?;
    let envelope = written.dsse_envelope.ok_or_else(|| malformed("has no DSSE envelope"))?;
    if envelope.payload_type != PAYLOAD_TYPE {
        return Err(malformed("contains something other than an in-toto statement"));
    }
    let decode = |text: &str| {
        STANDARD.decode(text).map_err(|_| malformed("has a member that is not base64"))
    };
    Ok(Bundle {
        statement: decode(&envelope.payload)?,
        signatures: envelope
            .signatures
            .iter()
            .take(MAX_SIGNATURES)
            .map(|signature| decode(&signature.sig))
            .collect::<Result<_>>()?,
    })
}

/// Returns the statement if one of `keys` signed it and its subject is `digest`.
pub(super) fn open(bundle: &Bundle, keys: &[PublicKey], digest: &Digest) -> Result<Value> {
    let message = encoding(PAYLOAD_TYPE, &bundle.statement);
    let by_one = |signature: &Vec<u8>| keys.iter().any(|key| key.verifies(&message, signature));
    if !bundle.signatures.iter().any(by_one) {
        return Err(Error::new(Kind::Denied, "an attestation was signed with another key"));
    }
    let statement: Value = serde_json::from_slice(&bundle.statement)
        .map_err(|error| Error::bad_content("the signed statement is not JSON").caused_by(error))?;
    let is_about = statement["subject"].as_array().is_some_and(|subjects| {
        subjects.iter().any(|subject| {
            subject["digest"][digest.algorithm().as_str()].as_str() == Some(digest.hex())
        })
    });
    if is_about {
        Ok(statement)
    } else {
        Err(Error::new(Kind::Denied, "an attestation is about another image"))
    }
}

/// DSSE's pre-authentication encoding: the bytes that are signed.
pub(super) fn encoding(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len());
    [head.as_bytes(), payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::keys::PrivateKey;
    use serde_json::json;

    #[test]
    fn a_bundle_counts_for_its_key_and_its_subject() {
        let (key, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        let digest = Digest::of(b"image");
        let statement = json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{ "name": "x", "digest": { "sha256": digest.hex() } }],
            "predicateType": "https://sigstore.dev/cosign/sign/v1",
            "predicate": {},
        })
        .to_string();
        assert_eq!(encoding("http://x", b"hello"), b"DSSEv1 8 http://x 5 hello");
        let signature = key.sign(&encoding(PAYLOAD_TYPE, statement.as_bytes())).unwrap();
        let bundle = json!({
            "mediaType": TYPE,
            "verificationMaterial": { "publicKey": { "hint": "x" } },
            "dsseEnvelope": {
                "payload": STANDARD.encode(&statement),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{ "sig": STANDARD.encode(&signature) }],
            },
        });
        let bundle = parse(bundle.to_string().as_bytes()).unwrap();
        let (ours, others) = ([key.public().unwrap()], [other.public().unwrap()]);
        open(&bundle, &ours, &digest).unwrap();
        assert!(open(&bundle, &others, &digest).is_err());
        assert!(open(&bundle, &ours, &Digest::of(b"other")).is_err());
        assert!(parse(b"{}").is_err());
    }
}
