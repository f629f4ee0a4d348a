//! Hooks of images: what they are told, how often they are asked, what comes of their answers, and
//! what is not run.

use std::os::unix::fs::{PermissionsExt, symlink};

use crate::cluster_upgrade::counting::{
    all_counted, build, context, create_with, says, upgrade, versions,
};
use crate::common::needs_root;
use crate::common::testbed::Bed;

const SECRET: &str = "hunter2-and-more";
/// What no shell may read as anything but text.
const EVIL: &str = "a\"b'c$(touch /run/pwned)`touch /run/pwned`\n; touch /run/pwned #";

/// Prints all that it was told, and the secret, into /run/told; answers what /run/code says.
const ASKS: &str = r#"#!/bin/bash
env -0 | sort -z >/run/told
echo "$IMGCTL_ATTEMPT" >>/run/attempts
echo "the token is $apiToken"
echo "and once more: $apiToken" >&2
exit "$(cat /run/code 2>/dev/null || echo 0)"
"#;

#[test]
fn hooks_are_asked_and_their_answers_count() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(2).with_agent();
    build(&bed, "1.0.0", "");
    image(&bed);
    let token = format!("apiToken={SECRET}");
    let evil = format!("evil={EVIL}");
    create_with(&bed, &["--env", &token, "--env", &evil]);
    plan(&bed);
    not_now(&bed);
    fails(&bed);
    takes_too_long(&bed);
    ends_well(&bed);
    leads_out(&bed);
    sealer(&bed);
}

/// Builds counting:1.1.0 with hooks of all kinds.
fn image(bed: &Bed) {
    let context = context(bed, "1.1.0", "", "COPY hooks hooks\n");
    let add = |path: &str, text: &str, mode: u32| {
        let path = bed.env.write(context.join("hooks").join(path), text);
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    add("pre-control-plane.d/10 with 'a' space", "echo spaced >>/run/ran\n", 0o644);
    add("pre-control-plane.d/20-was-done", "echo again >>/run/ran; exit 10\n", 0o644);
    add("pre-control-plane.d/directory/10-inner", "echo inner >>/run/ran\n", 0o755);
    add("pre-control-plane.d/.hidden", "echo hidden >>/run/ran\n", 0o755);
    add("pre-node.d/-c", "echo dashed >>/run/ran\n", 0o644);
    add("pre-node.d/50-asks", ASKS, 0o755);
    let slow = "sleep \"$(cat /run/hook-slow 2>/dev/null || echo 0)\"; echo post >>/run/ran\n";
    add("post-node.d/slow", slow, 0o644);
    symlink("slow", context.join("hooks/post-node.d/linked")).unwrap();
    bed.env.build("counting:1.1.0", &context);
}

/// The plan shows the hooks that there are, and no others.
fn plan(bed: &Bed) {
    let shown = bed.imgctl(["upgrade", "counting:1.1.0", "--dry-run"]).ok();
    let text = shown.stdout();
    for words in [
        "hook pre-control-plane.d/10 with 'a' space",
        "hook pre-control-plane.d/20-was-done",
        "hook pre-node.d/-c",
        "hook pre-node.d/50-asks",
        "hook post-node.d/linked",
        "hook post-node.d/slow",
    ] {
        assert!(text.contains(words), "{words}: {}", shown.report());
    }
    for words in ["directory", "hidden", "can-upgrade", "post-control-plane", "-cluster"] {
        assert!(!text.contains(words), "{words}: {}", shown.report());
    }
    assert!(!text.contains(SECRET), "{}", shown.report());
}

/// "Not now" is asked again a few times; then the upgrade stops, with all that is to be known.
fn not_now(bed: &Bed) {
    bed.says(2, "echo 20 >/run/code");
    let stopped = upgrade(bed, &["counting:1.1.0"]).fails(9);
    let step = format!("/{}/pre-node-50-asks failed on {0} (attempt 1)", bed.ip(2));
    let words = [
        &*step,
        "hook pre-node.d/50-asks said \"not now\"",
        "and once more: ***",
        "imgctl upgrade resume",
        "log: ",
    ];
    says(&stopped, &words);
    assert_eq!(versions(bed), ["1.1.0", "1.0.0"]);
    assert_eq!(bed.says(2, "cat /run/attempts; rm /run/attempts"), "1\n2\n3");
    assert_eq!(bed.says(1, "cat /run/ran; rm /run/ran"), "spaced\nagain");
    assert_eq!(bed.says(2, "cat /run/ran; rm /run/ran"), "dashed");
    told(bed);
    no_secret(bed, &stopped.report());
}

/// The variables are those of the documentation, and arrive as they were given.
fn told(bed: &Bed) {
    let told = bed.says(2, "cat /run/told");
    let variables: Vec<&str> = told.split('\0').collect();
    let tree = bed.says(2, "cd /var/lib/sealos/data/default && ls -d rootfs.?* | grep -v partial");
    let rootfs = variables
        .iter()
        .find_map(|variable| variable.strip_prefix("IMGCTL_ROOTFS=/var/lib/sealos/data/default/"))
        .unwrap();
    assert!(tree.lines().any(|line| line == rootfs), "{rootfs}: {tree}");
    for variable in [
        "IMGCTL_PHASE=pre-node",
        "IMGCTL_FROM_VERSION=v1.0.0",
        "IMGCTL_TO_VERSION=v1.1.0",
        &format!("IMGCTL_NODE={}", bed.ip(2)),
        "IMGCTL_ROLE=worker",
        "IMGCTL_DRY_RUN=false",
        "IMGCTL_ATTEMPT=3",
        "IMGCTL_HOOK=50-asks",
        &format!("evil={EVIL}"),
        &format!("apiToken={SECRET}"),
    ] {
        assert!(variables.contains(&variable), "{variable:?}: {variables:?}");
    }
    assert!(!bed.exec(2, "test -e /run/pwned").success());
}

/// What hooks print is kept for each step, without secrets, here and there.
fn no_secret(bed: &Bed, report: &str) {
    assert!(!report.contains(SECRET), "{report}");
    let state = bed.env.path("clusters/default");
    let mut logged = 0;
    for directory in ["logs", "journal", "upgrade"] {
        for file in files(&state.join(directory)) {
            let text = String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned();
            // The plan's choices hold no variables; nor does anything else.
            assert!(!text.contains(SECRET), "{}: {text}", file.display());
            let is_log = file.ends_with(file_of("pre-node-50-asks", &file));
            logged += usize::from(is_log && text.contains("the token is ***"));
        }
    }
    assert!(logged > 0, "no log of the hook in {}", state.display());
    let raw =
        format!("grep -rl '{SECRET}' /var/lib/sealos/data/default/runs | grep . && exit 1; exit 0");
    bed.says(2, &raw);
}

/// `path`'s name if it is the log of `step`.
fn file_of<'a>(step: &str, path: &'a std::path::Path) -> &'a str {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap();
    if name.ends_with(&format!("{step}.log")) { name } else { "none" }
}

fn files(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = walkdir::WalkDir::new(directory).into_iter().flatten();
    entries.filter(|entry| !entry.path().is_dir()).map(walkdir::DirEntry::into_path).collect()
}

/// Any other answer is a failure; hooks that are done are not asked again.
fn fails(bed: &Bed) {
    bed.says(2, "echo 1 >/run/code");
    let failed = bed.imgctl(["upgrade", "resume", "--yes"]).fails(9);
    let step = format!("/{}/pre-node-50-asks failed on {0} (attempt 2)", bed.ip(2));
    says(
        &failed,
        &[&*step, "hook pre-node.d/50-asks failed: exit code 1", "imgctl upgrade resume"],
    );
    no_secret(bed, &failed.report());
    assert_eq!(bed.says(2, "cat /run/attempts; rm /run/attempts"), "4");
    assert!(!bed.exec(2, "test -e /run/ran").success(), "-c was done");
}

/// A hook that does not end is ended; the host is switched by then, and the next run goes on there.
fn takes_too_long(bed: &Bed) {
    bed.says(2, "echo 10 >/run/code; echo 60 >/run/hook-slow");
    let late = bed.imgctl(["upgrade", "resume", "--yes", "--timeout", "2s"]).fails(9);
    let step = format!("/{}/post-node-linked failed on {0} (attempt 1)", bed.ip(2));
    says(&late, &[&*step, "timed out after 2 s", "imgctl upgrade resume"]);
    bed.says(2, "rm /run/hook-slow");
}

fn ends_well(bed: &Bed) {
    bed.imgctl(["upgrade", "resume", "--yes"]).ok();
    assert_eq!(versions(bed), ["1.1.0"; 2]);
    assert_eq!(bed.says(2, "cat /run/ran"), "post\npost");
    assert!(!bed.exec(1, "test -e /run/ran").success());
    assert_eq!(all_counted(bed), ["backup upgrade", "upgrade"]);
}

/// A link out of the image is not followed; names that no log can show are refused before.
fn leads_out(bed: &Bed) {
    let context = context(bed, "1.2.0", "", "COPY hooks hooks\n");
    let folder = context.join("hooks/pre-control-plane.d");
    std::fs::create_dir_all(&folder).unwrap();
    symlink("../../../../../../../../bin/true", folder.join("10-out")).unwrap();
    bed.env.build("counting:1.2.0", &context);
    let failed = upgrade(bed, &["counting:1.2.0"]).fails(9);
    says(&failed, &["pre-control-plane-10-out", "it leads out of the image's files"]);
    assert_eq!(versions(bed), ["1.1.0"; 2]);
    bed.imgctl(["upgrade", "abort", "--yes"]).ok();

    std::fs::remove_file(folder.join("10-out")).unwrap();
    std::fs::write(folder.join("10\nfake"), "exit 0\n").unwrap();
    bed.env.build("counting:1.2.0", &context);
    let refused = upgrade(bed, &["counting:1.2.0"]).fails(4);
    says(&refused, &["pre-control-plane.d", "10\\nfake"]);
}

/// Scripts of sealer: on all hosts when their files and the registry's are there, then on the first
/// control plane; and the plan warns of them.
fn sealer(bed: &Bed) {
    let more = "LABEL upgrade=\"\"\nCOPY plugins plugins\nCOPY registry registry\n";
    let context = context(bed, "1.2.0", "", more);
    bed.env.write(context.join("registry/docker/marker"), "new images");
    let plugin = |name: &str, action: &str, data: &str| {
        format!(
            "apiVersion: sealer.io/v1\nkind: Plugin\nmetadata:\n  name: {name}\nspec:\n  type: SHELL\n  \
             action: {action}\n  scope: master|node\n  data: |\n    {}\n---\n",
            data.replace('\n', "\n    ")
        )
    };
    let registry = "/var/lib/sealos/data/default/registry/docker/marker";
    let host = format!(
        "date +%s%N >/run/at-host\ncat {registry} >/run/legacy 2>/dev/null\necho \"$counted\" >/var/lib/member"
    );
    let all = plugin("hosts", "upgrade-host", &host)
        + &plugin("all", "upgrade", "date +%s%N >/run/at-cluster")
        + &plugin("other", "post-install", "touch /run/installed");
    bed.env.write(context.join("plugins/upgrade.yaml"), all);
    bed.env.build("counting:1.2.0", &context);
    let plan = bed.imgctl(["upgrade", "counting:1.2.0", "--plan"]).ok();
    assert!(plan.stdout().contains("unsafe-legacy"), "{}", plan.report());
    upgrade(bed, &["counting:1.2.0"]).ok();
    assert_eq!(versions(bed), ["1.2.0"; 2]);
    assert_eq!(bed.says(1, "cat /run/legacy"), "new images");
    let at = |host: usize, what: &str| -> u64 {
        bed.says(host, &format!("cat /run/at-{what}")).parse().unwrap()
    };
    assert!(at(1, "host") < at(2, "host") && at(2, "host") < at(1, "cluster"));
    assert!(!bed.exec(2, "test -e /run/at-cluster").success());
    assert!(!bed.exec(1, "test -e /run/installed").success());
}
