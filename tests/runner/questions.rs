//! Verbs that ask before they remove or change something: where nobody can answer, they refuse.

use std::path::Path;

use crate::common::TestEnv;

/// Exit code of docs/cli.md.
const USAGE: i32 = 2;

/// The files that ask. A new question needs a case below, or a test of its own where it needs hosts.
const ASKING: [&str; 10] = [
    "crates/ops/src/adopt.rs",
    "crates/ops/src/inplace/mod.rs",
    // run without hosts: this machine becomes a cluster.
    "crates/ops/src/install.rs",
    "crates/ops/src/upgrade/begin.rs",
    "crates/ops/src/upgrade/reconfigure.rs",
    "crates/ops/src/upgrade/rollback.rs",
    // delete, reset, uninstall, renumber, run --prune, apply, restore: every plan that removes something.
    "crates/ops/src/work.rs",
    "src/cli/commands/cache.rs",
    "src/cli/commands/rmi.rs",
    "src/cli/commands/support_bundle.rs",
];

const CLUSTERFILE: &str = "apiVersion: apps.sealos.io/v1beta1
kind: Cluster
metadata:
  name: c
  creationTimestamp: \"2026-01-01T00:00:00Z\"
spec:
  image: [localhost/base:1]
  hosts:
  - ips: [\"127.0.0.1:1\"]
    roles: [master, amd64]
  - ips: [\"127.0.0.1:3\"]
    roles: [node, amd64]
status:
  phase: ClusterSuccess
";

/// A store with an image, and a cluster whose hosts do not answer.
fn scene() -> TestEnv {
    let env = TestEnv::new();
    let labels = "sealos.io.type=rootfs sealos.io.version=v1beta1 sealos.io.distribution=script \
                  init=i join=j";
    let kubefile = format!("FROM scratch\nLABEL {labels}\nCOPY f /f\n");
    let context = env.context("base", &kubefile, &[("f", "x")]);
    env.build("localhost/base:1", &context);
    env.write(".sealos/c/Clusterfile", CLUSTERFILE);
    env
}

#[test]
fn without_a_terminal_nobody_agrees() {
    let env = scene();
    let clusterfile = env.path(".sealos/c/Clusterfile");
    for words in [&["reset", "-c", "c"][..], &["rmi", "--all"], &["cache", "prune"]] {
        for more in [&[][..], &["--json"]] {
            let ran = env.imgctl([words, more].concat()).fails(USAGE);
            assert!(ran.report().contains("nobody can answer"), "{words:?}: {}", ran.report());
            assert!(ran.report().contains("--yes"), "{words:?}: {}", ran.report());
        }
    }
    assert!(clusterfile.exists());
    env.imgctl(["inspect", "localhost/base:1"]).ok();
    // Each of these is an answer.
    let mut variable = env.command(["cache", "prune"]);
    variable.env("IMGCTL_YES", "true");
    crate::common::Ran::new(variable).ok();
    env.imgctl(["cache", "prune", "--force"]).ok();
    env.imgctl(["reset", "-c", "c", "--force"]).ok();
    assert!(!clusterfile.exists());
    env.imgctl(["rmi", "--all", "--yes"]).ok();
}

#[test]
fn every_question_is_known_and_asked_by_one_function() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut asking = Vec::new();
    for directory in ["src", "crates"] {
        for entry in walkdir::WalkDir::new(root.join(directory)).into_iter().flatten() {
            let name = entry.path().strip_prefix(root).unwrap().to_string_lossy().into_owned();
            if !name.ends_with(".rs") || name.ends_with("tests.rs") {
                continue;
            }
            let text = std::fs::read_to_string(entry.path()).unwrap();
            assert!(!text.contains("prompt::confirm(") || name == "crates/ui/src/lib.rs", "{name}");
            let passes_on = ["crates/ui/src/", "crates/frontend/src/front_end.rs"];
            if text.contains(".confirm(") && !passes_on.iter().any(|own| name.starts_with(own)) {
                asking.push(name);
            }
        }
    }
    asking.sort();
    assert_eq!(asking, ASKING);
}
