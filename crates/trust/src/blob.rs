//! Signed statements about files: a sigstore bundle around an in-toto statement whose subjects are
//! files, as `cosign attest-blob` writes it and `gh attestation verify` reads it.
//!
//! Knows digests, not files.

use serde_json::Value;

use crate::provenance::STATEMENT;
use crate::sigstore::sign::Sealer;
use crate::sigstore::verify::Signer;
use crate::verify::Trust;
use crate::{
    bundle,
    bundle::{Bundle, Material},
};
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::Digest;

/// Maximum size of a statement, in bytes: a bundle holds it in base64.
pub const MAX_STATEMENT: u64 = 2 << 20;
/// Maximum size of a bundle, in bytes.
pub const MAX_BUNDLE: u64 = bundle::MAX_BUNDLE;

/// Predicate types by the names that cosign gives them.
const PREDICATES: [(&str, &str); 8] = [
    ("slsaprovenance1", "https://slsa.dev/provenance/v1"),
    ("slsaprovenance02", "https://slsa.dev/provenance/v0.2"),
    ("slsaprovenance", "https://slsa.dev/provenance/v0.2"),
    ("spdx", "https://spdx.dev/Document"),
    ("spdxjson", "https://spdx.dev/Document"),
    ("cyclonedx", "https://cyclonedx.org/bom"),
    ("vuln", "https://cosign.sigstore.dev/attestation/vuln/v1"),
    ("custom", "https://cosign.sigstore.dev/attestation/v1"),
];

/// Returns the predicate type that `text` names: a URI, or one of cosign's names.
pub fn predicate_type(text: &str) -> Result<String> {
    if text.contains(':') {
        return Ok(text.to_owned());
    }
    let known = PREDICATES.iter().find(|(name, _)| *name == text);
    known.map(|(_, uri)| (*uri).to_owned()).ok_or_else(|| {
        let names: Vec<&str> = PREDICATES.iter().map(|(name, _)| *name).collect();
        Error::usage(format!("`{text}` is not a predicate type"))
            .hint(format!("pass a URI, or one of {}", names.join(", ")))
    })
}

/// Signs an in-toto statement as it is. Returns the bundle.
pub fn sign_statement(statement: &[u8], sealer: &Sealer<'_>) -> Result<Vec<u8>> {
    let value: Value = serde_json::from_slice(statement)
        .map_err(|error| Error::bad_content("the statement is not JSON").caused_by(error))?;
    let subjects = value["subject"].as_array().map_or(&[][..], Vec::as_slice);
    let is_statement = value["_type"] == STATEMENT
        && value["predicateType"].is_string()
        && !subjects.is_empty()
        && subjects.iter().all(|subject| subject["digest"]["sha256"].is_string());
    if !is_statement {
        return Err(Error::bad_content(
            "it is not an in-toto statement (v1) about files with SHA-256 digests",
        ));
    }
    let mut bundle = Bundle {
        statement: statement.to_vec(),
        signatures: Vec::new(),
        material: Material::default(),
    };
    sealer.seal(&mut bundle)
}

/// A verified statement.
#[derive(Clone, Debug)]
pub struct Attested {
    pub statement: Value,
    /// Who signed, if no key did.
    pub signer: Option<Signer>,
}

/// Verifies that `bundle` is signed as `trust` requires, that it states something of the type
/// `predicate`, and that each of the files, given by name and digest, is one of its subjects.
pub fn verify_statement(
    bundle: &[u8],
    trust: &Trust,
    predicate: Option<&str>,
    files: &[(String, Digest)],
) -> Result<Attested> {
    let bundle = bundle::parse(bundle)?;
    let signer = match trust {
        Trust::Keys(keys) => {
            let message = bundle.message();
            let by_one =
                |signature: &Vec<u8>| keys.iter().any(|key| key.verifies(&message, signature));
            if !bundle.signatures.iter().any(by_one) {
                return Err(denied("the bundle was signed with another key".to_owned()));
            }
            None
        }
        Trust::Keyless(keyless) => {
            Some(keyless.signed(&bundle).context(|| "the bundle is not valid".to_owned())?)
        }
    };
    let statement: Value = serde_json::from_slice(&bundle.statement)
        .map_err(|error| Error::bad_content("the signed statement is not JSON").caused_by(error))?;
    if statement["_type"] != STATEMENT {
        return Err(Error::bad_content("the signed text is not an in-toto statement (v1)"));
    }
    let stated = statement["predicateType"].as_str().unwrap_or_default();
    if predicate.is_some_and(|expected| expected != stated) {
        return Err(denied(format!("the bundle states `{}`", stated.escape_debug())));
    }
    for (name, digest) in files {
        if bundle::subject(&statement, digest).is_none() {
            return Err(denied(format!("the bundle is not about {name} ({digest})")).hint(
                "the file was changed, or the bundle belongs to other files: download both again",
            ));
        }
    }
    Ok(Attested { statement, signer })
}

fn denied(why: String) -> Error {
    Error::new(Kind::Denied, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PrivateKey;
    use crate::sigstore::sign::Services;
    use imgctl_registry::Client;
    use imgctl_registry::client::ClientOptions;
    use serde_json::json;

    #[test]
    fn a_statement_counts_for_its_key_its_type_and_its_files() {
        let (key, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        let client = Client::new(ClientOptions::default()).unwrap();
        let services = Services::default();
        let sealer = Sealer::with_key(&client, &services, &key, std::time::Instant::now());
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let statement = json!({
            "_type": STATEMENT,
            "subject": [
                { "name": "a.tar.gz", "digest": { "sha256": a.hex() } },
                { "name": "b.deb", "digest": { "sha256": b.hex() } },
            ],
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {},
        })
        .to_string();
        let bundle = sign_statement(statement.as_bytes(), &sealer).unwrap();
        let ours = Trust::Keys(vec![key.public().unwrap()]);
        let files = [("a".to_owned(), a.clone()), ("b".to_owned(), b)];
        let slsa = predicate_type("slsaprovenance1").unwrap();
        let good = verify_statement(&bundle, &ours, Some(&slsa), &files).unwrap();
        assert_eq!(good.statement["subject"][1]["name"], "b.deb");
        assert_eq!(good.signer, None);

        let kind = |outcome: Result<Attested>| outcome.unwrap_err().kind();
        let others = Trust::Keys(vec![other.public().unwrap()]);
        assert_eq!(kind(verify_statement(&bundle, &others, None, &files)), Kind::Denied);
        let spdx = predicate_type("spdx").unwrap();
        assert_eq!(kind(verify_statement(&bundle, &ours, Some(&spdx), &files)), Kind::Denied);
        let changed = [("a".to_owned(), Digest::of(b"changed"))];
        assert_eq!(kind(verify_statement(&bundle, &ours, None, &changed)), Kind::Denied);
        let text = String::from_utf8(bundle).unwrap();
        let at = text.find("payload\":").unwrap() + 20;
        let mut bytes = text.into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        assert!(verify_statement(&bytes, &ours, None, &[("a".to_owned(), a)]).is_err());

        for wrong in ["", "[]", "{}", &statement.replace("sha256", "sha1")] {
            let error = sign_statement(wrong.as_bytes(), &sealer).unwrap_err();
            assert_eq!(error.kind(), Kind::BadContent, "{wrong}");
        }
        assert_eq!(predicate_type("nothing").unwrap_err().kind(), Kind::Usage);
    }
}
