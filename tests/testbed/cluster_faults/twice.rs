//! The same command twice at once, and commands of different clusters at once.

use crate::cluster_faults::support::{arguments, bed, error, image, run};
use crate::common::Ran;

const BUSY: i32 = 6;

#[test]
fn a_second_run_is_told_who_is_at_work_and_does_nothing() {
    let Some(bed) = bed(2) else { return };
    image(&bed, "f:1", "", &[("scripts/init.sh", "echo init >> /var/lib/ran; sleep 4")]);
    let ip = bed.ip(1);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| run(&bed, "f:1", "default", &ip, &[]));
        let begun = std::time::Instant::now();
        while !bed.exec(1, "grep -q init /var/lib/ran").success() {
            assert!(begun.elapsed().as_secs() < 60, "the first run does not begin");
        }
        let second = run(&bed, "f:1", "default", &ip, &[]).fails(BUSY);
        let text = error(&second);
        for word in ["default", "run", "process"] {
            assert!(text.contains(word), "no `{word}`\n{}", second.report());
        }
        // Those that look are not held up, nor is another cluster.
        let look = Ran::new(bed.command(arguments(&bed, &["status"], "default", &[])));
        look.ok();
        run(&bed, "f:1", "other", &bed.ip(2), &[]).ok();
        first.join().unwrap().ok();
    });
    assert_eq!(bed.says(1, "grep -c init /var/lib/ran"), "1");
}
