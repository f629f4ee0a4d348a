//! `--strategy replace`: the others move first, then a spare joins with the new version before the host
//! that it replaces leaves.

use crate::cluster_etcd::support::run;
use crate::cluster_upgrade::counting::{all_counted, build, die_at, refused, upgrade};
use crate::common::needs_root;
use crate::common::testbed::Bed;

#[test]
fn a_spare_takes_over() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3).with_agent();
    for version in ["1.0.0", "1.1.0"] {
        build(&bed, version, "");
    }
    let command = ["run", "counting:1.0.0", "--masters", &bed.ip(1), "--nodes", &bed.ip(2)];
    run(&bed, &command).ok();
    assert_eq!(all_counted(&bed), ["init", "join", ""]);
    let first = format!("{}={}", bed.ip(3), bed.ip(1));
    let wrong = upgrade(&bed, &["counting:1.1.0", "--strategy", "replace", "--spare", &first]);
    refused(&wrong, "is the first control plane, which cannot be replaced");
    let pair = format!("{}={}", bed.ip(3), bed.ip(2));
    let command = ["counting:1.1.0", "--strategy", "replace", "--spare", &pair];
    let windows = upgrade(&bed, &[&command[..], &["--window", "daily 00:00-24:00"]].concat());
    refused(&windows.fails(2), "--window cannot be combined");
    assert_eq!(all_counted(&bed), ["", "", ""]);

    // Dies on the way; the same command goes on, and does it once.
    die_at(&bed, &[&["upgrade"], &command[..]].concat(), 10);
    upgrade(&bed, &command).ok();
    assert_eq!(all_counted(&bed), ["backup upgrade", "clean", "join"]);
    let member = |host: usize| bed.says(host, "cat /var/lib/member 2>/dev/null || echo none");
    assert_eq!([1, 2, 3].map(member), ["1.1.0", "none", "1.1.0"]);
    let left = bed.says(2, "ls /var/lib/sealos/data 2>/dev/null | wc -l");
    assert_eq!(left, "0", "the old host is clean");
    // Nothing is left to do.
    upgrade(&bed, &["counting:1.1.0"]).ok();
    assert_eq!(all_counted(&bed), ["", "", ""]);
}
