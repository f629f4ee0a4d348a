//! Signed statements about files: ours are read by the public implementations, theirs by us.

use serde_json::{Value, json};

use super::services::{IDENTITY, ISSUER, Services};
use super::{
    DENIED, NETWORK, PYTHON_SIGN, PYTHON_VERIFY, Site, USAGE, digest_of, python, referees, script,
};
use crate::common::{Ran, json};

impl Site {
    /// Signs `statement.json` as the identity of `token`, into `bundle.json`.
    fn attest(&self, more: &[&str]) -> Ran {
        let url = &*self.services.url;
        let words = ["attest-blob", "--statement", "statement.json", "--bundle", "bundle.json"];
        let mut words = [&words[..], more].concat();
        if !more.contains(&"--key") {
            words.extend(["--identity-token", "token", "--fulcio-url", url, "--rekor-url", url]);
        }
        self.imgctl(&words)
    }

    /// Verifies `bundle` for these files.
    fn verify_blob(&self, bundle: &str, identity: &str, more: &[&str]) -> Ran {
        let words = ["verify-blob-attestation", "--json", "--trusted-root", "root.json"];
        let signer = ["--certificate-identity", identity, "--certificate-oidc-issuer", ISSUER];
        self.imgctl(&[&words[..], &signer, &["--bundle", bundle], more].concat())
    }

    /// Writes files and a statement about them.
    fn state(&self, files: &[(&str, &str)]) {
        let subjects: Vec<Value> = files
            .iter()
            .map(|(name, content)| {
                self.env.write(name, content);
                json!({ "name": name, "digest": { "sha256": digest_of(content.as_bytes()) } })
            })
            .collect();
        let statement = json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": subjects,
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {},
        });
        self.env.write("statement.json", statement.to_string());
    }
}

#[test]
fn a_statement_about_files_is_signed_without_a_key_and_read_by_others() {
    let site = Site::new();
    site.state(&[("a.tar.gz", "a"), ("b.deb", "b")]);
    site.attest(&[]).ok();
    let verified = site.verify_blob("bundle.json", IDENTITY, &["a.tar.gz", "b.deb"]).ok().json();
    assert_eq!(verified["signer"], json!({ "identity": IDENTITY, "issuer": ISSUER }));
    assert_eq!(verified["predicateType"], "https://slsa.dev/provenance/v1");
    assert_eq!(verified["verified"][1]["file"], "b.deb");
    if let Some(ran) = python(&site, PYTHON_VERIFY, &[IDENTITY, ISSUER]) {
        let stated = ran.ok().json();
        assert_eq!(stated, json(&site.env.path("statement.json")), "signed as it is");
        script(&site, &[IDENTITY, ISSUER]).unwrap().ok();
    }

    site.env.write("changed", "changed");
    let refused = site.verify_blob("bundle.json", IDENTITY, &["a.tar.gz", "changed"]);
    assert!(refused.fails(DENIED).stderr().contains("not about changed"));
    site.verify_blob("bundle.json", "https://other", &["b.deb"]).fails(DENIED);
    site.verify_blob("bundle.json", IDENTITY, &["--type", "spdx", "b.deb"]).fails(DENIED);
    site.verify_blob("bundle.json", IDENTITY, &["--type", "slsaprovenance1", "b.deb"]).ok();
    site.verify_blob("bundle.json", IDENTITY, &["--type", "what", "b.deb"]).fails(USAGE);
    // Each part in turn.
    let bundle = json(&site.env.path("bundle.json"));
    for pointer in [
        "/dsseEnvelope/payload",
        "/dsseEnvelope/signatures/0/sig",
        "/verificationMaterial/certificate/rawBytes",
        "/verificationMaterial/tlogEntries/0/canonicalizedBody",
        "/verificationMaterial/tlogEntries/0/inclusionProof/rootHash",
        "/verificationMaterial/tlogEntries/0/inclusionPromise/signedEntryTimestamp",
    ] {
        let mut changed = bundle.clone();
        let value = changed.pointer_mut(pointer).unwrap();
        let text = value.as_str().unwrap();
        let at = text.len() / 2;
        let other = if &text[at..=at] == "A" { "B" } else { "A" };
        *value = format!("{}{other}{}", &text[..at], &text[at + 1..]).into();
        site.env.write("changed.json", changed.to_string());
        let ran = site.verify_blob("changed.json", IDENTITY, &["b.deb"]);
        assert!(!ran.success(), "{pointer}: {}", ran.report());
    }
}

#[test]
fn what_the_public_implementation_states_about_a_file_counts() {
    let site = Site::new();
    if referees().is_none() {
        return;
    }
    site.env.write("config.json", site.services.signing_config(2, true).to_string());
    site.env.write("file", "content");
    python(&site, PYTHON_SIGN, &[IDENTITY, &digest_of(b"content")]).unwrap().ok();
    site.verify_blob("theirs.json", IDENTITY, &["file"]).ok();
}

#[test]
fn what_cannot_be_signed_leaves_no_bundle() {
    let site = Site::new();
    site.state(&[("a", "a")]);
    site.imgctl(&["key", "generate", "--output-key-prefix", "ours"]).ok();
    site.env.write("statement.json", "{}");
    site.attest(&["--key", "ours.key"]).fails(4);
    site.state(&[("a", "a")]);
    site.env.write("token", "secret-token");
    let said = site.attest(&[]);
    assert!(!said.success() && !said.report().contains("secret-token"), "{}", said.report());
    site.env.write("token", Services::token(IDENTITY, ISSUER));
    site.services.busy("/api/v2/signingCert", 1000);
    let said = site.attest(&["--timeout", "1s"]).fails(NETWORK);
    assert!(said.stderr().contains("certificate authority"), "{}", said.report());
    assert!(!site.env.path("bundle.json").exists());
    site.attest(&["--key", "ours.key"]).ok();
    let words = ["verify-blob-attestation", "--key", "ours.pub", "--bundle", "bundle.json", "a"];
    assert_eq!(site.imgctl(&words).ok().stdout(), "a: verified");
}
