//! Probe Pods against a stand-in API, with a scheduler and a kubelet that are well or not; the script with
//! a real shell.

use std::process::Command;
use std::sync::{Arc, Mutex};

use super::*;
use crate::testing::stand_in::StandIn;

const NODE: &str = "w1";

fn wanted(has_shell: bool) -> Probe {
    Probe { node: NODE.into(), image: "registry.k8s.io/pause:3.10".into(), has_shell }
}

fn quick() -> Times {
    Times { limit: Duration::from_millis(400), poll: Duration::from_millis(2) }
}

fn pod_path() -> String {
    path(&pod::name(NODE))
}

/// Plays scheduler and kubelet: gives the probe Pod one of `states` after the other, at each look.
fn node(states: Vec<Value>) -> StandIn {
    let api = StandIn::new();
    let next = Arc::new(Mutex::new(states.into_iter()));
    api.react(move |api, request| {
        if request.verb != "get" || request.path != pod_path() || request.code != 200 {
            return;
        }
        if let Some(status) = next.lock().unwrap().next() {
            api.change(&pod_path(), |pod| {
                if status["conditions"][0]["status"] != "False" {
                    pod["spec"]["nodeName"] = json!(NODE);
                }
                pod["status"] = status;
            });
        }
    });
    api
}

fn waiting(reason: &str, message: &str) -> Value {
    json!({
        "phase": "Pending", "podIP": "10.1.0.7",
        "conditions": [{ "type": "PodScheduled", "status": "True" }],
        "containerStatuses": [{ "state": { "waiting": { "reason": reason, "message": message } } }],
    })
}

fn ended(code: i64, reason: &str, message: &str) -> Value {
    json!({
        "phase": if code == 0 { "Succeeded" } else { "Failed" },
        "containerStatuses": [{ "state": { "terminated": {
            "exitCode": code, "reason": reason, "message": message,
        }}}],
    })
}

fn run(api: &StandIn, has_shell: bool) -> (Result<Vec<String>>, Vec<String>) {
    let told = Mutex::new(Vec::new());
    let went =
        probe(api, &wanted(has_shell), quick(), &|text| told.lock().unwrap().push(text.into()));
    assert!(api.peek(&pod_path()).is_none(), "the Pod is deleted");
    (went, told.into_inner().unwrap())
}

#[test]
fn a_node_that_is_well_passes_and_keeps_nothing() {
    let done = ended(0, "Completed", "resolve done\nreach done\n");
    let api = node(vec![waiting("ContainerCreating", ""), done]);
    let (went, told) = run(&api, true);
    assert_eq!(went.unwrap(), Vec::<String>::new());
    assert!(told.iter().any(|text| text.ends_with("it is scheduled")), "{told:?}");
    let created = api.writes().into_iter().find(|one| one.verb == "create").unwrap().body;
    let spec = &created["spec"];
    // Placed by the scheduler, although the Node is cordoned; without access to the API.
    let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"], json!([NODE]));
    assert!(spec["nodeName"].is_null());
    assert_eq!(spec["tolerations"], json!([{ "operator": "Exists" }]));
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["containers"][0]["imagePullPolicy"], "Always");
    assert_eq!(spec["containers"][0]["securityContext"]["runAsNonRoot"], true);
}

#[test]
fn what_an_image_without_a_shell_cannot_check_is_told() {
    let running = json!({
        "phase": "Running", "podIP": "10.1.0.7",
        "containerStatuses": [{ "state": { "running": {} } }],
    });
    let api = node(vec![running]);
    let unchecked = run(&api, false).0.unwrap();
    assert!(unchecked[0].contains("no shell"), "{unchecked:?}");
    let created = api.writes().into_iter().find(|one| one.verb == "create").unwrap().body;
    assert!(created["spec"]["containers"][0]["command"].is_null());
    let skipped = "resolve skipped the image has neither getent nor nslookup\nreach done\n";
    let unchecked = run(&node(vec![ended(0, "Completed", skipped)]), true).0.unwrap();
    assert_eq!(unchecked.len(), 1);
    assert!(unchecked[0].contains("resolves kubernetes.default.svc: the image has neither"));
}

#[test]
fn each_phase_that_fails_is_named_with_the_events_of_the_pod() {
    let unscheduled = json!({ "phase": "Pending", "conditions": [
        { "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available" },
    ]});
    let no_network = json!({ "phase": "Pending", "conditions": [
        { "type": "PodScheduled", "status": "True" },
    ], "containerStatuses": [{ "state": { "waiting": { "reason": "ContainerCreating" } } }]});
    let no_name = "resolve failed nslookup: can't resolve";
    let no_api = "resolve done\nreach failed connection refused";
    for (status, has_shell, phase, why) in [
        (unscheduled, false, "it is scheduled", "0/3 nodes"),
        (no_network, false, "it gets a network", "nothing has happened"),
        (waiting("ImagePullBackOff", "no such host"), false, "image is pulled", "no such host"),
        (waiting("InvalidImageName", "x"), false, "image is pulled", "x"),
        (waiting("CreateContainerError", "no space"), false, "it starts", "no space"),
        (ended(128, "StartError", "exec: \"sh\": not found"), true, "it starts", "StartError"),
        (ended(1, "Error", no_name), true, "resolves kubernetes", "can't resolve"),
        (ended(1, "Error", no_api), true, "reaches the API", "connection refused"),
        // The script says nothing: it did not run.
        (ended(0, "Completed", ""), true, "it starts", "ended with 0"),
    ] {
        let api = node(vec![status]);
        api.add(json!({
            "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": "FailedX",
            "message": "what the kubelet says",
            "metadata": { "name": "e", "namespace": NAMESPACE },
            "involvedObject": { "name": pod::name(NODE) },
        }));
        let error = run(&api, has_shell).0.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(NODE) && text.contains(phase) && text.contains(why), "{text}");
        assert!(text.contains("FailedX: what the kubelet says"), "{text}");
    }
}

#[test]
fn an_api_that_refuses_the_pod_fails_the_probe() {
    let api = node(vec![]);
    let refusal = ApiError {
        code: 403,
        reason: "Forbidden".into(),
        message: "admission webhook denied".into(),
        ..ApiError::default()
    };
    api.fail_next("create", "/pods", refusal);
    let error = run(&api, false).0.unwrap_err().to_string();
    assert!(error.contains("the API accepts it") && error.contains("webhook denied"), "{error}");
}

#[test]
fn a_pod_that_a_killed_run_left_is_deleted_first() {
    let api = node(vec![]);
    let mut left = pod::manifest(&wanted(false), &pod::name(NODE), quick().limit);
    left["status"] = ended(1, "Error", "resolve failed x");
    api.add(left);
    let done = ended(0, "Completed", "resolve done\nreach done\n");
    api.react(move |api, request| {
        if request.verb == "create" {
            let done = done.clone();
            api.change(&pod_path(), |pod| pod["status"] = done);
        }
    });
    run(&api, true).0.unwrap();
    let verbs: Vec<&str> = api.writes().iter().map(|request| request.verb).collect();
    assert_eq!(verbs[..2], ["delete", "create"], "{verbs:?}");
    // Nobody resumes the run: an abort finds it by its label.
    let mut left = pod::manifest(&wanted(false), &pod::name("other"), quick().limit);
    left["status"] = json!({});
    api.add(left);
    api.add(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "not-ours", "namespace": NAMESPACE },
    }));
    assert_eq!(clean(&api).unwrap(), 1);
    assert_eq!(clean(&api).unwrap(), 0);
    assert!(api.peek(&path("not-ours")).is_some());
}

#[test]
fn a_kubelet_that_does_not_end_the_pod_fails_the_probe() {
    let running = json!({
        "phase": "Running", "podIP": "10.1.0.7",
        "containerStatuses": [{ "state": { "running": {} } }],
    });
    let api = node(vec![running]);
    api.without_kubelets();
    let error = probe(&api, &wanted(false), quick(), &|_| {}).unwrap_err().to_string();
    assert!(error.contains("does not end probe Pod"), "{error}");
}

/// Runs the script with a shell, and with these tools alone; returns its exit code and message.
fn script(tools: &[(&str, &str)]) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("resolv.conf"), "search x.svc.k8s.test svc.k8s.test k8s.test\n").unwrap();
    let bin = at("bin");
    std::fs::create_dir(&bin).unwrap();
    for tool in ["tr", "cut", "sleep"] {
        let real = ["/usr/bin", "/bin"].map(|bin| std::path::Path::new(bin).join(tool));
        let real = real.into_iter().find(|path| path.exists()).unwrap();
        std::os::unix::fs::symlink(real, bin.join(tool)).unwrap();
    }
    for (name, body) in tools {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(bin.join(name), format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let text = pod::SCRIPT
        .replace("/dev/termination-log", at("log").to_str().unwrap())
        .replace("/etc/resolv.conf", at("resolv.conf").to_str().unwrap());
    let ended = Command::new("/bin/sh")
        .args(["-c", &text])
        .env_clear()
        .env("PATH", &bin)
        .env("TRIES", "2")
        .env("PAUSE", "0")
        .status()
        .unwrap();
    (ended.code(), std::fs::read_to_string(at("log")).unwrap_or_default())
}

#[test]
fn the_script_says_what_it_could_check() {
    let both = "resolve done\nreach done\n".to_owned();
    let is_host = r#"[ "$2" = kubernetes.default.svc.k8s.test ] || exit 2"#;
    let curl =
        r#"case "$*" in *https://kubernetes.default.svc.k8s.test/livez*) ;; *) exit 3;; esac"#;
    assert_eq!(script(&[("getent", is_host), ("curl", curl)]), (Some(0), both.clone()));
    // busybox: an answer without permission is an answer.
    let denied = "echo 'wget: server returned error: HTTP/1.1 401 Unauthorized' >&2; exit 1";
    assert_eq!(script(&[("nslookup", "exit 0"), ("wget", denied)]), (Some(0), both.clone()));
    assert_eq!(script(&[("nslookup", "exit 0"), ("nc", "exit 0")]), (Some(0), both));
    let (code, message) = script(&[("nslookup", "echo no such name >&2; exit 1")]);
    assert_eq!((code, message.as_str()), (Some(1), "resolve failed no such name\n"));
    let refused = "echo 'wget: connection refused' >&2; exit 1";
    let (code, message) = script(&[("getent", "exit 0"), ("wget", refused)]);
    assert_eq!(code, Some(1));
    assert_eq!(message, "resolve done\nreach failed wget: connection refused\n");
    let (code, message) = script(&[]);
    assert_eq!(code, Some(0));
    assert_eq!(message.matches("skipped").count(), 2, "{message}");
}
