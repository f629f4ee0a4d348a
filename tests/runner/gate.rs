//! One gate on every way into the store: each verb that takes images refuses what the policy rejects. The verbs
//! are those of the command line, so a new one needs a line here.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Stdio};

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, needs_root, noise, tool};

/// Exit code of docs/cli.md.
const DENIED: i32 = 5;

/// What everything is called that nobody vouches for.
const FOREIGN: &str = "q.io/team/app:1";
const OLDER: &str = "q.io/team/app:0";

/// A store that had foreign images before a policy rejected all but what is built here, and the same images
/// in every form in which they could come again.
struct Site {
    env: TestEnv,
    registry: Registry,
}

impl Site {
    fn new() -> Self {
        let (env, registry) = (TestEnv::new(), Registry::start());
        let maker = TestEnv::new();
        for (name, text) in [(OLDER, "old\n"), (FOREIGN, "new\n")] {
            let context = maker.context("context", "FROM scratch\nCOPY a b /\n", &[("a", text)]);
            // Enough for several parts.
            maker.write("context/b", noise(1, 200_000));
            maker.build(name, &context);
            maker.imgctl(["tag", name, &name.replace("q.io/team/app:", "localhost/app:")]).ok();
        }
        let save = |words: &[&str], to: &str| {
            let to = env.path(to);
            let to = ["-o", to.to_str().unwrap()];
            maker.imgctl(words.iter().copied().chain(to)).ok();
        };
        save(&["save", OLDER], "old.tar");
        save(&["save", FOREIGN], "new.tar");
        save(&["save", "--split", "64KiB", FOREIGN], "parts.tar");
        save(&["save", "--format", "docker-archive", FOREIGN], "docker.tar");
        save(&["save", "--format", "oci-dir", FOREIGN], "layout");
        save(&["save", "--format", "docker-dir", FOREIGN], "flat");
        save(&["save", "localhost/app:1"], "local.tar");
        save(&["bundle", "create", OLDER, FOREIGN], "bundle.tar");
        save(&["bundle", "create", "--delta", OLDER, FOREIGN], "delta.tar");
        maker.imgctl(["push", FOREIGN, &format!("{}/team/app:1", registry.host)]).ok();

        for archive in ["old.tar", "new.tar", "local.tar"] {
            env.imgctl(["load", archive]).ok();
        }
        let context = env.context("own", "FROM scratch\nCOPY a /a\n", &[("a", "own\n")]);
        env.build("localhost/own:1", &context);
        env.imgctl(["manifest", "create", "localhost/list:1", OLDER]).ok();
        env.imgctl(["tag", FOREIGN, "localhost/renamed:1"]).ok();
        let site = Self { env, registry };
        site.policy(
            r#"{"default": [{"type": "reject"}], "transports": {"docker": {
            "localhost": [{"type": "insecureAcceptAnything"}],
            "docker.io/library": [{"type": "insecureAcceptAnything"}]}}}"#,
        );
        site
    }

    fn policy(&self, text: &str) {
        self.env.write(".config/containers/policy.json", text);
    }

    /// The command line with its placeholders filled in.
    fn words(&self, line: &str) -> Vec<String> {
        let remote = format!("{}/team/app:1", self.registry.host);
        let fill = |word: &str| {
            word.replace("FOREIGN", FOREIGN).replace("OLDER", OLDER).replace("REMOTE", &remote)
        };
        line.split_whitespace().map(fill).collect()
    }

    fn refuses(&self, line: &str) {
        let names = || {
            let images = self.env.imgctl(["images", "--json"]).ok().json();
            let named = images.as_array().unwrap().iter();
            named.map(|image| (image["names"].clone(), image["digest"].clone())).collect::<Vec<_>>()
        };
        let before = names();
        let ran = self.env.imgctl(self.words(line)).fails(DENIED);
        assert!(ran.stderr().contains("signature policy rejects"), "{line}\n{}", ran.report());
        assert_eq!(names(), before, "{line} changed the store");
    }
}

enum Says {
    /// Each of these command lines is refused.
    Refuses(&'static [&'static str]),
    /// Why the verb takes no image into the store or out of it.
    TakesNone(&'static str),
    /// The function that asks for it, with the verb whose command line is tried here.
    AsksLike(&'static str),
}
use Says::{AsksLike, Refuses, TakesNone};

const READS: &str = "shows what is in the store, and names and sends nothing";
const CLUSTER: &str = "works on hosts, with images that their controller has admitted";
const FILES: &str = "takes files that are no images";
const TESTBED: &str = "works on the hosts of the test bed";

/// What `bake` builds from.
const BAKE: &str = r#"{"target": {"default": {"context": "from", "tags": ["localhost/n:1"]}}}"#;

/// Every verb.
const VERBS: &[(&str, Says)] = &[
    ("bake", Refuses(&["bake -f from.json"])),
    (
        "build",
        Refuses(&[
            "build -q -t localhost/n:1 from",
            "build -q -t localhost/n:1 from-local",
            "build -q -t localhost/n:1 from-renamed",
            "build -q -t localhost/n:1 copy",
            "build -q -t localhost/n:1 --build-context n=oci-layout://layout named",
            "build -q -t localhost/n:1 --build-context n=oci-layout://layout named-copy",
            "build -q -t localhost/n:1 --build-context n=docker-image://FOREIGN named",
            "build -q -t localhost/n:1 --tls-verify=false --build-context n=docker-image://REMOTE named",
        ]),
    ),
    ("lock", TakesNone("reads the lock file and asks publishers of files")),
    ("update", TakesNone("reads tags, and resolves names for the lock file without taking images")),
    ("pull", Refuses(&["pull --tls-verify=false REMOTE", "pull --policy missing FOREIGN"])),
    (
        "copy",
        Refuses(&[
            "copy oci:layout q.io/team/z:1",
            "copy oci:layout localhost/z:1",
            "copy dir:flat localhost/z:1",
            "copy oci-archive:new.tar localhost/z:1",
            "copy docker-archive:docker.tar localhost/z:1",
            "copy FOREIGN oci:out",
            "copy --tls-verify=false oci:layout docker://REMOTE-copy",
            "copy --tls-verify=false docker://REMOTE localhost/z:1",
            "copy --tls-verify=false docker://REMOTE docker://REMOTE-copy",
        ]),
    ),
    ("tag", Refuses(&["tag FOREIGN localhost/n:1", "tag localhost/app:1 localhost/n:1"])),
    (
        "create",
        Refuses(&["create FOREIGN", "create localhost/app:1", "create localhost/renamed:1"]),
    ),
    (
        "merge",
        Refuses(&[
            "merge -t localhost/n:1 localhost/own:1 FOREIGN",
            "merge -t localhost/n:1 localhost/app:1",
        ]),
    ),
    (
        "rebase",
        Refuses(&[
            "rebase localhost/own:1 --old-base localhost/own:1 --new-base FOREIGN -t localhost/n:1",
            "rebase FOREIGN --old-base FOREIGN --new-base localhost/own:1 -t localhost/n:1",
        ]),
    ),
    (
        "annotate",
        Refuses(&[
            "annotate FOREIGN --annotation a=b -t localhost/n:1",
            "annotate FOREIGN --label a=b",
        ]),
    ),
    ("bundle create", Refuses(&["bundle create OLDER FOREIGN -o out.tar"])),
    ("bundle apply", Refuses(&["bundle apply bundle.tar", "bundle apply delta.tar"])),
    ("diff", Refuses(&["diff --patch OLDER FOREIGN -o out.tar"])),
    ("save", Refuses(&["save FOREIGN -o out.tar", "save localhost/app:1 -o out.tar"])),
    (
        "load",
        Refuses(&[
            "load new.tar",
            "load local.tar",
            "load docker.tar",
            "load layout",
            "load flat",
            "load parts.tar.001",
            "load new.tar --tag localhost/n:1",
            "load new.tar --tag docker.io/library/n:1",
            "load old.tar new.tar",
        ]),
    ),
    (
        "push",
        Refuses(&[
            "push --tls-verify=false FOREIGN docker://REMOTE-copy",
            "push localhost/app:1 oci:out",
        ]),
    ),
    (
        "manifest create",
        Refuses(&[
            "manifest create localhost/n:1 FOREIGN",
            "manifest create --tls-verify=false localhost/n:1 docker://REMOTE",
        ]),
    ),
    (
        "manifest add",
        Refuses(&[
            "manifest add localhost/list:1 FOREIGN",
            "manifest add --tls-verify=false localhost/list:1 docker://REMOTE",
        ]),
    ),
    ("manifest annotate", AsksLike("manifest add")),
    ("manifest remove", AsksLike("manifest add")),
    ("manifest push", AsksLike("push")),
    (
        "registry save",
        Refuses(&["registry save --tls-verify=false --registry-dir out --images REMOTE"]),
    ),
    ("registry copy", AsksLike("registry save")),
    ("registry sync", AsksLike("registry save")),
    ("registry serve", TakesNone("what is pushed into a store is tried by itself")),
    (
        "run",
        Refuses(&[
            "run FOREIGN --masters 127.0.0.1:9 --dry-run --yes",
            "run new.tar --masters 127.0.0.1:9 --dry-run --yes",
            "run localhost/app:1 --masters 127.0.0.1:9 --dry-run --yes",
            "run localhost/renamed:1 --masters 127.0.0.1:9 --dry-run --yes",
        ]),
    ),
    ("apply", AsksLike("run")),
    ("add", AsksLike("run")),
    ("upgrade", AsksLike("run")),
    ("plan run", AsksLike("run")),
    ("plan apply", AsksLike("run")),
    ("plan add", AsksLike("run")),
    ("gen", TakesNone("writes a Clusterfile, which `apply` checks")),
    ("mount", TakesNone(READS)),
    ("export", TakesNone(READS)),
    ("images", TakesNone(READS)),
    ("tags", TakesNone(READS)),
    ("rmi", TakesNone("removes names")),
    ("inspect", TakesNone(READS)),
    ("history", TakesNone(READS)),
    ("tree", TakesNone(READS)),
    ("ls", TakesNone(READS)),
    ("cat", TakesNone(READS)),
    ("umount", TakesNone(READS)),
    ("mounts", TakesNone(READS)),
    ("sbom", TakesNone("describes an image; --attach adds a document beside one that is there")),
    ("bundle inspect", TakesNone(READS)),
    ("bundle verify", TakesNone(READS)),
    ("manifest inspect", TakesNone(READS)),
    ("manifest rm", TakesNone("removes names")),
    ("manifest exists", TakesNone(READS)),
    ("login", TakesNone("keeps a login")),
    ("logout", TakesNone("forgets a login")),
    ("sign", TakesNone("vouches for an image: that is what the policy asks for")),
    ("verify", TakesNone("asks who vouches for an image, and names nothing")),
    ("attest-blob", TakesNone(FILES)),
    ("verify-blob-attestation", TakesNone(FILES)),
    ("key generate", TakesNone(FILES)),
    ("key public", TakesNone(FILES)),
    ("attach", TakesNone("adds a document beside an image that is there")),
    ("exec", TakesNone(CLUSTER)),
    ("scp", TakesNone(CLUSTER)),
    ("prune", TakesNone("removes")),
    ("cache ls", TakesNone("lists caches")),
    ("cache prune", TakesNone("removes")),
    ("df", TakesNone(READS)),
    ("scrub", TakesNone("compares blobs with their digests")),
    ("cert", TakesNone(CLUSTER)),
    ("registry rm", TakesNone("removes")),
    ("registry ls", TakesNone(READS)),
    ("registry passwd", TakesNone(CLUSTER)),
    ("registry gc", TakesNone("removes")),
    ("registry scrub", TakesNone("compares blobs with their digests")),
    ("adopt", TakesNone(CLUSTER)),
    ("delete", TakesNone(CLUSTER)),
    ("renumber", TakesNone(CLUSTER)),
    ("upgrade status", TakesNone(READS)),
    ("upgrade pause", TakesNone(CLUSTER)),
    ("upgrade resume", TakesNone(CLUSTER)),
    ("upgrade abort", TakesNone(CLUSTER)),
    ("rollback", TakesNone("goes back to what was admitted before")),
    ("reset", TakesNone(CLUSTER)),
    ("uninstall", TakesNone(CLUSTER)),
    ("backup", TakesNone("writes a backup, which is no image")),
    ("rehearse upgrade", AsksLike("run")),
    ("restore", TakesNone("reads a backup; the images of the cluster are those of `run`")),
    ("clusters", TakesNone(READS)),
    ("status", TakesNone(READS)),
    ("state show", TakesNone(READS)),
    ("state encrypt", TakesNone(FILES)),
    ("state decrypt", TakesNone(FILES)),
    ("state cat", TakesNone(READS)),
    ("support-bundle", TakesNone(READS)),
    ("testbed up", TakesNone(TESTBED)),
    ("testbed down", TakesNone(TESTBED)),
    ("testbed list", TakesNone(TESTBED)),
    ("testbed ssh", TakesNone(TESTBED)),
    ("testbed exec", TakesNone(TESTBED)),
    ("testbed cut", TakesNone(TESTBED)),
    ("testbed heal", TakesNone(TESTBED)),
    ("testbed rate", TakesNone(TESTBED)),
    ("testbed kill", TakesNone(TESTBED)),
    ("testbed start", TakesNone(TESTBED)),
    ("testbed stop", TakesNone(TESTBED)),
    ("testbed reboot", TakesNone(TESTBED)),
    ("testbed disk", TakesNone(TESTBED)),
    ("testbed template", TakesNone(TESTBED)),
    ("testbed prune", TakesNone(TESTBED)),
    ("inplace plan", TakesNone("the cluster's container runtime pulls the images, not the store")),
    ("inplace apply", TakesNone("the cluster's container runtime pulls the images, not the store")),
    ("inplace status", TakesNone(READS)),
    (
        "inplace rollback",
        TakesNone("the cluster's container runtime pulls the images, not the store"),
    ),
    ("plan delete", TakesNone(CLUSTER)),
    ("plan reset", TakesNone(CLUSTER)),
    ("plan uninstall", TakesNone(CLUSTER)),
    ("plan renumber", TakesNone(CLUSTER)),
    ("plan adopt", TakesNone(CLUSTER)),
    ("plan backup", TakesNone(CLUSTER)),
    ("plan restore", TakesNone(CLUSTER)),
    ("render", TakesNone(READS)),
    ("report image", TakesNone(READS)),
    ("report plan", TakesNone(READS)),
    ("report run", TakesNone(READS)),
    ("report cluster", TakesNone(READS)),
    ("report render", TakesNone(READS)),
    ("init", TakesNone(FILES)),
    ("recipe ls", TakesNone(FILES)),
    ("recipe show", TakesNone(FILES)),
    ("ui", TakesNone(READS)),
    ("env", TakesNone(READS)),
    ("journal", TakesNone(READS)),
    ("version", TakesNone(READS)),
    ("completion", TakesNone(READS)),
    ("man", TakesNone(READS)),
];

/// The verbs of the command line; of one that has verbs of its own, only those, unless it is one itself.
fn verbs(env: &TestEnv) -> BTreeSet<String> {
    let help = env.imgctl(["help-all"]).ok().stdout();
    let mut all: BTreeMap<String, bool> = BTreeMap::new();
    for section in help.split("\n# imgctl ").skip(1) {
        let name = section.lines().next().unwrap().to_owned();
        let is_group = section.contains("\nUsage: ")
            && section
                .lines()
                .any(|line| line.starts_with("Usage:") && line.ends_with("<COMMAND>"));
        all.insert(name, is_group);
    }
    all.into_iter().filter(|(_, is_group)| !is_group).map(|(name, _)| name).collect()
}

#[test]
fn every_verb_is_known_to_take_images_or_not() {
    let env = TestEnv::new();
    let known: BTreeSet<String> = VERBS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(known.len(), VERBS.len());
    assert_eq!(verbs(&env), known);
    for (name, says) in VERBS {
        match says {
            AsksLike(other) => {
                let found = VERBS.iter().find(|(name, _)| name == other).unwrap();
                assert!(matches!(found.1, Refuses(_)), "{name}");
            }
            TakesNone(why) => assert!(!why.is_empty(), "{name}"),
            Refuses(lines) => assert!(lines.iter().all(|line| line.starts_with(name)), "{name}"),
        }
    }
}

#[test]
fn every_verb_that_takes_images_asks_the_policy() {
    let site = Site::new();
    let env = &site.env;
    for (name, text) in [
        ("from", format!("FROM {FOREIGN}\n")),
        ("from-local", "FROM localhost/app:1\n".to_owned()),
        ("from-renamed", "FROM localhost/renamed:1\n".to_owned()),
        ("copy", format!("FROM scratch\nCOPY --from={FOREIGN} /a /a\n")),
        ("named", "FROM n\nLABEL a=b\n".to_owned()),
        ("named-copy", "FROM scratch\nCOPY --from=n /a /a\n".to_owned()),
    ] {
        env.context(name, &text, &[]);
    }
    env.write("from.json", BAKE);
    for (_, says) in VERBS {
        if let Refuses(lines) = says {
            lines.iter().for_each(|line| site.refuses(line));
        }
    }
    // What is built here is admitted: as a base, under another name, in an archive and back, in a registry.
    let own = env.context("on-own", "FROM localhost/own:1\nLABEL a=b\n", &[]);
    env.build("localhost/own:2", &own);
    env.imgctl(["tag", "localhost/own:2", "q.io/own/app:1", "localhost/own:3"]).ok();
    env.imgctl(["save", "localhost/own:3", "-o", "own.tar"]).ok();
    env.imgctl(["load", "own.tar"]).ok();
    env.imgctl(["create", "localhost/own:3"]).ok();
    let there = format!("{}/own/app:1", site.registry.host);
    env.imgctl(["push", "--tls-verify=false", "q.io/own/app:1", &there]).ok();
    env.imgctl(["umount", "--all"]).ok();
    // Whoever accepts archives from a directory gets those, and no others.
    let media = env.path("new.tar");
    let policy = serde_json::json!({
        "default": [{ "type": "reject" }],
        "transports": { "oci-archive": { media.parent().unwrap().to_str().unwrap():
            [{ "type": "insecureAcceptAnything" }] } },
    });
    site.policy(&policy.to_string());
    env.imgctl(["load", "new.tar"]).ok();
    site.refuses("load docker.tar");
    site.refuses("load layout");
    site.refuses("copy oci:layout localhost/z:1");
}

/// A policy that was asked for must be there, also where the default one would admit the image unseen.
#[test]
fn every_verb_that_takes_images_demands_the_policy_that_it_is_given() {
    let site = Site::new();
    site.policy(r#"{"default": [{"type": "insecureAcceptAnything"}]}"#);
    for name in ["from", "from-local", "from-renamed", "copy", "named", "named-copy"] {
        site.env.context(name, "FROM localhost/own:1\nLABEL a=b\n", &[]);
    }
    site.env.write("broken.json", "{");
    site.env.write("from.json", BAKE);
    let own = [
        "tag localhost/own:1 localhost/n:1",
        "merge -t localhost/n:1 localhost/own:1",
        "rebase localhost/own:1 --old-base localhost/own:1 --new-base localhost/own:1 -t localhost/n:1",
        "annotate localhost/own:1 --label a=b",
        "save localhost/own:1 -o out.tar",
        "bundle create localhost/own:1 localhost/own:1 -o out.tar",
        "diff --patch localhost/own:1 localhost/own:1 -o out.tar",
        "push --tls-verify=false localhost/own:1 docker://REMOTE-copy",
        "copy localhost/own:1 oci:out",
        "manifest create localhost/n:1 localhost/own:1",
        "manifest add localhost/list:1 localhost/own:1",
        "create localhost/own:1",
    ];
    let listed = VERBS.iter().flat_map(|(_, says)| match says {
        Refuses(lines) => *lines,
        _ => &[],
    });
    for line in own.iter().chain(listed) {
        for (policy, code) in [("missing.json", 3), ("broken.json", 4)] {
            let mut words = site.words(line);
            words.extend(["--signature-policy".to_owned(), policy.to_owned()]);
            let ran = site.env.imgctl(words).fails(code);
            assert!(ran.stderr().contains(policy), "{line}\n{}", ran.report());
        }
    }
}

#[test]
fn run_mounts_no_image_that_the_policy_rejects() {
    if !needs_root() {
        return;
    }
    let site = Site::new();
    let text =
        format!("FROM localhost/own:1\nRUN --mount=type=bind,from={FOREIGN},target=/x true\n");
    site.env.context("mounted", &text, &[]);
    site.refuses("build -q -t localhost/n:1 mounted");
}

struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_clients_push_into_a_store_is_asked_about() {
    let site = Site::new();
    let mut command =
        site.env.command(["registry", "serve", "--store", "--writable", "--addr", "127.0.0.1:0"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let served = Served(child);
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    let host = line.trim().rsplit("//").next().unwrap().to_owned();
    let names = || {
        site.env
            .imgctl([
                "images",
                "--all",
                "--no-trunc",
                "--digests",
                "--format",
                "{{.Repository}}:{{.Tag}}@{{.Digest}}",
            ])
            .ok()
            .stdout()
    };
    let before = names();
    for name in ["team/app:1", "localhost/new:1", "docker.io/library/new:1"] {
        let to = format!("docker://{host}/{name}");
        let words = ["copy", "--insecure-policy", "--dest-tls-verify=false", "oci:layout", &to];
        let mut push = tool("skopeo", words);
        push.current_dir(site.env.path("."));
        let ran = Ran::new(push);
        assert!(!ran.success() && ran.stderr().contains("denied"), "{}", ran.report());
    }
    assert_eq!(names(), before);
    drop(served);
}
