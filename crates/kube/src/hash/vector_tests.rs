//! Hashes measured from kubelets of both eras (real Go types, real go-spew), and results that must
//! not occur.

use serde_json::{Map, Value, json};

use super::*;

fn object(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap()
}

fn hash(container: &Map<String, Value>, minor: u32) -> String {
    container_hash(container, Minor(minor)).unwrap().to_string()
}

/// The test sample from Kubernetes itself.
pub(super) const S: &str = r#"{"name":"test_container","image":"foo/image:v1","command":["/bin/testcmd"],"args":["/bin/sh","-c","echo abc"],"ports":[{"containerPort":8001}],"env":[{"name":"ENV_FOO","value":"bar"},{"name":"ENV_BAR","valueFrom":{"secretKeyRef":{"name":"foo","key":"bar","optional":true}}}],"resources":{"limits":{"foo":"1G"},"requests":{"foo":"500M"}}}"#;
const M: &str = r#"{"name":"c1","image":"nginx:1.19","resources":{},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}"#;
const MV: &str = r#"{"name":"c1","image":"nginx:1.19","resources":{},"volumeMounts":[{"name":"default-token-abcde","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}],"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}"#;
const MS: &str = r#"{"name":"c1","image":"nginx:1.19","resources":{},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent","securityContext":{"privileged":true}}"#;
/// Characters that need escaping, quantities and empty strings.
pub(super) const E: &str = r#"{"name":"c2","image":"repo.local:5000/app:v1","args":["a\u003cb\u003e\u0026c","é","tab\tq\"\\"],"ports":[{"name":"http","containerPort":8080,"protocol":"TCP"}],"env":[{"name":"E"},{"name":"POD","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.name"}}}],"resources":{"limits":{"cpu":"500m","memory":"128Mi"},"requests":{"cpu":"250m"}},"livenessProbe":{"httpGet":{"path":"/healthz","port":"http","scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},"readinessProbe":{"tcpSocket":{"port":8080},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}"#;

/// Returns E as a user might write it: keys in any order, an empty value, unnormalized quantities.
fn e_as_written() -> Map<String, Value> {
    let mut written = json!({
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePolicy": "File",
        "terminationMessagePath": "/dev/termination-log",
        "resources": {"requests": {"cpu": "0.25"}, "limits": {"memory": "128Mi", "cpu": "0.5"}},
        "env": [
            {"value": "", "name": "E"},
            {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v1"}},
             "name": "POD"}
        ],
        "args": ["a<b>&c", "é", "tab\tq\"\\"],
        "ports": [{"protocol": "TCP", "containerPort": 8080, "name": "http", "hostPort": 0}],
        "image": "repo.local:5000/app:v1",
        "name": "c2",
        "tty": false,
        "command": [],
        "lifecycle": null,
        "aFieldOfTheFuture": {"a": 1}
    });
    for (probe, handler) in [
        ("livenessProbe", json!({"path": "/healthz", "scheme": "HTTP", "port": "http"})),
        ("readinessProbe", json!({"port": 8080})),
    ] {
        let kind = if probe == "livenessProbe" { "httpGet" } else { "tcpSocket" };
        written[probe] = json!({
            "failureThreshold": 3, "successThreshold": 1, "periodSeconds": 10,
            "timeoutSeconds": 1, kind: handler
        });
    }
    written.as_object().unwrap().clone()
}

#[test]
fn the_json_era_gives_what_was_measured() {
    for (name, text, whole, without) in [
        ("S", S, "311670a", "e8022015"),
        ("M", M, "a7ce2a62", "a7ce2a62"),
        ("MV", MV, "afca0050", "afca0050"),
        ("MS", MS, "25eca186", "25eca186"),
        ("E", E, "84e2571a", "48e1340c"),
    ] {
        let container = object(text);
        assert_eq!(json_hash(text.as_bytes()).to_string(), whole, "{name}, its bytes");
        for minor in 16..=30 {
            let written = json(&container, Minor(minor), Resources::Kept).unwrap();
            assert_eq!(String::from_utf8(written).unwrap(), text, "{name}, 1.{minor}");
            assert_eq!(hash(&container, minor), whole, "{name}, 1.{minor}");
        }
        let rest = json(&container, Minor(27), Resources::LeftOut).unwrap();
        assert_eq!(json_hash(&rest).to_string(), without, "{name} without resources");
    }
}

#[test]
fn what_people_write_hashes_as_what_the_server_makes_of_it() {
    let written = json(&e_as_written(), Minor(16), Resources::Kept).unwrap();
    assert_eq!(String::from_utf8(written).unwrap(), E);
    // Keeping an empty value changes the hash.
    let kept = E.replace(r#"{"name":"E"}"#, r#"{"name":"E","value":""}"#);
    assert_eq!(json_hash(kept.as_bytes()).to_string(), "c5f8be1f");
}

#[test]
fn the_newest_era_gives_what_was_measured() {
    for (name, image, wanted) in [
        ("c1", "nginx:1.19", "e449eef9"),
        ("c1", "nginx:1.19-alpine", "6411dc79"),
        ("etcd", "registry.k8s.io/etcd:3.5.15-0", "cdf7d3fa"),
        ("kube-apiserver", "registry.k8s.io/kube-apiserver:v1.31.0", "f72d0944"),
        ("test_container", "foo/image:v1", "8e45cbd0"),
        ("c2", "repo.local:5000/app:v1", "a390bc57"),
    ] {
        assert_eq!(name_and_image_hash(name, image).to_string(), wanted, "{name} {image}");
    }
    for text in [M, MV, MS] {
        assert_eq!(hash(&object(text), 31), "e449eef9");
        assert_eq!(hash(&object(text), 36), "e449eef9");
    }
    // Hash the JSON itself instead of its dump.
    let mut naive = spew::Fnv1a::new();
    naive.feed(br#"{"image":"nginx:1.19","name":"c1"}"#);
    assert_eq!(format!("{:x}", naive.value()), "5739a460");
}
