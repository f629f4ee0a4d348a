//! Several workers at once; workers that were away and come later; files that are bit for bit those
//! of before when all of it has gone back.

use crate::cluster_etcd::support::run;
use crate::cluster_upgrade::counting::{all_counted, build, refused, trees, upgrade, versions};
use crate::common::needs_root;
use crate::common::testbed::Bed;

#[test]
fn workers_go_in_batches_come_late_and_go_back() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(5).with_agent();
    for version in ["1.0.0", "1.1.0", "1.2.0"] {
        build(&bed, version, "");
    }
    let command = ["run", "counting:1.0.0", "--masters", &bed.ip(1), "--nodes", &bed.ips(2..=5)];
    run(&bed, &command).ok();
    all_counted(&bed);
    let before: Vec<String> = (1..=5).map(|host| files(&bed, host)).collect();

    two_at_a_time(&bed);
    bed.imgctl(["rollback", "--yes"]).ok();
    assert_eq!(versions(&bed), ["1.0.0"; 5]);
    assert_same(&bed, &before);
    // There is nothing before the first.
    let further = bed.imgctl(["rollback", "--yes"]).fails(3);
    refused(&further, "no upgrade to roll back");
    upgrade(&bed, &["counting:1.1.0", "--batch", "100%", "--max-unavailable", "100%"]).ok();
    bed.imgctl(["rollback", "--batch", "2", "--max-unavailable", "2", "--yes"]).ok();
    assert_same(&bed, &before);
    assert_eq!(
        history(&bed),
        ["forward committed", "back committed", "forward committed", "back committed"]
    );
    all_counted(&bed);
    one_comes_late(&bed);
}

/// The image's files and what its scripts installed: content, modes, owners, times. Not what they
/// write about themselves.
fn files(bed: &Bed, host: usize) -> String {
    bed.says(
        host,
        "cd /var/lib/sealos/data/default/rootfs/ && \
         find . -path ./etc -prune -o -printf '%p %y %m %U:%G %s %T@ %l\\n' | sort && \
         find . -path ./etc -prune -o -type f -exec sha256sum {} + | sort && \
         sha256sum /var/lib/member && stat -c '%a %u:%g %s' /var/lib/member",
    )
}

#[track_caller]
fn assert_same(bed: &Bed, before: &[String]) {
    for (host, before) in (1..).zip(before) {
        assert_eq!(&files(bed, host), before, "h{host}");
    }
}

/// The control plane, then two batches of two, with a stop behind each.
fn two_at_a_time(bed: &Bed) {
    let to = [
        "counting:1.1.0",
        "--canary",
        "none",
        "--batch",
        "2",
        "--max-unavailable",
        "2",
        "--pause-after",
        "batch",
    ];
    upgrade(bed, &to).ok();
    assert_eq!(versions(bed), ["1.1.0", "1.1.0", "1.1.0", "1.0.0", "1.0.0"]);
    let going = bed.imgctl(["upgrade", "resume", "--pause-after", "batch"]).ok();
    assert!(going.report().contains("is paused"), "{}", going.report());
    assert_eq!(versions(bed), ["1.1.0"; 5]);
    let status = bed.imgctl(["upgrade", "status"]).ok();
    assert!(status.stdout().contains("paused"), "{}", status.report());
    bed.imgctl(["upgrade", "resume"]).ok();
    let once = ["backup upgrade", "upgrade", "upgrade", "upgrade", "upgrade"];
    assert_eq!(all_counted(bed), once);
}

/// A worker is away while the others go; the same upgrade does it later by a saved plan, and nothing
/// else.
fn one_comes_late(bed: &Bed) {
    bed.kill(5);
    refused(&upgrade(bed, &["counting:1.1.0"]).fails(10), "unavailable-budget");
    let going = upgrade(bed, &["counting:1.1.0", "--max-unavailable", "2"]).ok();
    assert!(going.stdout().contains("it is skipped"), "{}", going.report());
    bed.start(5);
    assert_eq!(versions(bed), ["1.1.0", "1.1.0", "1.1.0", "1.1.0", "1.0.0"]);
    all_counted(bed);
    let file = bed.env.path("late.json");
    let file = file.to_str().unwrap();
    let planned = bed.imgctl(["upgrade", "counting:1.1.0", "--plan", "--save-plan", file]).ok();
    let table = planned.stdout();
    let row = |host: usize| {
        let line = table.lines().find(|line| line.contains(&bed.ip(host)));
        line.unwrap_or_else(|| panic!("{}", planned.report()))
    };
    assert!(row(5).contains("v1.0.0"), "{}", planned.report());
    assert!(row(2).contains("it is already at v1.1.0"), "{}", planned.report());
    upgrade(bed, &["--plan-file", file]).ok();
    assert_eq!(versions(bed), ["1.1.0"; 5]);
    assert_eq!(all_counted(bed), ["", "", "", "", "upgrade"]);
    // The host is no longer behind.
    refused(&upgrade(bed, &["--plan-file", file]).fails(10), "is stale");
    upgrade(bed, &["counting:1.1.0"]).ok();
    assert_eq!(all_counted(bed), [""; 5]);
    bed.imgctl(["rollback", "--yes"]).ok();
    assert_eq!(versions(bed), ["1.0.0"; 5]);
    assert_eq!(all_counted(bed), ["rollback"; 5]);
}

fn history(bed: &Bed) -> Vec<String> {
    let status = bed.imgctl(["upgrade", "status", "--json"]).ok().json();
    let all = status["history"].as_array().unwrap().iter();
    let text = |one: &serde_json::Value, key: &str| one[key].as_str().unwrap().to_owned();
    all.map(|one| format!("{} {}", text(one, "direction"), text(one, "end"))).collect()
}

/// `run` with the image that the cluster has: a worker that was away is upgraded, not only given the
/// new files; what else would switch its files is refused.
#[test]
fn a_worker_that_was_away_is_not_switched_under_its_members() {
    if !needs_root() {
        return;
    }
    let bed = crate::cluster_upgrade::counting::cluster();
    let kubefile = "FROM scratch\nCOPY f f\nCMD [\"echo app >>/var/log/counted\"]\n";
    let application = bed.env.context("app", kubefile, &[("f", "")]);
    bed.env.build("app:v1", &application);
    bed.kill(3);
    upgrade(&bed, &["counting:1.1.0", "--max-unavailable", "2"]).ok();
    bed.start(3);
    all_counted(&bed);
    let late = ["1.1.0", "1.1.0", "1.0.0"];
    assert_eq!(versions(&bed), late);
    assert_eq!(trees(&bed), late);

    let refusal = run(&bed, &["run", "app:v1"]).fails(10);
    refused(&refusal, "imgctl upgrade counting:1.1.0");
    refused(&refusal, &bed.ip(3));
    assert_eq!(trees(&bed), late);
    let both =
        ["run", "counting:1.1.0", "app:v1", "--masters", &bed.ip(1), "--nodes", &bed.ips(2..=3)];
    run(&bed, &both).ok();
    assert_eq!(versions(&bed), ["1.1.0"; 3]);
    assert_eq!(trees(&bed), ["1.1.0"; 3]);
    assert_eq!(all_counted(&bed), ["app", "", "upgrade"]);
    let again = run(&bed, &both).ok();
    assert!(again.stdout().contains("nothing to do"), "{}", again.report());
    assert_eq!(all_counted(&bed), [""; 3]);

    // One that went back alone is behind as well; others may still come and go.
    let alone = format!("node={}", bed.ip(3));
    bed.imgctl(["rollback", "--scope", &alone, "--yes"]).ok();
    assert_eq!(trees(&bed), late);
    run(&bed, &["delete", "--nodes", &bed.ip(2), "--yes"]).ok();
    let added = run(&bed, &["add", "--nodes", &bed.ip(2)]).ok();
    assert!(added.report().contains("keeps its files"), "{}", added.report());
    assert_eq!(versions(&bed), late);
    assert_eq!(trees(&bed), late);
    run(&bed, &["run", "counting:1.1.0"]).ok();
    assert_eq!(versions(&bed), ["1.1.0"; 3]);
}
