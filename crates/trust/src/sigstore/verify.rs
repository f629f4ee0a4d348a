//! Verifies the time, signer and image of a bundle that was signed with a certificate. Works offline:
//! its only input besides the bundle is the trusted root.

use regex::Regex;
use serde_json::Value;

use crate::keys::PublicKey;
use crate::sigstore::certificate::{Certificate, Identity};
use crate::sigstore::root::TrustedRoot;
use crate::sigstore::{chain, chain::CODE_SIGNING};
use crate::sigstore::{log, log::Verifier};
use crate::sigstore::{sha256, stamp};
use crate::{bundle, bundle::Bundle};
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::Digest;

/// Required signers and proofs.
#[derive(Clone, Debug)]
pub struct Keyless {
    pub root: TrustedRoot,
    /// One of these must fit the certificate.
    pub signers: Vec<SignerPattern>,
    /// Do not require that the certificate is in a certificate transparency log.
    pub ignore_certificate_log: bool,
    /// Do not require an entry in a transparency log; a timestamp must then prove the time.
    pub ignore_log: bool,
}

/// Required identity and issuer.
#[derive(Clone, Debug)]
pub struct SignerPattern {
    pub identity: Pattern,
    pub issuer: Pattern,
}

/// A text that must match.
#[derive(Clone, Debug)]
pub enum Pattern {
    Exactly(String),
    /// A mail address; a URI or a user name of the same text does not match.
    Mail(String),
    /// A regular expression, which may match anywhere (like cosign's).
    Expression(Regex),
}

impl Pattern {
    /// Parses a regular expression. An empty one would match everybody.
    pub fn expression(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::usage("a regular expression for a signer is empty")
                .hint("an expression that matches everybody is `.*`"));
        }
        Regex::new(text).map(Self::Expression).map_err(|error| {
            Error::usage(format!("`{text}` is not a regular expression")).caused_by(error)
        })
    }

    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exactly(expected) | Self::Mail(expected) => expected == text,
            Self::Expression(expression) => expression.is_match(text),
        }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exactly(text) | Self::Mail(text) => f.write_str(text),
            Self::Expression(expression) => write!(f, "/{expression}/"),
        }
    }
}

/// Who signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signer {
    pub identity: String,
    pub issuer: String,
}

impl Keyless {
    /// Returns the statement and its signer if the bundle is valid.
    pub(crate) fn open(&self, bundle: &Bundle, digest: &Digest) -> Result<(Value, Signer)> {
        let signer = self.signed(bundle)?;
        Ok((bundle::about(bundle, digest)?, signer))
    }

    /// Returns the signer if the bundle is valid, regardless of its subject.
    pub(crate) fn signed(&self, bundle: &Bundle) -> Result<Signer> {
        let material = &bundle.material;
        let Some(der) = &material.certificate else {
            return Err(denied("it was signed with a key, without a certificate"));
        };
        let certificate =
            Certificate::read(der).context(|| "the certificate cannot be read".to_owned())?;
        let key = PublicKey::from_der(certificate.key)?;
        // The signature before all else: what it covers is small, and the rest is about it.
        let message = bundle.message();
        let [signature] = &bundle.signatures[..] else {
            return Err(denied("the envelope must have exactly one signature"));
        };
        if !key.verifies(&message, signature) {
            return Err(denied("the signature: the certificate's key did not make it"));
        }
        let times = self.times(bundle, signature, der)?;
        for time in &times {
            self.chain(&certificate, *time)?;
        }
        self.signer(&certificate)
    }

    /// Returns the proven times of the signature; at least one.
    fn times(&self, bundle: &Bundle, signature: &[u8], der: &[u8]) -> Result<Vec<i64>> {
        let material = &bundle.material;
        let mut times = Vec::new();
        for response in &material.timestamps {
            times.push(stamp::verify(response, signature, &self.root.stampers)?);
        }
        let verifier = Verifier { der, is_certificate: true };
        if !self.ignore_log {
            if material.entries.is_empty() {
                return Err(denied("it has no entry of a transparency log"));
            }
            for entry in &material.entries {
                times.extend(log::verify(entry, bundle, &verifier, &self.root)?);
            }
        }
        if times.is_empty() {
            return Err(denied(
                "nothing proves when it was signed: neither a timestamp nor a signed entry timestamp",
            ));
        }
        Ok(times)
    }

    /// Fails unless a trusted authority issued the certificate, it was valid at `time`, and a log contains it.
    fn chain(&self, certificate: &Certificate<'_>, time: i64) -> Result<()> {
        let mut reason = denied("the trusted root has no authority that certifies signers");
        for authority in &self.root.authorities {
            let outcome = chain::verify(certificate, authority, CODE_SIGNING, time)
                .context(|| "the certificate's chain".to_owned())
                .and_then(|issuer| {
                    if self.ignore_certificate_log {
                        return Ok(());
                    }
                    self.logged(certificate, &issuer)
                });
            match outcome {
                Ok(()) if certificate.may_sign() => return Ok(()),
                Ok(()) => reason = denied("the certificate is not for signatures (key usage)"),
                Err(error) => reason = error,
            }
        }
        Err(reason)
    }

    /// Fails unless a certificate transparency log signed for the certificate.
    fn logged(&self, certificate: &Certificate<'_>, issuer: &[u8]) -> Result<()> {
        let receipts = certificate.receipts()?;
        if receipts.is_empty() {
            return Err(denied("the certificate has no signed certificate timestamp (SCT)"));
        }
        let issuer = sha256(issuer);
        let is_good = receipts.iter().any(|receipt| {
            let time = i64::try_from(receipt.time / 1000).unwrap_or(i64::MAX);
            self.root.certificate_logs.iter().any(|log| {
                log.id == receipt.log
                    && log.valid.contains(time)
                    && log.key.verifies(&certificate.logged(receipt, &issuer), receipt.signature)
            })
        });
        if is_good {
            Ok(())
        } else {
            Err(denied(
                "the signed certificate timestamp (SCT): no log of the trusted root signed it",
            ))
        }
    }

    /// Returns the required signers, for messages.
    pub(crate) fn wanted(&self) -> String {
        let wanted: Vec<String> = self
            .signers
            .iter()
            .map(|signer| format!("{} of {}", signer.identity, signer.issuer))
            .collect();
        wanted.join(", or ")
    }

    /// Returns the signer if it is one of those required.
    fn signer(&self, certificate: &Certificate<'_>) -> Result<Signer> {
        let identities = certificate.identities()?;
        let issuer = certificate
            .token_issuer()?
            .ok_or_else(|| denied("the certificate does not say who issued the identity"))?;
        for pattern in &self.signers {
            if !pattern.issuer.matches(&issuer) {
                continue;
            }
            let fits = |name: &&Identity| {
                let is_of_kind = name.is_mail || !matches!(pattern.identity, Pattern::Mail(_));
                is_of_kind && pattern.identity.matches(&name.text)
            };
            if let Some(identity) = identities.iter().find(fits) {
                return Ok(Signer { identity: identity.text.clone(), issuer });
            }
        }
        let names: Vec<&str> = identities.iter().map(|name| name.text.as_str()).collect();
        let shown =
            |text: &str| text.chars().filter(|c| !c.is_control()).take(200).collect::<String>();
        let by_issuer = self.signers.iter().any(|pattern| pattern.issuer.matches(&issuer));
        let what = if by_issuer { "the identity" } else { "the issuer" };
        Err(Error::new(
            Kind::Denied,
            format!(
                "{what}: it was signed by {} of {}, who is not among those required: {}",
                shown(&names.join(", ")),
                shown(&issuer),
                self.wanted()
            ),
        ))
    }
}

fn denied(why: &str) -> Error {
    Error::new(Kind::Denied, why)
}
