//! Members of a complete cluster that were installed anew, and lines that hosts files have lost.

use crate::cluster_faults::support::{arguments, bed, error, image, reset, run, says};

const CHECK: i32 = 10;

#[test]
fn a_member_that_was_installed_anew_leaves_and_joins_again() {
    let Some(bed) = bed(2) else { return };
    image(&bed, "f:1", "", &[]);
    let (first, second) = (bed.ip(1), bed.ip(2));
    let both = bed.ips(1..=2);
    run(&bed, "f:1", "default", &both, &[]).ok();
    bed.says(2, "rm -rf /var/lib/sealos /var/lib/imgctl /var/lib/ran");

    let status = bed.imgctl(arguments(&bed, &["status"], "default", &[])).fails(CHECK);
    assert!(error(&status).contains(&second), "{}", status.report());
    let refused = run(&bed, "f:1", "default", &both, &[]).fails(CHECK);
    says(&refused, &[&second, "it has nothing of the cluster", "imgctl delete", "imgctl add"]);
    assert!(!bed.exec(2, "test -e /var/lib/sealos/data/default/rootfs").success());

    let member = ["--masters", &second];
    // It is the same machine: its data could be on a disk that is not mounted.
    let refused =
        bed.imgctl(arguments(&bed, &["delete", "--yes"], "default", &member)).fails(CHECK);
    let told = refused.report();
    assert!(told.contains(&format!("{second} has lost the files")), "{told}");
    assert!(told.contains("pass --force"), "{told}");
    bed.imgctl(arguments(&bed, &["delete", "--yes", "--force"], "default", &member)).ok();
    bed.imgctl(arguments(&bed, &["add"], "default", &member)).ok();
    assert_eq!(bed.says(2, "tail -n 2 /var/lib/ran"), "check\njoin");
    bed.imgctl(arguments(&bed, &["status"], "default", &[])).ok();

    // The first one cannot leave; by force its files come back, and nothing runs.
    bed.says(1, "rm -rf /var/lib/sealos /var/lib/ran");
    let refused = run(&bed, "f:1", "default", &both, &[]).fails(CHECK);
    says(&refused, &[&first, "first control plane", "imgctl restore", "--force"]);
    run(&bed, "f:1", "default", &both, &["--force"]).ok();
    assert!(!bed.exec(1, "test -e /var/lib/ran").success());
    reset(&bed, "default");
}
