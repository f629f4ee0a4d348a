//! The same policies, signatures and images before imgctl and before cosign, notation, podman and skopeo of
//! Debian's newest suite (`scripts/referees`): equal verdicts, or the reason why they differ.

use serde_json::{Value, json};

use crate::common::newest::Newest;
use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, tool};

struct Site {
    env: TestEnv,
    registry: Registry,
    tools: Newest,
}

impl Site {
    /// `None` without the tools, or without root.
    fn new() -> Option<Self> {
        let tools = Newest::with("usr/bin/cosign")?;
        let (env, registry) = (TestEnv::new(), Registry::start());
        let attachments =
            format!("docker:\n  {}:\n    use-sigstore-attachments: true\n", registry.host);
        env.write(".config/containers/registries.d/test.yaml", attachments);
        let site = Self { env, registry, tools };
        for key in ["ours", "theirs"] {
            site.imgctl(&["key", "generate", "--output-key-prefix", key]).ok();
        }
        Some(site)
    }

    fn imgctl(&self, words: &[&str]) -> Ran {
        let mut command = self.env.command(words);
        command.env("COSIGN_PASSWORD", "pw");
        Ran::new(command)
    }

    /// A tool of the newest suite.
    fn newest(&self, words: &[&str]) -> Ran {
        let mut command = self.tools.command(&self.env, "", words);
        command.env("COSIGN_PASSWORD", "pw");
        Ran::new(command)
    }

    fn file(&self, name: &str) -> String {
        self.env.path(name).to_str().unwrap().to_owned()
    }

    /// An image in the registry with content of its own.
    fn image(&self, tag: &str) -> String {
        let context = self.env.context("context", "FROM scratch\nCOPY a /a\n", &[("a", tag)]);
        let name = format!("{}/team/app:{tag}", self.registry.host);
        self.env.build(&name, &context);
        self.imgctl(&["push", &name]).ok();
        name
    }

    fn digest(&self, name: &str) -> String {
        let words = ["inspect", "--tls-verify=false", "--format", "{{.Digest}}"];
        let place = format!("docker://{name}");
        Ran::new(tool("skopeo", words.iter().copied().chain([place.as_str()]))).ok().stdout()
    }

    fn pinned(&self, name: &str) -> String {
        format!("{}/team/app@{}", self.registry.host, self.digest(name))
    }

    fn policy(&self, name: &str, transports: &Value) -> String {
        let policy = json!({ "default": [{ "type": "reject" }], "transports": transports });
        self.env.write(name, policy.to_string()).to_str().unwrap().to_owned()
    }

    fn cosign_signs(&self, name: &str, more: &[&str]) {
        let (key, image) = (self.file("ours.key"), self.pinned(name));
        let mut words = vec!["cosign", "sign", "-y", "--key", &key, "--tlog-upload=false"];
        words.extend(["--allow-insecure-registry", "--use-signing-config=false"]);
        words.extend(more);
        words.push(&image);
        self.newest(&words).ok();
    }

    fn podman_pulls(&self, policy: &str, name: &str) -> bool {
        let words = ["podman", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"];
        let pull = ["--events-backend", "none", "pull", "--quiet", "--tls-verify=false"];
        let words = [&words[..], &pull, &["--signature-policy", policy, name]].concat();
        self.newest(&words).success()
    }

    fn skopeo_copies(&self, policy: &str, from: &str) -> bool {
        let words = [
            "skopeo",
            "--policy",
            policy,
            "copy",
            "--src-tls-verify=false",
            "--remove-signatures",
            from,
        ];
        self.newest(&words.iter().copied().chain(["oci:/tmp/out:x"]).collect::<Vec<_>>()).success()
    }
}

/// Verdicts on images that are signed in different ways, `true` for good.
#[test]
fn policies_and_keys_have_the_same_verdicts_everywhere() {
    let Some(site) = Site::new() else { return };
    let signed = |tag: &str, more: &[&str]| {
        let name = site.image(tag);
        let key = site.file("ours.key");
        let words = [&["sign", "--key", &key][..], more, &[&name]].concat();
        site.imgctl(&words).ok();
    };
    site.image("unsigned");
    signed("simple", &[]);
    signed(
        "tagged",
        &["--sign-container-identity", &format!("{}/team/app:tagged", site.registry.host)],
    );
    signed("elsewhere", &["--sign-container-identity", "q.io/other/app"]);
    signed("bundle", &["--format", "bundle"]);
    let theirs = site.image("theirs");
    site.imgctl(&["sign", "--key", &site.file("theirs.key"), &theirs]).ok();
    site.cosign_signs(&site.image("cosign-simple"), &["--new-bundle-format=false"]);
    site.cosign_signs(&site.image("cosign"), &[]);
    let attested = site.image("attested");
    let digest = site.digest(&attested);
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{ "name": "x", "digest": { "sha256": digest.trim_start_matches("sha256:") } }],
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": { "result": "FAILED" },
    });
    let statement = site.env.write("statement.json", statement.to_string());
    let (bundle, key) = (site.file("attestation.json"), site.file("ours.key"));
    let statement = statement.to_str().unwrap();
    site.imgctl(&["attest-blob", "--statement", statement, "--key", &key, "--bundle", &bundle])
        .ok();
    let kind = "application/vnd.dev.sigstore.bundle.v0.3+json";
    site.imgctl(&["attach", "--type", kind, &bundle, &attested]).ok();

    let key = |identity: Option<Value>, file: &str| {
        let mut demand = json!({ "type": "sigstoreSigned", "keyPath": site.file(file) });
        if let Some(identity) = identity {
            demand["signedIdentity"] = identity;
        }
        demand
    };
    let repository = || Some(json!({ "type": "matchRepository" }));
    let other = json!({ "type": "exactRepository", "dockerRepository": "q.io/other/app" });
    let policies = [
        ("accept", json!({ "type": "insecureAcceptAnything" })),
        ("reject", json!({ "type": "reject" })),
        ("key", key(repository(), "ours.pub")),
        ("name", key(None, "ours.pub")),
        ("other", key(Some(other), "ours.pub")),
        ("stranger", key(repository(), "theirs.pub")),
    ];
    // Columns: policies in this order, then `verify` with the key.
    let rows: [(&str, [bool; 6], bool); 9] = [
        ("unsigned", [true, false, false, false, false, false], false),
        ("simple", [true, false, true, false, false, false], true),
        ("tagged", [true, false, true, true, false, false], true),
        ("elsewhere", [true, false, false, false, true, false], false),
        ("bundle", [true, false, true, false, false, false], true),
        ("theirs", [true, false, false, false, false, true], false),
        ("cosign-simple", [true, false, true, false, false, false], true),
        // In a registry without the referrers API, cosign lists its bundle under the type of the empty config.
        // It gives no name.
        ("cosign", [true, false, false, false, false, false], true),
        ("attested", [true, false, false, false, false, false], false),
    ];
    let public = site.file("ours.pub");
    for (tag, by_policy, by_key) in rows {
        let name = format!("{}/team/app:{tag}", site.registry.host);
        for ((policy, demand), expected) in policies.iter().zip(by_policy) {
            let transports = json!({ "docker": { &site.registry.host: [demand] } });
            let file = site.policy(&format!("{policy}.json"), &transports);
            let _ = site.imgctl(&["rmi", &name]);
            let own = site.imgctl(&["pull", "--signature-policy", &file, &name]);
            assert_eq!(own.success(), expected, "imgctl: {tag} under {policy}\n{}", own.report());
            // containers/image reads no sigstore bundles.
            let expected = expected && (tag != "bundle" || *policy == "accept");
            let from = format!("docker://{name}");
            assert_eq!(site.skopeo_copies(&file, &from), expected, "skopeo: {tag} under {policy}");
            if ["key", "name"].contains(policy) {
                assert_eq!(
                    site.podman_pulls(&file, &name),
                    expected,
                    "podman: {tag} under {policy}"
                );
            }
        }
        let own = site.imgctl(&["verify", "--key", &public, &name]);
        assert_eq!(own.success(), by_key, "imgctl verify: {tag}\n{}", own.report());
        let words = ["cosign", "verify", "--key", &public, "--insecure-ignore-tlog"];
        let pinned = site.pinned(&name);
        let words = [&words[..], &["--allow-insecure-registry", &pinned]].concat();
        // cosign does not compare the name in a signature with the image's, and counts a statement of any
        // predicate.
        let expected = by_key || ["elsewhere", "attested"].contains(&tag);
        let ran = site.newest(&words);
        assert_eq!(ran.success(), expected, "cosign verify: {tag}\n{}", ran.report());
    }
}

/// notation and imgctl do not take each other's signatures for anything.
#[test]
fn signatures_of_notation_are_none_of_ours() {
    let Some(site) = Site::new() else { return };
    let (ours, theirs) = (site.image("ours"), site.image("notation"));
    site.imgctl(&["sign", "--key", &site.file("ours.key"), &ours]).ok();
    let trust = json!({
        "version": "1.0",
        "trustPolicies": [{
            "name": "all", "registryScopes": ["*"], "signatureVerification": { "level": "strict" },
            "trustStores": ["ca:x"], "trustedIdentities": ["*"],
        }],
    });
    let trust = site.env.write("trust.json", trust.to_string());
    let script = format!(
        "notation cert generate-test --default x >&2 && \
         notation policy import {} >&2 && \
         notation sign --insecure-registry {theirs} >&2 && \
         notation verify --insecure-registry {theirs} >&2 && \
         ! notation verify --insecure-registry {ours} >&2",
        trust.display(),
        theirs = site.pinned(&theirs),
        ours = site.pinned(&ours),
    );
    site.newest(&["sh", "-c", &script]).ok();
    let said = site.imgctl(&["verify", "--key", &site.file("ours.pub"), &theirs]).fails(5);
    assert!(said.stderr().contains("has no signatures"), "{}", said.report());
}

/// What an archive calls an image decides nothing.
#[test]
fn archives_have_the_scope_of_their_place() {
    let Some(site) = Site::new() else { return };
    let context = site.env.context("context", "FROM scratch\nCOPY a /a\n", &[("a", "a")]);
    let words =
        ["build", "--compression", "gzip", "-t", "localhost/x:1", context.to_str().unwrap()];
    site.imgctl(&words).ok();
    site.imgctl(&["tag", "localhost/x:1", "docker.io/library/x:1", "q.io/x:1"]).ok();
    let accept = || json!([{ "type": "insecureAcceptAnything" }]);
    let here = site.env.path("x");
    let here = here.parent().unwrap().to_str().unwrap();
    let mut sources = Vec::new();
    for (number, name) in ["localhost/x:1", "docker.io/library/x:1", "q.io/x:1"].iter().enumerate()
    {
        for (transport, format) in [
            ("oci-archive", "oci-archive"),
            ("docker-archive", "docker-archive"),
            ("oci", "oci-dir"),
            ("dir", "docker-dir"),
        ] {
            let file = site.file(&format!("{transport}-{number}"));
            site.imgctl(&["save", "--format", format, name, "-o", &file]).ok();
            sources.push((transport, file));
        }
    }
    let site_of = |path: &str| json!({ path: accept() });
    let policies = [
        (
            "names",
            json!({ "docker": { "": accept(), "localhost": accept(), "docker.io/library": accept() } }),
        ),
        (
            "everywhere",
            json!({ "oci-archive": { "": accept() }, "docker-archive": { "": accept() },
            "oci": { "": accept() }, "dir": { "": accept() } }),
        ),
        (
            "here",
            json!({ "oci-archive": site_of(here), "oci": site_of(here), "dir": site_of(here) }),
        ),
        (
            "elsewhere",
            json!({ "oci-archive": site_of("/elsewhere"), "dir": site_of("/elsewhere") }),
        ),
    ];
    let store = site.env.path("other");
    for (name, transports) in &policies {
        let policy = site.policy(&format!("{name}.json"), transports);
        for (transport, file) in &sources {
            let expected = match *name {
                "everywhere" => true,
                "here" => *transport != "docker-archive",
                _ => false,
            };
            let place = format!("{transport}:{file}");
            assert_eq!(site.skopeo_copies(&policy, &place), expected, "skopeo: {place}, {name}");
            let _ = std::fs::remove_dir_all(&store);
            let words = ["load", "--signature-policy", &policy, file];
            let ran = Ran::new(site.env.command_in(&store, words));
            assert_eq!(ran.success(), expected, "imgctl load {place}, {name}\n{}", ran.report());
            let to = format!("oci:{}", site.file("copied"));
            let _ = std::fs::remove_dir_all(site.file("copied"));
            let ran = site.imgctl(&["copy", "--signature-policy", &policy, &place, &to]);
            assert_eq!(ran.success(), expected, "imgctl copy {place}, {name}\n{}", ran.report());
        }
    }
}
