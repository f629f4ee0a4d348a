//! The data of a run's report: what its journal, its logs and the plan's predictions say.
//!
//! Times are RFC 3339, UTC. A journal that was cut off or is of another version gives a report of what
//! could be read; `problems` says what is missing.

use serde::{Deserialize, Serialize};

use crate::model::About;

/// A run: when what happened on which host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunReport {
    pub about: About,
    pub run: RunIdentity,
    /// Each command that began or resumed the run, oldest first.
    pub sessions: Vec<RunSession>,
    /// In the order in which they first had work. The host `controller` is the machine that ran imgctl.
    pub hosts: Vec<HostRun>,
    /// Bytes of files and layers, by source.
    pub links: Vec<Link>,
    /// Predicted and actual restarts on the hosts of an upgrade, or on the Nodes of an in-place update.
    pub restarts: Vec<HostRestarts>,
    /// What could not be read, and what is missing for that reason.
    pub problems: Vec<String>,
}

/// Names and state of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunIdentity {
    pub id: String,
    pub verb: String,
    pub cluster: String,
    /// `running`, `unfinished` (killed, or stopped without a record), or how it ended: `done`,
    /// `failed`, `interrupted`, `paused`, `aborted` and so on.
    pub state: String,
    /// Command line without secrets.
    pub arguments: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    /// Time of the last record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
}

/// One command that began or resumed a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunSession {
    pub started: String,
    /// Time of its last record.
    pub last: String,
    /// Absent if it was killed, or is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Why it failed, where that is not the failure of a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Host name of the machine that ran it.
    pub controller: String,
    /// Version of imgctl.
    pub version: String,
}

/// What happened on one host, or on one Node for an in-place update, where a step is a Pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HostRun {
    pub host: String,
    pub steps: Vec<StepRun>,
}

/// A step on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StepRun {
    pub phase: String,
    pub name: String,
    pub attempts: Vec<Attempt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Log>,
}

/// One attempt at a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    pub number: u32,
    /// Absent if only its end was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<String>,
    /// Absent while it runs, and if imgctl was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// `done`, `failed`, `interrupted`, `lost`, `unknown`, `assumed`; of Pods also `skipped`, `gone` and
    /// `restored`; absent if its end was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The end of a step's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Log {
    /// File on the controller.
    pub path: String,
    pub text: String,
    /// Bytes before the text that are left out.
    pub omitted: u64,
}

/// Bytes that a host got from one source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Link {
    /// `controller`, or a host.
    pub from: String,
    pub to: String,
    pub bytes: u64,
}

/// Restarts of containers on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HostRestarts {
    pub host: String,
    /// Number of containers that did what was predicted.
    pub as_predicted: u64,
    /// Those among them that restarted or were recreated; the rest kept running.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agreed: Vec<RestartResult>,
    /// Containers whose prediction was wrong or undecided.
    pub others: Vec<RestartResult>,
    /// Other deviations from the plan.
    pub problems: Vec<String>,
}

/// What was predicted of a container, and what it did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RestartResult {
    pub namespace: String,
    pub pod: String,
    pub container: String,
    /// `keep`, `restart`, `recreate` or `unknown`.
    pub predicted: String,
    pub reason: String,
    /// `kept`, `restarted`, `recreated` or `gone`.
    pub actual: String,
    /// Number of restarts, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}
