//! Discovery documents: the kinds that tests use.

use serde_json::{Value, json};

use crate::api::Answer;
use crate::testing::stand_in::status;

/// Group and version, plural, kind, whether it has namespaces.
const KINDS: [(&str, &str, &str, bool); 17] = [
    ("v1", "configmaps", "ConfigMap", true),
    ("v1", "namespaces", "Namespace", false),
    ("v1", "nodes", "Node", false),
    ("v1", "persistentvolumeclaims", "PersistentVolumeClaim", true),
    ("v1", "pods", "Pod", true),
    ("v1", "secrets", "Secret", true),
    ("v1", "serviceaccounts", "ServiceAccount", true),
    ("v1", "services", "Service", true),
    ("apps/v1", "daemonsets", "DaemonSet", true),
    ("apps/v1", "deployments", "Deployment", true),
    ("apps/v1", "replicasets", "ReplicaSet", true),
    ("apps/v1", "statefulsets", "StatefulSet", true),
    ("apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition", false),
    ("batch/v1", "jobs", "Job", true),
    ("coordination.k8s.io/v1", "leases", "Lease", true),
    ("rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole", false),
    ("rbac.authorization.k8s.io/v1", "roles", "Role", true),
];

/// Returns the document at `path`, if it is the path of one.
pub(super) fn document(path: &str) -> Option<Answer<Value>> {
    if path == "/apis" {
        let mut groups: Vec<&str> = KINDS.iter().map(|kind| kind.0).collect();
        groups.retain(|version| version.contains('/'));
        groups.dedup();
        let groups: Vec<Value> = groups
            .iter()
            .map(|version| json!({"preferredVersion": {"groupVersion": version}}))
            .collect();
        return Some(Ok(json!({"kind": "APIGroupList", "groups": groups})));
    }
    let version = match path.strip_prefix("/apis/") {
        Some(version) => Some(version).filter(|version| version.matches('/').count() == 1)?,
        None => path.strip_prefix("/api/").filter(|version| !version.contains('/'))?,
    };
    let verbs = ["create", "delete", "get", "list", "patch", "update"];
    let mut resources: Vec<Value> = KINDS
        .iter()
        .filter(|kind| kind.0 == version)
        .map(|(_, name, kind, namespaced)| {
            json!({"name": name, "kind": kind, "namespaced": namespaced, "verbs": verbs})
        })
        .collect();
    if resources.is_empty() {
        return Some(Err(status::no_such_path()));
    }
    if version == "v1" {
        resources.push(json!({"name": "pods/resize", "kind": "Pod", "namespaced": true}));
    }
    Some(Ok(json!({"kind": "APIResourceList", "resources": resources})))
}
