//! Verifies an entry of a transparency log (Rekor v1 and v2): the log's promise or proof of inclusion,
//! and that the entry records this envelope.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::bundle::{Bundle, InclusionProof, LogEntry};
use crate::pem;
use crate::sigstore::root::{Log, TrustedRoot};
use crate::sigstore::sha256;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::text::hex;

/// Maximum size of a checkpoint, in bytes.
const MAX_CHECKPOINT: usize = 64 << 10;

/// Verifies `entry`. Returns the time at which the log included it, in seconds since 1970, if the
/// log signed one.
pub(super) fn verify(
    entry: &LogEntry,
    bundle: &Bundle,
    verifier: &Verifier<'_>,
    root: &TrustedRoot,
) -> Result<Option<i64>> {
    let id = &entry.log_id.key_id.0;
    let log = root.logs.iter().find(|log| log.id == *id).ok_or_else(|| {
        denied("the transparency log: the trusted root does not know it".to_owned())
    })?;
    // The body first: what the other checks prove is about this one.
    records(entry, bundle, verifier)?;
    if entry.inclusion_proof.is_none() && entry.inclusion_promise.is_none() {
        return Err(denied(
            "the log entry has neither a proof of inclusion nor a promise".to_owned(),
        ));
    }
    if let Some(proof) = &entry.inclusion_proof {
        included(entry, proof, log)?;
    }
    let Some(promise) = &entry.inclusion_promise else { return Ok(None) };
    let signed = json!({
        "body": STANDARD.encode(&entry.canonicalized_body.0),
        "integratedTime": entry.integrated_time,
        "logID": hex(id),
        "logIndex": entry.log_index,
    });
    // The members are in the order of canonical JSON (RFC 8785).
    if !log.key.verifies(signed.to_string().as_bytes(), &promise.signed_entry_timestamp.0) {
        return Err(denied("the signed entry timestamp: the log did not sign it".to_owned()));
    }
    let time = i64::try_from(entry.integrated_time)
        .map_err(|_| denied("the log entry has no possible time".to_owned()))?;
    if !log.valid.contains(time) {
        return Err(denied("the log entry: the log's key was not in use at that time".to_owned()));
    }
    Ok(Some(time))
}

/// The signer, in the two forms that logs record.
pub(super) struct Verifier<'a> {
    /// DER of the certificate or of the public key.
    pub(super) der: &'a [u8],
    pub(super) is_certificate: bool,
}

impl Verifier<'_> {
    /// The PEM text, in base64, of entries of Rekor v1.
    pub(super) fn pem(&self) -> String {
        let label = if self.is_certificate { "CERTIFICATE" } else { "PUBLIC KEY" };
        STANDARD.encode(pem::encode(label, self.der))
    }

    /// The member and its content of entries of Rekor v2.
    pub(super) fn raw(&self) -> (&'static str, Value) {
        let member = if self.is_certificate { "x509Certificate" } else { "publicKey" };
        (member, json!({ "rawBytes": STANDARD.encode(self.der) }))
    }
}

/// Fails unless the entry's body records the envelope, its signature and its signer.
fn records(entry: &LogEntry, bundle: &Bundle, verifier: &Verifier<'_>) -> Result<()> {
    let body: Value = serde_json::from_slice(&entry.canonicalized_body.0)
        .map_err(|error| Error::bad_content("the log entry is not JSON").caused_by(error))?;
    let (kind, version) = (&*entry.kind_version.kind, &*entry.kind_version.version);
    let is = body["kind"] == kind && body["apiVersion"] == version;
    let spec = &body["spec"];
    let base64 = |bytes: &[u8]| STANDARD.encode(bytes);
    let [signature] = &bundle.signatures[..] else {
        return Err(denied("the envelope must have exactly one signature".to_owned()));
    };
    let (member, raw) = verifier.raw();
    let same = match (kind, version) {
        ("dsse", "0.0.1") => {
            spec["payloadHash"]["algorithm"] == "sha256"
                && spec["payloadHash"]["value"] == hex(&sha256(&bundle.statement))
                && one(&spec["signatures"]).is_some_and(|signed| {
                    signed["signature"] == base64(signature)
                        && same_pem(&signed["verifier"], verifier)
                })
        }
        ("hashedrekord", "0.0.1") => {
            spec["data"]["hash"]["algorithm"] == "sha256"
                && spec["data"]["hash"]["value"] == hex(&sha256(&bundle.message()))
                && spec["signature"]["content"] == base64(signature)
                && same_pem(&spec["signature"]["publicKey"]["content"], verifier)
        }
        ("dsse", "0.0.2") => {
            let spec = &spec["dsseV002"];
            spec["payloadHash"]["algorithm"] == "SHA2_256"
                && spec["payloadHash"]["digest"] == base64(&sha256(&bundle.statement))
                && one(&spec["signatures"]).is_some_and(|signed| {
                    signed["content"] == base64(signature) && signed["verifier"][member] == raw
                })
        }
        ("hashedrekord", "0.0.2") => {
            let spec = &spec["hashedRekordV002"];
            spec["data"]["algorithm"] == "SHA2_256"
                && spec["data"]["digest"] == base64(&sha256(&bundle.message()))
                && spec["signature"]["content"] == base64(signature)
                && spec["signature"]["verifier"][member] == raw
        }
        _ => {
            return Err(denied(format!(
                "the log entry is of a kind that is not supported: {}",
                format!("{kind} {version}")
                    .chars()
                    .filter(|c| !c.is_control())
                    .take(40)
                    .collect::<String>()
            )));
        }
    };
    if is && same {
        Ok(())
    } else {
        Err(denied("the log entry records another signature".to_owned()))
    }
}

fn one(list: &Value) -> Option<&Value> {
    match list.as_array().map(Vec::as_slice) {
        Some([one]) => Some(one),
        _ => None,
    }
}

/// Returns whether a member has the signer's PEM text, whatever its line breaks.
fn same_pem(member: &Value, verifier: &Verifier<'_>) -> bool {
    let read = || {
        let text = STANDARD.decode(member.as_str()?).ok()?;
        let blocks = pem::blocks(&text).ok()?;
        match &blocks[..] {
            [block] => Some(block.content.clone()),
            _ => None,
        }
    };
    member == &Value::from(verifier.pem()) || read().is_some_and(|der| der == verifier.der)
}

/// Verifies the proof of inclusion (RFC 6962 §2.1.1) up to a root hash, and the log's signature
/// over that (C2SP, tlog-checkpoint).
fn included(entry: &LogEntry, proof: &InclusionProof, log: &Log) -> Result<()> {
    let wrong = || denied("the proof of inclusion does not lead to its root".to_owned());
    let (index, size) = (proof.log_index, proof.tree_size);
    if index >= size {
        return Err(wrong());
    }
    let inner = 64 - (index ^ (size - 1)).leading_zeros();
    let border = index.checked_shr(inner).unwrap_or(0).count_ones();
    if proof.hashes.len() as u64 != u64::from(inner + border)
        || proof.hashes.iter().any(|hash| hash.0.len() != 32)
    {
        return Err(wrong());
    }
    let node = |left: &[u8], right: &[u8]| sha256(&[&[1], left, right].concat());
    let mut hash = sha256(&[&[0], &entry.canonicalized_body.0[..]].concat());
    for (level, beside) in proof.hashes.iter().enumerate() {
        let is_left = (level as u64) < u64::from(inner) && index >> level & 1 == 0;
        hash = if is_left { node(&hash, &beside.0) } else { node(&beside.0, &hash) };
    }
    if hash != proof.root_hash.0 {
        return Err(wrong());
    }
    let (signed_size, signed_root) = checkpoint(&proof.checkpoint.envelope, log)?;
    if signed_size != size || signed_root != hash {
        return Err(denied("the log's checkpoint is for another state of the log".to_owned()));
    }
    Ok(())
}

/// Verifies a checkpoint by the log's key; returns size and root hash of the tree.
fn checkpoint(text: &str, log: &Log) -> Result<(u64, Vec<u8>)> {
    let malformed = || Error::bad_content("the log's checkpoint cannot be read");
    if text.len() > MAX_CHECKPOINT {
        return Err(malformed());
    }
    let (note, signatures) = text.split_once("\n\n").ok_or_else(malformed)?;
    let note = format!("{note}\n");
    let hint = log.id.get(..4).unwrap_or(&log.id);
    let is_signed = signatures.lines().any(|line| {
        let signature = line
            .strip_prefix("\u{2014} ")
            .and_then(|line| line.rsplit_once(' '))
            .and_then(|(_, base64)| STANDARD.decode(base64).ok());
        signature.is_some_and(|bytes| {
            bytes.split_at_checked(4).is_some_and(|(key, signature)| {
                key == hint && log.key.verifies(note.as_bytes(), signature)
            })
        })
    });
    if !is_signed {
        return Err(denied("the log's checkpoint: the log did not sign it".to_owned()));
    }
    let mut lines = note.lines().skip(1);
    let size = lines.next().and_then(|line| line.parse().ok()).ok_or_else(malformed)?;
    let root = lines.next().and_then(|line| STANDARD.decode(line).ok()).ok_or_else(malformed)?;
    Ok((size, root))
}

fn denied(why: String) -> Error {
    Error::new(Kind::Denied, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::Material;
    use crate::keys::PrivateKey;
    use crate::sigstore::root::Range;
    use imgctl_base::testing::damaged;
    use std::panic::AssertUnwindSafe;

    /// A log whose key nobody has, and an entry that it did not make.
    fn scene() -> (Log, Vec<u8>) {
        let key = PrivateKey::generate().unwrap().public().unwrap();
        let log = Log { id: sha256(key.der()), key, valid: Range::ALWAYS };
        let hint = &log.id[..4];
        let signature = STANDARD.encode([hint, &[0; 64]].concat());
        let checkpoint =
            format!("log\n3\n{}\n\n\u{2014} log {signature}\n", STANDARD.encode([7; 32]));
        (log, checkpoint.into_bytes())
    }

    #[test]
    fn nobody_else_signs_a_checkpoint() {
        let (log, valid) = scene();
        let log = AssertUnwindSafe(log);
        bolero::check!().for_each(|input: &[u8]| {
            for text in [input.to_vec(), damaged(&valid, input)] {
                let text = String::from_utf8_lossy(&text);
                assert!(checkpoint(&text, &log).is_err());
            }
        });
    }

    #[test]
    fn no_entry_of_another_log_is_accepted() {
        let (log, checkpoint) = scene();
        let bundle = Bundle {
            statement: b"statement".to_vec(),
            signatures: vec![b"signature".to_vec()],
            material: Material::default(),
        };
        let hash = STANDARD.encode([7; 32]);
        let valid = json!({
            "logIndex": "1", "logId": {"keyId": STANDARD.encode(&log.id)},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"}, "integratedTime": "1",
            "inclusionPromise": {"signedEntryTimestamp": hash},
            "inclusionProof": {"logIndex": "1", "rootHash": hash, "treeSize": "3", "hashes": [hash, hash],
                "checkpoint": {"envelope": String::from_utf8(checkpoint).unwrap()}},
            "canonicalizedBody": STANDARD.encode(r#"{"kind":"dsse","apiVersion":"0.0.1","spec":{}}"#),
        })
        .to_string();
        let root = AssertUnwindSafe(TrustedRoot { logs: vec![log], ..TrustedRoot::default() });
        let verifier = Verifier { der: b"der", is_certificate: false };
        bolero::check!().for_each(|input: &[u8]| {
            for text in [input.to_vec(), damaged(valid.as_bytes(), input)] {
                let Ok(entry) = serde_json::from_slice::<LogEntry>(&text) else { continue };
                assert!(verify(&entry, &bundle, &verifier, &root).is_err());
                if let Some(proof) = &entry.inclusion_proof {
                    assert!(included(&entry, proof, &root.logs[0]).is_err());
                }
            }
        });
    }
}
