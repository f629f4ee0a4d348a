//! Signed payloads: the JSON of simple signing, as written by cosign and containers (cosign
//! SIGNATURE_SPEC; containers-signature(5)).
//!
//! The text is determined by its content alone, so the same claim always has the same digest. Must
//! not depend on the signer.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Digest, Reference};

/// Media type of the payload as a blob.
pub const MEDIA_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Maximum size of a payload, in bytes.
pub(crate) const MAX_PAYLOAD: u64 = 1 << 20;

const COSIGN: &str = "cosign container image signature";
const ATOMIC: &str = "atomic container signature";

/// The two payload formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// sigstore's format, signed with a bare key.
    Cosign,
    /// The containers format, inside an OpenPGP message.
    Atomic,
}

/// The claim of a signature.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The image name given by the signer, with or without a tag.
    pub identity: String,
    /// Digest of the manifest or index.
    pub digest: Digest,
    /// Additional members; annotations are those with string values.
    pub optional: BTreeMap<String, Value>,
}

impl Claim {
    /// Encodes the payload to be signed.
    pub(crate) fn to_payload(&self) -> Vec<u8> {
        // cosign, written in Go, encodes an empty map as null.
        let optional = if self.optional.is_empty() { Value::Null } else { json!(self.optional) };
        json!({
            "critical": {
                "identity": { "docker-reference": self.identity },
                "image": { "docker-manifest-digest": self.digest },
                "type": COSIGN,
            },
            "optional": optional,
        })
        .to_string()
        .into_bytes()
    }

    /// Parses a payload whose signature is valid. Unknown members under `critical` are an error.
    pub fn parse(payload: &[u8], form: Form) -> Result<Self> {
        let malformed = |why: &str| Error::bad_content(format!("the signed payload {why}"));
        let value: Value = serde_json::from_slice(payload)
            .map_err(|error| malformed("is not JSON").caused_by(error))?;
        let critical = exactly(&value["critical"], &["identity", "image", "type"])
            .ok_or_else(|| malformed("has unknown critical members"))?;
        let identity = exactly(&critical["identity"], &["docker-reference"])
            .and_then(|identity| identity["docker-reference"].as_str())
            .ok_or_else(|| malformed("names no image"))?;
        let digest = exactly(&critical["image"], &["docker-manifest-digest"])
            .and_then(|image| image["docker-manifest-digest"].as_str())
            .ok_or_else(|| malformed("has no manifest digest"))?;
        let expected = match form {
            Form::Cosign => COSIGN,
            Form::Atomic => ATOMIC,
        };
        if critical["type"] != expected {
            return Err(malformed(&format!("is not a {expected}")));
        }
        let optional = match &value["optional"] {
            Value::Null => BTreeMap::new(),
            Value::Object(members) => {
                members.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
            }
            _ => return Err(malformed("has `optional` that is not an object")),
        };
        Ok(Self { identity: identity.to_owned(), digest: Digest::parse(digest)?, optional })
    }

    /// The identity as an image name. A bare repository stays without a tag, and Docker's other
    /// names for its hub become `docker.io`.
    pub fn reference(&self) -> Result<Reference> {
        let name = match self.identity.strip_prefix("index.docker.io/") {
            Some(rest) => format!("docker.io/{rest}"),
            None => self.identity.clone(),
        };
        Reference::parse(&name).map(|reference| expanded(&reference)).map_err(|error| {
            Error::bad_content(format!("the signature is for `{}`", clip(&self.identity)))
                .caused_by(error)
        })
    }
}

/// Expands a name: short names belong to docker.io, and single-word repositories there to
/// `library/`. Adds no tag.
pub fn expanded(reference: &Reference) -> Reference {
    let suffix = match (reference.tag(), reference.digest()) {
        (Some(tag), _) => format!(":{tag}"),
        (None, Some(digest)) => format!("@{digest}"),
        (None, None) => String::new(),
    };
    let registry = reference.registry().unwrap_or("docker.io");
    let library = registry == "docker.io" && !reference.repository().contains('/');
    let library = if library { "library/" } else { "" };
    let full = format!("{registry}/{library}{}{suffix}", reference.repository());
    Reference::parse(&full).unwrap_or_else(|_| reference.clone())
}

/// Returns the members of an object that has exactly these names.
fn exactly<'a>(value: &'a Value, names: &[&str]) -> Option<&'a Value> {
    let object = value.as_object()?;
    let is_exact =
        object.len() == names.len() && names.iter().all(|name| object.contains_key(*name));
    is_exact.then_some(value)
}

fn clip(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        Claim {
            identity: "quay.io/a/b".to_owned(),
            digest: Digest::of(b"x"),
            optional: BTreeMap::new(),
        }
    }

    #[test]
    fn the_text_is_that_of_cosign_and_reads_back() {
        let mut claim = claim();
        let text = String::from_utf8(claim.to_payload()).unwrap();
        let digest = &claim.digest;
        assert_eq!(
            text,
            format!(
                r#"{{"critical":{{"identity":{{"docker-reference":"quay.io/a/b"}},"image":{{"docker-manifest-digest":"{digest}"}},"type":"cosign container image signature"}},"optional":null}}"#
            )
        );
        claim.optional.insert("z".to_owned(), json!("1"));
        claim.optional.insert("a".to_owned(), json!("2"));
        let text = claim.to_payload();
        assert!(String::from_utf8_lossy(&text).ends_with(r#""optional":{"a":"2","z":"1"}}"#));
        assert_eq!(Claim::parse(&text, Form::Cosign).unwrap(), claim);
        assert!(Claim::parse(&text, Form::Atomic).is_err());
    }

    #[test]
    fn critical_members_must_all_be_known() {
        let good = String::from_utf8(claim().to_payload()).unwrap();
        for (from, to) in [
            (r#""type":"#, r#""expires":1,"type":"#),
            ("docker-reference", "reference"),
            ("sha256:", "md5:"),
            (r#""optional":null"#, r#""optional":[]"#),
            (r#"{"critical""#, r#"["critical""#),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(good, bad);
            assert!(Claim::parse(bad.as_bytes(), Form::Cosign).is_err(), "{bad}");
        }
        bolero::check!().for_each(|bytes: &[u8]| {
            let _ = Claim::parse(bytes, Form::Cosign);
        });
    }

    #[test]
    fn names_of_docker_hub_are_one() {
        for (text, full) in [
            ("index.docker.io/library/busybox", "docker.io/library/busybox"),
            ("busybox:1", "docker.io/library/busybox:1"),
            ("docker.io/a/b", "docker.io/a/b"),
            ("localhost:5000/x", "localhost:5000/x"),
        ] {
            let claim = Claim { identity: text.to_owned(), ..claim() };
            assert_eq!(claim.reference().unwrap().to_string(), full);
        }
    }
}
