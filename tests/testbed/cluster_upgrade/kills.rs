//! The controller is killed behind each record of its journal; resumed, it does each act exactly once.

use crate::cluster_upgrade::counting::{all_counted, cluster, trees, versions};
use crate::common::testbed::Bed;
use crate::common::{Ran, long, needs_root};

#[test]
fn killed_after_any_record_each_act_is_done_once() {
    if !needs_root() {
        return;
    }
    let bed = cluster();
    let records: Vec<u64> = if long() { (1..120).collect() } else { vec![3, 14, 22, 60] };
    let mut kills = 0;
    for record in records {
        let there = once(&bed, &["upgrade", "counting:1.1.0", "--yes"], record);
        assert_eq!(versions(&bed), ["1.1.0"; 3], "{record}");
        assert_eq!(trees(&bed), ["1.1.0"; 3], "{record}");
        assert_eq!(all_counted(&bed), ["backup upgrade", "upgrade", "upgrade"], "{record}");
        let back = once(&bed, &["rollback", "--yes"], record);
        assert_eq!(versions(&bed), ["1.0.0"; 3], "{record}");
        assert_eq!(trees(&bed), ["1.0.0"; 3], "{record}");
        assert_eq!(all_counted(&bed), ["rollback"; 3], "{record}");
        kills += usize::from(there) + usize::from(back);
        if !there && !back {
            break;
        }
    }
    println!("{kills} kills");
    assert!(kills > 4);
}

/// Runs it so that it dies with its `record`th record, then to its end; whether it died.
fn once(bed: &Bed, arguments: &[&str], record: u64) -> bool {
    let mut command = bed.command(arguments);
    command.env("IMGCTL_DIE_AFTER", record.to_string());
    let ran = Ran::new(command);
    if ran.success() {
        return false;
    }
    assert!(ran.report().contains("signal: 9"), "{}", ran.report());
    let shown = bed.imgctl(["upgrade", "status"]);
    let again = bed.imgctl(arguments);
    // It died behind its last change: then there is nothing to go back from any more.
    let is_over = again.stderr().contains("has no upgrade to roll back");
    assert!(again.success() || is_over, "{record}: {}\n{}", again.report(), shown.report());
    true
}
