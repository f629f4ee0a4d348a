//! Verifies an image against keys supplied by the user, or against the identities of
//! signers without keys.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::bundle;
use crate::keys::PublicKey;
use crate::payload::{Claim, expanded};
use crate::place::Place;
use crate::policy::open_sigstore;
use crate::sigstore::verify::{Keyless, Signer};
use crate::{fetch, fetch::Content};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::{Digest, Reference};

/// Required claims of a signature.
#[derive(Clone, Debug, Default)]
pub struct VerifyOptions {
    /// The required image name: a repository, or a repository with a tag.
    pub identity: Identity,
    /// Required annotations, with these values.
    pub annotations: BTreeMap<String, String>,
}

/// Accepted image names.
#[derive(Clone, Debug, Default)]
pub enum Identity {
    /// The image's own name: its repository, and the tag if the signature has one.
    #[default]
    Own,
    /// This name.
    Given(Reference),
    /// Any name, for an image copied from elsewhere.
    Any,
}

/// Required signers.
#[derive(Clone, Debug)]
pub enum Trust {
    /// One of these keys.
    Keys(Vec<PublicKey>),
    /// A certified identity.
    Keyless(Box<Keyless>),
}

/// An image with at least one good signature.
#[derive(Clone, Debug)]
pub struct Verified {
    pub digest: Digest,
    /// Claims of the good signatures: payloads as cosign prints them, statements of bundles
    /// unchanged.
    pub claims: Vec<Value>,
    /// Signers of the valid keyless signatures.
    pub signers: Vec<Signer>,
    /// Reasons why other signatures were rejected.
    pub rejected: Vec<String>,
}

/// Verifies the image at `place`. Without a good signature, fails with an error of kind Denied that
/// explains why each one was rejected.
pub fn verify(place: &Place<'_>, trust: &Trust, options: &VerifyOptions) -> Result<Verified> {
    let mut verified = Verified {
        digest: place.digest().clone(),
        claims: Vec::new(),
        signers: Vec::new(),
        rejected: Vec::new(),
    };
    let shelf = &*place.shelf;
    let digests = match &place.repository {
        Some(_) => vec![verified.digest.clone()],
        None => fetch::vouching(shelf, &verified.digest)?,
    };
    for digest in digests {
        for candidate in fetch::all(shelf, place.repository.as_ref(), &digest)? {
            let reference = place.reference.as_ref();
            let outcome = candidate
                .content
                .and_then(|content| judge(content, &digest, reference, trust, options));
            match outcome {
                Ok((claim, signer)) => {
                    if !verified.claims.contains(&claim) {
                        verified.claims.push(claim);
                    }
                    verified.signers.extend(signer);
                }
                Err(error) => verified.rejected.push(format!("{}: {error}", candidate.place)),
            }
        }
    }
    verified.signers.dedup();
    if verified.claims.is_empty() {
        return Err(denied(place.shown(), &verified));
    }
    Ok(verified)
}

/// Returns the claim of a good signature, and who signed if no key did.
fn judge(
    content: Content,
    digest: &Digest,
    reference: Option<&Reference>,
    trust: &Trust,
    options: &VerifyOptions,
) -> Result<(Value, Option<Signer>)> {
    match (content, trust) {
        (Content::Simple(signature), Trust::Keys(keys)) => {
            let claim = open_sigstore(&signature, keys)?;
            check(&claim, digest, reference, options)?;
            Ok((printed(&claim), None))
        }
        (Content::Simple(_), Trust::Keyless(_)) => {
            Err(Error::new(Kind::Denied, "it is no sigstore bundle"))
        }
        (Content::Bundle(found), Trust::Keys(keys)) => {
            let statement = bundle::open(&found, keys, digest)?;
            check_statement(&statement, digest, options)?;
            Ok((statement, None))
        }
        (Content::Bundle(found), Trust::Keyless(keyless)) => {
            let (statement, signer) = keyless.open(&found, digest)?;
            check_statement(&statement, digest, options)?;
            Ok((statement, Some(signer)))
        }
    }
}

fn denied(name: &str, verified: &Verified) -> Error {
    if verified.rejected.is_empty() {
        return Error::new(Kind::Denied, format!("{name}@{} has no signatures", verified.digest))
            .hint("run `imgctl sign --key KEY IMAGE` to make one");
    }
    Error::new(
        Kind::Denied,
        format!(
            "no signature of {name}@{} is valid: {}",
            verified.digest,
            verified.rejected.join("; ")
        ),
    )
}

fn check(
    claim: &Claim,
    digest: &Digest,
    reference: Option<&Reference>,
    options: &VerifyOptions,
) -> Result<()> {
    let denied = |why: String| Err(Error::new(Kind::Denied, why));
    if claim.digest != *digest {
        return denied(format!("it is for another image, {}", claim.digest));
    }
    let expected = match &options.identity {
        Identity::Any => None,
        Identity::Given(name) => Some(expanded(name)),
        Identity::Own => match reference {
            Some(reference) => Some(expanded(reference)),
            None => {
                return denied(format!(
                    "it is for the name {}, and the image has none (--identity, --any-identity)",
                    claim.identity
                ));
            }
        },
    };
    if let Some(expected) = expected {
        let signed = claim.reference()?;
        let tags_agree = match (signed.tag(), expected.tag()) {
            (Some(signed), Some(expected)) => signed == expected,
            _ => true,
        };
        if signed.name() != expected.name() || !tags_agree {
            return denied(format!("it is for the name {signed}"));
        }
    }
    for (name, value) in &options.annotations {
        if claim.optional.get(name).and_then(Value::as_str) != Some(value) {
            return denied(format!("it has no annotation {name}={value}"));
        }
    }
    Ok(())
}

/// The statement must vouch for the image. Names and annotations of a bundle are those of the statement's subject. Only `imgctl` writes the
/// name, so it counts only if one is required.
fn check_statement(statement: &Value, digest: &Digest, options: &VerifyOptions) -> Result<()> {
    let denied = |why: String| Err(Error::new(Kind::Denied, why));
    bundle::vouches(statement)?;
    let subject = bundle::subject(statement, digest).unwrap_or(&Value::Null);
    if let Identity::Given(expected) = &options.identity {
        let expected = expanded(expected);
        let named = subject["name"].as_str().and_then(|name| Reference::parse(name).ok());
        let tags_agree = |signed: &Reference| match (signed.tag(), expected.tag()) {
            (Some(signed), Some(expected)) => signed == expected,
            _ => true,
        };
        match named.map(|name| expanded(&name)) {
            None => return denied("the bundle gives no name".to_owned()),
            Some(signed) if signed.name() != expected.name() || !tags_agree(&signed) => {
                return denied(format!("it is for the name {signed}"));
            }
            Some(_) => {}
        }
    }
    for (name, value) in &options.annotations {
        if subject["annotations"][name.as_str()].as_str() != Some(value) {
            return denied(format!("it has no annotation {name}={value}"));
        }
    }
    Ok(())
}

/// The claim as it appears in the payload.
fn printed(claim: &Claim) -> Value {
    json!({
        "critical": {
            "identity": { "docker-reference": claim.identity },
            "image": { "docker-manifest-digest": claim.digest },
            "type": "cosign container image signature",
        },
        "optional": claim.optional,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_annotations_must_fit() {
        let digest = Digest::of(b"image");
        let own = Identity::Own;
        let given = |name: &str| Identity::Given(Reference::parse(name).unwrap());
        for (identity, asked, signed, annotation, good) in [
            (own.clone(), "q.io/a:1", "q.io/a", "", true),
            (own.clone(), "q.io/a:1", "q.io/a:1", "", true),
            (own.clone(), "q.io/a:1", "q.io/a:2", "", false),
            (own.clone(), "q.io/a:1", "q.io/b", "", false),
            (own.clone(), "busybox:1", "index.docker.io/library/busybox", "", true),
            (given("q.io/b"), "mirror.io/b:1", "q.io/b:1", "", true),
            (given("q.io/b:2"), "mirror.io/b:1", "q.io/b:1", "", false),
            (Identity::Any, "q.io/a:1", "x.io/y", "", true),
            (own.clone(), "q.io/a:1", "q.io/a", "env", true),
            (own, "q.io/a:1", "q.io/a", "missing", false),
        ] {
            let claim = Claim {
                identity: signed.to_owned(),
                digest: digest.clone(),
                optional: BTreeMap::from([("env".to_owned(), json!("prod"))]),
            };
            let mut options = VerifyOptions { identity, ..VerifyOptions::default() };
            if !annotation.is_empty() {
                options.annotations.insert(annotation.to_owned(), "prod".to_owned());
            }
            let checked = check(&claim, &digest, Reference::parse(asked).ok().as_ref(), &options);
            assert_eq!(checked.is_ok(), good, "{asked} {signed} {annotation}");
            let other = Digest::of(b"other");
            assert!(
                check(&claim, &other, Reference::parse(asked).ok().as_ref(), &options).is_err()
            );
        }
    }
}
