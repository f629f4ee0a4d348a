//! Stands in for the public services of Sigstore, which tests cannot reach: an authority (Fulcio), a
//! transparency log (Rekor, both versions), a time-stamping authority (openssl signs) and the identity
//! provider of GitHub Actions. One server; the trusted root and the signing configuration name it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::common::{Ran, tool};

pub(super) const IDENTITY: &str = "https://ci.example.com/team/app/release.yml@refs/tags/v1";
pub(super) const ISSUER: &str = "https://token.ci.example.com";
/// What a GitHub Actions job shows to get its token.
pub(super) const REQUEST_TOKEN: &str = "request-token-of-the-job";
const ORIGIN: &str = "log.example.com - 1";

/// Running services; they end with the process.
pub(super) struct Services {
    pub(super) url: String,
    state: Arc<State>,
}

struct State {
    directory: PathBuf,
    root: Vec<u8>,
    middle: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
    middle_key: Vec<u8>,
    stamper: Vec<u8>,
    /// openssl works with files: one at a time.
    stamping: Mutex<()>,
    log: KeyPair,
    certificate_log: KeyPair,
    leaves: Mutex<Vec<Vec<u8>>>,
    /// How many more requests by path are answered 429.
    busy: Mutex<BTreeMap<String, u32>>,
    asked: AtomicU32,
    /// The year of which certificates are, if it is not this one.
    year: Mutex<Option<i32>>,
}

impl Services {
    /// Starts them; `directory` is for the files of openssl.
    pub(super) fn start(directory: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State::new(directory));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || state.serve(&stream));
            }
        });
        Self { url, state }
    }

    /// An identity token, as a CI system issues it.
    pub(super) fn token(identity: &str, issuer: &str) -> String {
        let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let claims = json!({ "aud": "sigstore", "sub": identity, "iss": issuer });
        format!("{}.{}.c2lnbmF0dXJl", encode(json!({ "alg": "RS256" })), encode(claims))
    }

    pub(super) fn trusted_root(&self) -> Value {
        let state = &self.state;
        let open = json!({ "start": "2020-01-01T00:00:00Z" });
        let log = |key: &KeyPair| {
            json!({
                // The name that signs checkpoints.
                "baseUrl": "https://log.example.com",
                "hashAlgorithm": "SHA2_256",
                "publicKey": {
                    "rawBytes": STANDARD.encode(key.subject_public_key_info()),
                    "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                    "validFor": open,
                },
                "logId": { "keyId": STANDARD.encode(id(key)) },
            })
        };
        let authority = |chain: &[&Vec<u8>]| {
            let certificates: Vec<Value> =
                chain.iter().map(|der| json!({ "rawBytes": STANDARD.encode(der) })).collect();
            json!({
                "subject": { "organization": "test", "commonName": "test" },
                "uri": &self.url,
                "certChain": { "certificates": certificates },
                "validFor": open,
            })
        };
        json!({
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(&state.log)],
            "ctlogs": [log(&state.certificate_log)],
            "certificateAuthorities": [authority(&[&state.middle, &state.root])],
            "timestampAuthorities": [authority(&[&state.stamper, &state.root])],
        })
    }

    pub(super) fn signing_config(&self, log_version: u32, stamps: bool) -> Value {
        let service = |version: u32, path: &str| {
            json!({
                "url": format!("{}{path}", self.url),
                "majorApiVersion": version,
                "validFor": { "start": "2020-01-01T00:00:00Z" },
                "operator": "test",
            })
        };
        json!({
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
            "caUrls": [service(1, "")],
            "oidcUrls": [],
            "rekorTlogUrls": [service(log_version, "")],
            "rekorTlogConfig": { "selector": "ANY" },
            "tsaUrls": if stamps { vec![service(1, "/api/v1/timestamp")] } else { vec![] },
            "tsaConfig": { "selector": "ANY" },
        })
    }

    /// The certificates of the authority's chain, lowest first, and the log's key, as PEM.
    pub(super) fn pem(&self) -> (String, String) {
        let certificate = |der: &Vec<u8>| pem("CERTIFICATE", der);
        let chain = certificate(&self.state.middle) + &certificate(&self.state.root);
        (chain, pem("PUBLIC KEY", &self.state.log.subject_public_key_info()))
    }

    /// The next `count` requests of `path` are answered 429.
    pub(super) fn busy(&self, path: &str, count: u32) {
        self.state.busy.lock().unwrap().insert(path.to_owned(), count);
    }

    /// Certificates are of January of this year.
    pub(super) fn certify_in(&self, year: Option<i32>) {
        *self.state.year.lock().unwrap() = year;
    }

    /// How many entries were written to the log.
    pub(super) fn entries(&self) -> usize {
        // Each comes with somebody else's; five were there first.
        (self.state.leaves.lock().unwrap().len() - 5) / 2
    }

    /// How many requests there were.
    pub(super) fn asked(&self) -> u32 {
        self.state.asked.load(Ordering::SeqCst)
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let base64 = STANDARD.encode(der);
    let lines: Vec<&str> =
        base64.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

fn id(key: &KeyPair) -> Vec<u8> {
    Sha256::digest(key.subject_public_key_info()).to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn sign(key: &KeyPair, message: &[u8]) -> Vec<u8> {
    let der = key.serialize_der();
    let key = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_ASN1_SIGNING, &der).unwrap();
    key.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec()
}

fn authority(name: &str, path: Option<u8>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca =
        IsCa::Ca(path.map_or(BasicConstraints::Unconstrained, BasicConstraints::Constrained));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    params.not_before = rcgen::date_time_ymd(2015, 1, 1);
    params.not_after = rcgen::date_time_ymd(2045, 1, 1);
    params
}

/// A text as DER.
fn text(tag: u8, text: &str) -> Vec<u8> {
    [&[tag, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

impl State {
    fn new(directory: &Path) -> Self {
        let key = || KeyPair::generate().unwrap();
        let root_key = key();
        let root_params = authority("root", None);
        let root = root_params.self_signed(&root_key).unwrap().der().to_vec();
        let root_issuer = Issuer::new(root_params, root_key);
        let middle_key = key();
        let middle_params = authority("authority", Some(0));
        let middle = middle_params.signed_by(&middle_key, &root_issuer).unwrap().der().to_vec();
        let middle_spki = middle_key.subject_public_key_info();

        let stamper_key = key();
        let mut params = authority("stamper", None);
        params.is_ca = IsCa::NoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Time stamping alone, and critical: as RFC 3161 demands.
        let usage = vec![0x30, 10, 6, 8, 0x2b, 6, 1, 5, 5, 7, 3, 8];
        let mut usage = CustomExtension::from_oid_content(&[2, 5, 29, 37], usage);
        usage.set_criticality(true);
        params.custom_extensions.push(usage);
        let stamper = params.signed_by(&stamper_key, &root_issuer).unwrap().der().to_vec();
        let file =
            |name: &str, content: &str| std::fs::write(directory.join(name), content).unwrap();
        file("tsa.pem", &pem("CERTIFICATE", &stamper));
        file("tsa.key", &stamper_key.serialize_pem());
        file("tsa.serial", "01\n");
        let serial = directory.join("tsa.serial");
        file(
            "tsa.cnf",
            &format!(
                "[tsa]\nserial={}\nsigner_digest=sha256\ndefault_policy=1.2.3.4.1\n\
                 digests=sha256\nordering=no\ntsa_name=no\ness_cert_id_chain=no\ness_cert_id_alg=sha256\n",
                serial.display()
            ),
        );
        Self {
            directory: directory.to_owned(),
            root,
            middle,
            issuer: Issuer::new(middle_params, middle_key),
            middle_key: middle_spki,
            stamper,
            stamping: Mutex::new(()),
            log: key(),
            certificate_log: key(),
            // Others were there first: proofs are not empty.
            leaves: Mutex::new((0..5_u8).map(|number| leaf(&[number])).collect()),
            busy: Mutex::default(),
            asked: AtomicU32::new(0),
            year: Mutex::new(None),
        }
    }

    fn serve(&self, stream: &TcpStream) {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut reader = BufReader::new(stream);
        let mut first = String::new();
        if reader.read_line(&mut first).is_err() {
            return;
        }
        let (mut length, mut token) = (0, String::new());
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).is_err() || line.trim().is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or_default();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap(),
                "authorization" => token = value.trim().to_owned(),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        self.asked.fetch_add(1, Ordering::SeqCst);
        let target = first.split(' ').nth(1).unwrap_or_default();
        let path = target.split('?').next().unwrap_or_default();
        let is_busy = {
            let mut busy = self.busy.lock().unwrap();
            busy.get_mut(path).filter(|left| **left > 0).map(|left| *left -= 1).is_some()
        };
        let (status, answer) = if is_busy {
            (429, b"too many requests".to_vec())
        } else {
            match path {
                "/token" if token == format!("Bearer {REQUEST_TOKEN}") => {
                    let token = Services::token(IDENTITY, ISSUER);
                    (200, json!({ "value": token }).to_string().into_bytes())
                }
                "/api/v2/signingCert" => self.certify(&body, &token),
                "/api/v1/log/entries" => (201, self.record(&body)),
                "/api/v2/log/entries" => (201, self.record_v2(&body)),
                "/api/v1/timestamp" => (201, self.stamp(&body)),
                _ => (404, Vec::new()),
            }
        };
        let mut stream = stream;
        let head = format!(
            "HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            answer.len()
        );
        let _ = stream.write_all(&[head.as_bytes(), &answer].concat());
    }

    fn certify(&self, body: &[u8], authorization: &str) -> (u16, Vec<u8>) {
        let request: Value = serde_json::from_slice(body).unwrap();
        // In the request, or as a bearer token.
        let token = request["credentials"]["oidcIdentityToken"]
            .as_str()
            .or_else(|| authorization.strip_prefix("Bearer "))
            .unwrap();
        let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap_or_default();
        let claims: Value = serde_json::from_slice(&claims).unwrap_or_default();
        if claims["aud"] != "sigstore" {
            let refused = json!({ "code": 16, "message": format!("bad token {token}") });
            return (401, refused.to_string().into_bytes());
        }
        // A signing request, or a public key with a signature of the identity by it.
        let key = match request["publicKeyRequest"]["publicKey"]["content"].as_str() {
            Some(key) => key.to_owned(),
            None => {
                // openssl takes the key out of the request, whatever else is in it.
                let text = request["certificateSigningRequest"].as_str().unwrap();
                let _one = self.stamping.lock().unwrap();
                let csr = STANDARD.decode(text).unwrap();
                std::fs::write(self.directory.join("request.pem"), csr).unwrap();
                let words = "req -in request.pem -verify -pubkey -noout";
                let mut openssl = tool("openssl", words.split(' '));
                openssl.current_dir(&self.directory);
                Ran::new(openssl).ok().stdout()
            }
        };
        let key = rcgen::SubjectPublicKeyInfo::from_pem(&key).unwrap();
        let mut params = authority("", None);
        params.distinguished_name = DistinguishedName::new();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::CodeSigning];
        params.serial_number = Some(SerialNumber::from(now()));
        let (identity, issuer) = (claims["sub"].as_str().unwrap(), claims["iss"].as_str().unwrap());
        params.subject_alt_names = vec![if identity.contains("://") {
            SanType::URI(identity.try_into().unwrap())
        } else {
            SanType::Rfc822Name(identity.try_into().unwrap())
        }];
        // In both forms, like the public authority.
        params.custom_extensions.push(CustomExtension::from_oid_content(
            &[1, 3, 6, 1, 4, 1, 57264, 1, 1],
            issuer.as_bytes().to_vec(),
        ));
        params.custom_extensions.push(CustomExtension::from_oid_content(
            &[1, 3, 6, 1, 4, 1, 57264, 1, 8],
            text(0x0c, issuer),
        ));
        let year = *self.year.lock().unwrap();
        if let Some(year) = year {
            params.not_before = rcgen::date_time_ymd(year, 1, 1);
            params.not_after = rcgen::date_time_ymd(year, 2, 1);
        } else {
            // Days are as fine as can be written here.
            let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
            let (before, after) = (today.yesterday().unwrap(), today.tomorrow().unwrap());
            let time = |date: jiff::civil::Date| {
                let (month, day) = (date.month().unsigned_abs(), date.day().unsigned_abs());
                rcgen::date_time_ymd(date.year().into(), month, day)
            };
            params.not_before = time(before);
            params.not_after = time(after);
        }
        let plain = params.signed_by(&key, &self.issuer).unwrap();
        params.custom_extensions.push(CustomExtension::from_oid_content(
            &[1, 3, 6, 1, 4, 1, 11129, 2, 4, 2],
            self.receipt(tbs(plain.der())),
        ));
        let leaf = params.signed_by(&key, &self.issuer).unwrap();
        let chain = [leaf.der().to_vec(), self.middle.clone(), self.root.clone()];
        let chain: Vec<String> = chain.iter().map(|der| pem("CERTIFICATE", der)).collect();
        let answer =
            json!({ "signedCertificateEmbeddedSct": { "chain": { "certificates": chain } } });
        (200, answer.to_string().into_bytes())
    }

    /// The extension with a signed certificate timestamp.
    fn receipt(&self, tbs: &[u8]) -> Vec<u8> {
        let time = (now() * 1000).to_be_bytes();
        let length = u32::try_from(tbs.len()).unwrap().to_be_bytes();
        let issuer = Sha256::digest(&self.middle_key);
        let signed = [&[0, 0][..], &time, &[0, 1], &issuer, &length[1..], tbs, &[0, 0]].concat();
        let signature = sign(&self.certificate_log, &signed);
        let vector =
            |bytes: &[u8]| [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat();
        let receipt =
            [&[0][..], &id(&self.certificate_log), &time, &[0, 0, 4, 3], &vector(&signature)]
                .concat();
        let list = vector(&vector(&receipt));
        assert!(list.len() < 128, "the length has the short form");
        [&[4, u8::try_from(list.len()).unwrap()][..], &list].concat()
    }

    fn record(&self, body: &[u8]) -> Vec<u8> {
        let request: Value = serde_json::from_slice(body).unwrap();
        let proposed = &request["spec"]["proposedContent"];
        let text = proposed["envelope"].as_str().unwrap();
        let envelope: Value = serde_json::from_str(text).unwrap();
        let payload = STANDARD.decode(envelope["payload"].as_str().unwrap()).unwrap();
        let hash =
            |bytes: &[u8]| json!({ "algorithm": "sha256", "value": hex(&Sha256::digest(bytes)) });
        let body = json!({
            "apiVersion": "0.0.1",
            "kind": "dsse",
            "spec": {
                "envelopeHash": hash(text.as_bytes()),
                "payloadHash": hash(&payload),
                "signatures": [{
                    "signature": envelope["signatures"][0]["sig"],
                    "verifier": proposed["verifiers"][0],
                }],
            },
        });
        let body = body.to_string();
        let (index, size, root, proof) = self.add(body.as_bytes());
        let signed = json!({
            "body": STANDARD.encode(&body),
            "integratedTime": now(),
            "logID": hex(&id(&self.log)),
            "logIndex": index,
        });
        let set = sign(&self.log, signed.to_string().as_bytes());
        let mut entry = signed;
        entry["verification"] = json!({
            "signedEntryTimestamp": STANDARD.encode(set),
            "inclusionProof": {
                "logIndex": index,
                "treeSize": size,
                "rootHash": hex(&root),
                "hashes": proof.iter().map(|hash| hex(hash)).collect::<Vec<_>>(),
                "checkpoint": self.checkpoint(size, &root),
            },
        });
        json!({ "0123456789abcdef": entry }).to_string().into_bytes()
    }

    fn record_v2(&self, body: &[u8]) -> Vec<u8> {
        let request: Value = serde_json::from_slice(body).unwrap();
        let (kind, spec) = if let Some(request) = request.get("dsseRequestV002") {
            let envelope = &request["envelope"];
            let payload = STANDARD.decode(envelope["payload"].as_str().unwrap()).unwrap();
            let digest = STANDARD.encode(Sha256::digest(payload));
            let signature = json!({
                "content": envelope["signatures"][0]["sig"],
                "verifier": request["verifiers"][0],
            });
            let spec = json!({ "dsseV002": {
                "payloadHash": { "algorithm": "SHA2_256", "digest": digest },
                "signatures": [signature],
            } });
            ("dsse", spec)
        } else {
            let request = &request["hashedRekordRequestV002"];
            let spec = json!({ "hashedRekordV002": {
                "data": { "algorithm": "SHA2_256", "digest": request["digest"] },
                "signature": request["signature"],
            } });
            ("hashedrekord", spec)
        };
        let body = json!({ "apiVersion": "0.0.2", "kind": kind, "spec": spec }).to_string();
        let (index, size, root, proof) = self.add(body.as_bytes());
        json!({
            "logIndex": index.to_string(),
            "logId": { "keyId": STANDARD.encode(id(&self.log)) },
            "kindVersion": { "kind": kind, "version": "0.0.2" },
            "integratedTime": "0",
            "inclusionProof": {
                "logIndex": index.to_string(),
                "rootHash": STANDARD.encode(&root),
                "treeSize": size.to_string(),
                "hashes": proof.iter().map(|hash| STANDARD.encode(hash)).collect::<Vec<_>>(),
                "checkpoint": { "envelope": self.checkpoint(size, &root) },
            },
            "canonicalizedBody": STANDARD.encode(&body),
        })
        .to_string()
        .into_bytes()
    }

    /// Adds a leaf: its index, the size and the root of the tree, the proof.
    fn add(&self, body: &[u8]) -> (usize, usize, Vec<u8>, Vec<Vec<u8>>) {
        let mut leaves = self.leaves.lock().unwrap();
        let index = leaves.len();
        leaves.push(leaf(body));
        // Somebody else writes too.
        leaves.push(leaf(b"another"));
        (index, leaves.len(), tree(&leaves), proof(&leaves, index))
    }

    fn checkpoint(&self, size: usize, root: &[u8]) -> String {
        let note = format!("{ORIGIN}\n{size}\n{}\n", STANDARD.encode(root));
        let signature = [&id(&self.log)[..4], &sign(&self.log, note.as_bytes())].concat();
        format!("{note}\n\u{2014} log.example.com {}\n", STANDARD.encode(signature))
    }

    fn stamp(&self, request: &[u8]) -> Vec<u8> {
        let _one = self.stamping.lock().unwrap();
        let file = self.directory.join("tsa.req");
        if let Ok(request) = serde_json::from_slice::<Value>(request) {
            // Sigstore's authority takes JSON as well.
            let hash = STANDARD.decode(request["artifactHash"].as_str().unwrap()).unwrap();
            let words = ["ts", "-query", "-sha256", "-cert", "-digest"];
            let mut openssl = tool("openssl", words);
            openssl.arg(hex(&hash)).arg("-out").arg(&file);
            Ran::new(openssl).ok();
        } else {
            std::fs::write(&file, request).unwrap();
        }
        let words = "ts -reply -config tsa.cnf -section tsa -queryfile tsa.req -signer tsa.pem -inkey tsa.key -out tsa.rep";
        let mut openssl = tool("openssl", words.split(' '));
        openssl.current_dir(&self.directory);
        Ran::new(openssl).ok();
        std::fs::read(self.directory.join("tsa.rep")).unwrap()
    }
}

/// The part of a certificate that is signed.
fn tbs(der: &[u8]) -> &[u8] {
    let header = |der: &[u8]| match der[1] {
        0x82 => (4, usize::from(der[2]) << 8 | usize::from(der[3])),
        0x81 => (3, usize::from(der[2])),
        short => (2, usize::from(short)),
    };
    let inside = &der[header(der).0..];
    let (start, length) = header(inside);
    &inside[..start + length]
}

fn leaf(body: &[u8]) -> Vec<u8> {
    Sha256::digest([&[0], body].concat()).to_vec()
}

/// RFC 6962 §2.1.
fn tree(leaves: &[Vec<u8>]) -> Vec<u8> {
    if let [one] = leaves {
        return one.clone();
    }
    let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
    Sha256::digest([&[1][..], &tree(left), &tree(right)].concat()).to_vec()
}

/// RFC 6962 §2.1.1.
fn proof(leaves: &[Vec<u8>], index: usize) -> Vec<Vec<u8>> {
    if leaves.len() == 1 {
        return Vec::new();
    }
    let middle = leaves.len().next_power_of_two() / 2;
    let (left, right) = leaves.split_at(middle);
    let (mut path, beside) = if index < middle {
        (proof(left, index), tree(right))
    } else {
        (proof(right, index - middle), tree(left))
    };
    path.push(beside);
    path
}
