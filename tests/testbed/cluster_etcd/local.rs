//! A cluster of the machine that imgctl runs on: no host is named, no SSH is used.

use crate::cluster_etcd::kills::{build, counted};
use crate::cluster_etcd::support::run;
use crate::common::needs_root;
use crate::common::testbed::{Bed, agent};

#[test]
fn without_hosts_it_is_this_machine() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(1);
    build(&bed);
    let archive = bed.env.path("counting.tar");
    let archive = archive.to_str().unwrap();
    bed.imgctl(["save", "-o", archive, "counting:v1"]).ok();
    let ip = bed.ip(1);
    let program = agent().to_str().unwrap();
    run(&bed, &["scp", "--ips", &ip, program, "/usr/local/bin/imgctl"]).ok();
    run(&bed, &["scp", "--ips", &ip, archive, "/root/counting.tar"]).ok();
    // Nobody could log in any more.
    bed.says(
        1,
        "systemctl stop ssh ssh.socket; export HOME=/root; cd; imgctl run --local counting.tar",
    );
    assert_eq!(counted(&bed, 1), "init");
    let again = bed.says(1, "HOME=/root imgctl run /root/counting.tar");
    assert!(again.contains("nothing to do"), "{again}");
    assert_eq!(counted(&bed, 1), "");
    bed.says(1, "HOME=/root imgctl status; HOME=/root imgctl reset --yes");
    assert_eq!(counted(&bed, 1), "clean");
    assert_eq!(bed.says(1, "ls /var/lib/sealos/data"), "");
}
