//! Test fixtures for predictions: pods as an API server writes them, and the containers that a
//! kubelet of a given release would have started from them.

use serde_json::{Map, Value, json};

use crate::hash::{Minor, Pod, container_hash, pods};
use crate::restart::RunningContainer;

/// Returns a pod as the API server sends it; `spec` is the text between the braces of its `spec`.
pub(super) fn pod(metadata: &str, spec: &str) -> Pod {
    let text = format!(
        r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{}},"items":[{{"metadata":{{{metadata}}},"spec":{{{spec}}}}}]}}"#
    );
    pods(text.as_bytes()).unwrap().remove(0)
}

/// Returns pod `default/web` with one container, given as JSON.
pub(super) fn web(container: &str) -> Pod {
    pod(
        r#""name":"web","namespace":"default","uid":"11111111-2222-3333-4444-555555555555""#,
        &format!(r#""containers":[{container}]"#),
    )
}

/// Returns a kubeadm-like static pod, as its mirror shows it.
pub(super) fn static_pod(container: &str) -> Pod {
    pod(
        r#""name":"etcd-a","namespace":"kube-system","uid":"99999999-2222-3333-4444-555555555555","annotations":{"kubernetes.io/config.hash":"0123456789abcdef0123456789abcdef","kubernetes.io/config.mirror":"0123456789abcdef0123456789abcdef","kubernetes.io/config.source":"file"}"#,
        &format!(r#""containers":[{container}]"#),
    )
}

/// Returns the pod's containers as a kubelet of `minor` started them.
pub(super) fn started(pod: &Pod, minor: u32) -> Vec<RunningContainer> {
    let uid = pod.mirror_of.as_ref().unwrap_or(&pod.uid);
    pod.containers
        .iter()
        .map(|container| {
            let hash = container_hash(&container.spec, Minor(minor)).unwrap();
            inspected(pod, uid, &container.name, &hash.to_string())
        })
        .collect()
}

/// Returns a container read from the output of `crictl inspect`.
fn inspected(pod: &Pod, uid: &str, container: &str, hash: &str) -> RunningContainer {
    let answer = inspect(pod, uid, container, hash);
    super::running(&[answer]).unwrap().remove(0)
}

pub(super) fn inspect(pod: &Pod, uid: &str, container: &str, hash: &str) -> Value {
    json!({
        "status": {
            "id": format!("id-of-{container}"),
            "metadata": {"name": container, "attempt": 0},
            "state": "CONTAINER_RUNNING",
            "labels": {
                "io.kubernetes.pod.name": pod.name,
                "io.kubernetes.pod.namespace": pod.namespace,
                "io.kubernetes.pod.uid": uid,
                "io.kubernetes.container.name": container
            },
            "annotations": {
                "io.kubernetes.container.hash": hash,
                "io.kubernetes.container.restartCount": "0"
            }
        },
        "info": {"pid": 1}
    })
}

/// Returns the JSON of a container, with the fields of `more` after its image.
pub(super) fn container(more: &Value) -> String {
    let mut object = Map::new();
    object.insert("name".to_owned(), json!("c"));
    object.insert("image".to_owned(), json!("nginx:1.19"));
    for (key, value) in more.as_object().unwrap() {
        object.insert(key.clone(), value.clone());
    }
    // In the field order and format of the API server.
    let bytes = crate::hash::json(&object, Minor(30), crate::hash::Resources::Kept);
    String::from_utf8(bytes.unwrap()).unwrap()
}
