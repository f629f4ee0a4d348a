//! Hosts with containers to foretell, for tests: pods as an API server writes them, and the
//! containers that a kubelet of a release would have started of them.

use serde_json::{Map, Value, json};

use super::RunningContainer;
use crate::kube::hash::{Minor, Pod, container_hash, pods};

/// A pod's answer from the API server; `spec` is the inside of `spec`'s braces.
pub(super) fn pod(metadata: &str, spec: &str) -> Pod {
    let text = format!(
        r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{}},"items":[{{"metadata":{{{metadata}}},"spec":{{{spec}}}}}]}}"#
    );
    pods(text.as_bytes()).unwrap().remove(0)
}

/// Pod `default/web` of one container, of which this is the JSON.
pub(super) fn web(container: &str) -> Pod {
    pod(
        r#""name":"web","namespace":"default","uid":"11111111-2222-3333-4444-555555555555""#,
        &format!(r#""containers":[{container}]"#),
    )
}

/// A kubeadm-like static pod, as its mirror shows it.
pub(super) fn static_pod(container: &str) -> Pod {
    pod(
        r#""name":"etcd-a","namespace":"kube-system","uid":"99999999-2222-3333-4444-555555555555","annotations":{"kubernetes.io/config.hash":"0123456789abcdef0123456789abcdef","kubernetes.io/config.mirror":"0123456789abcdef0123456789abcdef","kubernetes.io/config.source":"file"}"#,
        &format!(r#""containers":[{container}]"#),
    )
}

/// The pod's containers as a kubelet of `minor` started them.
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

/// A container through what `crictl inspect` says of it.
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

/// The JSON of a container: `more` goes behind its image.
pub(super) fn container(more: &Value) -> String {
    let mut object = Map::new();
    object.insert("name".to_owned(), json!("c"));
    object.insert("image".to_owned(), json!("nginx:1.19"));
    for (key, value) in more.as_object().unwrap() {
        object.insert(key.clone(), value.clone());
    }
    // In the order and the form of the API server.
    let bytes = crate::kube::hash::json(&object, Minor(30), crate::kube::hash::Resources::Kept);
    String::from_utf8(bytes.unwrap()).unwrap()
}
