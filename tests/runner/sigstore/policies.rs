//! Policies that demand an identity, from the command line of every verb that takes an image: pulled,
//! loaded, or in the store already.

use serde_json::json;

use super::services::{IDENTITY, ISSUER, Services};
use super::{DENIED, NETWORK, Site};
use crate::common::{Ran, TestEnv, tool};

const OTHER: &str = "https://ci.example.com/somebody/else.yml@refs/heads/main";

/// A registry with a rootfs image, a stored cluster that runs it, and a policy.
struct Demand {
    site: Site,
    image: String,
    policy: String,
}

impl Demand {
    fn new() -> Self {
        let site = Site::new();
        let image = format!("{}/team/cluster:v1", site.registry.host);
        let kubefile = "FROM scratch\nLABEL sealos.io.type=rootfs sealos.io.version=v1beta1 version=v1.31.4\nCOPY a /a\n";
        let context = site.env.context("rootfs", kubefile, &[("a", "rootfs\n")]);
        site.env.build(&image, &context);
        site.imgctl(&["push", &image]).ok();
        let policy = json!({
            "default": [{ "type": "insecureAcceptAnything" }],
            "transports": { "docker": { &site.registry.host: [{
                "type": "sigstoreSigned",
                "fulcio": {
                    "trustedRootPath": site.env.path("root.json"),
                    "oidcIssuer": ISSUER,
                    "subjectURI": IDENTITY,
                },
            }] } },
        });
        let policy = site.env.write("policy.json", policy.to_string());
        let policy = policy.to_str().unwrap().to_owned();
        let archive = site.env.path("cluster.tar");
        site.imgctl(&["save", "-o", archive.to_str().unwrap(), &image]).ok();
        let clusterfile = format!(
            "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata:\n  name: made\nspec:\n  image:\n  - {image}\n  hosts:\n  - ips: [192.0.2.7:22]\n    roles: [master, amd64]\n"
        );
        site.env.write("Clusterfile", &clusterfile);
        site.env.write(".sealos/made/Clusterfile", &clusterfile);
        Self { site, image, policy }
    }

    /// The words of every verb, by its name.
    fn verbs(&self) -> Vec<(&'static str, Vec<&str>)> {
        let image = &*self.image;
        vec![
            ("run", vec!["run", image, "-c", "new", "--masters", "192.0.2.7", "--dry-run"]),
            (
                "run of an archive",
                vec!["run", "cluster.tar", "--masters", "192.0.2.7", "--dry-run"],
            ),
            ("apply", vec!["apply", "-f", "Clusterfile", "--dry-run"]),
            ("add", vec!["add", "-c", "made", "--nodes", "192.0.2.8", "--dry-run"]),
            ("upgrade", vec!["upgrade", image, "-c", "made", "--dry-run"]),
            ("create", vec!["create", "--short", image]),
            ("load", vec!["load", "cluster.tar"]),
            ("pull that finds it", vec!["pull", "--policy", "missing", image]),
        ]
    }

    fn run(&self, words: &[&str]) -> Ran {
        let mut words = words.to_vec();
        words.extend(["--signature-policy", &self.policy]);
        let env = &self.site.env;
        // What was built here and comes back changes nothing, so it is loaded where it is new.
        let root = if words[0] == "load" { env.path("elsewhere") } else { env.root() };
        Ran::new(env.command_in(&root, words))
    }

    fn sign_as(&self, identity: &str) {
        let (site, url) = (&self.site, &self.site.services.url);
        site.env.write("token", Services::token(identity, ISSUER));
        let words = ["sign", "--identity-token", "token", "--fulcio-url", url, "--rekor-url", url];
        let words: Vec<&str> = words.into_iter().chain([&*self.image]).collect();
        site.imgctl(&words).ok();
    }
}

#[test]
fn every_verb_refuses_what_ci_did_not_sign() {
    let demand = Demand::new();
    for signed_by in [None, Some(OTHER)] {
        if let Some(identity) = signed_by {
            demand.sign_as(identity);
        }
        for (verb, words) in demand.verbs() {
            let refused = demand.run(&words).fails(DENIED);
            let said = refused.stderr();
            for part in [&*demand.image, IDENTITY, ISSUER, signed_by.unwrap_or("there is none")] {
                assert!(said.contains(part), "{verb}: {part}: {}", refused.report());
            }
            assert!(said.contains("imgctl pull"), "{verb}: what to do: {}", refused.report());
            assert!(said.contains("policy.json"), "{verb}: the policy: {}", refused.report());
        }
    }
    demand.sign_as(IDENTITY);
    for (verb, words) in demand.verbs() {
        let ran = demand.run(&words);
        assert!(!ran.stderr().contains("signature"), "{verb}: {}", ran.report());
    }
    // A name for the same content does not help, and an ID does not either.
    let copy = format!("{}/team/copy:v1", demand.site.registry.host);
    let built = demand.site.imgctl(&["build", "-q", "-t", &copy, "context"]).ok().stdout();
    demand.run(&["create", "--short", &copy]).fails(DENIED);
    demand.run(&["create", "--short", built.trim()]).fails(DENIED);
    // The usual file counts without a flag.
    let usual = demand.site.env.path(".config/containers");
    std::fs::create_dir_all(&usual).unwrap();
    std::fs::copy(&demand.policy, usual.join("policy.json")).unwrap();
    demand.site.imgctl(&["create", "--short", &copy]).fails(DENIED);
    demand.site.imgctl(&["create", "--short", &demand.image]).ok();
}

#[test]
fn kept_signatures_count_where_no_registry_answers() {
    let demand = Demand::new();
    demand.sign_as(IDENTITY);
    let Demand { site, image, policy } = demand;
    let create =
        |env: &TestEnv| env.imgctl(["create", "--short", "--signature-policy", &policy, &image]);
    let pull = |env: &TestEnv, words: &[&str]| {
        env.imgctl(["pull"].iter().chain(words).chain([&&*image])).ok()
    };
    // Pulled under the policy, with its signatures; and without, for comparison.
    let (kept, bare, loaded) = (TestEnv::new(), TestEnv::new(), TestEnv::new());
    pull(&kept, &["--signature-policy", &policy]);
    pull(&bare, &[]);
    let archive = kept.path("kept.tar");
    kept.imgctl(["save", "-o", archive.to_str().unwrap(), &image]).ok();
    drop(site.registry);
    create(&kept).ok();
    let refused = create(&bare).fails(NETWORK);
    assert!(refused.stderr().contains("cannot check the signatures"), "{}", refused.report());
    loaded.imgctl(["load", archive.to_str().unwrap(), "--signature-policy", &policy]).ok();
    create(&loaded).ok();
    // What is not signed does not come in by an archive, and nothing of it stays.
    let bare_archive = bare.path("bare.tar");
    bare.imgctl(["save", "-o", bare_archive.to_str().unwrap(), &image]).ok();
    let empty = TestEnv::new();
    empty
        .imgctl(["load", bare_archive.to_str().unwrap(), "--signature-policy", &policy])
        .fails(NETWORK);
    assert_eq!(empty.imgctl(["images", "-q"]).ok().stdout(), "");
}

#[test]
fn a_signed_index_covers_the_platform_that_was_pulled() {
    let demand = Demand::new();
    let (site, image) = (&demand.site, format!("{}/team/both:v1", demand.site.registry.host));
    let context = site.env.path("rootfs");
    let platforms = ["build", "--platform", "linux/amd64,linux/arm64", "-t", &image];
    let words: Vec<&str> =
        platforms.into_iter().chain([context.to_str().unwrap(), "--push"]).collect();
    site.imgctl(&words).ok();
    let url = &site.services.url;
    let sign = ["sign", "--identity-token", "token", "--fulcio-url", url, "--rekor-url", url];
    site.env.write("token", Services::token(IDENTITY, ISSUER));
    let words: Vec<&str> = sign.into_iter().chain([&*image]).collect();
    site.imgctl(&words).ok();
    let (kept, asked) = (TestEnv::new(), TestEnv::new());
    let policy = ["--signature-policy", &demand.policy];
    kept.imgctl(["pull", &image].iter().chain(&policy)).ok();
    asked.imgctl(["pull", &image]).ok();
    let create = |env: &TestEnv| env.imgctl(["create", "--short", &image].iter().chain(&policy));
    // Without the index, the registry says what it lists.
    create(&asked).ok();
    let archive = kept.path("kept.tar");
    kept.imgctl(["save", "-o", archive.to_str().unwrap(), &image]).ok();
    let Demand { site, .. } = &demand;
    let there = TestEnv::new();
    // The archive has the signed index for its signature's sake, not as an image.
    there.imgctl(["load", archive.to_str().unwrap()].iter().chain(&policy)).ok();
    assert_eq!(there.imgctl(["images", "-q"]).ok().stdout().lines().count(), 1);
    there.imgctl(["prune", "-f"]).ok();
    let port: u16 = site.registry.host.rsplit(':').next().unwrap().parse().unwrap();
    assert_ne!(port, 0);
    // No registry is asked where everything is kept.
    for env in [&kept, &there] {
        let mut command = env.command(["create", "--short", &image].iter().chain(&policy));
        command.env("HTTP_PROXY", "http://127.0.0.1:1").env("NO_PROXY", "");
        Ran::new(command).ok();
    }
    let inspect = ["inspect", "--format", "{{.Digest}}"];
    let archive = format!("oci-archive:{}:{image}", archive.display());
    Ran::new(tool("skopeo", inspect.iter().copied().chain([&*archive]))).ok();
}

/// Signatures at cosign's tag, which a policy with a key demands, are kept as well.
#[test]
fn signatures_by_a_key_are_kept_too() {
    let demand = Demand::new();
    let Demand { site, image, .. } = demand;
    site.imgctl(&["key", "generate", "--output-key-prefix", "ours"]).ok();
    site.imgctl(&["sign", "--key", "ours.key", &image]).ok();
    let policy = json!({
        "default": [{ "type": "insecureAcceptAnything" }],
        "transports": { "docker": { &site.registry.host: [{
            "type": "sigstoreSigned",
            "keyPath": site.env.path("ours.pub"),
            "signedIdentity": { "type": "matchRepository" },
        }] } },
    });
    let policy = site.env.write("by-key.json", policy.to_string());
    let attachments =
        format!("docker:\n  {}:\n    use-sigstore-attachments: true\n", site.registry.host);
    let there = TestEnv::new();
    there.write(".config/containers/registries.d/a.yaml", attachments);
    let policy = ["--signature-policy", policy.to_str().unwrap()];
    there.imgctl(["pull", &image].iter().chain(&policy)).ok();
    drop(site.registry);
    there.imgctl(["create", "--short", &image].iter().chain(&policy)).ok();
    let other = site.env.write("other.json", r#"{"default": [{"type": "reject"}]}"#);
    let other = ["create", "--short", &image, "--signature-policy", other.to_str().unwrap()];
    there.imgctl(other).fails(DENIED);
}
