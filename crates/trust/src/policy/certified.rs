//! The requirement of an identity that an authority certified (containers-policy.json(5), `fulcio`),
//! and its extensions: a trusted root in place of single keys, and identities that are URIs.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::keys::PublicKey;
use crate::pem;
use crate::policy::check::{read_key, read_keys};
use crate::policy::{KeySource, SignedIdentity};
use crate::sigstore::root::TrustedRoot;
use crate::sigstore::verify::{Keyless, Pattern, SignerPattern};
use imgctl_base::error::{Context as _, Error, Result};

/// The member `fulcio`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Fulcio {
    ca_path: Option<PathBuf>,
    ca_data: Option<String>,
    oidc_issuer: Option<String>,
    subject_email: Option<String>,
    /// An extension, as are the following.
    trusted_root_path: Option<PathBuf>,
    trusted_root_data: Option<String>,
    #[serde(rename = "subjectURI")]
    subject_uri: Option<String>,
    #[serde(rename = "subjectURIRegexp")]
    subject_uri_regexp: Option<String>,
}

/// Required signers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Certified {
    root: RootSource,
    issuer: String,
    subject: String,
    kind: Kind,
    /// Required name of the image; `None` if none was required.
    pub(super) identity: Option<SignedIdentity>,
}

/// What the subject is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mail,
    /// A URI or a user name.
    Name,
    Expression,
}

/// The trusted parties.
#[derive(Clone, Debug, PartialEq)]
enum RootSource {
    Root(Source),
    /// Certificates of authorities, and keys of logs.
    Parts(Source, KeySource),
}

#[derive(Clone, Debug, PartialEq)]
enum Source {
    File(PathBuf),
    Data(Vec<u8>),
}

impl Certified {
    /// Checks that the members are complete and do not contradict each other.
    pub(super) fn new(
        fulcio: Fulcio,
        rekor: Option<KeySource>,
        identity: Option<SignedIdentity>,
    ) -> Result<Self> {
        let wrong = |why: &str| Error::bad_content(format!("`fulcio`: {why}"));
        let decode = |text: String| {
            STANDARD.decode(text).map(Source::Data).map_err(|_| wrong("its data is not base64"))
        };
        let sources = (
            (fulcio.ca_path, fulcio.ca_data),
            (fulcio.trusted_root_path, fulcio.trusted_root_data),
            rekor,
        );
        let root = match sources {
            ((Some(file), None), (None, None), Some(rekor)) => {
                RootSource::Parts(Source::File(file), rekor)
            }
            ((None, Some(data)), (None, None), Some(rekor)) => {
                RootSource::Parts(decode(data)?, rekor)
            }
            ((None, None), (Some(file), None), None) => RootSource::Root(Source::File(file)),
            ((None, None), (None, Some(data)), None) => RootSource::Root(decode(data)?),
            _ => {
                return Err(wrong(
                    "either one of `caPath` and `caData`, with a `rekorPublicKey…`, or one of \
                     `trustedRootPath` and `trustedRootData` must be set",
                ));
            }
        };
        let issuer = fulcio.oidc_issuer.ok_or_else(|| wrong("`oidcIssuer` must be set"))?;
        let (subject, kind) = match (
            fulcio.subject_email,
            fulcio.subject_uri,
            fulcio.subject_uri_regexp,
        ) {
            (Some(text), None, None) => (text, Kind::Mail),
            (None, Some(text), None) => (text, Kind::Name),
            (None, None, Some(text)) => (text, Kind::Expression),
            _ => {
                return Err(wrong(
                    "exactly one of `subjectEmail`, `subjectURI` and `subjectURIRegexp` must be \
                         set",
                ));
            }
        };
        if issuer.is_empty() || subject.is_empty() {
            return Err(wrong("the issuer and the subject must not be empty"));
        }
        let certified = Self { root, issuer, subject, kind, identity };
        certified.pattern()?;
        Ok(certified)
    }

    fn pattern(&self) -> Result<Pattern> {
        match self.kind {
            Kind::Mail => Ok(Pattern::Mail(self.subject.clone())),
            Kind::Name => Ok(Pattern::Exactly(self.subject.clone())),
            Kind::Expression => Pattern::expression(&self.subject),
        }
    }

    /// Reads the files that the requirement names.
    pub(super) fn keyless(&self) -> Result<Keyless> {
        let (root, has_certificate_logs) = match &self.root {
            RootSource::Root(source) => {
                let text = source.read()?;
                let root = TrustedRoot::parse(&text)
                    .context(|| "cannot use the policy's trusted root".to_owned())?;
                (root, true)
            }
            RootSource::Parts(certificates, keys) => {
                let chain = pem::blocks(&certificates.read()?)?
                    .into_iter()
                    .filter(|block| block.label == "CERTIFICATE")
                    .map(|block| block.content)
                    .collect();
                let keys = read_keys(keys)?
                    .iter()
                    .map(|key| PublicKey::from_pem(key))
                    .collect::<Result<Vec<_>>>()
                    .context(|| "cannot use the policy's keys of logs".to_owned())?;
                // This form of the policy names no certificate transparency log.
                (TrustedRoot::of_parts(chain, keys), false)
            }
        };
        Ok(Keyless {
            root,
            signers: vec![SignerPattern {
                identity: self.pattern()?,
                issuer: Pattern::Exactly(self.issuer.clone()),
            }],
            ignore_certificate_log: !has_certificate_logs,
            ignore_log: false,
        })
    }
}

impl Source {
    fn read(&self) -> Result<Vec<u8>> {
        match self {
            Self::Data(data) => Ok(data.clone()),
            Self::File(file) => read_key(file),
        }
    }
}
