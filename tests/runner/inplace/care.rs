//! What is refused, and what only happens when it is asked for.

use serde_json::json;

use crate::inplace::cluster::{Cluster, WEB, container, image, set};

#[test]
fn a_budget_that_allows_nothing_refuses_the_plan() {
    let cluster = Cluster::start();
    cluster.workload("Deployment", 2);
    let path = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets";
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "all", "namespace": "shop"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
    });
    cluster.api.create(path, &budget).unwrap();
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 0,
        "currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 2}});
    let _ = cluster.api.patch(
        &format!("{path}/all/status"),
        crate::inplace::kube::api::PatchKind::Merge,
        &status,
    );
    let words = [WEB[0], WEB[1], "--set", &set("2"), "--template", "keep"];
    let plan = [&["plan"], &words[..]].concat();
    let ran = cluster.inplace(&plan).fails(10);
    assert!(
        ran.stdout().contains("PodDisruptionBudget shop/all: it never allows"),
        "{}",
        ran.report()
    );
    cluster.apply(&words).fails(10);
    assert!(cluster.pods().values().all(|pod| pod.restarts == 0));
}

#[test]
fn one_replica_and_templates_are_asked_about() {
    let cluster = Cluster::start();
    cluster.workload("Deployment", 1);
    let new = set("2");
    let plan = |more: &[&str]| {
        let words = [&["plan", WEB[0], WEB[1], "--set", &new], more].concat();
        cluster.inplace(&words)
    };
    let ran = plan(&["--template", "keep"]).fails(10);
    assert!(ran.stdout().contains("--allow-single-replica"), "{}", ran.report());
    let ran = plan(&["--allow-single-replica"]).fails(10);
    assert!(ran.stdout().contains("--template sync"), "{}", ran.report());
    plan(&["--allow-single-replica", "--template", "sync"]).ok();
    // Nobody is there who could be asked.
    let words = [
        "apply",
        WEB[0],
        WEB[1],
        "--set",
        &set("2"),
        "--template",
        "sync",
        "--allow-single-replica",
    ];
    let ran = cluster.inplace(&words).fails(2);
    assert!(ran.stderr().contains("--yes"), "{}", ran.report());
    assert!(cluster.pods().values().all(|pod| pod.restarts == 0));
}

#[test]
fn init_containers_and_sidecars_are_asked_for() {
    let cluster = Cluster::start();
    let mut sidecar = container("proxy");
    sidecar["restartPolicy"] = json!("Always");
    cluster.bare_pod("lone", &json!({"initContainers": [container("setup"), sidecar]}));
    let with = |verb: &str, container: &str, more: &[&str]| {
        let new = format!("{container}={}", image("2"));
        let words = [&[verb, "-n", "shop", "--pods", "lone", "--set", &new][..], more].concat();
        cluster.inplace(&words)
    };
    let ran = with("plan", "setup", &[]).fails(10);
    let text = ran.stdout();
    assert!(text.contains("no effect until the Pod is recreated"), "{text}");
    let ran = with("plan", "proxy", &[]).fails(10);
    assert!(ran.stdout().contains("--include-sidecars"), "{}", ran.report());
    let ran = with("plan", "nobody", &[]).fails(10);
    assert!(ran.stdout().contains("it has no container `nobody`"), "{}", ran.report());
    with("apply", "setup", &["--include-init", "--bake", "0s"]).ok();
    let pod = cluster.pod("lone");
    assert_eq!(pod["spec"]["initContainers"][0]["image"], image("2").as_str());
    assert_eq!(cluster.pods()["lone"].restarts, 0);
}

#[test]
fn a_stale_plan_is_refused() {
    let cluster = Cluster::start();
    cluster.workload("Deployment", 2);
    let words = [WEB[0], WEB[1], "--set", &set("2"), "--template", "keep"];
    let plan = [&["plan", "--json"], &words[..]].concat();
    let digest = cluster.inplace(&plan).ok().json()["digest"].clone();
    let digest = digest.as_str().unwrap();
    let first = cluster.pods().into_keys().next().unwrap();
    cluster.set_image(&first, &image("theirs"));
    let with = |digest: &str| cluster.apply(&[&words[..], &["--plan-digest", digest]].concat());
    let ran = with(digest).fails(10);
    assert!(ran.stderr().contains("the plan is stale"), "{}", ran.report());
    cluster.set_image(&first, &image("1"));
    cluster.until("it is ready", || cluster.ready() == 2);
    with(digest).ok();
}

#[test]
fn a_pod_leaves_its_services_before_it_restarts() {
    let cluster = Cluster::start();
    let gates = json!([{"conditionType": "InPlaceUpdateReady"}]);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "lone", "namespace": "shop", "labels": {"app": "bare"}},
        "spec": {"nodeName": "n1", "containers": [container("app")], "readinessGates": gates},
    });
    cluster.api.create("/api/v1/namespaces/shop/pods", &pod).unwrap();
    let gate = |wanted: &str| {
        let pod = cluster.pod("lone");
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let mut all = conditions.iter();
        all.any(|one| one["type"] == "InPlaceUpdateReady" && one["status"] == wanted)
    };
    let open =
        json!({"status": {"conditions": [{"type": "InPlaceUpdateReady", "status": "True"}]}});
    cluster
        .api
        .patch(
            "/api/v1/namespaces/shop/pods/lone/status",
            crate::inplace::kube::api::PatchKind::Strategic,
            &open,
        )
        .unwrap();
    cluster.until("it is ready", || cluster.ready() == 1);
    // An endpoint that is not taken away: the run waits for that.
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-x", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "name": "lone", "namespace": "shop", "uid": cluster.pods()["lone"].uid}}],
    });
    let slices = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
    cluster.api.create(slices, &slice).unwrap();
    let mut run =
        cluster.begin(&["-n", "shop", "--pods", "lone", "--set", &set("2"), "--pre-pull", "none"]);
    run.until_phase("intent", 1);
    cluster.until("the gate is closed", || gate("False"));
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(cluster.pods()["lone"].image, image("1"), "it still serves");
    cluster.api.delete(&format!("{slices}/web-x"), &serde_json::Value::Null).unwrap();
    assert_eq!(run.end(), Some(0));
    assert!(gate("True"));
    let pod = &cluster.pods()["lone"];
    assert_eq!((&pod.image, pod.restarts, pod.ready), (&image("2"), 1, true));
}
