//! The plan as data: what will happen to each Pod, and why not. docs/inplace.md describes its JSON.
//!
//! Must not depend on how the plan is executed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::object::{Resources, Role};
use crate::{request::Request, target::Target};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::Digest;

/// Schema version of this document.
pub(crate) const SCHEMA: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    pub(crate) schema: u32,
    /// Digest of the changes and their starting point; values that change by themselves are
    /// excluded.
    pub digest: String,
    pub request: Request,
    /// Whether the plan undoes an earlier run.
    #[serde(default)]
    pub rollback: bool,
    pub server: String,
    /// Resolved new images, by name.
    pub images: BTreeMap<String, Target>,
    /// Groups by UID of the workload, or of the Pod if it has none.
    pub groups: BTreeMap<String, Group>,
    /// Pods in the order in which they are changed.
    pub pods: Vec<PodPlan>,
    /// UIDs by batch; a batch finishes before the next one starts.
    pub batches: Vec<Vec<String>>,
    /// Problems that prevent the run from starting.
    pub problems: Vec<Problem>,
    pub notes: Vec<String>,
}

/// Reason why a change is not made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub subject: String,
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The Pods of one owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// `Deployment`, …; `Pod`: it has no workload.
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub desired: usize,
    pub ready: usize,
    /// Maximum number of Pods that may be out of service at once.
    pub max_unavailable: usize,
    pub budgets: Vec<BudgetView>,
    /// Images of the template that differ from the requested ones.
    pub template: BTreeMap<String, String>,
    /// What later happens to the new images.
    pub consequence: String,
}

impl Group {
    /// `Deployment shop/web`.
    pub fn full_name(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// State of a PodDisruptionBudget at planning time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetView {
    pub name: String,
    pub disruptions_allowed: i64,
    pub current_healthy: i64,
    pub desired_healthy: i64,
}

/// What will happen to a container or Pod, in increasing order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING-KEBAB-CASE")]
pub enum Verdict {
    /// It already has that image: no request is sent.
    Noop,
    /// A different name for the running image: the container restarts nevertheless.
    RestartOnly,
    Change,
    Refuse,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Noop => "NOOP",
            Self::RestartOnly => "RESTART-ONLY",
            Self::Change => "CHANGE",
            Self::Refuse => "REFUSE",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodPlan {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Key of [`Plan::groups`].
    pub group: String,
    pub node: String,
    pub architecture: String,
    pub ready: bool,
    pub verdict: Verdict,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub containers: Vec<ContainerPlan>,
    /// Maximum time to stop: the grace period of the Pod.
    pub stop_seconds: u64,
    /// Time that the Pod took to become ready last time, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_seconds: Option<u64>,
    /// Secrets with which the Pod pulls its images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull_secrets: Vec<String>,
}

impl PodPlan {
    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Returns whether the Pod has to be changed.
    pub(crate) fn is_work(&self) -> bool {
        matches!(self.verdict, Verdict::Change | Verdict::RestartOnly)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPlan {
    pub name: String,
    pub role: Role,
    /// The image as written in the Pod.
    pub from: String,
    /// The running image, as reported by the kubelet.
    pub image_id: String,
    pub to: String,
    pub verdict: Verdict,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<ResizePlan>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizePlan {
    pub from: Resources,
    pub to: Resources,
}

impl Plan {
    /// Recomputes the digest.
    pub(crate) fn seal(&mut self) -> Result<()> {
        let mut pods: Vec<serde_json::Value> = self
            .pods
            .iter()
            .map(|pod| {
                let containers = pod.containers.iter().map(|one| {
                    serde_json::json!([one.name, one.from, one.to, one.verdict, one.resize])
                });
                let containers: Vec<_> = containers.collect();
                serde_json::json!([pod.uid, pod.verdict, containers])
            })
            .collect();
        pods.sort_by_key(ToString::to_string);
        let templates: BTreeMap<&String, &BTreeMap<String, String>> =
            self.groups.iter().map(|(uid, group)| (uid, &group.template)).collect();
        let all =
            serde_json::json!([SCHEMA, self.request, self.rollback, self.images, templates, pods]);
        let bytes =
            serde_json::to_vec(&all).doing(|| "cannot write the plan as JSON".to_owned())?;
        self.digest = Digest::of(&bytes).to_string();
        Ok(())
    }

    pub fn work(&self) -> impl Iterator<Item = &PodPlan> {
        self.pods.iter().filter(|pod| pod.is_work())
    }

    /// Returns an error if a problem prevents the run from starting.
    pub fn check(&self) -> Result<()> {
        if self.problems.is_empty() {
            return Ok(());
        }
        let problem = |problem: &Problem| format!("  {}: {}", problem.subject, problem.reason);
        let mut error =
            Error::check_failed("the Pods cannot be changed in place; nothing was changed:")
                .lines(self.problems.iter().map(problem));
        let mut told: Vec<&String> = Vec::new();
        for hint in self.problems.iter().filter_map(|one| one.hint.as_ref()) {
            if !told.contains(&hint) {
                told.push(hint);
                error = error.hint(hint.clone());
            }
        }
        Err(error)
    }
}
