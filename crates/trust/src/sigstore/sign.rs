//! Signs without a long-lived key: an authority (Fulcio) certifies a new key for an identity token,
//! and a transparency log (Rekor) or timestamps (RFC 3161) prove the time. Signatures by a key can have
//! log entries and timestamps, too.

use std::time::Instant;

use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::bundle::{
    Bundle, Bytes, Checkpoint, InclusionPromise, InclusionProof, KindVersion, LogEntry, LogId,
};
use crate::keys::PrivateKey;
use crate::pem;
use crate::sigstore::certificate::Certificate;
use crate::sigstore::log::Verifier;
use crate::sigstore::{
    der,
    der::{INTEGER, OID, SEQUENCE, context, encode},
};
use crate::sigstore::{sha256, stamp};
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::secret::Secret;
use imgctl_registry::Client;
use imgctl_registry::client::service::{Answer, Call};

/// Maximum size of a signing configuration, in bytes.
pub const MAX_CONFIG: u64 = 1 << 20;
/// Maximum size of an answer, in bytes.
const MAX_ANSWER: u64 = 4 << 20;

/// The public instance of Sigstore.
const PUBLIC_AUTHORITY: &str = "https://fulcio.sigstore.dev";
const PUBLIC_LOG: &str = "https://rekor.sigstore.dev";

/// Services used for signing.
#[derive(Clone, Debug, Default)]
pub struct Services {
    /// The authority that certifies; needed only without a key.
    pub authority: Option<String>,
    pub logs: Vec<LogService>,
    /// Full URLs of time-stamping authorities.
    pub stampers: Vec<String>,
}

/// A transparency log to write to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogService {
    pub url: String,
    pub version: LogVersion,
}

/// Version of a log's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogVersion {
    V1,
    V2,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConfigFile {
    media_type: String,
    #[serde(default)]
    ca_urls: Vec<ServiceFile>,
    #[serde(default)]
    rekor_tlog_urls: Vec<ServiceFile>,
    #[serde(default)]
    rekor_tlog_config: SelectorFile,
    #[serde(default)]
    tsa_urls: Vec<ServiceFile>,
    #[serde(default)]
    tsa_config: SelectorFile,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServiceFile {
    url: String,
    major_api_version: u32,
    valid_for: Option<RangeFile>,
    #[serde(default)]
    operator: String,
}

#[derive(Clone, Deserialize)]
struct RangeFile {
    start: Option<String>,
    end: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SelectorFile {
    selector: String,
    count: usize,
}

impl Services {
    /// The public instance of Sigstore.
    pub fn public() -> Self {
        Self {
            authority: Some(PUBLIC_AUTHORITY.to_owned()),
            logs: vec![LogService { url: PUBLIC_LOG.to_owned(), version: LogVersion::V1 }],
            stampers: Vec::new(),
        }
    }

    /// Parses a signing configuration (`signing_config.json`, v0.2).
    pub fn parse(text: &[u8]) -> Result<Self> {
        let file: ConfigFile = serde_json::from_slice(text).map_err(|error| {
            Error::bad_content("it is not a signing configuration").caused_by(error)
        })?;
        if file.media_type != "application/vnd.dev.sigstore.signingconfig.v0.2+json" {
            return Err(Error::bad_content("it is not a signing configuration of version 0.2"));
        }
        let now = jiff::Timestamp::now();
        let all = SelectorFile::default();
        let authorities = chosen(&file.ca_urls, &all, 1, now)?;
        Ok(Self {
            authority: authorities.into_iter().next().map(|service| service.url),
            logs: chosen(&file.rekor_tlog_urls, &file.rekor_tlog_config, 2, now)?
                .into_iter()
                .map(|service| LogService {
                    version: match service.major_api_version {
                        1 => LogVersion::V1,
                        _ => LogVersion::V2,
                    },
                    url: service.url,
                })
                .collect(),
            stampers: chosen(&file.tsa_urls, &file.tsa_config, 1, now)?
                .into_iter()
                .map(|service| service.url)
                .collect(),
        })
    }
}

/// Returns the services to use: of each operator the newest version that is supported and in use,
/// and of those as many as the selector says.
fn chosen(
    services: &[ServiceFile],
    selector: &SelectorFile,
    newest: u32,
    now: jiff::Timestamp,
) -> Result<Vec<ServiceFile>> {
    let mut found: Vec<ServiceFile> = Vec::new();
    for service in services {
        let is_in_use = match &service.valid_for {
            None => true,
            Some(range) => {
                let time = |text: &String| {
                    text.parse::<jiff::Timestamp>()
                        .map_err(|_| Error::bad_content(format!("`{text}` is not a time")))
                };
                let start = range.start.as_ref().map(time).transpose()?;
                let end = range.end.as_ref().map(time).transpose()?;
                start.is_none_or(|start| start <= now) && end.is_none_or(|end| now <= end)
            }
        };
        if !is_in_use || !(1..=newest).contains(&service.major_api_version) {
            continue;
        }
        match found.iter_mut().find(|other| other.operator == service.operator) {
            Some(other) if other.major_api_version < service.major_api_version => {
                *other = service.clone();
            }
            Some(_) => {}
            None => found.push(service.clone()),
        }
    }
    let count = match selector.selector.as_str() {
        "ANY" => 1,
        "EXACT" => selector.count.max(1),
        _ => found.len(),
    };
    if selector.selector == "EXACT" && found.len() < count {
        return Err(Error::bad_content(format!(
            "it demands {count} services of a kind and names {}",
            found.len()
        )));
    }
    found.truncate(count);
    Ok(found)
}

/// Fetches the identity token of a GitHub Actions job.
pub fn github_token(client: &Client, url: &str, token: &Secret, until: Instant) -> Result<Secret> {
    const SERVICE: &str = "the identity provider of GitHub Actions";
    let separator = if url.contains('?') { '&' } else { '?' };
    let answer = client.call(&Call {
        service: SERVICE,
        url: &format!("{url}{separator}audience=sigstore"),
        body: None,
        accept: "application/json",
        token: Some(token),
        limit: MAX_ANSWER,
        until,
    })?;
    let value: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    match (answer.status, value["value"].as_str()) {
        (200, Some(token)) => Ok(Secret::new(token)),
        // The body may hold a token: it is not shown.
        (status, _) => {
            Err(Error::new(Kind::Denied, format!("{SERVICE} gave no token (it answered {status})"))
                .hint("the job needs `permissions: id-token: write`"))
        }
    }
}

/// Signs envelopes with one key and its proofs of identity and time.
pub struct Sealer<'a> {
    client: &'a Client,
    services: &'a Services,
    key: Key<'a>,
    /// Deadline of retries.
    until: Instant,
}

enum Key<'a> {
    Own(&'a PrivateKey),
    Certified { key: Box<PrivateKey>, certificate: Vec<u8> },
}

impl<'a> Sealer<'a> {
    /// Signs with a key.
    pub fn with_key(
        client: &'a Client,
        services: &'a Services,
        key: &'a PrivateKey,
        until: Instant,
    ) -> Self {
        Self { client, services, key: Key::Own(key), until }
    }

    /// Creates a key and requests a certificate for the identity of `token`.
    pub fn keyless(
        client: &'a Client,
        services: &'a Services,
        token: &Secret,
        until: Instant,
    ) -> Result<Self> {
        let authority = services.authority.as_deref().ok_or_else(|| {
            Error::usage("no authority is known that certifies signers")
                .hint("pass --fulcio-url, or a --signing-config that names one")
        })?;
        let proves_time = services.logs.iter().any(|log| log.version == LogVersion::V1)
            || !services.stampers.is_empty();
        if !proves_time {
            return Err(Error::usage(
                "nothing would prove the time of the signature: a log of version 2 signs none",
            )
            .hint("pass --timestamp-server-url"));
        }
        let key = Box::new(PrivateKey::generate()?);
        let certificate = certify(client, authority, &key, token, until)?;
        Ok(Self { client, services, key: Key::Certified { key, certificate }, until })
    }

    /// The user's key; `None` for a keyless signature.
    pub(crate) fn own_key(&self) -> Option<&PrivateKey> {
        match &self.key {
            Key::Own(key) => Some(key),
            Key::Certified { .. } => None,
        }
    }

    /// Signs the bundle and adds log entries and timestamps. Returns the bundle's text.
    pub(crate) fn seal(&self, bundle: &mut Bundle) -> Result<Vec<u8>> {
        let key = match &self.key {
            Key::Own(key) => key,
            Key::Certified { key, certificate } => {
                bundle.material.certificate = Some(certificate.clone());
                &**key
            }
        };
        let public = key.public()?;
        let signature = key.sign(&bundle.message())?;
        bundle.signatures = vec![signature.clone()];
        let verifier = match &self.key {
            Key::Own(_) => Verifier { der: public.der(), is_certificate: false },
            Key::Certified { certificate, .. } => {
                Verifier { der: certificate, is_certificate: true }
            }
        };
        for url in &self.services.stampers {
            bundle.material.timestamps.push(self.stamp(url, &signature)?);
        }
        for service in &self.services.logs {
            let entry = match service.version {
                LogVersion::V1 => self.record(service, bundle, &verifier),
                LogVersion::V2 => self.record_v2(service, bundle, &verifier, &signature),
            };
            bundle.material.entries.push(entry?);
        }
        // Sigstore's hint for a key: the digest of its DER, in base64.
        bundle.to_json(&STANDARD.encode(sha256(public.der())))
    }

    fn stamp(&self, url: &str, signature: &[u8]) -> Result<Vec<u8>> {
        const SERVICE: &str = "the time-stamping authority";
        let mut nonce = [0; 8];
        rand::fill(&mut nonce).map_err(|_| Error::failed("cannot make a nonce"))?;
        let request = stamp::request(signature, u64::from_be_bytes(nonce));
        let answer = self.client.call(&Call {
            service: SERVICE,
            url,
            body: Some(("application/timestamp-query", request)),
            accept: "application/timestamp-reply",
            token: None,
            limit: stamp::MAX_RESPONSE,
            until: self.until,
        })?;
        let answer = good(SERVICE, url, answer)?;
        stamp::granted(&answer.body).context(|| format!("{SERVICE} {url}"))?;
        Ok(answer.body)
    }

    fn record(
        &self,
        service: &LogService,
        bundle: &Bundle,
        verifier: &Verifier<'_>,
    ) -> Result<LogEntry> {
        let request = json!({
            "apiVersion": "0.0.1",
            "kind": "dsse",
            "spec": { "proposedContent": {
                "envelope": bundle.envelope().to_string(),
                "verifiers": [verifier.pem()],
            } },
        });
        let url = format!("{}/api/v1/log/entries", service.url.trim_end_matches('/'));
        let mut answer = self.ask_log(&url, Some(&request))?;
        // The log has this very entry: after an answer that was lost.
        if let (409, Some(location)) = (answer.status, answer.location.clone()) {
            answer = self.ask_log(&location, None)?;
        }
        let answer = good(LOG, &url, answer)?;
        entry_v1(&answer.body).context(|| format!("{LOG} {url}"))
    }

    fn record_v2(
        &self,
        service: &LogService,
        bundle: &Bundle,
        verifier: &Verifier<'_>,
        signature: &[u8],
    ) -> Result<LogEntry> {
        let (member, raw) = verifier.raw();
        let mut by = json!({ member: raw });
        by["keyDetails"] = json!(key_details(self.key()?.der())?);
        let request = json!({ "hashedRekordRequestV002": {
            "digest": STANDARD.encode(sha256(&bundle.message())),
            "signature": { "content": STANDARD.encode(signature), "verifier": by },
        } });
        let url = format!("{}/api/v2/log/entries", service.url.trim_end_matches('/'));
        let answer = good(LOG, &url, self.ask_log(&url, Some(&request))?)?;
        serde_json::from_slice(&answer.body).map_err(|error| {
            Error::bad_content(format!("{LOG} {url} answered with something that is not an entry"))
                .caused_by(error)
        })
    }

    fn key(&self) -> Result<crate::keys::PublicKey> {
        match &self.key {
            Key::Own(key) => key.public(),
            Key::Certified { key, .. } => key.public(),
        }
    }

    fn ask_log(&self, url: &str, request: Option<&Value>) -> Result<Answer> {
        self.client.call(&Call {
            service: LOG,
            url,
            body: request.map(|request| ("application/json", request.to_string().into_bytes())),
            accept: "application/json",
            token: None,
            limit: MAX_ANSWER,
            until: self.until,
        })
    }
}

const LOG: &str = "the transparency log";

/// Requests a certificate for `key`. Returns its DER.
fn certify(
    client: &Client,
    authority: &str,
    key: &PrivateKey,
    token: &Secret,
    until: Instant,
) -> Result<Vec<u8>> {
    const SERVICE: &str = "the certificate authority";
    let request = signing_request(key)?;
    let body = json!({
        "credentials": { "oidcIdentityToken": token.expose() },
        "certificateSigningRequest":
            STANDARD.encode(pem::encode("CERTIFICATE REQUEST", &request)),
    });
    let url = format!("{}/api/v2/signingCert", authority.trim_end_matches('/'));
    let answer = client.call(&Call {
        service: SERVICE,
        url: &url,
        body: Some(("application/json", body.to_string().into_bytes())),
        accept: "application/json",
        token: Some(token),
        limit: MAX_ANSWER,
        until,
    })?;
    if matches!(answer.status, 400 | 401 | 403) {
        let said: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let said = said["message"].as_str().unwrap_or_default().replace(token.expose(), "***");
        let said: String = said.chars().filter(|c| !c.is_control()).take(300).collect();
        return Err(Error::new(
            Kind::Denied,
            format!("{SERVICE} {url} refused the identity token: {} {said}", answer.status),
        )
        .hint("the token must be fresh and have the audience `sigstore`"));
    }
    let answer = good(SERVICE, &url, answer)?;
    let wrong = |why: &str| Error::bad_content(format!("{SERVICE} {url} {why}"));
    let value: Value = serde_json::from_slice(&answer.body)
        .map_err(|error| wrong("did not answer in JSON").caused_by(error))?;
    let text = value["signedCertificateEmbeddedSct"]["chain"]["certificates"][0]
        .as_str()
        .ok_or_else(|| wrong("gave no certificate with an embedded SCT"))?;
    let der = pem::blocks(text.as_bytes())?
        .into_iter()
        .find(|block| block.label == "CERTIFICATE")
        .ok_or_else(|| wrong("gave a certificate that is not PEM"))?
        .content;
    if Certificate::read(&der)?.key != key.public()?.der() {
        return Err(wrong("certified another key"));
    }
    Ok(der)
}

/// Encodes a certificate signing request (RFC 2986) without a name: the authority takes the name
/// from the token.
fn signing_request(key: &PrivateKey) -> Result<Vec<u8>> {
    /// 1.2.840.10045.4.3.2, ecdsa-with-SHA256.
    const ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
    let public = key.public()?;
    let info = encode(
        SEQUENCE,
        &[&[INTEGER, 1, 0], &encode(SEQUENCE, &[]), public.der(), &encode(context(0), &[])],
    );
    let algorithm = encode(SEQUENCE, &[&encode(OID, &[ECDSA])]);
    let signature = encode(der::BIT_STRING, &[&[0], &key.sign(&info)?]);
    Ok(encode(SEQUENCE, &[&info, &algorithm, &signature]))
}

/// Sigstore's name of a key's kind.
fn key_details(der: &[u8]) -> Result<&'static str> {
    // The algorithm inside the SubjectPublicKeyInfo.
    let algorithm = der::only(der, SEQUENCE)?.inside().expect(SEQUENCE)?;
    let has = |oid: &[u8]| algorithm.content.windows(oid.len()).any(|window| window == oid);
    if has(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7]) {
        Ok("PKIX_ECDSA_P256_SHA_256")
    } else if has(&[0x2b, 0x65, 0x70]) {
        Ok("PKIX_ED25519")
    } else if has(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1]) {
        match der.len() {
            0..=350 => Ok("PKIX_RSA_PKCS1V15_2048_SHA256"),
            351..=500 => Ok("PKIX_RSA_PKCS1V15_3072_SHA256"),
            _ => Ok("PKIX_RSA_PKCS1V15_4096_SHA256"),
        }
    } else {
        Err(Error::usage("logs of version 2 do not record keys of this kind"))
    }
}

/// Returns the response if its status is a success.
fn good(service: &str, url: &str, answer: Answer) -> Result<Answer> {
    if (200..300).contains(&answer.status) {
        return Ok(answer);
    }
    let kind = if answer.status < 500 { Kind::Denied } else { Kind::Network };
    Err(Error::new(kind, format!("{service} {url} answered {}: {}", answer.status, answer.said())))
}

/// Converts a log entry of Rekor v1.
fn entry_v1(body: &[u8]) -> Result<LogEntry> {
    let wrong = || Error::bad_content("answered with something that is not an entry");
    let value: Value = serde_json::from_slice(body).map_err(|error| wrong().caused_by(error))?;
    let entry = value
        .as_object()
        .filter(|entries| entries.len() == 1)
        .and_then(|entries| entries.values().next())
        .ok_or_else(wrong)?;
    let number = |value: &Value| value.as_u64().ok_or_else(wrong);
    let base64 = |value: &Value| {
        value.as_str().and_then(|text| STANDARD.decode(text).ok()).map(Bytes).ok_or_else(wrong)
    };
    let hex = |value: &Value| value.as_str().and_then(unhex).map(Bytes).ok_or_else(wrong);
    let canonicalized_body = base64(&entry["body"])?;
    let kind: Value =
        serde_json::from_slice(&canonicalized_body.0).map_err(|error| wrong().caused_by(error))?;
    let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(wrong);
    let (promise, proof) =
        (&entry["verification"]["signedEntryTimestamp"], &entry["verification"]["inclusionProof"]);
    let inclusion_promise = match promise {
        Value::Null => None,
        promise => Some(InclusionPromise { signed_entry_timestamp: base64(promise)? }),
    };
    let inclusion_proof = match proof {
        Value::Null => None,
        proof => Some(InclusionProof {
            log_index: number(&proof["logIndex"])?,
            root_hash: hex(&proof["rootHash"])?,
            tree_size: number(&proof["treeSize"])?,
            hashes: proof["hashes"]
                .as_array()
                .ok_or_else(wrong)?
                .iter()
                .map(hex)
                .collect::<Result<_>>()?,
            checkpoint: Checkpoint { envelope: text(&proof["checkpoint"])? },
        }),
    };
    Ok(LogEntry {
        log_index: number(&entry["logIndex"])?,
        log_id: LogId { key_id: hex(&entry["logID"])? },
        kind_version: KindVersion {
            kind: text(&kind["kind"])?,
            version: text(&kind["apiVersion"])?,
        },
        integrated_time: number(&entry["integratedTime"])?,
        inclusion_promise,
        inclusion_proof,
        canonicalized_body,
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text
        .chars()
        .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    let pairs = digits.chunks_exact(2);
    pairs.remainder().is_empty().then(|| pairs.map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openssl_reads_the_request() {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        let request = signing_request(&PrivateKey::generate().unwrap()).unwrap();
        let mut child = Command::new("openssl")
            .args(["req", "-inform", "DER", "-verify", "-noout"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&request).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    #[test]
    fn the_configuration_chooses_services() {
        let service = |url: &str, version: u32, operator: &str, valid: Value| json!({ "url": url, "majorApiVersion": version, "operator": operator, "validFor": valid });
        let open = json!({ "start": "2020-01-01T00:00:00Z" });
        let over = json!({ "start": "2020-01-01T00:00:00Z", "end": "2021-01-01T00:00:00Z" });
        let text = json!({
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
            "caUrls": [service("old", 1, "a", over), service("ca", 1, "a", open.clone())],
            "rekorTlogUrls": [
                service("one", 1, "a", open.clone()),
                service("two", 2, "a", open.clone()),
                service("three", 3, "b", open.clone()),
                service("four", 1, "c", open.clone()),
            ],
            "rekorTlogConfig": { "selector": "ANY" },
            "tsaUrls": [service("tsa", 1, "a", open)],
            "tsaConfig": { "selector": "EXACT", "count": 1 },
        });
        let services = Services::parse(text.to_string().as_bytes()).unwrap();
        assert_eq!(services.authority.as_deref(), Some("ca"));
        assert_eq!(services.logs, [LogService { url: "two".to_owned(), version: LogVersion::V2 }]);
        assert_eq!(services.stampers, ["tsa"]);
        assert!(Services::parse(b"{}").is_err());
    }
}
