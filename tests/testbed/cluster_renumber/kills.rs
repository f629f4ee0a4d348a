//! The controller is killed behind each record of its journal: the same command goes on, and the
//! opposite one goes back. A host that dies in the middle is taken up again.

use std::time::{Duration, Instant};

use crate::cluster_etcd::support::{begin, build_etcd, killed, run, wait_for};
use crate::cluster_renumber::support::{back, expected, give, listed, members_at, second, there};
use crate::cluster_upgrade::writer::Writer;
use crate::common::testbed::Bed;
use crate::common::{long, needs_root};

#[test]
fn killed_after_any_record_it_goes_on_or_back() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3).with_agent();
    if !build_etcd(&bed) {
        return;
    }
    let old: Vec<String> = (1..=3).map(|host| bed.ip(host)).collect();
    let both: Vec<String> = old.iter().cloned().chain([second(&bed, 1)]).collect();
    let mixed = [second(&bed, 1), bed.ip(2), bed.ip(3)];
    run(&bed, &["run", "etcd:v1", "--masters", &bed.ips(1..=3)]).ok();
    give(&bed, 1..=3);
    let (forth, home) = (there(&bed, 1), back(&bed, 1));
    let began = Instant::now();
    let writer = Writer::start("killed", &both);
    let records: Vec<u64> = if long() { (1..60).collect() } else { vec![5, 18, 19, 23] };
    let mut kills = 0;
    for record in records {
        let died = killed(&bed, &["renumber", &forth, "--yes"], record);
        kills += usize::from(died);
        // Every other time it goes back from where it died.
        if record % 2 == 0 {
            run(&bed, &["renumber", &forth, "--yes"]).ok();
            assert_eq!(members_at(&bed, 2, &old[1]), expected(&mixed), "{record}");
            assert_eq!(listed(&bed), mixed, "{record}");
        }
        let is_there = listed(&bed) == mixed;
        if is_there {
            kills += usize::from(killed(&bed, &["renumber", &home, "--yes"], record));
            run(&bed, &["renumber", &home, "--yes"]).ok();
        }
        assert_eq!(members_at(&bed, 2, &old[1]), expected(&old), "{record}");
        assert_eq!(listed(&bed), old, "{record}");
        writer.goes_on();
        if !died {
            break;
        }
    }
    println!("{kills} kills, {:?}", began.elapsed());
    assert!(kills > 3);
    let written = writer.stop(began);
    written.assert_all_there("killed", &old);
    written.assert_no_pause();
    a_host_dies(&bed, &forth, &mixed);
}

/// The host that moves dies while its script runs, and comes back with its new address.
fn a_host_dies(bed: &Bed, forth: &str, mixed: &[String]) {
    // Its member waits for another one that is not well.
    bed.says(3, "systemctl stop etcd");
    let running = begin(bed, &["renumber", forth, "--yes"]);
    wait_for("the script", Duration::from_secs(240), || {
        bed.exec(1, "pgrep -f '[r]enumber.sh'").success()
    });
    bed.kill(1);
    let output = running.wait_with_output().unwrap();
    assert!(!output.status.success());
    bed.start(1);
    bed.says(3, "systemctl start etcd");
    give(bed, [1]);
    run(bed, &["renumber", forth, "--yes"]).ok();
    assert_eq!(members_at(bed, 2, &bed.ip(2)), expected(mixed));
    run(bed, &["status"]).ok();
}
