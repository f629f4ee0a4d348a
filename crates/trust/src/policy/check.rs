//! Checks signatures against requirements and reports the reasons.

use std::io::Read as _;
use std::path::Path;

use crate::gpg;
use crate::keys::{MAX_KEY, PublicKey};
use crate::payload::{Claim, Form, expanded};
use crate::policy::{KeySource, Requirement, Requirements, Scheme, SignedIdentity};
use crate::{bundle, bundle::Bundle};
use imgctl_base::error::{Context as _, Error, IoContext as _, Kind, Result};
use imgctl_base::image::{Digest, Reference};

/// The image to check.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Name for messages: `docker://quay.io/a/b:v1`.
    pub description: String,
    /// The name under which the image was requested, if it is one that signatures can refer to.
    pub reference: Option<Reference>,
    /// Digests of the document that the name refers to and of the manifest selected from it: a
    /// signature of an index covers what it lists.
    pub digests: Vec<Digest>,
}

/// A sigstore signature.
#[derive(Clone, Debug)]
pub struct Signature {
    /// The signed payload.
    pub payload: Vec<u8>,
    pub signature: Vec<u8>,
}

/// The signatures found. An `Err` is a listed signature that cannot be used.
#[derive(Default)]
pub struct Signatures {
    pub sigstore: Vec<Result<Signature>>,
    /// Sigstore bundles.
    pub(crate) bundles: Vec<Bundle>,
    /// OpenPGP messages.
    pub(crate) gpg: Vec<Vec<u8>>,
    /// Locations searched, for messages; empty if none.
    pub looked: Vec<String>,
}

impl Requirements<'_> {
    /// Fails (kind Denied) unless every requirement is met. The error explains why each signature
    /// was rejected.
    pub fn check(&self, subject: &Subject, signatures: &Signatures) -> Result<()> {
        for requirement in self.list {
            if let Err(reason) = meets(requirement, subject, signatures) {
                return Err(Error::new(
                    Kind::Denied,
                    format!("the signature policy rejects {}", subject.description),
                )
                .caused_by(reason)
                .hint(format!("the policy is in {}, scope `{}`", self.source, self.scope)));
            }
        }
        Ok(())
    }
}

fn meets(requirement: &Requirement, subject: &Subject, signatures: &Signatures) -> Result<()> {
    let denied = |why: String| Error::new(Kind::Denied, why);
    match requirement {
        Requirement::AcceptAnything => Ok(()),
        Requirement::Reject => Err(denied("it rejects all images in this scope".to_owned())),
        Requirement::Unsupported(what) => {
            Err(denied(format!("it requires {what}, which is not supported")))
        }
        Requirement::Certified(certified) => {
            let keyless = certified.keyless()?;
            let outcomes = signatures
                .bundles
                .iter()
                .map(|bundle| {
                    keyless.signed(bundle)?;
                    states(bundle, subject, certified.identity.as_ref())
                })
                .collect();
            let by = format!("sigstore signature by {}", keyless.wanted());
            verdict(&by, outcomes, &signatures.looked)
        }
        Requirement::Signed { by, keys, identity } => {
            let keys = read_keys(keys)?;
            let mut outcomes: Vec<Result<()>> = match by {
                Scheme::Sigstore => {
                    let keys = public_keys(&keys)?;
                    each(&signatures.sigstore, |signature| {
                        let claim = open_sigstore(signature, &keys)?;
                        fits(&claim, subject, identity)
                    })
                }
                Scheme::Gpg => signatures
                    .gpg
                    .iter()
                    .map(|message| {
                        let content = gpg::open(message, &keys)?;
                        fits(&Claim::parse(&content, Form::Atomic)?, subject, identity)
                    })
                    .collect(),
            };
            if *by == Scheme::Sigstore {
                let keys = public_keys(&keys)?;
                outcomes.extend(signatures.bundles.iter().map(|bundle| {
                    signed_by(bundle, &keys)?;
                    states(bundle, subject, Some(identity))
                }));
            }
            let name = match by {
                Scheme::Sigstore => "sigstore signature",
                Scheme::Gpg => "GPG signature",
            };
            verdict(name, outcomes, &signatures.looked)
        }
    }
}

fn public_keys(keys: &[Vec<u8>]) -> Result<Vec<PublicKey>> {
    keys.iter()
        .map(|key| PublicKey::from_pem(key))
        .collect::<Result<Vec<_>>>()
        .context(|| "cannot use the policy's keys".to_owned())
}

/// Fails unless one of `keys` signed the bundle.
fn signed_by(bundle: &Bundle, keys: &[PublicKey]) -> Result<()> {
    let message = bundle.message();
    let by_one = |signature: &Vec<u8>| keys.iter().any(|key| key.verifies(&message, signature));
    if bundle.signatures.iter().any(by_one) {
        return Ok(());
    }
    Err(Error::new(Kind::Denied, "a signature was made with another key"))
}

/// Fails unless the statement of a bundle vouches for the image, under this name if one is required.
fn states(bundle: &Bundle, subject: &Subject, identity: Option<&SignedIdentity>) -> Result<()> {
    let denied = |why: String| Err(Error::new(Kind::Denied, why));
    let found = subject
        .digests
        .iter()
        .find_map(|digest| bundle::about(bundle, digest).ok().map(|statement| (statement, digest)));
    let Some((statement, digest)) = found else {
        return denied("a signature is for another image".to_owned());
    };
    bundle::vouches(&statement)?;
    let Some(identity) = identity else { return Ok(()) };
    let name = bundle::subject(&statement, digest)
        .and_then(|subject| Reference::parse(subject["name"].as_str()?).ok());
    let Some(signed) = name.map(|name| expanded(&name)) else {
        return denied("a signature gives no name, and `signedIdentity` requires one".to_owned());
    };
    let asked = subject.reference.as_ref().map(expanded);
    if !identity.admits(asked.as_ref(), &signed) {
        return denied(format!("a signature is for the name {signed}"));
    }
    Ok(())
}

fn each<T>(found: &[Result<T>], judge: impl Fn(&T) -> Result<()>) -> Vec<Result<()>> {
    found
        .iter()
        .map(|signature| match signature {
            Ok(signature) => judge(signature),
            Err(error) => Err(Error::new(error.kind(), error.to_string())),
        })
        .collect()
}

/// One good signature is enough.
fn verdict(name: &str, outcomes: Vec<Result<()>>, looked: &[String]) -> Result<()> {
    let mut reasons = Vec::new();
    for outcome in outcomes {
        match outcome {
            Ok(()) => return Ok(()),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    let why = if reasons.is_empty() {
        let places = if looked.is_empty() {
            "registries.d names no place to look for one".to_owned()
        } else {
            format!("looked at {}", looked.join(", "))
        };
        format!("it requires a {name}, and there is none ({places})")
    } else {
        reasons.dedup();
        format!("it requires a {name}, and none is acceptable: {}", reasons.join("; "))
    };
    Err(Error::new(Kind::Denied, why))
}

/// Returns the claim of a signature made by one of `keys`.
pub fn open_sigstore(signature: &Signature, keys: &[PublicKey]) -> Result<Claim> {
    let by_one = |key: &PublicKey| key.verifies(&signature.payload, &signature.signature);
    if !keys.iter().any(by_one) {
        return Err(Error::new(Kind::Denied, "a signature was made with another key"));
    }
    Claim::parse(&signature.payload, Form::Cosign)
}

fn fits(claim: &Claim, subject: &Subject, identity: &SignedIdentity) -> Result<()> {
    let denied = |why: String| Err(Error::new(Kind::Denied, why));
    if !subject.digests.contains(&claim.digest) {
        return denied(format!("a signature is for another image, {}", claim.digest));
    }
    let signed = claim.reference()?;
    let asked = subject.reference.as_ref().map(expanded);
    if !identity.admits(asked.as_ref(), &signed) {
        return denied(format!("a signature is for the name {signed}"));
    }
    Ok(())
}

pub(super) fn read_keys(source: &KeySource) -> Result<Vec<Vec<u8>>> {
    let files = match source {
        KeySource::Data(data) => return Ok(data.clone()),
        KeySource::Files(files) => files,
    };
    files.iter().map(|file| read_key(file)).collect()
}

/// Reads a key file; refuses files above the size limit.
pub fn read_key(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_KEY + 1).read_to_end(&mut bytes))
        .path("read the key", path)?;
    if bytes.len() as u64 > MAX_KEY {
        return Err(Error::bad_content(format!("{} is too large to be a key", path.display())));
    }
    Ok(bytes)
}
