//! Each implementation (imgctl, sigstore for Python, sigstore for JavaScript) verifies the signatures
//! of the others, with logs of both versions, and refuses them when a field is changed.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::services::{IDENTITY, ISSUER, Services};
use super::{BUNDLE, DENIED, PYTHON_SIGN, Site, digest_of, python, referees};
use crate::common::{Ran, json, tool};

/// Signs a statement with sigstore for JavaScript; writes `theirs.json`.
const SCRIPT_SIGN: &str = r#"
const fs = require('fs');
const { bundleToJSON } = require('@sigstore/bundle');
const { DSSEBundleBuilder, FulcioSigner, RekorWitness, TSAWitness } = require('@sigstore/sign');
const [directory, url, version, stamps, sha256] = process.argv.slice(2);
const token = fs.readFileSync(directory + '/token').toString();
const witnesses = [new RekorWitness({ rekorBaseURL: url, majorApiVersion: Number(version), retry: 0 })];
if (stamps === 'true') witnesses.push(new TSAWitness({ tsaBaseURL: url, retry: 0 }));
const signer = new FulcioSigner({ fulcioBaseURL: url, retry: 0, identityProvider: { getToken: async () => token } });
const statement = {
  _type: 'https://in-toto.io/Statement/v1', subject: [{ name: 'app', digest: { sha256 } }],
  predicateType: 'https://sigstore.dev/cosign/sign/v1', predicate: {} };
new DSSEBundleBuilder({ signer, witnesses })
  .create({ data: Buffer.from(JSON.stringify(statement)), type: 'application/vnd.in-toto+json' })
  .then((bundle) => fs.writeFileSync(directory + '/theirs.json', JSON.stringify(bundleToJSON(bundle))));
"#;

/// Prints the names of the bundles in `tried/` that sigstore for JavaScript accepts.
const SCRIPT_JUDGE: &str = r#"
const fs = require('fs');
const { bundleFromJSON } = require('@sigstore/bundle');
const { TrustedRoot } = require('@sigstore/protobuf-specs');
const { Verifier, toSignedEntity, toTrustMaterial } = require('@sigstore/verify');
const [directory, identity, issuer] = process.argv.slice(2);
const root = TrustedRoot.fromJSON(JSON.parse(fs.readFileSync(directory + '/root.json')));
const verifier = new Verifier(toTrustMaterial(root), {});
for (const name of fs.readdirSync(directory + '/tried')) {
  try {
    const bundle = bundleFromJSON(JSON.parse(fs.readFileSync(directory + '/tried/' + name)));
    verifier.verify(toSignedEntity(bundle), { subjectAlternativeName: identity, extensions: { issuer } });
    console.log(name);
  } catch (error) {}
}
"#;

/// The same for Python.
const PYTHON_JUDGE: &str = r#"
import os, sys
from sigstore.models import Bundle, TrustedRoot
from sigstore.verify import Verifier, policy
verifier = Verifier(trusted_root=TrustedRoot.from_file("root.json"))
for name in os.listdir("tried"):
    try:
        bundle = Bundle.from_json(open("tried/" + name).read())
        verifier.verify_dsse(bundle, policy.Identity(identity=sys.argv[1], issuer=sys.argv[2]))
        print(name)
    except Exception:
        pass
"#;

/// Whoever signs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Imgctl,
    Python,
    JavaScript,
}

/// The image in a layout, where a bundle is put beside it without a registry.
struct Bench<'a> {
    site: &'a Site,
    layout: PathBuf,
    /// `index.json` with the image alone.
    index: Value,
}

impl<'a> Bench<'a> {
    fn new(site: &'a Site) -> Self {
        let layout = site.env.path("bench");
        let path = layout.to_str().unwrap();
        site.imgctl(&["save", "--format", "oci-dir", "-o", path, &site.image()]).ok();
        let index = json(&layout.join("index.json"));
        Self { site, layout, index }
    }

    fn put(&self, bytes: &[u8]) -> (String, usize) {
        let hex = digest_of(bytes);
        std::fs::write(self.layout.join("blobs/sha256").join(&hex), bytes).unwrap();
        (format!("sha256:{hex}"), bytes.len())
    }

    fn verify(&self, bundle: &Value, identity: &str, issuer: &str) -> Ran {
        let (layer, size) = self.put(bundle.to_string().as_bytes());
        let (config, _) = self.put(b"{}");
        let image = &self.index["manifests"][0];
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": BUNDLE,
            "config": { "mediaType": "application/vnd.oci.empty.v1+json", "digest": config, "size": 2 },
            "layers": [{ "mediaType": BUNDLE, "digest": layer, "size": size }],
            "subject": { "mediaType": image["mediaType"], "digest": image["digest"], "size": image["size"] },
        });
        let (digest, size) = self.put(manifest.to_string().as_bytes());
        let mut index = self.index.clone();
        index["manifests"].as_array_mut().unwrap().push(json!({
            "mediaType": manifest["mediaType"], "digest": digest, "size": size, "artifactType": BUNDLE,
        }));
        std::fs::write(self.layout.join("index.json"), index.to_string()).unwrap();
        let place = format!("oci:{}", self.layout.display());
        let words = ["verify", "--trusted-root", "root.json", "--certificate-identity", identity];
        let words: Vec<&str> =
            words.into_iter().chain(["--certificate-oidc-issuer", issuer, &place]).collect();
        self.site.imgctl(&words)
    }
}

/// A bundle about the image, with a log of this version and perhaps a timestamp.
fn signed(site: &Site, by: By, version: u32, stamps: bool) -> Value {
    site.env.write("token", Services::token(IDENTITY, ISSUER));
    let digest = site.digest();
    let sha256 = digest.trim_start_matches("sha256:");
    site.env.write("config.json", site.services.signing_config(version, stamps).to_string());
    match by {
        By::Imgctl => {
            let words = ["sign", "--json", "--signing-config", "config.json"];
            let image = site.image();
            let words: Vec<&str> =
                words.into_iter().chain(["--identity-token", "token", &image]).collect();
            return site.bundle(&site.imgctl(&words).ok());
        }
        By::Python => {
            python(site, PYTHON_SIGN, &[IDENTITY, sha256]).unwrap().ok();
        }
        By::JavaScript => {
            let (version, stamps) = (version.to_string(), stamps.to_string());
            script(site, SCRIPT_SIGN, &[&site.services.url, &version, &stamps, sha256]).ok();
        }
    }
    json(&site.env.path("theirs.json"))
}

fn script(site: &Site, text: &str, arguments: &[&str]) -> Ran {
    let mut command = tool("node", ["-e", text, "-"]);
    command.arg(site.env.path(".")).args(arguments);
    command.current_dir(referees().unwrap().join("javascript"));
    Ran::new(command)
}

/// The bundles, each with one field that is another's, a bit of it changed, or gone.
fn tampered(good: &Value, other: &Value) -> Vec<(String, Value)> {
    let mut bad = Vec::new();
    let mut add = |name: &str, path: &str, value: Value| {
        let mut changed = good.clone();
        *changed.pointer_mut(path).unwrap() = value;
        if changed != *good {
            bad.push((name.to_owned(), changed));
        }
    };
    let entry = "/verificationMaterial/tlogEntries/0";
    let stamp =
        "/verificationMaterial/timestampVerificationData/rfc3161Timestamps/0/signedTimestamp";
    let flip = |path: &str, at: usize, from_end: bool| {
        let mut bytes = STANDARD.decode(good.pointer(path)?.as_str()?).unwrap();
        let at = if from_end { bytes.len() - 1 - at } else { at };
        bytes[at] ^= 1;
        Some(Value::from(STANDARD.encode(bytes)))
    };
    let at = |part: &str| format!("{entry}/{part}");
    let paths = [
        ("certificate", "/verificationMaterial/certificate/rawBytes".to_owned()),
        ("signature", "/dsseEnvelope/signatures/0/sig".to_owned()),
        ("payload", "/dsseEnvelope/payload".to_owned()),
        ("entry-body", at("canonicalizedBody")),
        ("log-id", at("logId/keyId")),
        ("promise", at("inclusionPromise/signedEntryTimestamp")),
        ("root", at("inclusionProof/rootHash")),
        ("hash", at("inclusionProof/hashes/0")),
        ("timestamp", stamp.to_owned()),
    ];
    for (name, path) in &paths {
        if let Some(theirs) = other.pointer(path) {
            add(&format!("{name}-of-another"), path, theirs.clone());
        }
        if let Some(value) = flip(path, 2, true) {
            add(&format!("{name}-bit"), path, value);
        }
    }
    for (name, path) in [
        ("entry-of-another", entry.to_owned()),
        ("checkpoint-of-another", at("inclusionProof/checkpoint/envelope")),
        ("proof-of-another", at("inclusionProof")),
    ] {
        add(name, &path, other.pointer(&path).unwrap().clone());
    }
    let note = good.pointer(&at("inclusionProof/checkpoint/envelope")).unwrap();
    let note = note.as_str().unwrap();
    let size = good.pointer(&at("inclusionProof/treeSize")).unwrap().as_str().unwrap();
    let larger = note.replacen(&format!("\n{size}\n"), "\n999\n", 1);
    add("checkpoint-changed", &at("inclusionProof/checkpoint/envelope"), json!(larger));
    let unsigned = note.split("\n\n").next().unwrap().to_owned() + "\n\n";
    add("checkpoint-unsigned", &at("inclusionProof/checkpoint/envelope"), json!(unsigned));
    add("entry-index", &at("inclusionProof/logIndex"), json!("0"));
    add("tree-size", &at("inclusionProof/treeSize"), json!("999"));
    add("kind", &at("kindVersion/kind"), json!("rekord"));
    add("no-entry", "/verificationMaterial/tlogEntries", json!([]));
    add("no-signature", "/dsseEnvelope/signatures", json!([]));
    add("payload-type", "/dsseEnvelope/payloadType", json!("text/plain"));
    add("media-type", "/mediaType", json!("application/vnd.dev.sigstore.bundle.v9+json"));
    add("media-type-none", "/mediaType", json!("application/json"));
    // The statement itself: another image, another predicate.
    let payload = STANDARD.decode(good["dsseEnvelope"]["payload"].as_str().unwrap()).unwrap();
    let mut statement: Value = serde_json::from_slice(&payload).unwrap();
    statement["subject"][0]["digest"]["sha256"] = json!("0".repeat(64));
    let encoded = STANDARD.encode(statement.to_string());
    add("digest", "/dsseEnvelope/payload", json!(encoded));
    // In the certificate: who signed, and who said so.
    let path = "/verificationMaterial/certificate/rawBytes";
    let der = STANDARD.decode(good.pointer(path).unwrap().as_str().unwrap()).unwrap();
    for (name, text) in [("identity", IDENTITY), ("issuer", ISSUER)] {
        let mut der = der.clone();
        let start = der.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
        der[start + text.len() - 1] ^= 1;
        add(name, path, json!(STANDARD.encode(der)));
    }
    if good.pointer(stamp).is_none() {
        bad.retain(|(name, _)| !name.starts_with("timestamp"));
    }
    bad
}

/// What is accepted of the bundles, by name.
fn judged(ran: &Ran) -> Vec<String> {
    let mut names: Vec<String> = ran.stdout().lines().map(str::to_owned).collect();
    names.sort();
    names
}

fn write_tried(site: &Site, bundles: &[(String, Value)]) {
    let tried = site.env.path("tried");
    let _ = std::fs::remove_dir_all(&tried);
    std::fs::create_dir(&tried).unwrap();
    for (name, bundle) in bundles {
        std::fs::write(Path::new(&tried).join(name), bundle.to_string()).unwrap();
    }
}

#[test]
fn everybody_verifies_everybody_and_nobody_what_was_changed() {
    let site = Site::new();
    if referees().is_none() {
        return;
    }
    let bench = Bench::new(&site);
    // Sigstore for Python does not stamp without a log of version 2 or a configuration that says so.
    for by in [By::Imgctl, By::Python, By::JavaScript] {
        for (version, stamps) in [(1, false), (1, true), (2, true)] {
            let good = signed(&site, by, version, stamps);
            bench.verify(&good, IDENTITY, ISSUER).ok();
            bench.verify(&good, "https://ci.example.com/other", ISSUER).fails(DENIED);
            bench.verify(&good, IDENTITY, "https://other.example.com").fails(DENIED);
            let other = signed(&site, by, version, stamps);
            let bad = tampered(&good, &other);
            assert!(bad.len() > 25, "{by:?}: {}", bad.len());
            for (name, bundle) in &bad {
                let refused = bench.verify(bundle, IDENTITY, ISSUER);
                assert!(!refused.success(), "{by:?} {version}: {name}: {}", refused.report());
                refused.fails(DENIED);
            }
            let mut all = bad.clone();
            all.push(("good".to_owned(), good));
            write_tried(&site, &all);
            // They look at less than we do: not at the root beside the checkpoint that has it too; not at
            // timestamps where a log proves the time. Sigstore for Python knows no entries of kind
            // `dsse` in logs of version 2, which sigstore for JavaScript writes.
            let names = judged(&script(&site, SCRIPT_JUDGE, &[IDENTITY, ISSUER]).ok());
            let unseen = ["good", "root-bit", "root-of-another", "tree-size"];
            assert!(names.contains(&"good".to_owned()), "{by:?} {version}: {names:?}");
            assert!(names.iter().all(|name| unseen.contains(&&**name)), "{by:?}: {names:?}");
            let names = judged(&python(&site, PYTHON_JUDGE, &[IDENTITY, ISSUER]).unwrap().ok());
            let is_known = (by, version) != (By::JavaScript, 2);
            assert_eq!(names.contains(&"good".to_owned()), is_known, "{by:?} {version}: {names:?}");
            let unseen = ["good", "timestamp-bit", "timestamp-of-another", "log-id-bit"];
            assert!(names.iter().all(|name| unseen.contains(&&**name)), "{by:?}: {names:?}");
        }
    }
}
