//! Plans carried out: what changes, what does not, and what stops a run.

use serde_json::json;

use crate::inplace::cluster::{Cluster, WEB, events, image, set, uids};

#[test]
fn a_deployment_follows_its_pods_and_goes_back() {
    let cluster = Cluster::start();
    cluster.workload("Deployment", 3);
    let before = cluster.pods();
    let page = cluster.env.path("one.html");
    let report = ["--report", page.to_str().unwrap()];
    let two = set("2");
    let planned = ["plan", WEB[0], WEB[1], "--set", &two, "--template", "sync"];
    cluster.inplace(&[&planned[..], &report].concat()).ok();
    let plan = std::fs::read_to_string(&page).unwrap();
    assert!(plan.contains("batch 2") && plan.contains(&image("2")), "{plan}");
    let change = [WEB[0], WEB[1], "--set", &two, "--template", "sync", "--id", "one"];
    let ran = cluster.apply(&[&change[..], &report].concat());
    let last = events(&ran.ok()).pop().unwrap();
    assert_eq!(
        (&last["event"], &last["changed"], &last["templates"]),
        (&json!("end"), &json!(3), &json!(1))
    );
    let after = cluster.pods();
    assert_eq!(uids(&before), uids(&after));
    for (name, pod) in &after {
        assert_eq!((pod.restarts, pod.ready), (1, true), "{name}");
        assert_eq!(pod.image, image("2"));
        assert_ne!(pod.image_id, before[name].image_id);
    }
    assert_eq!(cluster.template("Deployment"), image("2"));
    let web = cluster.web("Deployment");
    assert!(web["spec"]["paused"] != true, "{web}");
    assert!(web["metadata"]["annotations"].get("imgctl.io/inplace-restore").is_none());
    cluster.inplace(&["status"]).ok();

    // The page of the run compares what each container did with the plan.
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("Predicted and actual restarts") && html.contains("inplace apply"));
    let run = cluster.env.imgctl(["--json", "report", "run", "one"]).ok().json();
    assert_eq!(run["run"]["state"], "done", "{run}");
    let sum = |member: &str| -> u64 {
        let nodes = run["restarts"].as_array().unwrap().iter();
        nodes.map(|node| node[member].as_array().map_or(0, Vec::len) as u64).sum()
    };
    assert_eq!((sum("agreed"), sum("others")), (3, 0), "{run}");
    let agreed = run["restarts"][0]["asPredicted"].as_u64().unwrap();
    assert!(agreed >= 2, "the container beside it kept running: {run}");

    // What is added has the new image, and is no new rollout.
    cluster.change_web("Deployment", &json!({"spec": {"replicas": 4}}));
    cluster.until("four are ready", || cluster.ready() == 4);
    let four = cluster.pods();
    assert!(four.values().all(|pod| pod.image == image("2")), "{four:?}");
    assert!(uids(&after).iter().all(|uid| uids(&four).contains(uid)));

    cluster.inplace(&["rollback", "--id", "one", "--bake", "0s", "--yes"]).ok();
    let back = cluster.pods();
    assert_eq!(uids(&four), uids(&back));
    assert!(back.values().all(|pod| pod.image == image("1") && pod.ready), "{back:?}");
    assert_eq!(cluster.template("Deployment"), image("1"));
    cluster.inplace(&["status"]).ok();
}

#[test]
fn a_bad_image_stops_at_the_canary() {
    let cluster = Cluster::start();
    cluster.workload("Deployment", 3);
    let before = cluster.pods();
    // Nobody pulls beforehand, which would have found out.
    let words = [WEB[0], WEB[1], "--set", &set("bad"), "--template", "keep", "--pre-pull", "none"];
    let ran = cluster.apply(&words).fails(1);
    assert!(ran.stderr().contains("ImagePullBackOff"), "{}", ran.report());
    cluster.until("all are ready again", || cluster.ready() == 3);
    let after = cluster.pods();
    assert_eq!(uids(&before), uids(&after));
    assert!(after.values().all(|pod| pod.image == image("1")), "{after:?}");
    assert_eq!(after.values().map(|pod| pod.restarts).sum::<u64>(), 1, "{after:?}");
    // A container that does not stay.
    let words = [WEB[0], WEB[1], "--set", &set("crash"), "--template", "keep"];
    let ran = cluster.apply(&words).fails(1);
    assert!(ran.stderr().contains("CrashLoopBackOff"), "{}", ran.report());
    assert!(cluster.pods().values().all(|pod| pod.image == image("1")));
}

#[test]
fn all_batches_go_back_when_that_is_said() {
    let cluster = Cluster::start();
    cluster.bare_pod("a-well", &json!({}));
    // This one's Node cannot have the image.
    cluster.bare_pod("b-ill", &json!({"nodeName": "n2"}));
    let words = |more: &'static [&'static str]| {
        let mut words =
            vec!["-n", "shop", "--selector", "app=bare", "--pre-pull", "none", "--batch", "1,100%"];
        words.extend(more);
        words
    };
    let bad = set("absent-on-n2");
    let with = |more: &'static [&'static str]| {
        let mut words = words(more);
        words.extend(["--set", &bad]);
        cluster.apply(&words)
    };
    with(&[]).fails(1);
    let pods = cluster.pods();
    assert_eq!(pods["a-well"].image, image("absent-on-n2"), "earlier batches stay");
    assert_eq!(pods["b-ill"].image, image("1"));
    cluster.set_image("a-well", &image("1"));
    cluster.until("both are ready", || cluster.ready() == 2);
    with(&["--rollback-all"]).fails(1);
    let pods = cluster.pods();
    assert!(pods.values().all(|pod| pod.image == image("1")), "{pods:?}");
}

#[test]
fn what_has_the_image_is_left_alone() {
    let cluster = Cluster::start();
    cluster.workload("Deployment", 2);
    let ran = cluster.apply(&[WEB[0], WEB[1], "--set", &set("1"), "--template", "sync"]).ok();
    assert_eq!(events(&ran).pop().unwrap()["changed"], 0);
    if let Some(api) = cluster.stand_in() {
        let mut writes = api.writes().into_iter();
        let ours = writes.find(|one| {
            !one.path.contains("/leases") && one.body.to_string().contains("imgctl.io")
        });
        assert!(ours.is_none(), "{ours:?}");
    }
    assert!(cluster.pods().values().all(|pod| pod.restarts == 0));
}

#[test]
fn a_node_that_cannot_pull_stops_all() {
    let cluster = Cluster::start();
    cluster.workload("Deployment", 3);
    let words = [WEB[0], WEB[1], "--set", &set("absent-on-n2"), "--template", "keep"];
    let ran = cluster.apply(&words).fails(10);
    let text = ran.stderr();
    assert!(text.contains("Node n2") && text.contains("nothing was changed"), "{text}");
    let pods = cluster.pods();
    assert_eq!(pods.len(), 3, "Pods that pull are gone: {pods:?}");
    assert!(pods.values().all(|pod| pod.restarts == 0 && pod.image == image("1")));
}

#[test]
fn pods_that_come_meanwhile_are_changed_too() {
    let cluster = Cluster::start();
    cluster.workload("Deployment", 2);
    let words = [WEB[0], WEB[1], "--set", &set("2"), "--template", "sync", "--batch", "1"];
    let mut run = cluster.begin(&words);
    run.until_phase("patched", 1);
    cluster.change_web("Deployment", &json!({"spec": {"replicas": 4}}));
    assert_eq!(run.end(), Some(0));
    cluster.until("four are ready", || cluster.ready() == 4);
    let pods = cluster.pods();
    assert!(pods.values().all(|pod| pod.image == image("2")), "{pods:?}");
    assert_eq!(cluster.template("Deployment"), image("2"));
}

#[test]
fn a_pod_that_somebody_edits_keeps_what_they_made_of_it() {
    let cluster = Cluster::start();
    cluster.workload("Deployment", 3);
    let words = [WEB[0], WEB[1], "--set", &set("2"), "--template", "keep", "--batch", "1,100%"];
    let mut run = cluster.begin(&words);
    run.until_phase("patched", 1);
    let others = cluster.pods();
    let (other, _) = others.iter().find(|(_, pod)| pod.image == image("1")).unwrap();
    cluster.set_image(other, &image("theirs"));
    assert_eq!(run.end(), Some(10));
    let pods = cluster.pods();
    assert_eq!(pods[other].image, image("theirs"));
    let ours = pods.values().filter(|pod| pod.image == image("2"));
    assert_eq!(ours.count(), 2, "{pods:?}");
}

#[test]
fn cpu_and_memory_change_without_a_restart() {
    let cluster = Cluster::start();
    let amounts =
        json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}});
    let mut app = crate::inplace::cluster::container("app");
    app["resources"] = amounts;
    cluster.bare_pod("lone", &json!({"containers": [app]}));
    let pods = ["-n", "shop", "--pods", "lone", "--pre-pull", "none"];
    let with = |amount: &str| {
        let mut words = pods.to_vec();
        words.extend(["--resize", amount]);
        cluster.apply(&words)
    };
    with("app=requests.cpu=200m,limits.memory=256Mi").ok();
    let has = &cluster.pod("lone")["spec"]["containers"][0]["resources"];
    assert_eq!(
        (&has["requests"]["cpu"], &has["limits"]["memory"]),
        (&json!("200m"), &json!("256Mi"))
    );
    assert_eq!(cluster.pods()["lone"].restarts, 0);
    // What no Node has.
    let ran = with("app=requests.cpu=999").fails(1);
    assert!(ran.stderr().contains("Infeasible"), "{}", ran.report());
    assert_eq!(
        cluster.pod("lone")["spec"]["containers"][0]["resources"]["requests"]["cpu"],
        "200m"
    );
    // What it does not have.
    with("app=limits.cpu=1").fails(10);
}
