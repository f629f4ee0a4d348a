//! Tests of drains with the stand-in.

use std::{sync::Mutex, time::Instant};

use serde_json::json;

use super::*;
use crate::api::ApiError;
use crate::testing::stand_in::StandIn;
use imgctl_base::error::Kind;

fn options() -> Options {
    Options {
        timeout: Duration::from_millis(400),
        poll: Duration::from_millis(5),
        retry: Duration::from_millis(10),
        ..Options::default()
    }
}

fn patient() -> Options {
    Options { timeout: Duration::from_secs(20), ..options() }
}

fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "spec": {"unschedulable": true},
    })
}

/// Returns a running and ready Pod of a ReplicaSet.
fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "labels": {"app": "a"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}],
        },
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "x:1"}]},
        "status": {
            "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "c", "state": {"running": {}}}],
        },
    })
}

fn replica_set(replicas: u64) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "r", "uid": "r"},
        "spec": {"replicas": replicas},
    })
}

fn budget(name: &str, least: u64) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "a"}}},
    })
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}

/// Drains Node `n`; returns the result and the reported events as lines.
fn run(api: &StandIn, options: &Options) -> (imgctl_base::error::Result<Drained>, Vec<String>) {
    let told = Mutex::new(Vec::new());
    let drained = drain(api, "n", options, &|event| {
        told.lock().unwrap().push(event.to_string());
    });
    (drained, told.into_inner().unwrap())
}

#[test]
fn those_that_can_go_go_and_the_others_stay() {
    let api = StandIn::new();
    let with = |name: &str, change: &dyn Fn(&mut Value)| {
        let mut pod = pod(name, "n");
        change(&mut pod);
        pod
    };
    api.add(node("n"))
        .add(json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"}}))
        .add(pod("one", "n"))
        .add(pod("elsewhere", "m"))
        .add(with("daemon", &|pod| {
            pod["metadata"]["ownerReferences"][0]["kind"] = json!("DaemonSet");
            pod["metadata"]["ownerReferences"][0]["name"] = json!("d");
        }))
        .add(with("static", &|pod| {
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        }))
        .add(with("done", &|pod| {
            pod["status"]["phase"] = json!("Succeeded");
            pod["metadata"]["ownerReferences"] = Value::Null;
        }));
    let (drained, told) = run(&api, &patient());
    assert_eq!(drained.unwrap().gone, 2);
    for line in [
        "Pod default/daemon stays: its DaemonSet would recreate it",
        "Pod default/static stays: it is a static Pod of the Node",
        "Pod default/one is evicted",
        "Pod default/one is gone",
        "Pod default/done is gone",
    ] {
        assert_eq!(told.iter().filter(|told| *told == line).count(), 1, "{told:?}");
    }
    for (name, is_there) in
        [("one", false), ("elsewhere", true), ("daemon", true), ("static", true)]
    {
        assert_eq!(api.peek(&path(name)).is_some(), is_there, "{name}");
    }
    let eviction = &api.writes()[0].body;
    assert_eq!(eviction["apiVersion"], "policy/v1");
    assert!(eviction["deleteOptions"]["preconditions"]["uid"].is_string());
    // A second drain has nothing to do.
    assert_eq!(run(&api, &patient()).0.unwrap(), Drained::default());
}

#[test]
fn nothing_is_touched_when_one_must_not_go() {
    let api = StandIn::new();
    let mut bare = pod("bare", "n");
    bare["metadata"]["ownerReferences"] = Value::Null;
    let mut local = pod("local", "n");
    local["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    api.add_all([node("n"), pod("one", "n"), bare, local]);
    let error = run(&api, &patient()).0.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    let text = error.to_string();
    assert!(text.starts_with("cannot drain Node n: "), "{text}");
    assert!(
        text.contains("Pod default/bare: no controller")
            && text.contains("Pod default/local: it has data"),
        "{text}"
    );
    assert!(api.writes().is_empty());
    let all = Options { force: true, delete_emptydir_data: true, grace: Some(7), ..patient() };
    let (drained, told) = run(&api, &all);
    assert_eq!(drained.unwrap().gone, 3);
    assert!(
        told.contains(&"Pod default/bare is evicted, no controller recreates it".to_owned()),
        "{told:?}"
    );
    assert_eq!(api.writes()[0].body["deleteOptions"]["gracePeriodSeconds"], 7);
}

#[test]
fn a_node_that_takes_pods_is_not_drained() {
    let api = StandIn::new();
    let mut node = node("n");
    node["spec"] = json!({});
    api.add(node).add(pod("one", "n"));
    let error = run(&api, &patient()).0.unwrap_err();
    assert!(error.to_string().contains("not cordoned"), "{error}");
    assert!(api.writes().is_empty());
}

#[test]
fn a_budget_is_waited_for() {
    let api = StandIn::new();
    api.add_all([node("n"), replica_set(2), budget("b", 2)]);
    api.add_all([pod("one", "n"), pod("two", "n")]);
    // A controller that slowly replaces each evicted Pod.
    api.react(|api, request| {
        if request.path.ends_with("/eviction") && request.code == 429 {
            let blocked = api.writes().len();
            if blocked.is_multiple_of(4) {
                api.add(pod(&format!("new{blocked}"), "m"));
            }
        }
    });
    let (drained, told) = run(&api, &patient());
    assert_eq!(drained.unwrap().gone, 2, "{told:?}");
    let waits: Vec<_> = told.iter().filter(|line| line.contains("waits")).collect();
    let expected = "waits: The disruption budget b needs 2 healthy pods and has 2 currently";
    assert!(waits.iter().all(|line| line.ends_with(expected)), "{told:?}");
    // Not once per attempt.
    assert_eq!(waits.len(), 2, "{told:?}");
    assert!(api.writes().len() > 6);
}

#[test]
fn a_budget_that_never_allows_it_is_named_when_time_is_over() {
    let api = StandIn::new();
    api.add_all([node("n"), replica_set(1), budget("b", 1), pod("one", "n")]);
    let (drained, told) = run(&api, &options());
    let error = drained.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("1 Pod is left after 0 s"), "{text}");
    assert!(
        text.contains("Pod default/one: The disruption budget b needs 1 healthy pods and has 1 currently (PodDisruptionBudget default/b allows 0 disruptions: 1 of at least 1 Pods are healthy, 1 expected)"),
        "{text}"
    );
    assert!(error.hints()[0].contains("--drain-on-timeout"));
    assert!(told.last().unwrap().starts_with("Pod default/one is still there"), "{told:?}");
    assert!(api.peek(&path("one")).is_some());
}

#[test]
fn on_timeout_delete_goes_past_budgets_and_wait_goes_on() {
    let api = StandIn::new();
    api.add_all([node("n"), replica_set(1), budget("b", 1), pod("one", "n")]);
    let delete =
        Options { on_timeout: OnTimeout::Delete, timeout: Duration::from_millis(60), ..options() };
    let (drained, told) = run(&api, &delete);
    let drained = drained.unwrap();
    assert_eq!((drained.gone, drained.forced.len()), (1, 1));
    assert!(told.contains(&"Pod default/one is deleted".to_owned()), "{told:?}");
    let last = api.writes().pop().unwrap();
    assert_eq!(last.verb, "delete");
    assert!(last.body["preconditions"]["uid"].is_string());

    api.add(pod("two", "n"));
    let begun = Instant::now();
    api.react(move |api, _| {
        if begun.elapsed() > Duration::from_millis(200) {
            api.remove("/apis/policy/v1/namespaces/default/poddisruptionbudgets/b");
        }
    });
    let wait = Options { on_timeout: OnTimeout::Wait, ..delete };
    let (drained, told) = run(&api, &wait);
    assert_eq!(drained.unwrap().gone, 1);
    assert_eq!(told.iter().filter(|line| line.contains("still there")).count(), 1, "{told:?}");
}

#[test]
fn two_budgets_fail_at_once() {
    let api = StandIn::new();
    api.add_all([node("n"), budget("b", 0), budget("c", 0), pod("one", "n")]);
    let begun = Instant::now();
    let error = run(&api, &patient()).0.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(5));
    let text = error.to_string();
    assert!(text.contains("Pod default/one can never be evicted"), "{text}");
    assert!(text.contains("default/b allows") && text.contains("default/c allows"), "{text}");
}

#[test]
fn a_stateful_pod_that_comes_back_is_another_one() {
    let api = StandIn::new();
    let mut stateful = pod("db-0", "n");
    stateful["metadata"]["ownerReferences"][0]["kind"] = json!("StatefulSet");
    api.add_all([node("n"), stateful.clone()]);
    let first = api.peek(&path("db-0")).unwrap()["metadata"]["uid"].clone();
    // The controller recreates it elsewhere as soon as it is gone.
    api.react(move |api, request| {
        if request.verb == "list" && api.peek(&path("db-0")).is_none() {
            let mut again = stateful.clone();
            again["spec"]["nodeName"] = json!("m");
            api.add(again);
        }
    });
    let (drained, told) = run(&api, &patient());
    assert_eq!(drained.unwrap().gone, 1, "{told:?}");
    let again = api.peek(&path("db-0")).unwrap();
    assert_ne!(again["metadata"]["uid"], first);
    assert_eq!(again["spec"]["nodeName"], "m");
}

#[test]
fn a_pod_that_was_replaced_while_we_asked_is_left_alone() {
    let api = StandIn::new();
    api.add_all([node("n"), pod("one", "n")]);
    let mut other = pod("one", "m");
    other["metadata"]["uid"] = json!("another");
    let raced = std::sync::atomic::AtomicBool::new(false);
    api.react(move |api, request| {
        let is_look = request.path.starts_with("/api/v1/pods");
        if is_look && !raced.swap(true, std::sync::atomic::Ordering::SeqCst) {
            api.add(other.clone());
        }
    });
    let (drained, told) = run(&api, &patient());
    assert_eq!(drained.unwrap().gone, 1, "{told:?}");
    assert_eq!(api.peek(&path("one")).unwrap()["metadata"]["uid"], "another");
}

#[test]
fn a_pod_that_does_not_end_is_named_with_its_reason() {
    let api = StandIn::new();
    let mut held = pod("held", "n");
    held["metadata"]["finalizers"] = json!(["x.io/hold"]);
    api.without_kubelets();
    api.add_all([node("n"), held, pod("stuck", "n")]);
    let text = run(&api, &options()).0.unwrap_err().to_string();
    assert!(text.contains("2 Pods are left"), "{text}");
    assert!(text.contains("Pod default/held: it should have terminated by 2026-01-01T00:10:00Z, but finalizers block it: x.io/hold"), "{text}");
    assert!(text.contains("Pod default/stuck: it should have terminated by 2026-01-01T00:10:00Z; these containers do not stop: c"), "{text}");
    // After an interruption, a second call sends no new requests.
    let asked = api.writes().len();
    assert!(run(&api, &options()).0.is_err());
    assert_eq!(api.writes().len(), asked);
    api.remove(&path("stuck"));
    api.change(&path("held"), |pod| {
        pod["metadata"]["finalizers"] = json!([]);
    });
    api.remove(&path("held"));
    assert_eq!(run(&api, &options()).0.unwrap().gone, 0);
}

#[test]
fn a_namespace_that_goes_is_waited_for() {
    let api = StandIn::new();
    api.add_all([node("n"), pod("one", "n")]);
    api.add(json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"},
        "status": {"phase": "Terminating"},
    }));
    api.react(|api, request| {
        if request.is_write() && api.writes().len() == 5 {
            api.remove(&path("one"));
        }
    });
    let (drained, told) = run(&api, &patient());
    assert_eq!(drained.unwrap().gone, 1);
    assert!(
        told.contains(&"Pod default/one waits: namespace default is being terminated".to_owned()),
        "{told:?}"
    );
}

#[test]
fn an_api_that_is_away_for_a_moment_is_endured_and_a_refusal_is_not() {
    let api = StandIn::new();
    api.add_all([node("n"), pod("one", "n")]);
    for _ in 0..3 {
        api.fail_next("list", "fieldSelector", ApiError::default());
        let error =
            ApiError { code: 503, message: "etcd is away".to_owned(), ..ApiError::default() };
        api.fail_next("create", "eviction", error);
    }
    let (drained, told) = run(&api, &patient());
    assert_eq!(drained.unwrap().gone, 1);
    assert!(told.contains(&"Pod default/one waits: etcd is away".to_owned()), "{told:?}");
    api.add(pod("two", "n"));
    let error = ApiError {
        code: 403,
        reason: "Forbidden".to_owned(),
        message: "no".to_owned(),
        ..ApiError::default()
    };
    api.fail_next("create", "eviction", error);
    let error = run(&api, &patient()).0.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.to_string().contains("Pod default/two cannot be evicted"), "{error}");
}

#[test]
fn old_servers_get_the_old_eviction() {
    struct Old(StandIn);
    impl Api for Old {
        fn raw(&self, path: &str) -> Answer<Vec<u8>> {
            self.0.raw(path)
        }
        fn get(&self, path: &str) -> Answer<Value> {
            match path {
                "/version" => Ok(json!({"major": "1", "minor": "21+"})),
                path => self.0.get(path),
            }
        }
        fn list(&self, path: &str) -> Answer<Vec<Value>> {
            self.0.list(path)
        }
        fn create(&self, path: &str, object: &Value) -> Answer<Value> {
            self.0.create(path, object)
        }
        fn replace(&self, path: &str, object: &Value) -> Answer<Value> {
            self.0.replace(path, object)
        }
        fn patch(&self, path: &str, kind: crate::api::PatchKind, patch: &Value) -> Answer<Value> {
            self.0.patch(path, kind, patch)
        }
        fn delete(&self, path: &str, options: &Value) -> Answer<Value> {
            self.0.delete(path, options)
        }
    }
    let api = Old(StandIn::new());
    api.0.add_all([node("n"), pod("one", "n")]);
    drain(&api, "n", &patient(), &|_| {}).unwrap();
    assert_eq!(api.0.writes()[0].body["apiVersion"], "policy/v1beta1");
}

#[test]
fn a_hundred_pods_need_few_questions() {
    let api = StandIn::new();
    api.add(node("n"));
    api.add_all((0..110).map(|number| pod(&format!("p{number}"), "n")));
    assert_eq!(run(&api, &patient()).0.unwrap().gone, 110);
    assert_eq!(api.writes().len(), 110);
    assert!(api.requests().len() < 110 + 10, "{}", api.requests().len());
}

#[test]
fn budgets_in_the_way_are_seen_before() {
    let api = StandIn::new();
    let mut single = pod("single", "n");
    single["metadata"]["labels"] = json!({"app": "single"});
    let mut sick = pod("sick", "n");
    sick["metadata"]["labels"] = json!({"app": "sick"});
    sick["status"]["conditions"][0]["status"] = json!("False");
    let mut tolerated = sick.clone();
    tolerated["metadata"]["name"] = json!("tolerated");
    tolerated["metadata"]["labels"] = json!({"app": "tolerated"});
    let selecting = |name: &str, app: &str| {
        let mut budget = budget(name, 1);
        budget["spec"]["selector"]["matchLabels"]["app"] = json!(app);
        budget
    };
    let mut lenient = selecting("lenient", "tolerated");
    lenient["spec"]["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
    api.add_all([pod("one", "n"), pod("two", "n"), single, sick, tolerated]);
    api.add_all([
        budget("fine", 1),
        selecting("tight", "single"),
        selecting("ill", "sick"),
        lenient,
    ]);
    let pods = api.list("/api/v1/pods").unwrap();
    let told = |api: &StandIn| -> Vec<String> {
        let budgets = api.list("/apis/policy/v1/poddisruptionbudgets").unwrap();
        let problems = blocked(&budgets, &pods);
        problems.iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        told(&api),
        [
            "PodDisruptionBudget default/ill allows no eviction ever (0 Pods are healthy, 1 must be, 1 are expected): default/sick",
            "PodDisruptionBudget default/tight allows no eviction ever (1 Pods are healthy, 1 must be, 1 are expected): default/single",
        ]
    );
    api.freeze_budgets();
    api.add(budget("second", 0));
    api.change("/apis/policy/v1/namespaces/default/poddisruptionbudgets/tight", |budget| {
        budget["metadata"]["generation"] = json!(2);
    });
    let told = told(&api);
    assert!(told.contains(&"PodDisruptionBudget default/tight was changed and its controller has not observed it yet".to_owned()), "{told:?}");
    assert!(told.contains(&"Pod default/one can never be evicted: more than one PodDisruptionBudget selects it (default/fine, default/second)".to_owned()), "{told:?}");
}
