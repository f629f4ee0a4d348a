//! The same command twice at once, and commands of different clusters at once.

use std::time::Duration;

use crate::cluster_etcd::support::wait_for;
use crate::cluster_faults::support::{arguments, bed, error, image, run};
use crate::common::Ran;

const BUSY: i32 = 6;

#[test]
fn a_second_run_is_told_who_is_at_work_and_does_nothing() {
    let Some(bed) = bed(2) else { return };
    let waits = "echo init >> /var/lib/ran; n=0; until test -e /run/go || ((n++ > 3000)); do sleep 0.1; done";
    image(&bed, "f:1", "", &[("scripts/init.sh", waits)]);
    bed.says(2, "touch /run/go");
    let ip = bed.ip(1);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| run(&bed, "f:1", "default", &ip, &[]));
        wait_for("the first run", Duration::from_secs(240), || {
            bed.exec(1, "grep -q init /var/lib/ran").success()
        });
        let second = run(&bed, "f:1", "default", &ip, &[]).fails(BUSY);
        let text = error(&second);
        for word in ["default", "run", "process"] {
            assert!(text.contains(word), "no `{word}`\n{}", second.report());
        }
        // Those that look are not held up, nor is another cluster.
        let look = Ran::new(bed.command(arguments(&bed, &["status"], "default", &[])));
        look.ok();
        run(&bed, "f:1", "other", &bed.ip(2), &[]).ok();
        bed.says(1, "touch /run/go");
        first.join().unwrap().ok();
    });
    assert_eq!(bed.says(1, "grep -c init /var/lib/ran"), "1");
}
