//! A check that was asked for is demanded: each flag that asks for one makes a command fail where what it
//! checks is missing. The flags are those of the command line, so a new one needs a line here.

use std::collections::BTreeSet;

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, repository};

/// Parts of the names of flags that may ask for a check.
const WORDS: &[&str] = &[
    "cert",
    "checksum",
    "digest",
    "encrypt",
    "htpasswd",
    "identity",
    "key",
    "locked",
    "oidc",
    "passphrase",
    "policy",
    "require",
    "sign",
    "strict",
    "token",
    "trust",
    "verify",
];

enum Says {
    /// Each of these command lines fails, with this exit code.
    Fails(&'static [(i32, &'static str)]),
    /// The test that shows it.
    ShownBy(&'static str),
    /// Why it asks for no check.
    AsksForNone(&'static str),
}
use Says::{AsksForNone, Fails, ShownBy};

const FLAGS: &[(&str, Says)] = &[
    (
        "key",
        Fails(&[
            (5, "verify --tls-verify=false --key k.pub REMOTE"),
            (5, "verify --tls-verify=false --key other.pub SIGNED"),
            (5, "verify --tls-verify=false --key k.pub SIGNED REMOTE"),
            (5, "verify --tls-verify=false --key k.pub -a commit=1 SIGNED"),
            (5, "verify --local --key k.pub localhost/a:1"),
            (5, "verify --key k.pub oci:layout"),
            (3, "verify --tls-verify=false --key missing.pub SIGNED"),
            (4, "verify --tls-verify=false --key empty SIGNED"),
            (5, "verify-blob-attestation --key other.pub --bundle bundle.json context/a"),
            (5, "verify-blob-attestation --key k.pub --bundle bundle.json context/Kubefile"),
            (4, "verify-blob-attestation --key k.pub --bundle empty context/a"),
            (3, "sign --tls-verify=false --key missing.key REMOTE"),
            (3, "attest-blob --key missing.key --statement statement.json --bundle new.json"),
            // Where it is a part of another flag.
            (3, "build --cache-from type=local,src=cache,key=missing.pub context"),
            (4, "build --cache-from type=local,src=cache,key=empty context"),
            (3, "build --cache-to type=local,dest=cache,key=missing.key context"),
        ]),
    ),
    (
        "certificate-identity",
        Fails(&[
            (2, "verify --tls-verify=false --certificate-identity a SIGNED"),
            (2, "verify --tls-verify=false --certificate-identity a --trusted-root empty SIGNED"),
            (2, "verify --tls-verify=false --certificate-identity a --key k.pub SIGNED"),
        ]),
    ),
    (
        "certificate-oidc-issuer",
        Fails(&[(2, "verify --tls-verify=false --certificate-oidc-issuer a SIGNED")]),
    ),
    (
        "certificate-identity-regexp",
        Fails(&[(2, "verify --tls-verify=false --certificate-identity-regexp ^a$ SIGNED")]),
    ),
    (
        "certificate-oidc-issuer-regexp",
        Fails(&[(2, "verify --tls-verify=false --certificate-oidc-issuer-regexp ^a$ SIGNED")]),
    ),
    (
        "trusted-root",
        Fails(&[
            (2, "verify --tls-verify=false --trusted-root empty SIGNED"),
            (
                3,
                "verify --tls-verify=false --certificate-identity a --certificate-oidc-issuer b \
                 --trusted-root missing SIGNED",
            ),
        ]),
    ),
    ("identity", Fails(&[(5, "verify --tls-verify=false --key k.pub --identity q.io/x SIGNED")])),
    ("passphrase-file", ShownBy("transfer::backup::tests::a_key_demands_an_encrypted_backup")),
    (
        "locked",
        Fails(&[(2, "build --locked context"), (2, "build --locked --lock-file empty embedding")]),
    ),
    (
        "signature-policy",
        ShownBy("runner::gate::every_verb_that_takes_images_demands_the_policy_that_it_is_given"),
    ),
    ("cert-dir", Fails(&[(3, "pull --tls-verify=false --cert-dir missing REMOTE")])),
    ("src-cert-dir", Fails(&[(3, "copy --src-cert-dir missing docker://REMOTE oci:out")])),
    (
        "dest-cert-dir",
        Fails(&[(3, "copy --dest-cert-dir missing localhost/a:1 docker://REMOTE-x")]),
    ),
    ("tls-verify", Fails(&[(7, "pull --retry 0 --tls-verify REMOTE")])),
    ("src-tls-verify", Fails(&[(7, "copy --retry 0 --src-tls-verify docker://REMOTE oci:out")])),
    (
        "dest-tls-verify",
        Fails(&[(7, "copy --retry 0 --dest-tls-verify localhost/a:1 docker://REMOTE-x")]),
    ),
    (
        "preserve-digests",
        Fails(&[(2, "copy --preserve-digests localhost/a:1 docker-archive:x.tar")]),
    ),
    ("plan-digest", ShownBy("runner::inplace::care::a_stale_plan_is_refused")),
    (
        "strict-host-key",
        ShownBy("runner::ssh::a_strict_look_refuses_an_unknown_host_and_says_what_to_do"),
    ),
    (
        "htpasswd",
        Fails(&[(3, "registry serve --create --addr 127.0.0.1:0 --htpasswd missing served")]),
    ),
    (
        "token-file",
        Fails(&[
            (3, "registry serve --create --addr 127.0.0.1:0 --token-file missing served"),
            (2, "registry serve --create --addr 127.0.0.1:0 --token-file empty served"),
        ]),
    ),
    (
        "tls-cert",
        Fails(&[
            (
                2,
                "registry serve --create --addr 127.0.0.1:0 --tls-cert missing --tls-key missing served",
            ),
            (2, "registry serve --create --addr 127.0.0.1:0 --tls-cert missing served"),
        ]),
    ),
    (
        "tls-key",
        Fails(&[(2, "registry serve --create --addr 127.0.0.1:0 --tls-key missing served")]),
    ),
    ("any-identity", AsksForNone("leaves a check out")),
    ("certificate-renewal", AsksForNone("renews")),
    ("certificate-validity", AsksForNone("a duration")),
    ("digestfile", AsksForNone("is written")),
    ("digests", AsksForNone("shows a column")),
    ("encrypt-state", AsksForNone("encrypts")),
    ("encrypt-to", AsksForNone("encrypts")),
    ("identity-token", AsksForNone("signs")),
    ("keyless", AsksForNone("signs")),
    ("output-key-prefix", AsksForNone("is written")),
    ("policy", AsksForNone("when to pull")),
    ("sign-container-identity", AsksForNone("signs")),
    ("signing-config", AsksForNone("signs")),
    ("state-identity", AsksForNone("decrypts what this machine has written for itself")),
    ("strict-templates", AsksForNone("missing variables of the user's own templates")),
    ("verify", AsksForNone("how `inplace` recognizes the running image")),
];

/// Demands that are empty, as of a variable that is not set. Everything else that they need is there.
const EMPTY: &[&str] = &[
    "verify --tls-verify=false --certificate-identity= --certificate-oidc-issuer b \
     --trusted-root missing SIGNED",
    "verify --tls-verify=false --certificate-identity a --certificate-oidc-issuer= \
     --trusted-root missing SIGNED",
    "verify --tls-verify=false --certificate-identity-regexp= --certificate-oidc-issuer b \
     --trusted-root missing SIGNED",
    "verify --tls-verify=false --certificate-identity a --certificate-oidc-issuer-regexp= \
     --trusted-root missing SIGNED",
    "verify --tls-verify=false --certificate-identity-regexp= --certificate-oidc-issuer-regexp= \
     --trusted-root missing SIGNED",
    "verify --tls-verify=false --key k.pub --identity= SIGNED",
    "verify --tls-verify=false --key= SIGNED",
    "pull --tls-verify=false --signature-policy= SIGNED",
    "pull --tls-verify=false --cert-dir= SIGNED",
];

/// The flags of all verbs that have one of the words.
fn flags(env: &TestEnv) -> BTreeSet<String> {
    let help = env.imgctl(["help-all"]).ok().stdout();
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let named = lines.filter_map(|line| {
        let (_, rest) = line.split_once("--")?;
        rest.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).next()
    });
    named.filter(|flag| WORDS.iter().any(|word| flag.contains(word))).map(str::to_owned).collect()
}

#[test]
fn every_flag_that_asks_for_a_check_is_known() {
    let known: BTreeSet<String> = FLAGS.iter().map(|(flag, _)| (*flag).to_owned()).collect();
    assert_eq!(known.len(), FLAGS.len());
    assert_eq!(flags(&TestEnv::new()), known);
    for (flag, says) in FLAGS {
        match says {
            ShownBy(test) => assert!(exists(test), "--{flag}: {test}"),
            AsksForNone(why) => assert!(!why.is_empty(), "--{flag}"),
            Fails(lines) => assert!(lines.iter().all(|(_, line)| line.contains(flag)), "--{flag}"),
        }
    }
}

/// Whether some file of tests has a test of this name.
fn exists(test: &str) -> bool {
    let definition = format!("fn {}(", test.rsplit("::").next().unwrap());
    let files = ["tests", "crates"].map(|place| walkdir::WalkDir::new(repository().join(place)));
    let sources = files.into_iter().flatten().flatten().map(walkdir::DirEntry::into_path);
    let mut sources = sources.filter(|path| path.extension().is_some_and(|end| end == "rs"));
    sources.any(|path| std::fs::read_to_string(path).unwrap().contains(&definition))
}

#[test]
fn a_command_fails_where_what_it_was_asked_to_check_is_missing() {
    let (env, registry) = (TestEnv::new(), Registry::start());
    let context = env.context("context", "FROM scratch\nCOPY a /a\n", &[("a", "a\n")]);
    env.context(
        "embedding",
        "FROM scratch\nCOPY images images\n",
        &[("images/shim/l", "q.io/x:1\n")],
    );
    env.build("localhost/a:1", &context);
    let named = |name: &str| format!("{}/team/{name}:1", registry.host);
    for name in ["unsigned", "signed"] {
        // Each has its own content: signatures are for digests.
        env.write("context/a", name);
        env.build(&named(name), &context);
        env.imgctl(["push", "--tls-verify=false", &named(name)]).ok();
    }
    env.imgctl(["save", "--format", "oci-dir", "localhost/a:1", "-o", "layout"]).ok();
    env.write("empty", "");
    let keyed = |line: &str| {
        let mut command = env.command(line.replace("SIGNED", &named("signed")).split(' '));
        command.env("COSIGN_PASSWORD", "pw");
        Ran::new(command).ok()
    };
    keyed("key generate --output-key-prefix k");
    keyed("key generate --output-key-prefix other");
    keyed("sign --tls-verify=false --key k.key SIGNED");
    keyed("verify --tls-verify=false --key k.pub SIGNED");
    let digest = crate::build_cache::sha(b"signed");
    let statement = serde_json::json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "a", "digest": {"sha256": digest}}],
        "predicateType": "https://slsa.dev/provenance/v1", "predicate": {},
    });
    env.write("statement.json", statement.to_string());
    keyed("attest-blob --key k.key --statement statement.json --bundle bundle.json");
    keyed("verify-blob-attestation --key k.pub --bundle bundle.json context/a");
    for (flag, says) in FLAGS {
        let Fails(lines) = says else { continue };
        for (code, line) in *lines {
            let fill = |word: &str| {
                word.replace("REMOTE", &named("unsigned")).replace("SIGNED", &named("signed"))
            };
            let mut command = env.command(line.split_whitespace().map(fill));
            command.env("COSIGN_PASSWORD", "pw");
            let ran = Ran::new(command);
            assert!(!ran.success(), "--{flag}: {line}\n{}", ran.report());
            ran.fails(*code);
            // The same with an empty value demands as much.
            let words: Vec<&str> = line.split_whitespace().collect();
            let name = format!("--{flag}");
            let Some(at) = words.iter().position(|word| *word == name) else { continue };
            let empty = words
                .iter()
                .enumerate()
                .filter(|(index, _)| *index != at + 1)
                .map(|(index, word)| if index == at { format!("{name}=") } else { fill(word) });
            let mut command = env.command(empty);
            command.env("COSIGN_PASSWORD", "pw");
            let ran = Ran::new(command);
            assert!(!ran.success(), "--{flag}=: {line}\n{}", ran.report());
        }
    }
    for line in EMPTY {
        let words = line.split_whitespace();
        let command = env.command(words.map(|word| word.replace("SIGNED", &named("signed"))));
        let ran = Ran::new(command);
        assert!(!ran.success(), "{line}\n{}", ran.report());
        ran.fails(2);
    }
}
