//! The data of the console's views of clusters: what the controller's own files say. No host was asked.
//! Times are RFC 3339, UTC.

use serde::{Deserialize, Serialize};

use crate::model::About;
use crate::model::cluster::{Backup, EndedUpgrade, HostCertificate, InstalledImage};

/// Clusters, runs and plans that a controller has recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ControllerReport {
    pub about: About,
    pub clusters: Vec<ClusterSummary>,
    /// Of all clusters, newest first.
    pub runs: Vec<RunSummary>,
    pub plans: Vec<PlanSummary>,
    /// What could not be read.
    pub problems: Vec<String>,
}

/// A cluster in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClusterSummary {
    pub name: String,
    /// As in the Clusterfile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Of the rootfs image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    pub hosts: u64,
    pub runs: u64,
    /// Why its state cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A run in a list: what the beginning and the end of its journal say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunSummary {
    /// Cluster, or `.inplace` for runs through a kubeconfig.
    pub cluster: String,
    /// API server of a run through a kubeconfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    pub id: String,
    pub verb: String,
    /// `running`, `unfinished`, or how it ended.
    pub state: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// What is wrong with its journal, if that shows without reading all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A plan in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlanSummary {
    /// Cluster that keeps it; absent for a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// ID of the upgrade, or number of the file.
    pub id: String,
    /// What it is of, or the name of the file.
    pub title: String,
    /// `open`, or how the upgrade ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// A cluster as its controller has recorded it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RecordedReport {
    pub about: About,
    pub cluster: ClusterSummary,
    pub hosts: Vec<RecordedHost>,
    /// Installed images, and what they put into the cluster's registry.
    pub images: Vec<InstalledImage>,
    /// Those that the controller keeps.
    pub certificates: Vec<HostCertificate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<Backup>,
    pub runs: Vec<RunSummary>,
    pub plans: Vec<PlanSummary>,
    /// Upgrades and rollbacks that ended, newest first.
    pub upgrades: Vec<EndedUpgrade>,
    /// What could not be read.
    pub problems: Vec<String>,
}

/// A host as the Clusterfile names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RecordedHost {
    pub host: String,
    pub roles: Vec<String>,
}
