//! Pods as the API server sends them, with the bytes of every container untouched.
//!
//! The API server serializes objects with the same Go code as a kubelet, so the bytes of a
//! container in its answer are what kubelets 1.16 to 1.30 hash. Parsing and reserializing them
//! would lose that. `kubectl get -o json` sorts keys, so its output does not qualify.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};

use imgctl_base::error::{Error, IoContext, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    Main,
    /// Runs to completion before the main containers start.
    Init,
    /// An init container with `restartPolicy: Always`.
    Sidecar,
    Ephemeral,
}

/// A pod and the specs of its containers.
#[derive(Clone, Debug)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    /// The uid that the API server knows; for a static pod, the uid of its mirror.
    pub uid: String,
    /// For a mirror: the kubelet's own uid of the static pod.
    pub mirror_of: Option<String>,
    /// The controller that owns the pod: `ReplicaSet/web-5d9c`.
    pub owner: Option<String>,
    /// The pod is being deleted.
    pub terminating: bool,
    /// `spec.volumes` or `spec.securityContext` is set.
    pub(crate) volumes_or_security: bool,
    pub containers: Vec<PodContainer>,
}

#[derive(Clone, Debug)]
pub struct PodContainer {
    pub name: String,
    pub image: String,
    pub role: Role,
    /// The bytes as received.
    pub raw: Box<RawValue>,
    pub spec: Map<String, Value>,
}

const MIRROR: &str = "kubernetes.io/config.mirror";
const HASH: &str = "kubernetes.io/config.hash";

#[derive(Deserialize)]
struct RawList {
    kind: Option<String>,
    items: Option<Vec<RawPod>>,
    metadata: Option<RawMetadata>,
    spec: Option<RawSpec>,
}

#[derive(Deserialize)]
struct RawPod {
    metadata: RawMetadata,
    spec: RawSpec,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RawMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    deletion_timestamp: Option<String>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<RawOwner>>,
}

#[derive(Deserialize)]
struct RawOwner {
    kind: String,
    name: String,
    controller: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSpec {
    volumes: Option<Vec<serde::de::IgnoredAny>>,
    security_context: Option<Map<String, Value>>,
    containers: Option<Vec<Box<RawValue>>>,
    init_containers: Option<Vec<Box<RawValue>>>,
    ephemeral_containers: Option<Vec<Box<RawValue>>>,
}

/// Reads a `PodList` or a single `Pod` from the raw answer of the API server or a kubelet. Fails
/// with [`imgctl_base::error::Kind::BadContent`] if the bytes are neither.
pub fn pods(bytes: &[u8]) -> Result<Vec<Pod>> {
    let list: RawList =
        serde_json::from_slice(bytes).doing(|| "the list of pods cannot be read".to_owned())?;
    let raw = match (list.items, list.spec, list.kind.as_deref()) {
        (Some(items), ..) => items,
        (None, Some(spec), _) => vec![RawPod { metadata: list.metadata.unwrap_or_default(), spec }],
        // Go serializes an empty list as null.
        (None, None, Some("PodList")) => Vec::new(),
        (None, None, _) => {
            return Err(Error::bad_content("this is neither a pod nor a list of pods"));
        }
    };
    raw.into_iter().map(pod).collect()
}

fn pod(raw: RawPod) -> Result<Pod> {
    let RawPod { metadata, spec } = raw;
    let name = metadata.name.unwrap_or_default();
    let namespace = metadata.namespace.unwrap_or_default();
    let mut containers = Vec::new();
    for (list, role) in [
        (spec.init_containers, Role::Init),
        (spec.containers, Role::Main),
        (spec.ephemeral_containers, Role::Ephemeral),
    ] {
        for raw in list.into_iter().flatten() {
            let container = container(raw, role)
                .map_err(|error| error.context(format!("pod {namespace}/{name}")))?;
            containers.push(container);
        }
    }
    let annotations = metadata.annotations.unwrap_or_default();
    let mirror_of = annotations
        .contains_key(MIRROR)
        .then(|| annotations.get(HASH).or(annotations.get(MIRROR)).cloned())
        .flatten();
    let owners = metadata.owner_references.unwrap_or_default();
    Ok(Pod {
        owner: owners
            .into_iter()
            // A mirror is owned by its Node, which is not the controller asked for here.
            .find(|owner| owner.controller == Some(true) && owner.kind != "Node")
            .map(|owner| format!("{}/{}", owner.kind, owner.name)),
        uid: metadata.uid.unwrap_or_default(),
        terminating: metadata.deletion_timestamp.is_some(),
        volumes_or_security: spec.volumes.is_some_and(|list| !list.is_empty())
            || spec.security_context.is_some_and(|map| !map.is_empty()),
        namespace,
        name,
        mirror_of,
        containers,
    })
}

fn container(raw: Box<RawValue>, role: Role) -> Result<PodContainer> {
    let spec: Map<String, Value> =
        serde_json::from_str(raw.get()).doing(|| "a container cannot be read".to_owned())?;
    let text = |key: &str| spec.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let role = match role {
        Role::Init if text("restartPolicy") == "Always" => Role::Sidecar,
        role => role,
    };
    Ok(PodContainer { name: text("name"), image: text("image"), role, raw, spec })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::vector_tests::{E, S};
    use crate::hash::{Minor, container_hash, json_hash};

    fn list(pods: &str) -> Vec<Pod> {
        let text =
            format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{}},"items":[{pods}]}}"#);
        super::pods(text.as_bytes()).unwrap()
    }

    #[test]
    fn containers_keep_their_bytes() {
        let found = list(&format!(
            r#"{{"metadata":{{"name":"p","namespace":"n","uid":"u","ownerReferences":[{{"kind":"ReplicaSet","name":"web-1","controller":true}}]}},"spec":{{"initContainers":[{{"name":"i"}},{{"name":"s","restartPolicy":"Always"}}],"containers":[{E},{S}],"nodeName":"a"}},"status":{{}}}}"#
        ));
        let pod = &found[0];
        assert_eq!((&*pod.namespace, &*pod.name, &*pod.uid), ("n", "p", "u"));
        assert_eq!(pod.owner.as_deref(), Some("ReplicaSet/web-1"));
        assert_eq!((pod.mirror_of.as_deref(), pod.terminating), (None, false));
        let roles: Vec<Role> = pod.containers.iter().map(|c| c.role).collect();
        assert_eq!(roles, [Role::Init, Role::Sidecar, Role::Main, Role::Main]);
        let raw: Vec<&str> = pod.containers[2..].iter().map(|c| c.raw.get()).collect();
        assert_eq!(raw, [E, S]);
        assert_eq!(json_hash(raw[0].as_bytes()).to_string(), "84e2571a");
    }

    #[test]
    fn a_mirror_says_whose_it_is() {
        let found = list(
            r#"{"metadata":{"name":"etcd-a","uid":"1-2","deletionTimestamp":"2026-01-01T00:00:00Z","annotations":{"kubernetes.io/config.hash":"0123","kubernetes.io/config.mirror":"0123"},"ownerReferences":[{"kind":"Node","name":"a","controller":true}]},"spec":{"volumes":[{"name":"v"}],"containers":[]}}"#,
        );
        assert_eq!(found[0].mirror_of.as_deref(), Some("0123"));
        assert_eq!(found[0].owner, None);
        assert!(found[0].terminating && found[0].volumes_or_security);
    }

    #[test]
    fn single_pods_and_empty_lists_are_read() {
        let single =
            br#"{"kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c"}]}}"#;
        assert_eq!(pods(single).unwrap()[0].containers[0].name, "c");
        assert!(pods(br#"{"kind":"PodList","items":null}"#).unwrap().is_empty());
        assert!(pods(br#"{"kind":"PodList","items":[]}"#).unwrap().is_empty());
    }

    #[test]
    fn hostile_answers_are_refused_or_bounded() {
        for text in [
            "",
            "{}",
            "[]",
            "null",
            r#"{"kind":"Status","code":403}"#,
            r#"{"items":[{}]}"#,
            r#"{"items":[{"metadata":{},"spec":{"containers":[1]}}]}"#,
            r#"{"items":[{"metadata":{},"spec":{"containers":["a"]}}]}"#,
            r#"{"items":[{"metadata":{},"spec":{"containers":{}}}]}"#,
            r#"{"items":[],"items":[]}"#,
            "{\"items\":[{\"metadata\":{\"name\":\"\u{fffd}\\ud800\"},\"spec\":{}}]}",
        ] {
            assert!(pods(text.as_bytes()).is_err(), "{text}");
        }
        let deep = format!(
            r#"{{"items":[{{"metadata":{{}},"spec":{{"containers":[{{"a":{}"#,
            "[".repeat(1_000_000)
        );
        assert!(pods(deep.as_bytes()).is_err());
        assert!(pods(b"{\"items\":[{\"metadata\":{\"name\":\"\xff\"},\"spec\":{}}]}").is_err());
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let pod =
            format!(r#"{{"kind":"Pod","metadata":{{"name":"p"}},"spec":{{"containers":[{E}]}}}}"#);
        bolero::check!().for_each(|input: &[u8]| {
            let _ = pods(input);
            // The same bytes as damage to a valid document: a position, then the byte to write
            // there.
            let mut damaged = pod.clone().into_bytes();
            for pair in input.chunks_exact(3) {
                let at = usize::from(pair[0]) << 8 | usize::from(pair[1]);
                let at = at % damaged.len();
                damaged[at] = pair[2];
            }
            for pod in pods(&damaged).unwrap_or_default() {
                for container in &pod.containers {
                    for minor in [15, 16, 30, 31] {
                        let _ = container_hash(&container.spec, Minor(minor));
                    }
                }
            }
        });
    }
}
