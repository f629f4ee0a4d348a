//! Realistic policies, checked against made-up signatures.

use std::collections::BTreeMap;

use super::*;
use crate::keys::PrivateKey;
use crate::payload::Claim;
use imgctl_base::error::Kind;
use imgctl_base::image::Digest;

fn policy(text: &str) -> Result<Policy> {
    Policy::parse(text.as_bytes(), "policy.json".to_owned())
}

fn subject(name: &str) -> Subject {
    Subject {
        description: name.to_owned(),
        reference: Some(Reference::parse(name).unwrap()),
        digests: vec![Digest::of(b"index"), Digest::of(b"image")],
    }
}

fn signed(key: &PrivateKey, identity: &str, digest: &Digest) -> Result<Signature> {
    let payload =
        Claim { identity: identity.to_owned(), digest: digest.clone(), optional: BTreeMap::new() }
            .to_payload();
    let signature = key.sign(&payload)?;
    Ok(Signature { payload, signature })
}

fn check(policy: &Policy, name: &str, sigstore: Vec<Result<Signature>>) -> Result<()> {
    let signatures = Signatures { sigstore, ..Signatures::default() };
    let subject = subject(name);
    policy.for_registry(&Reference::parse(name).unwrap()).check(&subject, &signatures)
}

#[test]
fn the_most_specific_scope_decides() {
    let policy = policy(
        r#"{
          "default": [{"type": "reject"}],
          "transports": {"docker": {
            "quay.io/open": [{"type": "insecureAcceptAnything"}],
            "quay.io/open/closed": [{"type": "reject"}],
            "quay.io/open/closed:v2": [{"type": "insecureAcceptAnything"}],
            "*.example.com": [{"type": "insecureAcceptAnything"}],
            "docker.io/library/busybox": [{"type": "insecureAcceptAnything"}]
          }}
        }"#,
    )
    .unwrap();
    for (name, admitted) in [
        ("quay.io/open/x:1", true),
        ("quay.io/opened/x:1", false),
        ("quay.io/open/closed:v1", false),
        ("quay.io/open/closed:v2", true),
        ("r.example.com:5000/x:1", true),
        ("example.com/x:1", false),
        ("busybox:1", true),
    ] {
        assert_eq!(check(&policy, name, Vec::new()).is_ok(), admitted, "{name}");
    }
}

#[test]
fn a_signature_must_be_by_the_key_for_the_image_and_for_the_name() {
    let (key, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key.pub");
    std::fs::write(&path, key.public().unwrap().to_pem()).unwrap();
    let policy = policy(&format!(
        r#"{{"default": [{{"type": "sigstoreSigned", "keyPath": "{}"}}]}}"#,
        path.display()
    ))
    .unwrap();
    assert!(policy.default[0] != Requirement::AcceptAnything);
    let name = "q.io/a:1";
    let (index, image) = (Digest::of(b"index"), Digest::of(b"image"));
    let good = || signed(&key, name, &image);
    let bad: Vec<(&str, Result<Signature>)> = vec![
        ("another key", signed(&other, name, &image)),
        ("another image", signed(&key, name, &Digest::of(b"other"))),
        ("for the name q.io/b:1", signed(&key, "q.io/b:1", &image)),
        ("for the name q.io/a", signed(&key, "q.io/a", &image)),
        ("cut off", Err(Error::bad_content("cut off"))),
    ];
    for (why, signature) in bad {
        let error = check(&policy, name, vec![signature]).unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.to_string().contains(why), "{error}");
        assert!(error.hints()[0].contains("policy.json, scope `default`"));
    }
    check(&policy, name, vec![good()]).unwrap();
    check(&policy, name, vec![signed(&key, name, &index)]).unwrap();
    check(&policy, name, vec![signed(&other, name, &image), good()]).unwrap();
    let error = check(&policy, name, Vec::new()).unwrap_err();
    assert!(error.to_string().contains("there is none"), "{error}");
    std::fs::remove_file(&path).unwrap();
    check(&policy, name, vec![good()]).unwrap_err();
}

#[test]
fn all_requirements_must_be_met() {
    let both = r#"{"default": [{"type": "insecureAcceptAnything"}, {"type": "reject"}]}"#;
    assert!(check(&policy(both).unwrap(), "q.io/a:1", Vec::new()).is_err());
}

#[test]
fn what_is_known_but_not_supported_is_never_met() {
    for requirement in [
        r#"{"type": "signedBaseLayer", "baseLayerIdentity": {"type": "matchExact"}}"#,
        r#"{"type": "sigstoreSigned", "pki": {"caRootsPath": "/x"}}"#,
        r#"{"type": "sigstoreSigned", "keyPath": "/x", "rekorPublicKeyPath": "/y"}"#,
        r#"{"type": "signedBy", "keyType": "signedByGPGKeys", "keyPath": "/x"}"#,
    ] {
        let policy = policy(&format!(r#"{{"default": [{requirement}]}}"#)).unwrap();
        let error = check(&policy, "q.io/a:1", Vec::new()).unwrap_err();
        assert!(error.to_string().contains("not supported"), "{error}");
    }
}

#[test]
fn what_is_not_understood_is_refused_whole() {
    for text in [
        "",
        "{}",
        r#"{"default": []}"#,
        r#"{"default": [{"type": "trustMe"}]}"#,
        r#"{"default": [{"type": "reject", "unless": 1}]}"#,
        r#"{"default": [{"type": "reject"}], "more": 1}"#,
        r#"{"default": [{"type": "reject"}], "default": [{"type": "reject"}]}"#,
        r#"{"default": [{"type": "reject"}], "transports": {"docker": {"": []}}}"#,
        r#"{"default": [{"type": "reject"}], "transports": {"docker": {"a": [{"type": "reject"}], "a": [{"type": "reject"}]}}}"#,
        r#"{"default": [{"type": "sigstoreSigned"}]}"#,
        r#"{"default": [{"type": "sigstoreSigned", "keyPath": "/a", "keyData": "AA=="}]}"#,
        r#"{"default": [{"type": "sigstoreSigned", "keyData": "%"}]}"#,
        r#"{"default": [{"type": "sigstoreSigned", "fulcio": {"caPath": "/x"}}]}"#,
        r#"{"default": [{"type": "sigstoreSigned", "fulcio": {"caPath": "/x", "oidcIssuer": "i", "subjectEmail": "e"}}]}"#,
        r#"{"default": [{"type": "sigstoreSigned", "fulcio": {"trustedRootPath": "/x", "oidcIssuer": "i"}}]}"#,
        r#"{"default": [{"type": "sigstoreSigned", "fulcio": {"trustedRootPath": "/x", "oidcIssuer": "i", "subjectURI": "u", "subjectEmail": "e"}}]}"#,
        r#"{"default": [{"type": "sigstoreSigned", "fulcio": {"trustedRootPath": "/x", "oidcIssuer": "i", "subjectURIRegexp": "("}}]}"#,
        r#"{"default": [{"type": "sigstoreSigned", "fulcio": {"trustedRootPath": "/x", "oidcIssuer": "i", "subjectURIRegexp": ""}}]}"#,
        r#"{"default": [{"type": "sigstoreSigned", "fulcio": {"trustedRootPath": "/x", "oidcIssuer": "i", "subjectURI": ""}}]}"#,
        r#"{"default": [{"type": "sigstoreSigned", "fulcio": {"trustedRootPath": "/x", "oidcIssuer": "i", "subjectEmail": ""}}]}"#,
        r#"{"default": [{"type": "sigstoreSigned", "fulcio": {"trustedRootPath": "/x", "oidcIssuer": "", "subjectURI": "u"}}]}"#,
        r#"{"default": [{"type": "sigstoreSigned", "keyPath": "/k", "fulcio": {"trustedRootPath": "/x", "oidcIssuer": "i", "subjectURI": "u"}}]}"#,
        r#"{"default": [{"type": "sigstoreSigned", "keyPath": "/a", "keypath": "/a"}]}"#,
    ] {
        assert!(policy(text).is_err(), "{text}");
    }
}

#[test]
fn the_first_file_that_exists_counts() {
    let directory = tempfile::tempdir().unwrap();
    let (missing, first, second) = (
        directory.path().join("missing"),
        directory.path().join("first"),
        directory.path().join("second"),
    );
    assert!(Policy::read_first(std::slice::from_ref(&missing)).unwrap().is_none());
    std::fs::write(&first, r#"{"default": [{"type": "reject"}]}"#).unwrap();
    std::fs::write(&second, "nonsense").unwrap();
    let found = Policy::read_first(&[missing, first.clone(), second.clone()]).unwrap();
    assert_eq!(found.unwrap().source, first.display().to_string());
    assert!(Policy::read_first(&[second, first]).is_err());
}

#[test]
fn the_most_specific_comes_first() {
    for (name, expected) in [
        (
            "a.example.com:5000/x/y:v1",
            "a.example.com:5000/x/y:v1 a.example.com:5000/x/y a.example.com:5000/x a.example.com:5000 *.example.com *.com",
        ),
        ("busybox", "docker.io/library/busybox docker.io/library docker.io *.io"),
    ] {
        let found = scopes(&Reference::parse(name).unwrap());
        assert_eq!(found.join(" "), expected);
    }
}

#[test]
fn any_bytes_are_a_policy_or_refused() {
    let valid = br#"{"default":[{"type":"reject"}],"transports":{"docker":{"r.io/a":[{"type":"signedBy",
        "keyType":"GPGKeys","keyPath":"/k","signedIdentity":{"type":"matchRepository"}}],"*.r.io":[{"type":
        "sigstoreSigned","keyPaths":["/k"],"fulcio":{"caPath":"/c","oidcIssuer":"https://i","subjectEmail":
        "a@b"},"rekorPublicKeyPath":"/r"}],"":[{"type":"insecureAcceptAnything"}]}}}"#;
    let reference = Reference::parse("r.io/a/b:1").unwrap();
    bolero::check!().for_each(|input: &[u8]| {
        for text in [input.to_vec(), imgctl_base::testing::damaged(valid, input)] {
            if let Ok(policy) = Policy::parse(&text, "p".to_owned()) {
                // What accepts nothing must not accept an image without signatures.
                let required = policy.for_registry(&reference);
                let accepts =
                    required.check(&subject("r.io/a/b:1"), &Signatures::default()).is_ok();
                let only_accepts = required
                    .list
                    .iter()
                    .all(|requirement| matches!(requirement, Requirement::AcceptAnything));
                assert_eq!(accepts, only_accepts && !required.list.is_empty());
            }
        }
    });
}
