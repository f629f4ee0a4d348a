//! Tests of the stand-in itself; `recorded.rs` compares it with the answers of a real API server.

use super::*;

fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "a"}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "x:1"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

fn budget(name: &str, least: i64) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "a"}}},
    })
}

fn evict(api: &StandIn, name: &str) -> Answer<Value> {
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": name, "namespace": "default"},
    });
    let path = format!("/api/v1/namespaces/default/pods/{name}/eviction");
    api.create(&path, &eviction)
}

#[test]
fn objects_are_found_by_labels_and_fields() {
    let api = StandIn::new();
    api.add(pod("one", "n1")).add(pod("two", "n2"));
    let names = |path: &str| -> Vec<String> {
        let found = api.list(path).unwrap();
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        found.iter().map(name).collect()
    };
    assert_eq!(names("/api/v1/pods"), ["one", "two"]);
    assert_eq!(names("/api/v1/pods?fieldSelector=spec.nodeName%3Dn2"), ["two"]);
    assert_eq!(
        names("/api/v1/namespaces/default/pods?labelSelector=app in (a,b),!x"),
        ["one", "two"]
    );
    assert!(names("/api/v1/pods?labelSelector=app!=a").is_empty());
    assert!(names("/api/v1/namespaces/other/pods").is_empty());
    assert_eq!(api.requests().len(), 5);
    assert!(api.writes().is_empty());
}

#[test]
fn budgets_are_spent_and_refilled() {
    let api = StandIn::new();
    api.add(pod("one", "n")).add(pod("two", "n")).add(budget("b", 1));
    evict(&api, "one").unwrap();
    let refusal = evict(&api, "two").unwrap_err();
    assert_eq!((refusal.code, refusal.reason.as_str()), (429, "TooManyRequests"));
    assert_eq!(
        refusal.causes[0].1,
        "The disruption budget b needs 1 healthy pods and has 1 currently"
    );
    api.add(pod("three", "n"));
    evict(&api, "two").unwrap();
    assert!(api.get("/api/v1/namespaces/default/pods/two").unwrap_err().is_not_found());
    api.add(budget("c", 0));
    assert_eq!(evict(&api, "three").unwrap_err().code, 500);
}

#[test]
fn patches_test_and_versions_conflict() {
    let api = StandIn::new();
    api.add(pod("one", "n"));
    let path = "/api/v1/namespaces/default/pods/one";
    let old = api.get(path).unwrap();
    let change = |from: &str, to: &str| {
        json!([
            {"op": "test", "path": "/spec/containers/0/image", "value": from},
            {"op": "replace", "path": "/spec/containers/0/image", "value": to},
            {"op": "add", "path": "/metadata/annotations", "value": {"a/b": "1"}},
        ])
    };
    let new = api.patch(path, PatchKind::Json, &change("x:1", "x:2")).unwrap();
    assert_eq!(new["spec"]["containers"][0]["image"], "x:2");
    assert_eq!(new["metadata"]["generation"], 2);
    let error = api.patch(path, PatchKind::Json, &change("x:1", "x:3")).unwrap_err();
    assert!(error.is_conflict() && error.code == 422);
    let error = api.replace(path, &old).unwrap_err();
    assert!(error.is_conflict() && error.code == 409);
    let error =
        api.patch(path, PatchKind::Merge, &json!({"spec": {"nodeName": "other"}})).unwrap_err();
    assert!(error.message.contains("pod updates may not change fields"), "{error}");
    let strategic = json!({"spec": {"containers": [{"name": "c", "image": "x:4"}]}});
    let new = api.patch(path, PatchKind::Strategic, &strategic).unwrap();
    assert_eq!(new["spec"]["containers"], json!([{"name": "c", "image": "x:4"}]));
    // A patch without changes does not create a new version.
    let same = api.patch(path, PatchKind::Strategic, &strategic).unwrap();
    assert_eq!(same["metadata"]["resourceVersion"], new["metadata"]["resourceVersion"]);
}

#[test]
fn reactions_play_controllers_and_failures_are_injected() {
    let api = StandIn::new();
    api.add(pod("one", "n")).react(|api, request| {
        if request.verb == "patch" {
            api.change("/api/v1/namespaces/default/pods/one", |pod| {
                pod["status"]["phase"] = json!("Failed");
            });
        }
    });
    let path = "/api/v1/namespaces/default/pods/one";
    api.fail_next("get", "pods/one", ApiError::default());
    assert_eq!(api.get(path).unwrap_err().code, 0);
    let labels = json!({"metadata": {"labels": {"x": "y"}}});
    api.patch(path, PatchKind::Merge, &labels).unwrap();
    assert_eq!(api.get(path).unwrap()["status"]["phase"], "Failed");
    assert_eq!(api.writes().len(), 1);
}

#[test]
fn admission_changes_pods_before_they_are_kept() {
    let api = StandIn::new();
    api.admit(|pod| pod["metadata"]["labels"]["seen"] = json!("yes"));
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": []}});
    let kept = api.create(pods, &pod).unwrap();
    assert_eq!(kept["metadata"]["labels"]["seen"], "yes");
    let path = format!("{pods}/a");
    let patch = json!({"metadata": {"labels": {"seen": "no"}}});
    let kept = api.patch(&path, PatchKind::Merge, &patch).unwrap();
    assert_eq!(kept["metadata"]["labels"]["seen"], "yes");
    // Admission does not apply to status updates.
    let status = json!({"status": {"phase": "Running"}});
    api.patch(&format!("{path}/status"), PatchKind::Merge, &status).unwrap();
    assert_eq!(api.peek(&path).unwrap()["status"]["phase"], "Running");
}
