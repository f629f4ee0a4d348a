//! Three members of etcd change their addresses one by one under a writer; the old addresses go;
//! what is not the host, or cannot be done, is refused by name.

use std::time::Instant;

use crate::cluster_etcd::support::{build_etcd, run};
use crate::cluster_renumber::support::{
    back, expected, give, listed, members_at, second, take, take_from_member, there,
};
use crate::cluster_upgrade::writer::Writer;
use crate::common::needs_root;
use crate::common::testbed::Bed;

#[test]
fn members_move_one_by_one_under_a_writer() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(4).with_agent();
    if !build_etcd(&bed) {
        return;
    }
    run(&bed, &["run", "etcd:v1", "--masters", &bed.ips(1..=3)]).ok();
    refused(&bed);
    give(&bed, 1..=3);

    let (old, new): (Vec<String>, Vec<String>) =
        (1..=3).map(|host| (bed.ip(host), second(&bed, host))).unzip();
    let plan = run(&bed, &["renumber", &there(&bed, 1), "--dry-run"]).ok();
    for expected in ["renumber.sh", &new[0], "must be told", "Clusterfile"] {
        assert!(plan.report().contains(expected), "{expected}: {}", plan.report());
    }
    assert_eq!(members_at(&bed, 1, &old[0]), expected(&old), "a plan changes nothing");
    assert_eq!(listed(&bed), old);

    // Each client knows both addresses of each member.
    let both: Vec<String> = old.iter().chain(&new).cloned().collect();
    let began = Instant::now();
    let writer = Writer::start("moving", &both);
    run(&bed, &["renumber", &there(&bed, 1), "--yes"]).ok();
    println!("one host: {:?}", began.elapsed());
    writer.goes_on();
    let mixed = [new[0].clone(), old[1].clone(), old[2].clone()];
    assert_eq!(members_at(&bed, 2, &old[1]), expected(&mixed));
    assert_eq!(listed(&bed), mixed);
    // The old address of the first goes away while the others move.
    take_from_member(&bed, 1, &old[0]);
    let rest = [there(&bed, 2), there(&bed, 3)];
    run(&bed, &["renumber", &rest[0], &rest[1], "--yes"]).ok();
    writer.goes_on();
    for host in [2, 3] {
        take_from_member(&bed, host, &old[host - 1]);
    }
    assert_eq!(members_at(&bed, 3, &new[2]), expected(&new));
    assert_eq!(listed(&bed), new);
    let written = writer.stop(began);
    written.assert_all_there("moving", &new);
    written.assert_no_pause();
    written.assert_one_down_at_most(3);

    // The same command once more has nothing to do.
    let again = run(&bed, &["renumber", &rest[0], &rest[1], "--yes"]).ok();
    assert!(again.report().contains("has its new address"), "{}", again.report());
    members_restart(&bed, &new);
    the_cluster_is_what_it_was(&bed, &new);
    moved_already(&bed, &old, &new);
}

/// What is wrong is said before anything is changed.
fn refused(bed: &Bed) {
    let (first, second_host) = (bed.ip(1), bed.ip(2));
    let cases = [
        (format!("{first}={second_host}"), 2, "is the address of another host"),
        (format!("{}={}", bed.ip(4), second(bed, 4)), 3, "does not belong to cluster"),
        // A machine that is none of the cluster, and a member under another address.
        (format!("{first}={}", bed.ip(4)), 10, "has no files of cluster"),
        (format!("{first}={}", bed.ip6(1)), 2, "different families"),
    ];
    for (change, code, expected) in cases {
        let ran = run(bed, &["renumber", &change, "--yes"]).fails(code);
        assert!(ran.stderr().contains(expected), "{change}: {}", ran.report());
    }
    give(bed, [2]);
    let twin = format!("{first}={}", second(bed, 2));
    let ran = run(bed, &["renumber", &twin, "--yes"]).fails(10);
    assert!(ran.stderr().contains(&format!("is {second_host} of cluster")), "{}", ran.report());
    // Nobody is there.
    let ran = run(bed, &["renumber", &there(bed, 1), "--yes"]).fails(7);
    assert!(ran.stderr().contains("does not configure networks"), "{}", ran.report());
    let swap = [format!("{first}={second_host}"), format!("{second_host}={first}")];
    let ran = run(bed, &["renumber", &swap[0], &swap[1], "--yes"]).fails(2);
    assert!(ran.stderr().contains("swap"), "{}", ran.report());
    assert_eq!(listed(bed), (1..=3).map(|host| bed.ip(host)).collect::<Vec<_>>());
}

/// All members start again with what was written.
fn members_restart(bed: &Bed, new: &[String]) {
    for host in 1..=3 {
        bed.says(host, "systemctl restart etcd");
    }
    assert_eq!(members_at(bed, 1, &new[0]), expected(new));
    bed.imgctl(["status"]).ok();
}

/// The cluster goes on as any other: a host joins it and leaves.
fn the_cluster_is_what_it_was(bed: &Bed, new: &[String]) {
    run(bed, &["add", "--masters", &bed.ip(4)]).ok();
    let four = [new, &[bed.ip(4)]].concat();
    assert_eq!(members_at(bed, 4, &bed.ip(4)), expected(&four));
    run(bed, &["delete", "--masters", &bed.ip(4), "--yes"]).ok();
    assert_eq!(members_at(bed, 1, &new[0]), expected(new));
}

/// A host whose address has changed already, and whose member is down therefore; and the way back.
fn moved_already(bed: &Bed, old: &[String], new: &[String]) {
    bed.says(2, &format!("ip address add {}/24 dev eth0", old[1]));
    take(bed, 2, &new[1]);
    let began = Instant::now();
    let writer = Writer::start("moved", &[new[0].clone(), old[1].clone(), new[2].clone()]);
    run(bed, &["renumber", &back(bed, 2), "--yes"]).ok();
    writer.goes_on();
    let mixed = [new[0].clone(), old[1].clone(), new[2].clone()];
    assert_eq!(members_at(bed, 2, &old[1]), expected(&mixed));
    let written = writer.stop(began);
    written.assert_all_there("moved", &mixed);
    bed.imgctl(["reset", "--yes"]).ok();
}
