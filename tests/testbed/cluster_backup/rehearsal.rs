//! An upgrade of etcd is rehearsed on a copy of the cluster, on a test bed of its own.

use crate::cluster_etcd::support::{etcdctl, run};
use crate::cluster_upgrade::rolling::build;
use crate::common::testbed::Bed;
use crate::common::{Ran, json, needs_root, tool};

/// Exit codes of docs/cli.md.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;

#[test]
fn an_upgrade_is_tried_on_a_copy_and_plans_say_so() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(1).with_agent();
    if !build(&bed, "3.5.0") || !build(&bed, "3.5.1") {
        return;
    }
    // A name of its own: the test beds of rehearsals are called after their clusters.
    let cluster = format!("r{}", std::process::id());
    let named = ["--cluster", &cluster];
    run(&bed, &[&["run", "etcd:v3.5.0", "--masters", &bed.ip(1)][..], &named].concat()).ok();
    etcdctl(&bed, 1, "put before backup");
    let rehearse = |words: &[&str]| {
        run(&bed, &[&["rehearse", "upgrade", "etcd:v3.5.1"], words, &named].concat())
    };
    let ran = rehearse(&[]).fails(NOT_FOUND);
    assert!(ran.stderr().contains("`imgctl backup --cluster"), "{}", ran.report());
    run(&bed, &[&["backup"][..], &named].concat()).ok();
    let planned = rehearse(&["--dry-run"]).ok();
    assert!(
        planned.stderr().contains("control planes: 1 of 1, workers: 0 of 0"),
        "{}",
        planned.report()
    );

    let ran = rehearse(&["--masters", &bed.ip(1)]).fails(USAGE);
    assert!(ran.stderr().contains("itself"), "{}", ran.report());
    // By another address of the host, which only the host itself can tell.
    let ran = rehearse(&["--masters", bed.list()["hosts"][0]["ip6"].as_str().unwrap()]);
    assert!(!ran.success(), "{}", ran.report());
    assert!(etcdctl(&bed, 1, "get before").contains("backup"), "{}", ran.report());

    let ran = rehearse(&["--requests", "http://{host}:2379/health"]).ok();
    let said = ran.stdout();
    for part in ["v3.5.0 → v3.5.1", ": passed", "restore", "upgrade", "rollback", "requests: "] {
        assert!(said.contains(part), "{part}: {}", ran.report());
    }
    let records = bed.env.path(format!("clusters/.rehearsals/{cluster}"));
    let names = Ran::new(tool("ls", [&records])).ok().stdout();
    let files: Vec<&str> = names.lines().filter(|name| name.ends_with(".json")).collect();
    // The first one is of the hosts that refused.
    let [_, file] = files[..] else { panic!("{names}") };
    assert!(!names.contains("state"), "the copy's state stays: {names}");
    let record = json(&records.join(file));
    let parts = record["parts"].as_array().unwrap();
    let of: Vec<&str> = parts.iter().map(|part| part["name"].as_str().unwrap()).collect();
    assert_eq!(of, ["restore", "upgrade", "rollback"]);
    assert!(parts.iter().all(|part| !part["phases"].as_array().unwrap().is_empty()), "{record:#}");
    let (asked, failed) = (&record["answers"]["asked"], &record["answers"]["failed"]);
    assert!(asked.as_u64().unwrap() > 10, "{record:#}");
    // A cluster of one member does not answer while that is replaced.
    assert!(failed.as_u64().unwrap() < asked.as_u64().unwrap(), "{record:#}");
    let beds = Ran::new(bed.env.command(["testbed", "list", "--all", "--json"])).ok().stdout();
    assert!(!beds.contains(&format!("rehearsal-{cluster}")), "{beds}");

    // Nothing happened to the cluster itself, and its plan says what is known.
    assert!(etcdctl(&bed, 1, "get before").contains("backup"));
    let plan = [&["upgrade", "etcd:v3.5.1", "--plan"][..], &named].concat();
    let plan = run(&bed, &plan).ok();
    let expected = "(control planes: 1, workers: 0)";
    assert!(plan.stdout().contains("rehearsed on"), "{}", plan.report());
    assert!(plan.stdout().contains(expected), "{}", plan.report());

    // What fails on the copy fails there, and is known as well.
    let ran =
        run(&bed, &[&["rehearse", "upgrade", "etcd:v3.5.0", "--no-rollback"][..], &named].concat());
    let ran = ran.fails(USAGE);
    assert!(ran.stderr().contains("nothing to upgrade"), "{}", ran.report());
    assert!(ran.stdout().contains(": failed"), "{}", ran.report());
}
