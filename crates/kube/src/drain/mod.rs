//! Drains Nodes as `kubectl drain` does, reports what each Pod is waiting for, and finally why a
//! Pod was not removed.
//!
//! The caller runs [`cordon`] before and [`uncordon`] afterwards, because other steps happen
//! between them.

mod blocked;
mod cordon;
mod pods;
mod run;
#[cfg(test)]
mod tests;
mod verdict;

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::{Answer, Api};
pub use blocked::{PdbProblem, blocked};
pub use cordon::{Cordon, MARK, cordon, uncordon};
pub use run::drain;

/// Action for the Pods that remain after the timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnTimeout {
    /// Fails; evicted Pods stay evicted.
    #[default]
    Abort,
    /// Continues without a limit.
    Wait,
    /// Deletes them regardless of their PodDisruptionBudgets, and waits once more.
    Delete,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// Timeout for all Pods together; zero: no limit.
    pub timeout: Duration,
    pub on_timeout: OnTimeout,
    /// Whether Pods with emptyDir volumes are evicted.
    pub delete_emptydir_data: bool,
    /// Whether Pods that no controller recreates are evicted.
    pub force: bool,
    /// Grace period in seconds; `None`: the Pod's own.
    pub grace: Option<u64>,
    /// Whether Pods are deleted immediately, regardless of their PodDisruptionBudgets.
    pub disable_eviction: bool,
    /// Poll interval; tests use a shorter one.
    pub poll: Duration,
    /// Delay before a refused eviction is retried, unless the server specifies one.
    pub retry: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(600),
            on_timeout: OnTimeout::Abort,
            delete_emptydir_data: false,
            force: false,
            grace: None,
            disable_eviction: false,
            poll: Duration::from_secs(1),
            retry: Duration::from_secs(5),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

impl PodName {
    pub fn of(pod: &Value) -> Self {
        let text = |name: &str| pod["metadata"][name].as_str().unwrap_or_default().to_owned();
        Self { namespace: text("namespace"), name: text("name") }
    }

    pub(super) fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    pub pod: PodName,
    pub(crate) happened: Happened,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// The Pod stays, for this reason.
    Skipped(&'static str),
    /// The eviction was accepted; contains what is lost with the Pod, if anything.
    Evicting(Option<&'static str>),
    /// The Pod is deleted regardless of budgets; contains what is lost with it, if anything.
    Deleting(Option<&'static str>),
    /// The Pod cannot be evicted now, for this reason; reported again only when the reason changes.
    Blocked(String),
    Gone,
    /// The timeout has expired; contains what the Pod is still waiting for.
    TimedOut(String),
}

impl fmt::Display for PodEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pod = &self.pod;
        match &self.happened {
            Happened::Skipped(why) => write!(f, "Pod {pod} stays: {why}"),
            Happened::Evicting(None) => write!(f, "Pod {pod} is evicted"),
            Happened::Evicting(Some(lost)) => write!(f, "Pod {pod} is evicted, {lost}"),
            Happened::Deleting(None) => write!(f, "Pod {pod} is deleted"),
            Happened::Deleting(Some(lost)) => write!(f, "Pod {pod} is deleted, {lost}"),
            Happened::Blocked(why) => write!(f, "Pod {pod} waits: {why}"),
            Happened::Gone => write!(f, "Pod {pod} is gone"),
            Happened::TimedOut(why) => write!(f, "Pod {pod} is still there: {why}"),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Number of removed Pods.
    pub gone: usize,
    /// Pods deleted regardless of their PodDisruptionBudgets.
    pub forced: Vec<PodName>,
}

/// Returns the API group and version of evictions and PodDisruptionBudgets: `policy/v1`, before
/// 1.22 `policy/v1beta1`.
fn policy(api: &dyn Api) -> Answer<&'static str> {
    let version = api.get("/version")?;
    let minor = version["minor"].as_str().unwrap_or_default();
    let minor: u32 = minor.trim_end_matches('+').parse().unwrap_or(u32::MAX);
    let is_old = version["major"] == "1" && minor < 22;
    Ok(if is_old { "policy/v1beta1" } else { "policy/v1" })
}
