//! Empties Nodes as `kubectl drain` does, says at every moment what each Pod waits for, and in the
//! end why one did not go.
//!
//! [`cordon`] comes first and is the caller's, like [`uncordon`] afterwards: between them lie steps
//! that a drain knows nothing of.

mod blocked;
mod cordon;
mod pods;
mod run;
#[cfg(test)]
mod tests;
mod verdict;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use blocked::{PdbProblem, blocked};
pub(crate) use cordon::{Cordon, MARK, cordon, uncordon};
pub(crate) use run::drain;

use crate::kube::api::{Answer, Api};

/// What to do when Pods are left after the time-out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnTimeout {
    /// Gives up; what was evicted stays evicted.
    #[default]
    Abort,
    /// Goes on for as long as it takes.
    Wait,
    /// Deletes them whatever their PodDisruptionBudgets say, and waits once more.
    Delete,
}

/// How to drain.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// For all Pods together; zero: no limit.
    pub(crate) timeout: Duration,
    pub(crate) on_timeout: OnTimeout,
    /// Pods with emptyDir volumes are evicted too.
    pub(crate) delete_emptydir_data: bool,
    /// Pods that nothing makes again are evicted too.
    pub(crate) force: bool,
    /// Seconds that Pods get to end; `None`: what each of them says itself.
    pub(crate) grace: Option<u64>,
    /// Pods are deleted at once, whatever their PodDisruptionBudgets say.
    pub(crate) disable_eviction: bool,
    /// How often we look; tests look more often.
    pub(crate) poll: Duration,
    /// Before a refused eviction is tried again, if the server does not say.
    pub(crate) retry: Duration,
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

/// A Pod in the words of a message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct PodName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl PodName {
    pub(crate) fn of(pod: &Value) -> Self {
        let text = |name: &str| {
            pod["metadata"][name]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        Self {
            namespace: text("namespace"),
            name: text("name"),
        }
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

/// Something that happened to a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodEvent {
    pub(crate) pod: PodName,
    pub(crate) happened: Happened,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// It stays, and why.
    Skipped(&'static str),
    /// Its eviction was accepted; what is lost with it, if anything.
    Evicting(Option<&'static str>),
    /// It is deleted without asking for budgets; what is lost with it, if anything.
    Deleting(Option<&'static str>),
    /// It cannot go now, and why; told again only when the reason changes.
    Blocked(String),
    Gone,
    /// The time is over; what it still waits for.
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

/// What a drain did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drained {
    /// Pods that are gone.
    pub(crate) gone: usize,
    /// Of those, deleted against their PodDisruptionBudgets.
    pub(crate) forced: Vec<PodName>,
}

/// The group and version in which the server takes evictions and has PodDisruptionBudgets:
/// `policy/v1`, before 1.22 `policy/v1beta1`.
fn policy(api: &dyn Api) -> Answer<&'static str> {
    let version = api.get("/version")?;
    let minor = version["minor"].as_str().unwrap_or_default();
    let minor: u32 = minor.trim_end_matches('+').parse().unwrap_or(u32::MAX);
    let is_old = version["major"] == "1" && minor < 22;
    Ok(match is_old {
        true => "policy/v1beta1",
        false => "policy/v1",
    })
}
