//! Files on their way to hosts: cut off, without room, into a registry that somebody has damaged; and
//! what of the former tree is seen afterwards.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::cluster_etcd::support::{begin, bytes, events, signal, wait_for};
use crate::cluster_upgrade::counting::{
    all_counted, context, create, says, trees, upgrade, versions,
};
use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root, tool};

const LIMIT: Duration = Duration::from_secs(120);
/// Of random content, so that it is as long on its way.
const NOISE: u64 = 12_000_000;
/// The exit code of a full disk.
const NO_SPACE: i32 = 8;
const DATA: &str = "/var/lib/sealos/data/default";

#[test]
fn files_come_whole_or_not_at_all() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3).with_agent();
    with_registry(&bed, "1.0.0", &["app:v1"]);
    let noisy = with_registry(&bed, "1.1.0", &["app:v1", "app:v2"]);
    noise(&noisy.join("etc/noise"));
    bed.env.build("counting:1.1.0", &noisy);
    let long = context(&bed, "1.2.0", "", "COPY etc etc\n");
    bed.env.write(long.join("etc/long"), "yes\n".repeat(40_000_000));
    bed.env.build("counting:1.2.0", &long);
    create(&bed);
    damaged_registry(&bed);
    cut_off(&bed);
    old_files(&bed);
    without_room(&bed);
}

/// Builds counting:VERSION with these images in its registry; gives the context.
fn with_registry(bed: &Bed, version: &str, images: &[&str]) -> std::path::PathBuf {
    let context = context(bed, version, "", "COPY registry registry\nCOPY etc etc\n");
    let tree = context.join("registry");
    std::fs::create_dir_all(&tree).unwrap();
    bed.env.write(context.join("etc/version"), version);
    for image in images {
        let app = bed.env.context("app", "FROM scratch\nCOPY app app\n", &[("app", image)]);
        bed.env.build(image, &app);
        let to = format!("registry-dir:{}:{image}", tree.display());
        bed.imgctl(["copy", image, &to]).ok();
    }
    bed.env.build(&format!("counting:{version}"), &context);
    context
}

fn noise(path: &Path) {
    let line = format!("head -c {NOISE} /dev/urandom >{}", path.display());
    Ran::new(tool("sh", ["-c", &line])).ok();
}

/// A whole pull of an image out of the registry of h1.
fn pull(bed: &Bed, image: &str) -> Ran {
    let kept = bed.env.path("clusters/default/etc/registry_password");
    let password = std::fs::read_to_string(kept).unwrap();
    let to = bed.env.path("pulled");
    let _ = std::fs::remove_dir_all(&to);
    let from = format!("docker://{}:5000/{image}", bed.ip(1));
    let to = format!("dir:{}", to.display());
    let login = format!("admin:{}", password.trim());
    let words = ["--insecure-policy", "copy", "--src-tls-verify=false"];
    let words = words.into_iter().chain(["--src-creds", &login, &from, &to]);
    Ran::new(tool("skopeo", words))
}

/// Somebody removed links and cut a blob: the next upgrade sees it and puts it right while it stages.
fn damaged_registry(bed: &Bed) {
    pull(bed, "app:v1").ok();
    let damages = [
        "rm repositories/app/_layers/sha256/*/link repositories/app/_manifests/revisions/sha256/*/link && \
         : >repositories/app/_manifests/tags/v1/current/link",
        "for blob in blobs/sha256/*/*/data; do truncate -s 10 $blob; done",
    ];
    for damage in damages {
        bed.says(1, &format!("cd {DATA}/registry/docker/registry/v2 && {damage}"));
        let broken = pull(bed, "app:v1");
        assert!(!broken.success(), "{damage}: {}", broken.report());
        upgrade(bed, &["counting:1.1.0", "--pause-after", "stage"]).ok();
        pull(bed, "app:v1").ok();
        pull(bed, "app:v2").ok();
        bed.imgctl(["upgrade", "abort", "--yes"]).ok();
    }
    assert_eq!(trees(bed), ["1.0.0"; 3]);
    // What was brought is found, and nothing is brought again.
    let again =
        bed.imgctl(["--json", "upgrade", "counting:1.1.0", "--pause-after", "stage", "--yes"]);
    let moved = bytes(&events(&again.ok()));
    assert_eq!(moved, 0);
    bed.imgctl(["upgrade", "abort", "--yes"]).ok();
    all_counted(bed);
}

/// The agent and then the controller die while a layer is on its way: nothing is seen of it, and
/// what has come does not come again.
fn cut_off(bed: &Bed) {
    // Another image of the same version, with other noise.
    let context = bed.env.path("counting-1.1.0");
    noise(&context.join("etc/noise"));
    bed.env.build("counting:1.1.0", &context);
    for host in 1..=3 {
        bed.rate(host, 16);
    }
    let before = received(bed, 2);
    let running = begin(bed, &["upgrade", "counting:1.1.0", "--yes"]);
    arrived(bed, 2, NOISE / 6);
    assert_eq!(trees(bed), ["1.0.0"; 3]);
    bed.says(2, "for exe in /proc/[0-9]*/exe; do \
         case $(readlink $exe) in */imgctl-agent-*) pid=${exe#/proc/}; kill -9 ${pid%/exe} ;; esac; done");
    arrived(bed, 2, NOISE / 2);
    signal(&running, "-KILL");
    running.wait_with_output().unwrap();
    assert_eq!(trees(bed), ["1.0.0"; 3]);
    assert_eq!(versions(bed), ["1.0.0"; 3]);
    for host in 1..=3 {
        bed.rate(host, 0);
    }
    upgrade(bed, &["counting:1.1.0"]).ok();
    assert_eq!(versions(bed), ["1.1.0"; 3]);
    let came = received(bed, 2) - before;
    assert!(came > NOISE && came < NOISE * 3 / 2, "{came}");
    assert_eq!(all_counted(bed), ["backup upgrade", "upgrade", "upgrade"]);
}

/// Bytes that came over a host's link so far. Its /sys is that of the machine.
fn received(bed: &Bed, host: usize) -> u64 {
    let line = r"sed -n 's/^ *eth0: *\([0-9]*\).*/\1/p' /proc/net/dev";
    bed.says(host, line).parse().unwrap()
}

/// Waits until so much of a layer lies on a host.
fn arrived(bed: &Bed, host: usize, least: u64) {
    let line = format!("find /var/lib/imgctl -name '*.partial' -size +{least}c | grep -q .");
    wait_for("the layer", LIMIT, || bed.exec(host, &line).success());
}

/// What only the former tree had is not seen, whoever wrote it; on the way back it is there again.
fn old_files(bed: &Bed) {
    assert_eq!(trees(bed), ["1.1.0"; 3]);
    let written =
        |host: usize| bed.says(host, &format!("cd {DATA}/rootfs/etc && echo written-by-*"));
    assert_eq!(written(1), "written-by-1.1.0");
    bed.imgctl(["rollback", "--yes"]).ok();
    assert_eq!(trees(bed), ["1.0.0"; 3]);
    assert_eq!(written(1), "written-by-1.0.0");
    assert!(!bed.exec(1, &format!("test -e {DATA}/rootfs/etc/noise")).success());
    all_counted(bed);
}

/// No room on one host: nobody is touched, it says where and how much; with room, it goes on where
/// it was.
fn without_room(bed: &Bed) {
    bed.disk(3, 500);
    let most = "free=$(df --output=avail -B1 /var/lib | tail -1); fallocate -l $((free - 60000000)) /var/lib/most";
    bed.says(3, most);
    let full = upgrade(bed, &["counting:1.2.0"]).fails(NO_SPACE);
    let step = format!("step stage/{}/files", bed.ip(3));
    let words = [&*step, "(attempt 1)", DATA, "MB are free", "imgctl upgrade resume", "log: "];
    says(&full, &words);
    assert_eq!(trees(bed), ["1.0.0"; 3]);
    assert_eq!(versions(bed), ["1.0.0"; 3]);
    assert_eq!(all_counted(bed), [""; 3]);
    let left = bed.says(3, &format!("cd {DATA} && ls -d rootfs.*.partial 2>/dev/null | wc -l"));
    assert_eq!(left, "0");
    // It may be given up, or resumed.
    bed.imgctl(["upgrade", "abort", "--yes"]).ok();
    upgrade(bed, &["counting:1.2.0"]).fails(NO_SPACE);
    bed.says(3, "rm /var/lib/most");
    let resumed = bed.imgctl(["--json", "upgrade", "resume", "--yes"]).ok();
    let seen: Vec<Value> =
        resumed.stdout().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let staged: Vec<&str> = seen
        .iter()
        .filter(|event| event["event"] == "step-start" && event["phase"] == "stage")
        .filter_map(|event| event["host"].as_str())
        .collect();
    assert_eq!(staged, [bed.ip(3)], "others have it");
    assert_eq!(bytes(&seen), 0, "its layer had come before");
    assert_eq!(versions(bed), ["1.2.0"; 3]);
    assert_eq!(all_counted(bed), ["backup upgrade", "upgrade", "upgrade"]);
}
