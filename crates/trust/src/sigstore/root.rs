//! The trusted root (`trusted_root.json`, v0.1): the authorities, logs and time-stamping
//! authorities that are trusted, and for which period.
//!
//! Only parses the document. Must not depend on files.

use serde::Deserialize;

use crate::bundle::Bytes;
use crate::keys::PublicKey;
use crate::sigstore::certificate::Certificate;
use crate::sigstore::sha256;
use imgctl_base::error::{Error, Result};

/// Maximum size of a trusted root, in bytes.
pub const MAX_ROOT: u64 = 4 << 20;
const TYPE_PREFIX: &str = "application/vnd.dev.sigstore.trustedroot";

/// The trusted parties.
#[derive(Clone, Debug, Default)]
pub struct TrustedRoot {
    /// Transparency logs of signatures (Rekor).
    pub(super) logs: Vec<Log>,
    /// Transparency logs of certificates.
    pub(super) certificate_logs: Vec<Log>,
    /// Authorities that certify signers (Fulcio).
    pub(super) authorities: Vec<Authority>,
    /// Time-stamping authorities.
    pub(super) stampers: Vec<Authority>,
}

/// A transparency log.
#[derive(Clone, Debug)]
pub(super) struct Log {
    pub(super) id: Vec<u8>,
    pub(super) key: PublicKey,
    pub(super) valid: Range,
}

/// A certificate authority.
#[derive(Clone, Debug)]
pub(super) struct Authority {
    /// DER, from the lowest certificate to the root.
    pub(super) chain: Vec<Vec<u8>>,
    pub(super) valid: Range,
}

impl Authority {
    /// Returns the chain without a certificate of a signer at its beginning.
    pub(super) fn above(&self) -> impl Iterator<Item = &[u8]> {
        let skipped = usize::from(self.leaf().is_some());
        self.chain.iter().skip(skipped).map(Vec::as_slice)
    }

    /// Returns the first certificate if it is not that of an authority (a time-stamping
    /// authority's chain begins with the one that signs).
    pub(super) fn leaf(&self) -> Option<&[u8]> {
        let first = self.chain.first()?;
        let is_leaf = Certificate::read(first).is_ok_and(|first| !first.is_authority());
        is_leaf.then_some(first.as_slice())
    }
}

/// A range of time, in seconds since 1970; the end may be open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    start: i64,
    end: Option<i64>,
}

impl Range {
    /// No limit.
    pub(super) const ALWAYS: Self = Self { start: i64::MIN, end: None };

    pub(super) fn contains(self, time: i64) -> bool {
        self.start <= time && self.end.is_none_or(|end| time <= end)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    media_type: String,
    #[serde(default)]
    tlogs: Vec<LogFile>,
    #[serde(default)]
    ctlogs: Vec<LogFile>,
    #[serde(default)]
    certificate_authorities: Vec<AuthorityFile>,
    #[serde(default)]
    timestamp_authorities: Vec<AuthorityFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogFile {
    public_key: KeyFile,
    log_id: IdFile,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IdFile {
    key_id: Bytes,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeyFile {
    raw_bytes: Bytes,
    valid_for: Option<RangeFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AuthorityFile {
    cert_chain: ChainFile,
    valid_for: Option<RangeFile>,
}

#[derive(Deserialize)]
struct ChainFile {
    certificates: Vec<CertificateFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CertificateFile {
    raw_bytes: Bytes,
}

#[derive(Default, Deserialize)]
struct RangeFile {
    start: Option<String>,
    end: Option<String>,
}

impl TrustedRoot {
    /// Parses a trusted root.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let file: File = serde_json::from_slice(text)
            .map_err(|error| Error::bad_content("it is not a trusted root").caused_by(error))?;
        if !file.media_type.starts_with(TYPE_PREFIX) {
            return Err(Error::bad_content(format!(
                "it is a {}, not a trusted root",
                file.media_type.chars().filter(|c| !c.is_control()).take(100).collect::<String>()
            )));
        }
        Ok(Self {
            logs: logs(file.tlogs)?,
            certificate_logs: logs(file.ctlogs)?,
            authorities: authorities(file.certificate_authorities)?,
            stampers: authorities(file.timestamp_authorities)?,
        })
    }

    /// Builds a root from the parts that a policy of containers names: certificates of authorities,
    /// the lowest first, and keys of logs.
    pub(crate) fn of_parts(chain: Vec<Vec<u8>>, log_keys: Vec<PublicKey>) -> Self {
        let log = |key: PublicKey| Log { id: sha256(key.der()), key, valid: Range::ALWAYS };
        Self {
            logs: log_keys.into_iter().map(log).collect(),
            authorities: vec![Authority { chain, valid: Range::ALWAYS }],
            ..Self::default()
        }
    }
}

fn logs(files: Vec<LogFile>) -> Result<Vec<Log>> {
    let mut logs = Vec::new();
    for file in files {
        // A key of a kind that is not known vouches for nothing; the others still do.
        let Ok(key) = PublicKey::from_der(&file.public_key.raw_bytes.0) else { continue };
        let valid = range(file.public_key.valid_for)?;
        logs.push(Log { id: file.log_id.key_id.0, key, valid });
    }
    Ok(logs)
}

fn authorities(files: Vec<AuthorityFile>) -> Result<Vec<Authority>> {
    files
        .into_iter()
        .map(|file| {
            let chain: Vec<Vec<u8>> =
                file.cert_chain.certificates.into_iter().map(|it| it.raw_bytes.0).collect();
            Ok(Authority { chain, valid: range(file.valid_for)? })
        })
        .collect()
}

fn range(file: Option<RangeFile>) -> Result<Range> {
    let time = |text: String| {
        text.parse::<jiff::Timestamp>()
            .map(jiff::Timestamp::as_second)
            .map_err(|_| Error::bad_content(format!("`{text}` is not a time")))
    };
    let file = file.unwrap_or_default();
    let start = file.start.map(time).transpose()?.unwrap_or(i64::MIN);
    Ok(Range { start, end: file.end.map(time).transpose()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_may_be_open() {
        let range = |start: Option<&str>, end: Option<&str>| {
            range(Some(RangeFile { start: start.map(str::to_owned), end: end.map(str::to_owned) }))
        };
        let open = range(Some("1970-01-01T00:00:10Z"), None).unwrap();
        assert!(!open.contains(9) && open.contains(10) && open.contains(i64::MAX));
        let closed = range(None, Some("1970-01-01T00:00:10.000Z")).unwrap();
        assert!(closed.contains(10) && !closed.contains(11));
        assert!(range(Some("soon"), None).is_err());
    }

    #[test]
    fn other_documents_are_refused() {
        for text in ["", "{}", r#"{"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json"}"#]
        {
            assert!(TrustedRoot::parse(text.as_bytes()).is_err(), "{text}");
        }
        bolero::check!().for_each(|bytes: &[u8]| {
            let _ = TrustedRoot::parse(bytes);
        });
    }
}
