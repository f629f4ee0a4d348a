//! Templates that follow, or stay behind.

use serde_json::json;

use crate::inplace::cluster::{Cluster, WEB, image, set, uids};

fn follows_without_new_pods(kind: &str) {
    let cluster = Cluster::start();
    cluster.workload(kind, 2);
    let before = cluster.pods();
    let strategy = cluster.web(kind)["spec"]["updateStrategy"].clone();
    let name = format!("{}/shop/web", kind.to_lowercase());
    let words = ["--workload", &name, "--set", &set("2"), "--template", "sync", "--id", "one"];
    cluster.apply(&words).ok();
    let after = cluster.pods();
    assert_eq!(uids(&before), uids(&after));
    assert!(after.values().all(|pod| pod.image == image("2") && pod.restarts == 1), "{after:?}");
    assert_eq!(cluster.template(kind), image("2"));
    let web = cluster.web(kind);
    assert_eq!(web["spec"]["updateStrategy"], strategy);
    let status = &web["status"];
    let updated = match kind {
        "DaemonSet" => &status["updatedNumberScheduled"],
        _ => &status["updatedReplicas"],
    };
    assert_eq!(*updated, 2, "{status}");
    cluster.inplace(&["status"]).ok();
    // Back to a revision that is there already.
    cluster.inplace(&["rollback", "--id", "one", "--bake", "0s", "--yes"]).ok();
    let back = cluster.pods();
    assert_eq!(uids(&before), uids(&back));
    assert!(back.values().all(|pod| pod.image == image("1")), "{back:?}");
    assert_eq!(cluster.template(kind), image("1"));
    assert_eq!(cluster.web(kind)["spec"]["updateStrategy"], strategy);
}

#[test]
fn a_stateful_set_follows_without_new_pods() {
    follows_without_new_pods("StatefulSet");
}

#[test]
fn a_daemon_set_follows_without_new_pods() {
    follows_without_new_pods("DaemonSet");
}

/// Killed between holding the Pods back and letting them go, whatever it had done by then.
fn survives_a_kill(kind: &str) {
    let cluster = Cluster::start();
    cluster.workload(kind, 2);
    let before = cluster.pods();
    let strategy = cluster.web(kind)["spec"]["updateStrategy"].clone();
    let name = format!("{}/shop/web", kind.to_lowercase());
    let words = [
        "--workload",
        &name,
        "--set",
        &set("2"),
        "--template",
        "sync",
        "--id",
        "one",
        "--batch",
        "100%",
    ];
    let mut run = cluster.begin(&words);
    run.until_phase("ready", 1);
    // No controller sees what comes now: the run waits for it with the Pods held back.
    cluster.actors.sleep(true);
    run.until_phase("ready", 1);
    let annotation = |name: &str| cluster.web(kind)["metadata"]["annotations"][name].clone();
    cluster.until("its Pods are held back", || annotation("imgctl.io/inplace-restore").is_string());
    run.kill();
    cluster.actors.sleep(false);
    // Nothing rolls meanwhile, and it is told.
    cluster.actors.act();
    assert_eq!(uids(&before), uids(&cluster.pods()));
    let status = cluster.inplace(&["status", "--json"]).fails(10).json();
    assert_eq!(status["workloads"][0]["unfinished"], "one", "{status}");
    // Another run keeps away.
    let others = ["--workload", &name, "--set", &set("3"), "--template", "sync", "--id", "two"];
    let refused = cluster.apply(&others).fails(10);
    assert!(refused.report().contains("--id one"), "{}", refused.report());

    cluster.apply(&["--id", "one"]).ok();
    let after = cluster.pods();
    assert_eq!(uids(&before), uids(&after));
    assert!(after.values().all(|pod| pod.image == image("2") && pod.restarts == 1), "{after:?}");
    assert_eq!(cluster.template(kind), image("2"));
    let web = cluster.web(kind);
    assert_eq!(web["spec"]["updateStrategy"], strategy);
    assert!(web["spec"]["paused"] != true, "{web}");
    cluster.inplace(&["status"]).ok();
}

#[test]
fn a_deployment_that_is_left_paused_is_finished() {
    survives_a_kill("Deployment");
}

#[test]
fn a_stateful_set_that_is_left_held_is_finished() {
    survives_a_kill("StatefulSet");
}

#[test]
fn a_daemon_set_that_is_left_held_is_finished() {
    survives_a_kill("DaemonSet");
}

#[test]
fn a_template_that_stays_is_drift() {
    let cluster = Cluster::start();
    cluster.workload("Deployment", 2);
    cluster.inplace(&["status"]).ok();
    cluster.apply(&[WEB[0], WEB[1], "--set", &set("2"), "--template", "keep", "--id", "one"]).ok();
    assert_eq!(cluster.template("Deployment"), image("1"));
    let drift = |pods: serde_json::Value| {
        let status = cluster.inplace(&["status", "--json"]).fails(10).json();
        let expected = json!([{
            "kind": "Deployment", "namespace": "shop", "name": "web", "kept": "one",
            "containers": [{"name": "app", "template": image("1"), "pods": pods}],
        }]);
        assert_eq!(status["workloads"], expected);
        assert_eq!(status["runs"], json!(["one"]));
    };
    drift(json!({image("2"): 2}));
    // The former image comes back with every Pod that is made anew.
    let gone = cluster.pods().into_keys().next().unwrap();
    let uid = cluster.pods()[&gone].uid.clone();
    cluster.delete(&gone);
    cluster.until("it is made anew", || {
        let pods = cluster.pods();
        pods.len() == 2 && pods.values().all(|pod| pod.ready && pod.uid != uid)
    });
    drift(json!({image("1"): 1, image("2"): 1}));
    // Text for people.
    let text = cluster.inplace(&["status"]).fails(10);
    assert!(text.stdout().contains("one (kept)"), "{}", text.report());
    // The template may still follow, with the Pod that came.
    cluster.apply(&[WEB[0], WEB[1], "--set", &set("2"), "--template", "sync", "--id", "two"]).ok();
    assert_eq!(cluster.template("Deployment"), image("2"));
    cluster.inplace(&["status"]).ok();
}
