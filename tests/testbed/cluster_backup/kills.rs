//! The controller is killed behind each record of a backup and of a restore: the next backup is whole
//! and leaves nothing of the one before, and a restore goes on where it stopped.

use crate::cluster_etcd::support::{killed, run};
use crate::cluster_upgrade::counting::{all_counted, build, trees, versions};
use crate::common::testbed::Bed;
use crate::common::{Ran, long, needs_root, tool};

#[test]
fn killed_after_any_record_it_is_backed_up_and_restored() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(2).with_agent();
    build(&bed, "1.0.0", "");
    let hosts = bed.ips(1..=2);
    run(&bed, &["run", "counting:1.0.0", "--masters", &hosts]).ok();
    all_counted(&bed);
    let place = bed.env.path("backups");
    let to = place.to_str().unwrap().to_owned();
    let mut kills = 0;
    let records = |short: &[u64], last: u64| {
        if long() { (1..last).collect::<Vec<u64>>() } else { short.to_vec() }
    };
    for record in records(&[2, 7, 11], 40) {
        let died = killed(&bed, &["backup", "--to", &to], record);
        kills += usize::from(died);
        run(&bed, &["backup", "--to", &to, "--keep", "1"]).ok();
        let left = bed.says(1, "ls /var/lib/sealos/data/default/backup");
        assert_eq!(left, "", "{record}");
        assert!(!bed.env.path("clusters/default/backup/staging").exists(), "{record}");
        let unfinished = Ran::new(tool("find", [to.as_str(), "-name", "*.tmp"])).ok().stdout();
        assert_eq!(unfinished, "", "{record}");
        if !died {
            break;
        }
    }
    all_counted(&bed);
    run(&bed, &["reset", "--yes"]).ok();
    all_counted(&bed);

    let restore = ["restore", &to, "--masters", &hosts];
    for record in records(&[3, 14, 24, 31], 120) {
        let died = killed(&bed, &restore, record);
        kills += usize::from(died);
        if died {
            let again = run(&bed, &restore);
            // It died behind its last change.
            let is_over = again.stderr().contains("still is on");
            assert!(again.success() || is_over, "{record}: {}", again.report());
        }
        assert_eq!(versions(&bed), ["1.0.0"; 2], "{record}");
        assert_eq!(trees(&bed), ["1.0.0"; 2], "{record}");
        // Each once, and `init` never: the data can come from the backup only.
        assert_eq!(all_counted(&bed), ["stop restore start"; 2], "{record}");
        run(&bed, &["reset", "--yes"]).ok();
        all_counted(&bed);
        if !died {
            break;
        }
    }
    println!("{kills} kills");
    assert!(kills > 4);
}
