//! Signatures as sigstore bundles, with a key and without: what we write is read by the public
//! implementations for Python and JavaScript (`scripts/referees` installs them), and what the one for
//! Python writes by us; what is tampered with is refused by its reason.

mod blobs;
mod elsewhere;
mod faults;
mod matrix;
mod policies;
mod services;

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, repository, tool};
use services::{IDENTITY, ISSUER, REQUEST_TOKEN, Services};

/// Exit codes of docs/cli.md.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const DENIED: i32 = 5;
const NETWORK: i32 = 7;

const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";

/// A registry with the image `app:v1`, and running services of sigstore.
struct Site {
    env: TestEnv,
    registry: Registry,
    services: Services,
}

impl Site {
    fn new() -> Self {
        let env = TestEnv::new();
        let registry = Registry::start();
        let context = env.context("context", "FROM scratch\nCOPY a /a\n", &[("a", "a\n")]);
        let services = Services::start(&env.path("."));
        let site = Self { env, registry, services };
        site.env.build(&site.image(), &context);
        site.env.imgctl(["push", &site.image()]).ok();
        site.env.write("root.json", site.services.trusted_root().to_string());
        site.env.write("token", Services::token(IDENTITY, ISSUER));
        site
    }

    fn image(&self) -> String {
        format!("{}/team/app:v1", self.registry.host)
    }

    fn imgctl(&self, arguments: &[&str]) -> Ran {
        let mut command = self.env.command(arguments);
        command.env("COSIGN_PASSWORD", "pw");
        Ran::new(command)
    }

    /// Signs as the identity of `token`.
    fn sign(&self, more: &[&str]) -> Ran {
        let (url, image) = (&self.services.url, self.image());
        let mut arguments =
            vec!["sign", "--json", "--keyless", "--fulcio-url", url, "--rekor-url", url, &image];
        if !more.contains(&"--identity-token") {
            arguments.extend(["--identity-token", "token"]);
        }
        arguments.extend(more);
        self.imgctl(&arguments)
    }

    /// Verifies the identity, or with `more` another one.
    fn verify(&self, more: &[&str]) -> Ran {
        let image = self.image();
        let mut arguments = vec!["verify", "--trusted-root", "root.json", &image];
        if !more.iter().any(|word| word.starts_with("--certificate-identity")) {
            arguments.extend(["--certificate-identity", IDENTITY]);
        }
        if !more.iter().any(|word| word.starts_with("--certificate-oidc-issuer")) {
            arguments.extend(["--certificate-oidc-issuer", ISSUER]);
        }
        arguments.extend(more);
        self.imgctl(&arguments)
    }

    /// Where the registry keeps a blob.
    fn blob(&self, digest: &Value) -> PathBuf {
        let hex = digest.as_str().unwrap().trim_start_matches("sha256:");
        let relative = format!("docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]);
        self.registry.data().join(relative)
    }

    /// The manifest that the answer of `sign --json` names.
    fn referrer(&self, signed: &Ran) -> Value {
        let signed = signed.json();
        let place = signed[0]["signature"].as_str().unwrap();
        let digest = Value::from(place.strip_prefix("referrer ").unwrap());
        serde_json::from_slice(&std::fs::read(self.blob(&digest)).unwrap()).unwrap()
    }

    /// Its bundle.
    fn bundle(&self, signed: &Ran) -> Value {
        let layer = self.referrer(signed)["layers"][0]["digest"].clone();
        serde_json::from_slice(&std::fs::read(self.blob(&layer)).unwrap()).unwrap()
    }

    /// Pushes `bundle` as a referrer of another image with the same content under another name.
    fn verify_bundle(&self, bundle: &Value, more: &[&str]) -> Ran {
        // A repository of its own for each: nothing else is found there.
        let hex = digest_of(bundle.to_string().as_bytes());
        let image = format!("{}/tried/{}:v1", self.registry.host, &hex[..12]);
        self.imgctl(&["tag", &self.image(), &image]).ok();
        self.imgctl(&["push", &image]).ok();
        self.env.write("bundle.json", bundle.to_string());
        self.imgctl(&["attach", "--type", BUNDLE, "bundle.json", &image]).ok();
        self.verify_image(&image, more)
    }

    /// Verifies an image for the identity that the tests have.
    fn verify_image(&self, image: &str, more: &[&str]) -> Ran {
        let mut arguments = vec![
            "verify",
            "--trusted-root",
            "root.json",
            "--certificate-identity",
            IDENTITY,
            "--certificate-oidc-issuer",
            ISSUER,
            image,
        ];
        arguments.extend(more);
        self.imgctl(&arguments)
    }

    /// The digest that the bundle must be about.
    fn digest(&self) -> String {
        let image = format!("docker://{}", self.image());
        let arguments = ["inspect", "--tls-verify=false", "--format", "{{.Digest}}", &image];
        Ran::new(tool("skopeo", arguments)).ok().stdout()
    }
}

fn digest_of(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The directory of the public implementations, if `scripts/referees` has installed them; without
/// them the test counts as skipped.
fn referees() -> Option<PathBuf> {
    let path = repository().join("target/referees");
    if path.join("done").exists() {
        return Some(path);
    }
    imgctl_base::testing::skip("scripts/referees has not run");
    None
}

/// Verifies `bundle.json` with sigstore for Python, for an identity; prints the payload.
const PYTHON_VERIFY: &str = r#"
import sys
from sigstore.models import Bundle, TrustedRoot
from sigstore.verify import Verifier, policy
bundle = Bundle.from_json(open("bundle.json").read())
verifier = Verifier(trusted_root=TrustedRoot.from_file("root.json"))
kind, payload = verifier.verify_dsse(bundle, policy.Identity(identity=sys.argv[1], issuer=sys.argv[2]))
print(payload.decode())
"#;

/// Signs a statement with sigstore for Python; writes `theirs.json`.
const PYTHON_SIGN: &str = r#"
import sys
from sigstore.dsse import StatementBuilder, Subject
from sigstore.models import ClientTrustConfig, TrustedRoot, SigningConfig
from sigstore.oidc import IdentityToken
from sigstore.sign import SigningContext
config = SigningConfig.from_file("config.json")
root = TrustedRoot.from_file("root.json")
context = SigningContext(
    fulcio=config.get_fulcio(), trusted_root=root, tsa_clients=config.get_tsas(), rekor=config.get_tlogs()[0])
class Token(IdentityToken):
    def __init__(self, raw): self._raw_token = raw; self._identity = sys.argv[1]; self._federated_issuer = None
    @property
    def identity(self): return self._identity
    def in_validity_period(self): return True
    def __str__(self): return self._raw_token
statement = (StatementBuilder()
    .subjects([Subject(name="app", digest={"sha256": sys.argv[2]})])
    .predicate_type("https://sigstore.dev/cosign/sign/v1").predicate({}).build())
with context.signer(Token(open("token").read())) as signer:
    open("theirs.json", "w").write(signer.sign_dsse(statement).to_json())
"#;

/// Verifies `bundle.json` with sigstore for JavaScript: for an identity, or by a key.
const SCRIPT_VERIFY: &str = r#"
const fs = require('fs');
const { bundleFromJSON } = require('@sigstore/bundle');
const { TrustedRoot } = require('@sigstore/protobuf-specs');
const { Verifier, toSignedEntity, toTrustMaterial } = require('@sigstore/verify');
const bundle = bundleFromJSON(JSON.parse(fs.readFileSync(process.argv[2] + '/bundle.json')));
const root = TrustedRoot.fromJSON(JSON.parse(fs.readFileSync(process.argv[2] + '/root.json')));
const key = process.argv[3] === 'key';
const keys = key ? () => ({ publicKey: require('crypto').createPublicKey(fs.readFileSync(process.argv[2] + '/ours.pub')), validFor: () => true }) : undefined;
const none = { ctlogThreshold: 0, tlogThreshold: 0, timestampThreshold: 0 };
const verifier = new Verifier(toTrustMaterial(root, keys), key ? none : {});
const identity = { subjectAlternativeName: process.argv[3], extensions: { issuer: process.argv[4] } };
verifier.verify(toSignedEntity(bundle), key ? undefined : identity);
"#;

fn python(site: &Site, script: &str, arguments: &[&str]) -> Option<Ran> {
    let python = referees()?.join("python/bin/python");
    let mut command = tool(python.to_str().unwrap(), ["-c", script]);
    command.args(arguments).current_dir(site.env.path("."));
    Some(Ran::new(command))
}

fn script(site: &Site, arguments: &[&str]) -> Option<Ran> {
    let directory = referees()?.join("javascript");
    let mut command = tool("node", ["-e", SCRIPT_VERIFY, "-"]);
    command.arg(site.env.path(".")).args(arguments).current_dir(directory);
    Some(Ran::new(command))
}

#[test]
fn a_key_signs_a_bundle_that_others_verify() {
    let site = Site::new();
    site.imgctl(&["key", "generate", "--output-key-prefix", "ours"]).ok();
    site.imgctl(&["key", "generate", "--output-key-prefix", "other"]).ok();
    let image = site.image();
    let sign = ["sign", "--json", "--key", "ours.key", "--format", "bundle", "-a", "a=b", &image];
    let signed = site.imgctl(&sign).ok();
    assert_eq!(site.services.asked(), 0, "services that nobody named were asked");
    let manifest = site.referrer(&signed);
    assert_eq!(manifest["artifactType"], BUNDLE);
    assert_eq!(manifest["layers"][0]["mediaType"], BUNDLE);
    let predicate = &manifest["annotations"]["dev.sigstore.bundle.predicateType"];
    assert_eq!(predicate, "https://sigstore.dev/cosign/sign/v1");
    let claims = site.imgctl(&["verify", "--key", "ours.pub", "-a", "a=b", &image]).ok().json();
    let sha256 = claims[0]["subject"][0]["digest"]["sha256"].as_str().unwrap();
    assert_eq!(format!("sha256:{sha256}"), site.digest());
    site.imgctl(&["verify", "--key", "ours.pub", "-a", "a=c", &image]).fails(DENIED);
    site.imgctl(&["verify", "--key", "other.pub", &image]).fails(DENIED);
    assert_eq!(site.imgctl(&sign).ok().json()[0]["existed"], true);

    site.env.write("bundle.json", site.bundle(&signed).to_string());
    if let Some(ran) = script(&site, &["key"]) {
        ran.ok();
        std::fs::copy(site.env.path("other.pub"), site.env.path("ours.pub")).unwrap();
        assert!(!script(&site, &["key"]).unwrap().success());
    }
}

#[test]
fn the_public_implementations_verify_what_we_sign_without_a_key() {
    let site = Site::new();
    let stamp = format!("{}/api/v1/timestamp", site.services.url);
    for more in [
        &[][..],
        &["--timestamp-server-url", &stamp],
        &["--rekor-version", "2", "--timestamp-server-url", &stamp],
    ] {
        let signed = site.sign(more).ok();
        site.env.write("bundle.json", site.bundle(&signed).to_string());
        if let Some(ran) = python(&site, PYTHON_VERIFY, &[IDENTITY, ISSUER]) {
            let sha256 = ran.ok().json()["subject"][0]["digest"]["sha256"].clone();
            assert_eq!(format!("sha256:{}", sha256.as_str().unwrap()), site.digest());
            let refused = python(&site, PYTHON_VERIFY, &["https://other", ISSUER]).unwrap();
            assert!(!refused.success());
            script(&site, &[IDENTITY, ISSUER]).unwrap().ok();
        }
        let verified = site.verify_bundle(&site.bundle(&signed), &["--json"]).ok().json();
        assert_eq!(verified[0]["signers"], json!([{ "identity": IDENTITY, "issuer": ISSUER }]));
    }
}

#[test]
fn we_verify_what_the_public_implementation_signs() {
    let site = Site::new();
    if referees().is_none() {
        return;
    }
    let digest = site.digest();
    let sha256 = digest.trim_start_matches("sha256:");
    for (version, stamps) in [(1, false), (1, true), (2, true)] {
        let config = site.services.signing_config(version, stamps);
        site.env.write("config.json", config.to_string());
        python(&site, PYTHON_SIGN, &[IDENTITY, sha256]).unwrap().ok();
        let theirs = crate::common::json(&site.env.path("theirs.json"));
        site.verify_bundle(&theirs, &[]).ok();
        // The same configuration is good for us.
        let image = site.image();
        let words =
            ["sign", "--signing-config", "config.json", "--identity-token", "token", &image];
        site.imgctl(&words).ok();
    }
    site.verify(&[]).ok();
}

#[test]
fn identity_and_issuer_must_fit() {
    let site = Site::new();
    site.verify(&[]).fails(DENIED);
    site.sign(&[]).ok();
    site.verify(&[]).ok();
    let expression = "^https://ci\\.example\\.com/team/app/.*@refs/tags/v[0-9]+$";
    site.verify(&["--certificate-identity-regexp", expression]).ok();
    site.verify(&["--certificate-oidc-issuer-regexp", "example\\.com$"]).ok();
    for (more, why) in [
        (["--certificate-identity", "https://ci.example.com/team/app"], "the identity"),
        (["--certificate-identity-regexp", "^http://"], "the identity"),
        (["--certificate-oidc-issuer", "https://other.example.com"], "the issuer"),
    ] {
        let refused = site.verify(&more).fails(DENIED);
        assert!(refused.stderr().contains(why), "{}", refused.report());
    }
    let image = site.image();
    for incomplete in [
        vec!["verify", &image],
        vec!["verify", "--certificate-identity", IDENTITY, &image],
        vec![
            "verify",
            "--trusted-root",
            "root.json",
            "--certificate-identity-regexp",
            "(",
            "--certificate-oidc-issuer",
            ISSUER,
            &image,
        ],
    ] {
        site.imgctl(&incomplete).fails(USAGE);
    }
    // A mail address is an identity too.
    site.env.write("token", Services::token("me@example.com", ISSUER));
    site.sign(&[]).ok();
    site.verify(&["--certificate-identity", "me@example.com"]).ok();
}

#[test]
fn what_is_tampered_with_is_refused_by_its_reason() {
    let site = Site::new();
    let stamp = format!("{}/api/v1/timestamp", site.services.url);
    let good = site.bundle(&site.sign(&["--timestamp-server-url", &stamp]).ok());
    let other = {
        site.env.write("token", Services::token(IDENTITY, ISSUER));
        site.bundle(&site.sign(&["--timestamp-server-url", &stamp, "-a", "x=y"]).ok())
    };
    site.verify_bundle(&good, &[]).ok();
    let entry = "/verificationMaterial/tlogEntries/0";
    let at = |path: &str| {
        if path.starts_with("/dsse") {
            path.to_owned()
        } else {
            format!("/verificationMaterial{path}")
        }
    };
    // Each field in turn is that of another good bundle.
    for (path, why) in [
        ("/dsseEnvelope/payload", "the signature"),
        ("/dsseEnvelope/signatures/0/sig", "the signature"),
        ("/certificate/rawBytes", "the signature"),
        ("/timestampVerificationData/rfc3161Timestamps/0/signedTimestamp", "another signature"),
        ("/tlogEntries/0/canonicalizedBody", "another signature"),
        ("/tlogEntries/0/inclusionProof/rootHash", "does not lead to its root"),
        ("/tlogEntries/0/inclusionProof/logIndex", "does not lead to its root"),
        ("/tlogEntries/0/inclusionProof/hashes", "does not lead to its root"),
        ("/tlogEntries/0/inclusionProof/checkpoint/envelope", "another state of the log"),
        ("/tlogEntries/0/inclusionPromise/signedEntryTimestamp", "signed entry timestamp"),
        ("/tlogEntries/0/logIndex", "signed entry timestamp"),
        ("/tlogEntries/0", "another signature"),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(&at(path)).unwrap() = other.pointer(&at(path)).unwrap().clone();
        assert_ne!(bad, good, "{path}");
        let refused = site.verify_bundle(&bad, &[]).fails(DENIED);
        assert!(refused.stderr().contains(why), "{path}: {}", refused.report());
    }
    // Made up, or taken away.
    let set = |path: &str, value: Value| {
        let mut bad = good.clone();
        *bad.pointer_mut(path).unwrap() = value;
        bad
    };
    let number = |name: &str| format!("{entry}/{name}");
    // One bit of a value, so far from its end: the certificates in a timestamp are not signed by it
    // and not needed either, its signature is at the end.
    let flipped = |path: &str, from_end: usize| {
        let mut bytes = STANDARD.decode(good.pointer(path).unwrap().as_str().unwrap()).unwrap();
        let at = bytes.len() - from_end;
        bytes[at] ^= 1;
        Value::from(STANDARD.encode(bytes))
    };
    let certificate = "/verificationMaterial/certificate/rawBytes";
    let stamps = "/verificationMaterial/timestampVerificationData/rfc3161Timestamps";
    let stamped = format!("{stamps}/0/signedTimestamp");
    for (bad, why) in [
        (set(&number("integratedTime"), json!("1")), "signed entry timestamp"),
        (set(&number("logId/keyId"), json!("AAAA")), "does not know it"),
        (set(&number("kindVersion/kind"), json!("intoto")), "not supported"),
        (set(&number("kindVersion/version"), json!("0.0.2")), "another signature"),
        (set(&number("inclusionProof/treeSize"), json!("1")), "does not lead to its root"),
        (set("/verificationMaterial/tlogEntries", json!([])), "no entry"),
        (set(certificate, flipped(certificate, 1)), "another signature"),
        (set(&stamped, flipped(&stamped, 1)), "the timestamp"),
        (set("/dsseEnvelope/signatures", json!([])), "exactly one signature"),
        (set("/dsseEnvelope/payloadType", json!("text/plain")), "in-toto"),
        (set("/verificationMaterial/certificate", Value::Null), "without a certificate"),
    ] {
        let refused = site.verify_bundle(&bad, &[]).fails(DENIED);
        assert!(refused.stderr().contains(why), "{why}: {}", refused.report());
    }
    // Less is enough where there is more than one proof.
    let mut less = good.clone();
    *less.pointer_mut(stamps).unwrap() = json!([]);
    site.verify_bundle(&less, &[]).ok();
    less = set("/verificationMaterial/tlogEntries", json!([]));
    site.verify_bundle(&less, &["--insecure-ignore-tlog"]).ok();
    *less.pointer_mut(stamps).unwrap() = json!([]);
    let refused = site.verify_bundle(&less, &["--insecure-ignore-tlog"]).fails(DENIED);
    assert!(refused.stderr().contains("nothing proves when"), "{}", refused.report());

    // Of another image.
    let context = site.env.context("second", "FROM scratch\nCOPY b /b\n", &[("b", "b\n")]);
    let second = format!("{}/team/second:v1", site.registry.host);
    site.env.build(&second, &context);
    site.imgctl(&["push", &second]).ok();
    site.env.write("bundle.json", good.to_string());
    site.imgctl(&["attach", "--type", BUNDLE, "bundle.json", &second]).ok();
    let refused = site.verify_image(&second, &[]).fails(DENIED);
    assert!(refused.stderr().contains("about another image"), "{}", refused.report());
}

#[test]
fn only_the_authorities_and_logs_of_the_trusted_root_count() {
    let site = Site::new();
    let stamp = format!("{}/api/v1/timestamp", site.services.url);
    site.sign(&["--timestamp-server-url", &stamp]).ok();
    let ours = site.services.trusted_root();
    std::fs::create_dir(site.env.path("others")).unwrap();
    let others = Services::start(&site.env.path("others")).trusted_root();
    for (member, why) in [
        ("tlogs", "does not know it"),
        ("ctlogs", "SCT"),
        ("certificateAuthorities", "chain"),
        ("timestampAuthorities", "the timestamp"),
    ] {
        for replacement in [others[member].clone(), json!([])] {
            let mut root = ours.clone();
            root[member] = replacement;
            site.env.write("root.json", root.to_string());
            let refused = site.verify(&[]).fails(DENIED);
            let said = refused.stderr();
            let said_why = said.contains(why) || said.contains("has no authority");
            assert!(
                said_why || said.contains("has no time-stamping"),
                "{member}: {}",
                refused.report()
            );
        }
        let mut root = ours.clone();
        let key = if member.ends_with("logs") { "/0/publicKey/validFor" } else { "/0/validFor" };
        *root[member].pointer_mut(key).unwrap() =
            json!({ "start": "2020-01-01T00:00:00Z", "end": "2021-01-01T00:00:00Z" });
        site.env.write("root.json", root.to_string());
        site.verify(&[]).fails(DENIED);
    }
    let mut root = ours.clone();
    root["ctlogs"] = json!([]);
    site.env.write("root.json", root.to_string());
    site.verify(&["--insecure-ignore-sct"]).ok();
    site.env.write("root.json", ours.to_string());
    site.verify(&[]).ok();
}

#[test]
fn a_certificate_counts_only_while_it_is_valid() {
    let site = Site::new();
    for (year, why) in [(2020, "had expired"), (2040, "not valid yet")] {
        site.services.certify_in(Some(year));
        let bundle = site.bundle(&site.sign(&[]).ok());
        let refused = site.verify_bundle(&bundle, &[]).fails(DENIED);
        assert!(refused.stderr().contains(why), "{}", refused.report());
    }
}

#[test]
fn policies_admit_what_ci_signed() {
    let site = Site::new();
    let (chain, log) = site.services.pem();
    let (chain, log) = (site.env.write("chain.pem", chain), site.env.write("log.pub", log));
    let root = site.env.path("root.json");
    let pull = |requirement: Value| {
        let mut requirement = requirement;
        requirement["type"] = json!("sigstoreSigned");
        let policy = json!({
            "default": [{ "type": "reject" }],
            "transports": { "docker": { &site.registry.host: [requirement] } },
        });
        let policy = site.env.write("policy.json", policy.to_string());
        let _ = site.imgctl(&["rmi", &site.image()]);
        site.imgctl(&["pull", "--signature-policy", policy.to_str().unwrap(), &site.image()])
    };
    let by = |subject: &str| json!({ "fulcio": { "trustedRootPath": root, "oidcIssuer": ISSUER, "subjectURI": subject } });
    let refused = pull(by(IDENTITY)).fails(DENIED);
    assert!(refused.stderr().contains("there is none"), "{}", refused.report());
    site.sign(&[]).ok();
    pull(by(IDENTITY)).ok();
    let refused = pull(by("https://ci.example.com/other")).fails(DENIED);
    assert!(refused.stderr().contains("the identity"), "{}", refused.report());
    let mut requirement = by(IDENTITY);
    requirement["signedIdentity"] = json!({ "type": "matchRepository" });
    pull(requirement.clone()).ok();
    let other = json!({ "type": "exactRepository", "dockerRepository": "q.io/other" });
    requirement["signedIdentity"] = other;
    pull(requirement).fails(DENIED);
    let expression = "^https://ci\\.example\\.com/team/";
    pull(json!({ "fulcio": {
        "trustedRootPath": root, "oidcIssuer": ISSUER, "subjectURIRegexp": expression,
    } }))
    .ok();
    // As containers writes it: the authority's certificates, the log's key, a mail address.
    let containers = json!({
        "fulcio": { "caPath": chain, "oidcIssuer": ISSUER, "subjectEmail": "me@example.com" },
        "rekorPublicKeyPath": log,
    });
    pull(containers.clone()).fails(DENIED);
    // What the signer is called as a URI is no mail address.
    let mut uri = containers.clone();
    uri["fulcio"]["subjectEmail"] = json!(IDENTITY);
    let refused = pull(uri).fails(DENIED);
    assert!(refused.stderr().contains("the identity"), "{}", refused.report());
    site.env.write("token", Services::token("me@example.com", ISSUER));
    site.sign(&[]).ok();
    pull(containers).ok();
}

#[test]
fn tokens_come_from_ci_and_stay_secret() {
    let site = Site::new();
    let (url, image) = (site.services.url.clone(), site.image());
    let words = ["sign", "-v", "--fulcio-url", &url, "--rekor-url", &url, &image];
    let run = |variables: &[(&str, &str)]| {
        let mut command = site.env.command(words);
        command.envs(variables.iter().copied());
        Ran::new(command)
    };
    run(&[]).fails(USAGE);
    let request = format!("{url}/token?x=1");
    let github = [
        ("ACTIONS_ID_TOKEN_REQUEST_URL", request.as_str()),
        ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", REQUEST_TOKEN),
    ];
    let token = Services::token(IDENTITY, ISSUER);
    for variables in [&github[..], &[("SIGSTORE_ID_TOKEN", token.as_str())]] {
        let ran = run(variables).ok();
        let said = ran.report();
        assert!(!said.contains(REQUEST_TOKEN) && !said.contains(&token), "{said}");
        site.verify(&[]).ok();
    }
    run(&[github[0], ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "other")]).fails(DENIED);
    // A token that the authority refuses, which repeats it.
    let refused = format!("{}.e30.x", token.split('.').next().unwrap());
    let ran = run(&[("SIGSTORE_ID_TOKEN", &refused)]).fails(DENIED);
    assert!(ran.stderr().contains("refused the identity token"), "{}", ran.report());
    assert!(!ran.report().contains(&refused), "{}", ran.report());
    run(&[("SIGSTORE_ID_TOKEN", "nonsense")]).fails(4);
}

#[test]
fn services_are_asked_again_and_named_when_they_fail() {
    let site = Site::new();
    let paths = ["/api/v2/signingCert", "/api/v1/log/entries", "/api/v1/timestamp"];
    let stamp = format!("{}/api/v1/timestamp", site.services.url);
    for path in paths {
        site.services.busy(path, 2);
    }
    site.sign(&["--timestamp-server-url", &stamp]).ok();
    site.verify(&[]).ok();
    let names = ["certificate authority", "transparency log", "time-stamping authority"];
    for (path, name) in paths.iter().zip(names) {
        site.services.busy(path, u32::MAX);
        let failed = site.sign(&["--timestamp-server-url", &stamp, "--timeout", "1s"]);
        let failed = failed.fails(NETWORK);
        assert!(failed.stderr().contains(name), "{}", failed.report());
        assert!(failed.stderr().contains("429"), "{}", failed.report());
        site.services.busy(path, 0);
    }
}
