//! Runs that are killed, interrupted or meet another one.

use std::sync::Arc;

use imgctl_kube::lease::{self, Holder, Outage, Times};
use serde_json::Value;

use crate::inplace::cluster::{Cluster, WEB, image, set, uids};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/imgctl";

#[test]
fn a_run_that_was_killed_goes_on_where_it_was() {
    let cluster = Cluster::start();
    cluster.workload("Deployment", 3);
    let before = cluster.pods();
    let words = [WEB[0], WEB[1], "--set", &set("2"), "--template", "sync", "--id", "one"];
    // Once with a Pod on its way, once between two.
    for (phase, count) in [("patched", 1), ("ready", 1)] {
        let mut run = cluster.begin(&words);
        run.until_phase(phase, count);
        run.kill();
    }
    assert_eq!(cluster.template("Deployment"), image("1"));
    // About something else.
    let other = [WEB[0], WEB[1], "--set", &set("3"), "--id", "one"];
    let refused = cluster.apply(&other).fails(2);
    assert!(refused.stderr().contains("other Pods or changes"), "{}", refused.report());

    cluster.apply(&["--id", "one"]).ok();
    let after = cluster.pods();
    assert_eq!(uids(&before), uids(&after));
    for pod in after.values() {
        // Each of them once, whoever began with it.
        assert_eq!((pod.restarts, &pod.image, pod.ready), (1, &image("2"), true));
    }
    assert_eq!(cluster.template("Deployment"), image("2"));
    // Once more has nothing to do.
    cluster.apply(&["--id", "one"]).ok();
    assert!(cluster.pods().values().all(|pod| pod.restarts == 1));
}

#[test]
fn a_run_that_was_killed_is_undone() {
    let cluster = Cluster::start();
    cluster.workload("Deployment", 3);
    let before = cluster.pods();
    let words = [WEB[0], WEB[1], "--set", &set("2"), "--template", "sync", "--id", "one"];
    let mut run = cluster.begin(&words);
    run.until_phase("ready", 1);
    run.kill();
    cluster.inplace(&["rollback", "--id", "one", "--bake", "0s", "--yes"]).ok();
    let after = cluster.pods();
    assert_eq!(uids(&before), uids(&after));
    assert!(after.values().all(|pod| pod.image == image("1") && pod.ready), "{after:?}");
    assert_eq!(cluster.template("Deployment"), image("1"));
    cluster.inplace(&["status"]).ok();
}

#[test]
fn two_do_not_carry_out_one_run() {
    let cluster = Cluster::start();
    cluster.workload("Deployment", 2);
    let words = [WEB[0], WEB[1], "--set", &set("2"), "--template", "keep", "--id", "one"];
    let mut run = cluster.begin(&words);
    run.until_phase("patched", 1);
    cluster.apply(&["--id", "one"]).fails(6);
    assert_eq!(run.end(), Some(0));
    assert!(cluster.pods().values().all(|pod| pod.restarts == 1));
}

#[test]
fn another_machine_is_kept_off_the_cluster() {
    let cluster = Cluster::start();
    cluster.workload("Deployment", 2);
    let holder = Holder {
        identity: "other".to_owned(),
        host: "ctl1".to_owned(),
        user: "ops".to_owned(),
        verb: "upgrade".to_owned(),
    };
    let api = Arc::clone(&cluster.api);
    let held = lease::hold(api, &holder, false, Outage::Fail, Times::default(), &|_| {}).unwrap();
    let new = set("3");
    let apply = ["apply", WEB[0], WEB[1], "--set", &new, "--template", "keep"];
    for command in [&apply[..], &["rollback", WEB[0], WEB[1]]] {
        let refused = cluster.elsewhere(command).fails(6).report();
        assert!(refused.contains("ops on ctl1 (`imgctl upgrade` since 20"), "{refused}");
    }
    held.check().unwrap();
    drop(held);
    assert!(cluster.pods().values().all(|pod| pod.image == image("1")));
    cluster.elsewhere(&apply).ok();
    assert!(cluster.pods().values().all(|pod| pod.image == image("3")));
}

#[test]
fn another_machine_goes_on_without_the_journal() {
    let cluster = Cluster::start();
    cluster.workload("Deployment", 2);
    let before = cluster.pods();
    let new = set("2");
    let words = [WEB[0], WEB[1], "--set", &new, "--template", "sync", "--id", "one"];
    let mut run = cluster.begin(&words);
    run.until_phase("patched", 1);
    run.kill();
    // That machine is gone for good: nobody waits for its Lease to expire.
    cluster.api.delete(LEASE, &Value::Null).unwrap();
    std::fs::remove_dir_all(cluster.env.path(".sealos")).unwrap();
    cluster.apply(&words).ok();
    let after = cluster.pods();
    assert_eq!(uids(&before), uids(&after));
    assert!(after.values().all(|pod| pod.image == image("2") && pod.restarts == 1), "{after:?}");
    assert_eq!(cluster.template("Deployment"), image("2"));
}
