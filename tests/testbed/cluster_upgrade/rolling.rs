//! Real etcd goes from 3.4.23 over 3.5.0 to 3.5.1 and back.

use std::path::PathBuf;
use std::time::Instant;

use serde_json::Value;

use crate::cluster_etcd::support::run;
use crate::cluster_upgrade::counting::{refused, upgrade};
use crate::cluster_upgrade::writer::{Writer, Written};
use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root, repository, tool};

/// Builds etcd:vVERSION from the example; `false`, with a word on why, when the binaries cannot be
/// had here.
pub(crate) fn build(bed: &Bed, version: &str) -> bool {
    let example = bed.env.path("etcd");
    if !example.exists() {
        let from = repository().join("Kubefile.examples/etcd");
        Ran::new(tool("cp", ["-R".as_ref(), from.as_path(), &example])).ok();
    }
    let mut fetch = tool::<&str>(example.join("fetch").to_str().unwrap(), []);
    fetch.env("ETCD_VERSION", version);
    let fetched = Ran::new(fetch);
    if !fetched.success() {
        assert!(std::env::var_os("CI").is_none(), "CI needs etcd: {}", fetched.report());
        println!("skipped: {}", fetched.report());
        return false;
    }
    let argument = format!("ETCD_VERSION={version}");
    let name = format!("etcd:v{version}");
    let context = example.to_str().unwrap();
    bed.imgctl(["build", "--build-arg", &argument, "-t", &name, context]).ok();
    true
}

/// The addresses of all hosts.
pub(crate) fn addresses(bed: &Bed) -> Vec<String> {
    (1..=bed.len()).map(|host| bed.ip(host)).collect()
}

#[test]
fn etcd_rolls_forward_and_back_under_a_writer() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3).with_agent();
    for version in ["3.4.23", "3.5.0", "3.5.1"] {
        if !build(&bed, version) {
            return;
        }
    }
    gated(&bed);
    let clock = Clock::start();
    run(&bed, &["run", "etcd:v3.4.23", "--masters", &bed.ips(1..=3)]).ok();
    clock.says("run");

    let all = addresses(&bed);
    the_writer_sees_what_stops(&bed, &all);
    clock.says("a member that stops");
    let began = Instant::now();
    let writer = Writer::start("first", &all);
    stopped_at_the_gate(&bed, &clock);
    writer.goes_on();
    one_host_goes_back(&bed, &clock);
    writer.goes_on();
    upgrade(&bed, &["gated:v3.5.0"]).ok();
    assert_eq!(running(&bed), ["3.5.0 3.5.0"; 3]);
    clock.says("3.4.23 -> 3.5.0");
    too_late(&bed);

    upgrade(&bed, &["etcd:v3.5.1"]).ok();
    assert_eq!(running(&bed), ["3.5.1 3.5.0"; 3]);
    clock.says("3.5.0 -> 3.5.1");
    let again = upgrade(&bed, &["etcd:v3.5.1"]).ok();
    assert_eq!(running(&bed), ["3.5.1 3.5.0"; 3], "{}", again.report());
    clock.says("nothing to do");

    bed.imgctl(["rollback", "--yes"]).ok();
    assert_eq!(running(&bed), ["3.5.0 3.5.0"; 3]);
    clock.says("3.5.1 -> 3.5.0");
    writer.goes_on();
    let written = writer.stop(began);
    written.assert_kept("first", &all);
    println!("stops: {:?}", written.stops());

    back_to_the_snapshot(&bed, &written, &clock);
}

/// The witness itself: one member that stops is seen, and nothing else.
fn the_writer_sees_what_stops(bed: &Bed, all: &[String]) {
    let began = Instant::now();
    let writer = Writer::start("seen", all);
    bed.says(2, "systemctl stop etcd; sleep 1; systemctl start etcd");
    writer.goes_on();
    let written = writer.stop(began);
    written.assert_kept("seen", all);
    assert_eq!(written.stops(), [0, 1, 0]);
}

/// The second host fails its gate: it is the last that was touched.
fn stopped_at_the_gate(bed: &Bed, clock: &Clock) {
    bed.says(2, "touch /run/ill");
    let failed = upgrade(bed, &["gated:v3.5.0"]);
    refused(&failed, "ill on request");
    assert!(failed.stderr().contains(&bed.ip(2)), "{}", failed.report());
    assert_eq!(running(bed), ["3.5.0 3.4.0", "3.5.0 3.4.0", "3.4.23 3.4.0"]);
    assert_eq!(image(bed), "etcd:v3.4.23");
    clock.says("stopped at the gate");
}

/// That host alone goes back; the others stay.
fn one_host_goes_back(bed: &Bed, clock: &Clock) {
    let scope = format!("node={}", bed.ip(2));
    bed.imgctl(["rollback", "--scope", &scope, "--yes"]).ok();
    assert_eq!(running(bed), ["3.5.0 3.4.0", "3.4.23 3.4.0", "3.4.23 3.4.0"]);
    bed.says(2, "rm /run/ill");
    clock.says("one host back");
}

/// All members run 3.5: its data is not for 3.4 any more.
fn too_late(bed: &Bed) {
    assert_eq!(image(bed), "gated:v3.5.0");
    let late = bed.imgctl(["rollback", "--yes"]);
    refused(&late, "--from-snapshot");
    assert_eq!(running(bed), ["3.5.0 3.5.0"; 3]);
    // The way back has touched nothing.
    bed.imgctl(["upgrade", "abort"]).ok();
    let older = upgrade(bed, &["etcd:v3.4.23"]);
    refused(&older, "rollback");
    assert_eq!(running(bed), ["3.5.0 3.5.0"; 3]);
}

/// Everything since the first upgrade began is gone, and all before is there.
fn back_to_the_snapshot(bed: &Bed, written: &Written, clock: &Clock) {
    let snapshot = snapshots(bed).remove(0);
    let snapshot = snapshot.to_str().unwrap();
    let before = cluster_id(bed, 1);
    let from = ["rollback", "--from-snapshot", snapshot];
    let unsure = bed.imgctl([&from[..], &["--yes"]].concat());
    refused(&unsure, "--i-understand-data-loss");
    assert_eq!(cluster_id(bed, 1), before);
    bed.imgctl([&from[..], &["--i-understand-data-loss", "--yes"]].concat()).ok();
    let now: Vec<String> = (1..=3).map(|host| cluster_id(bed, host)).collect();
    assert!(now.iter().all(|id| *id == now[0] && *id != before), "{now:?}");
    written.assert_as_of_some_moment("first", &addresses(bed));
    bed.imgctl(["status"]).ok();
    clock.says("back to the snapshot");
}

/// The snapshots that the controller keeps, oldest first.
fn snapshots(bed: &Bed) -> Vec<PathBuf> {
    let under = bed.env.path("clusters");
    let line = format!(
        "find {} -name snapshot.db -printf '%T@ %p\\n' | sort -n | cut -d' ' -f2",
        under.display()
    );
    let found = Ran::new(tool("sh", ["-c", &line])).ok().stdout();
    let paths: Vec<PathBuf> = found.lines().map(PathBuf::from).collect();
    assert!(!paths.is_empty(), "the controller keeps no snapshot");
    paths
}

/// Which cluster the member of this host belongs to.
fn cluster_id(bed: &Bed, host: usize) -> String {
    let line = format!("curl -fsS -d '{{}}' http://{}:2379/v3/maintenance/status", bed.ip(host));
    let known = Ran::new(tool("sh", ["-c", &line])).ok().json();
    known["header"]["cluster_id"].as_str().unwrap().to_owned()
}

/// etcd:v3.5.0 with a gate that fails where /run/ill lies.
fn gated(bed: &Bed) {
    let gate = "[ ! -e /run/ill ] || { echo ill on request >&2; exit 1; }\nexec bash health.sh\n";
    let kubefile =
        "FROM localhost/etcd:v3.5.0\nLABEL health=gate.sh\nCOPY gate.sh scripts/gate.sh\n";
    let context = bed.env.context("gated", kubefile, &[("gate.sh", gate)]);
    bed.env.build("gated:v3.5.0", &context);
}

/// "3.5.1 3.5.0": what runs on each host, and what the cluster has agreed on.
fn running(bed: &Bed) -> Vec<String> {
    let version = |address: &String| {
        let line = format!("curl -fsS http://{address}:2379/version");
        let known: Value =
            serde_json::from_str(&Ran::new(tool("sh", ["-c", &line])).ok().stdout()).unwrap();
        let text = |key: &str| known[key].as_str().unwrap().to_owned();
        format!("{} {}", text("etcdserver"), text("etcdcluster"))
    };
    addresses(bed).iter().map(version).collect()
}

/// The rootfs image that the Clusterfile names.
fn image(bed: &Bed) -> String {
    let stored = bed.env.path("clusters/default/Clusterfile");
    let text = std::fs::read_to_string(stored).unwrap();
    let after = text.split("image:").nth(1).unwrap();
    let line = after.lines().map(str::trim).find(|line| !line.is_empty());
    line.unwrap().trim_start_matches("- ").to_owned()
}

/// Says how long things took.
struct Clock(std::cell::Cell<Instant>);

impl Clock {
    fn start() -> Self {
        Self(std::cell::Cell::new(Instant::now()))
    }

    fn says(&self, what: &str) {
        let before = self.0.replace(Instant::now());
        println!("{what}: {:?}", before.elapsed());
    }
}
