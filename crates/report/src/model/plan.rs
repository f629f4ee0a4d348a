//! The data of a plan's report: which host does what when, and what that does to containers.

use serde::{Deserialize, Serialize};

use crate::model::{About, Finding};

/// A plan of any verb.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlanReport {
    pub about: About,
    pub plan: PlanIdentity,
    /// In the order of the plan.
    pub hosts: Vec<PlannedHost>,
    /// Empty if only the order of the hosts is planned.
    pub phases: Vec<PlannedPhase>,
    /// Containers that do not simply go on running.
    pub restarts: Vec<PlannedRestart>,
    pub findings: Vec<Finding>,
    /// What cannot be undone.
    pub irreversible: Vec<String>,
    pub notes: Vec<String>,
}

/// What is planned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlanIdentity {
    pub verb: String,
    pub cluster: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// Name of an upgrade.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Digest of the plan, which a later command can demand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Versions in between and the last one, of an upgrade in several steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hops: Vec<String>,
}

/// A host in a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlannedHost {
    pub host: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub roles: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Hosts of the same group are worked on together or one after the other: `control plane`,
    /// `canary`, `batch 1`. Absent if the plan has no groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Why the host is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<RestartCounts>,
}

/// Number of containers by what happens to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RestartCounts {
    pub keep: u64,
    pub restart: u64,
    pub recreate: u64,
    pub unknown: u64,
    /// Moved to other hosts by a drain.
    pub moved: u64,
}

/// Steps that all hosts finish before the next phase begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlannedPhase {
    pub name: String,
    /// `parallel` or `serial`.
    pub order: String,
    pub lanes: Vec<PlannedLane>,
}

/// The steps of one host in a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlannedLane {
    pub host: String,
    pub steps: Vec<PlannedStep>,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlannedStep {
    pub name: String,
    /// Commands and files, without secrets.
    pub says: Vec<String>,
    /// It must not be repeated if its result is unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub once: bool,
    /// Size of the files and layers that it moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// An earlier run has done it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub done_before: bool,
}

/// A container that restarts, or may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlannedRestart {
    pub host: String,
    pub namespace: String,
    pub pod: String,
    pub container: String,
    /// Controller of the Pod, as in `DaemonSet/kube-proxy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// `restart`, `recreate` or `unknown`; of in-place updates `change`, `restart-only` or `refuse`.
    pub verdict: String,
    pub reason: String,
}
