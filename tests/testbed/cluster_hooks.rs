//! Hooks of an image when hosts come and leave: which run, where, in which order, once.

use crate::cluster_etcd::support::{killed, run};
use crate::common::needs_root;
use crate::common::testbed::Bed;

const KUBEFILE: &str = "FROM scratch\n\
    LABEL sealos.io.type=rootfs sealos.io.version=v1beta1 sealos.io.distribution=script version=v1\n\
    LABEL init=write.sh join=write.sh clean=write.sh\n\
    COPY . .\n";
/// A hook that writes down when it ran, with what it got.
const HOOK: &str =
    "#!/bin/sh\necho \"$IMGCTL_PHASE/$IMGCTL_HOOK $IMGCTL_ROLE $IMGCTL_NODE\" >>/root/ran\n";
/// Says at first that it cannot run yet.
const LATE: &str =
    "[ $IMGCTL_ATTEMPT -gt 1 ] || exit 20\necho \"$IMGCTL_PHASE/$IMGCTL_HOOK\" >>/root/ran\n";

const FILES: &[(&str, &str)] = &[
    ("scripts/write.sh", "echo script >>/root/ran\n"),
    ("hooks/pre-bootstrap.d/10-first", HOOK),
    ("hooks/pre-bootstrap.d/20-late", LATE),
    ("hooks/pre-init.d/init", HOOK),
    ("hooks/post-init.d/init", HOOK),
    ("hooks/pre-join.d/join", HOOK),
    ("hooks/post-join.d/join", HOOK),
    ("hooks/post-settle.d/settle", HOOK),
    ("hooks/pre-leave.d/leave", HOOK),
    ("hooks/post-leave.d/leave", HOOK),
];

/// What ran on a host since the last question, without the addresses of hosts.
fn ran(bed: &Bed, host: usize) -> Vec<String> {
    let text = bed.says(host, "cat /root/ran; rm -f /root/ran");
    text.lines().map(|line| line.replace(&bed.ip(host), "me")).collect()
}

#[test]
fn hooks_run_around_what_happens_to_hosts() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3).with_agent();
    let context = bed.env.context("image", KUBEFILE, FILES);
    bed.env.build("hooks:v1", &context);
    let command = ["run", "hooks:v1", "--masters", &bed.ip(1), "--nodes", &bed.ip(2)];

    let plan = run(&bed, &[&command[..], &["--dry-run"]].concat()).ok();
    assert!(plan.stdout().contains("run hook pre-bootstrap.d/20-late"), "{}", plan.report());
    // Killed between two hooks: those that ran do not run again.
    assert!(killed(&bed, &command, 24));
    run(&bed, &command).ok();
    assert_eq!(
        ran(&bed, 1),
        [
            "pre-bootstrap/10-first control-plane me",
            "pre-bootstrap/20-late",
            "pre-init/init control-plane me",
            "script",
            "post-init/init control-plane me",
            "post-settle/settle control-plane me",
        ]
    );
    let joined = [
        "pre-bootstrap/10-first worker me",
        "pre-bootstrap/20-late",
        "pre-join/join worker me",
        "script",
        "post-join/join worker me",
        "post-settle/settle worker me",
    ];
    assert_eq!(ran(&bed, 2), joined);

    run(&bed, &["add", "--nodes", &bed.ip(3)]).ok();
    assert_eq!(ran(&bed, 3), joined);
    assert_eq!(ran(&bed, 1), ["post-settle/settle control-plane me"]);
    assert_eq!(ran(&bed, 2), ["post-settle/settle worker me"]);

    // Hosts have what is needed to leave.
    bed.imgctl(["rmi", "--force", "hooks:v1"]).ok();
    bed.imgctl(["delete", "--nodes", &bed.ip(3)]).ok();
    assert_eq!(ran(&bed, 3), ["pre-leave/leave worker me", "post-leave/leave worker me", "script"]);
    assert_eq!(ran(&bed, 1), ["post-settle/settle control-plane me"]);
    bed.imgctl(["reset"]).ok();
    assert_eq!(ran(&bed, 1), ["script"]);
}
