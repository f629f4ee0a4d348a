//! Partial views of Kubernetes objects. Must not depend on the planned change.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use imgctl_base::error::{Error, Result};

/// Reads a typed view from an API response.
pub fn read<T: serde::de::DeserializeOwned>(value: &Value, what: &str) -> Result<T> {
    T::deserialize(value).map_err(|error| {
        Error::bad_content(format!("the API returned an invalid {what}")).caused_by(error)
    })
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub(crate) resource_version: String,
    pub(crate) generation: i64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub(crate) owner_references: Vec<OwnerReference>,
    pub(crate) deletion_timestamp: Option<String>,
    pub(crate) creation_timestamp: Option<String>,
}

impl Meta {
    /// Returns the owner that manages the object.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    pub(crate) api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub controller: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    pub metadata: Meta,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    pub(crate) node_name: String,
    pub containers: Vec<Container>,
    pub(crate) init_containers: Vec<Container>,
    pub(crate) ephemeral_containers: Vec<Container>,
    pub(crate) readiness_gates: Vec<ReadinessGate>,
    pub(crate) image_pull_secrets: Vec<Value>,
    pub(crate) termination_grace_period_seconds: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ReadinessGate {
    pub(crate) condition_type: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    pub image: String,
    pub(crate) image_pull_policy: String,
    pub(crate) restart_policy: Option<String>,
    pub resources: Resources,
}

/// Requests and limits; quantities as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    pub phase: String,
    pub(crate) observed_generation: Option<i64>,
    pub(crate) qos_class: String,
    pub conditions: Vec<PodCondition>,
    pub(crate) container_statuses: Vec<ContainerStatus>,
    pub(crate) init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: String,
    pub message: String,
    pub(crate) last_transition_time: Option<String>,
}

/// What the kubelet reports of one container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    pub name: String,
    pub image: String,
    #[serde(rename = "imageID")]
    pub image_id: String,
    #[serde(rename = "containerID")]
    pub(crate) container_id: String,
    pub ready: bool,
    pub(crate) restart_count: u64,
    pub state: ContainerState,
    pub resources: Option<Resources>,
}

/// The one of three states that a container is in.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    pub running: Option<Running>,
    pub waiting: Option<Waiting>,
    pub terminated: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Running {
    pub(crate) started_at: Option<jiff::Timestamp>,
}

/// Why a container does not run yet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Waiting {
    pub reason: String,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    Main,
    /// An init container with `restartPolicy: Always`.
    Sidecar,
    Init,
    Ephemeral,
}

/// Position of a container in the spec of a Pod or template.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place<'a> {
    pub role: Role,
    /// `containers` or `initContainers`.
    pub list: &'static str,
    pub index: usize,
    pub spec: &'a Container,
}

impl PodSpec {
    /// Returns the container with the given name, in either list.
    pub fn container(&self, name: &str) -> Option<Place<'_>> {
        let lists = [
            ("containers", &self.containers),
            ("initContainers", &self.init_containers),
            ("ephemeralContainers", &self.ephemeral_containers),
        ];
        lists.into_iter().find_map(|(list, containers)| {
            let index = containers.iter().position(|one| one.name == name)?;
            let spec = &containers[index];
            let role = match list {
                "containers" => Role::Main,
                "initContainers" if spec.restart_policy.as_deref() == Some("Always") => {
                    Role::Sidecar
                }
                "initContainers" => Role::Init,
                _ => Role::Ephemeral,
            };
            Some(Place { role, list, index, spec })
        })
    }
}

impl Pod {
    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    pub fn path(&self) -> String {
        pod_path(&self.metadata.namespace, &self.metadata.name)
    }

    pub(crate) fn pull_secrets(&self) -> Vec<String> {
        let secrets = self.spec.image_pull_secrets.iter();
        secrets.filter_map(|secret| secret["name"].as_str().map(str::to_owned)).collect()
    }

    /// Returns what the kubelet reports of a main or init container; `None` before its first report.
    pub fn status_of(&self, container: &str) -> Option<&ContainerStatus> {
        self.status
            .container_statuses
            .iter()
            .chain(&self.status.init_container_statuses)
            .find(|status| status.name == container)
    }

    pub fn condition(&self, kind: &str) -> Option<&PodCondition> {
        self.status.conditions.iter().find(|one| one.kind == kind)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|one| one.status == "True")
    }

    /// Returns whether the Pod comes from a manifest on its host (static Pod).
    pub(crate) fn is_mirror(&self) -> bool {
        self.metadata.annotations.contains_key("kubernetes.io/config.mirror")
            || self.metadata.controller().is_some_and(|one| one.kind == "Node")
    }

    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    pub(crate) fn is_going(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

/// Returns the path of a Pod in the API.
pub fn pod_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

/// A Node, with the conditions that decide whether its Pods may be changed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    pub metadata: Meta,
    pub status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    pub conditions: Vec<PodCondition>,
    pub addresses: Vec<NodeAddress>,
    pub(crate) node_info: NodeInfo,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    #[serde(rename = "type")]
    pub kind: String,
    pub address: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeInfo {
    pub architecture: String,
    pub(crate) kubelet_version: String,
}

impl Node {
    /// Returns why its Pods must not be changed; `None`: the Node is healthy.
    pub fn trouble(&self) -> Option<String> {
        let name = &self.metadata.name;
        let status = |kind: &str| {
            let mut all = self.status.conditions.iter();
            all.find(|one| one.kind == kind).map(|one| one.status.as_str())
        };
        if status("Ready") != Some("True") {
            return Some(format!("Node {name} is not Ready"));
        }
        ["MemoryPressure", "DiskPressure", "PIDPressure"]
            .into_iter()
            .find(|kind| status(kind) == Some("True"))
            .map(|kind| format!("Node {name} has {kind}"))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Budget {
    pub metadata: Meta,
    pub spec: BudgetSpec,
    pub status: BudgetStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct BudgetSpec {
    pub selector: Option<Selector>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetStatus {
    pub disruptions_allowed: i64,
    pub current_healthy: i64,
    pub desired_healthy: i64,
    pub(crate) expected_pods: i64,
    pub(crate) observed_generation: i64,
}

/// A Deployment, ReplicaSet, StatefulSet or DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Workload {
    pub metadata: Meta,
    pub spec: WorkloadSpec,
    pub status: WorkloadStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadSpec {
    pub replicas: Option<i64>,
    pub paused: bool,
    pub selector: Option<Selector>,
    pub template: Template,
    pub(crate) update_strategy: UpdateStrategy,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Template {
    pub metadata: Meta,
    pub spec: PodSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct UpdateStrategy {
    #[serde(rename = "type")]
    pub kind: String,
    pub(crate) rolling_update: Option<RollingUpdate>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct RollingUpdate {
    pub partition: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadStatus {
    pub(crate) observed_generation: i64,
    pub replicas: i64,
    pub(crate) updated_replicas: i64,
    pub(crate) current_revision: String,
    pub(crate) update_revision: String,
    pub(crate) desired_number_scheduled: i64,
    pub(crate) updated_number_scheduled: i64,
}

/// `metav1.LabelSelector`. An empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Selector {
    pub(crate) match_labels: BTreeMap<String, String>,
    pub(crate) match_expressions: Vec<Expression>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Expression {
    pub key: String,
    pub(crate) operator: String,
    pub values: Vec<String>,
}

impl Selector {
    /// Returns whether the selector matches an object with `labels`.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let equal = self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
        equal
            && self.match_expressions.iter().all(|one| {
                let value = labels.get(&one.key);
                let listed = value.is_some_and(|value| one.values.contains(value));
                match one.operator.as_str() {
                    "In" => listed,
                    "NotIn" => !listed,
                    "Exists" => value.is_some(),
                    "DoesNotExist" => value.is_none(),
                    // An operator unknown to this version: considering one budget too many is safer
                    // than one too few.
                    _ => true,
                }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn selector(value: Value) -> Selector {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn selectors_match_as_the_api_has_it() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        let yes = [
            json!({}),
            json!({"matchLabels": {"app": "web"}}),
            json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "web"]}]}),
            json!({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["a"]}]}),
            json!({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}),
            json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}),
        ];
        let no = [
            json!({"matchLabels": {"app": "web", "x": "y"}}),
            json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}),
            json!({"matchExpressions": [{"key": "x", "operator": "Exists"}]}),
        ];
        for one in yes {
            assert!(selector(one.clone()).matches(&labels), "{one}");
        }
        for one in no {
            assert!(!selector(one.clone()).matches(&labels), "{one}");
        }
    }
}
