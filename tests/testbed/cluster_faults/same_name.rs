//! Two clusters of one name, each with a controller of its own: neither changes a host of the other.

use crate::cluster_faults::support::{arguments, bed, error, image, run, says};
use crate::common::Ran;
use crate::common::testbed::Bed;

const CHECK: i32 = 10;

/// Runs `imgctl VERB … --cluster default` as the other controller.
fn other(bed: &Bed, verb: &[&str], more: &[&str]) -> Ran {
    let mut command = bed.command(arguments(bed, verb, "default", more));
    command.env("SEALOS_RUNTIME_ROOT", bed.env.path("other-clusters"));
    Ran::new(command)
}

#[test]
fn a_host_of_another_cluster_of_that_name_is_not_added_and_not_cleaned() {
    let Some(bed) = bed(2) else { return };
    image(&bed, "f:1", "", &[]);
    let (own, foreign) = (bed.ip(1), bed.ip(2));
    run(&bed, "f:1", "default", &own, &[]).ok();
    other(&bed, &["run", "f:1"], &["--masters", &foreign]).ok();
    let uid = |host: usize| bed.says(host, "cat /var/lib/sealos/data/default/uid");
    let (mine, theirs) = (uid(1), uid(2));
    assert_ne!(mine, theirs);
    let files = || bed.says(2, "cd /var/lib/sealos/data; find . | grep -v ./default/runs | sort");
    let before = files();

    let add = |verb: &[&str], more: &[&str]| {
        let more = [&["--masters", &foreign], more].concat();
        bed.imgctl(arguments(&bed, verb, "default", &more))
    };
    let refused = add(&["add"], &[]).fails(CHECK);
    says(&refused, &[&foreign, &mine, &theirs, "another cluster: default", "--force"]);
    // The plan says so, with the same exit code.
    let planned = add(&["plan", "add"], &[]).fails(CHECK);
    assert!(planned.stdout().contains("will fail"), "{}", planned.report());
    assert!(error(&planned).contains(&theirs), "{}", planned.report());
    let delete = arguments(&bed, &["delete", "--yes"], "default", &["--masters", &foreign]);
    assert!(!bed.imgctl(delete).success());
    assert_eq!(files(), before);
    assert_eq!(bed.says(2, "cat /var/lib/ran"), "check\ninit");

    // By force it changes hands. Its former cluster does not clean it any more.
    add(&["add"], &["--force"]).ok();
    assert_eq!(uid(2), mine);
    let status = other(&bed, &["status"], &[]).fails(CHECK);
    assert!(status.stdout().contains(&mine), "{}", status.report());
    let reset = other(&bed, &["reset", "--yes"], &[]).fails(CHECK);
    says(&reset, &[&foreign, &mine, &theirs, "is not cleaned"]);
    other(&bed, &["reset", "--yes", "--force"], &[]).ok();
    assert_eq!(bed.says(2, "cat /var/lib/ran"), "check\ninit\ncheck\njoin");
    bed.imgctl(arguments(&bed, &["reset", "--yes"], "default", &[])).ok();
    assert_eq!(bed.says(2, "tail -n 1 /var/lib/ran; ls /var/lib/sealos/data"), "clean");
}
