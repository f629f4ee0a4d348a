//! The data of a cluster's report: what its hosts said when they were asked, and what the controller
//! recorded. Times are RFC 3339, UTC.

use serde::{Deserialize, Serialize};

use crate::model::About;

/// A cluster at one point in time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClusterReport {
    pub about: About,
    pub cluster: ClusterIdentity,
    pub hosts: Vec<ClusterHost>,
    pub nodes: Vec<ClusterNode>,
    pub certificates: Vec<HostCertificate>,
    /// Installed images, and what they put into the cluster's registry.
    pub images: Vec<InstalledImage>,
    /// Workloads whose Pods run other images than their templates specify. Absent if the API could not
    /// be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Vec<Drift>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<Backup>,
    /// Recorded runs, newest first.
    pub runs: Vec<RecordedRun>,
    /// Upgrades and rollbacks that ended, newest first.
    pub upgrades: Vec<EndedUpgrade>,
    /// What could not be read.
    pub problems: Vec<String>,
}

/// Names and state of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClusterIdentity {
    pub name: String,
    /// `kubeadm`, `k3s` or `script`.
    pub runtime: String,
    /// As in the Clusterfile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// All hosts are healthy and all Nodes are Ready.
    pub healthy: bool,
}

/// A host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClusterHost {
    pub host: String,
    pub roles: Vec<String>,
    pub reachable: bool,
    pub healthy: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Digest of the files of the rootfs image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<String>,
    /// Whether the cluster's registry answers there; absent on hosts that do not serve it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<bool>,
    pub problems: Vec<String>,
    pub warnings: Vec<String>,
}

/// A Node of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClusterNode {
    pub name: String,
    pub ready: bool,
    pub version: String,
    pub container_runtime: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Why it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A certificate on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HostCertificate {
    pub host: String,
    pub file: String,
    pub subject: String,
    pub issuer: String,
    pub authority: bool,
    pub not_after: String,
    /// Whole days until then; negative after it.
    pub days_left: i64,
}

/// An image of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InstalledImage {
    pub name: String,
    pub digest: String,
    /// `rootfs`, `patch` or `application`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Container images that it brings, which are in the cluster's registry.
    pub embedded: Vec<RegistryImage>,
}

/// A container image in the cluster's registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RegistryImage {
    pub name: String,
    pub digest: String,
}

/// A workload whose Pods run other images than its template specifies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    pub workload: String,
    pub container: String,
    pub template: String,
    /// Images of the Pods with their numbers.
    pub pods: Vec<String>,
}

/// The last backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Backup {
    pub created: String,
    pub place: String,
    pub digest: String,
    pub bytes: u64,
    pub encrypted: bool,
}

/// A run, of which `imgctl report run` shows more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RecordedRun {
    pub id: String,
    pub verb: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// `done`, `failed` and so on; `unfinished`.
    pub state: String,
    /// Number of steps, or of Pods for an in-place update.
    pub steps: u64,
    pub controller: String,
}

/// An upgrade or a rollback that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EndedUpgrade {
    pub id: String,
    /// `upgrade` or `rollback`.
    pub verb: String,
    pub from: String,
    pub to: String,
    /// `committed`, `aborted` or `rolled-back`.
    pub end: String,
    pub time: String,
    pub hosts: u64,
}
