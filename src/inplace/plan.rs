//! The plan as a value: what will become of each Pod, and why not. docs/inplace.md has its JSON.
//!
//! Must not know how anything is done.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result};
use crate::image::Digest;
use crate::inplace::object::{Resources, Role};
use crate::inplace::request::Request;
use crate::inplace::target::Target;

/// The form of this document.
pub(crate) const SCHEMA: u32 = 1;

/// Everything that was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Plan {
    pub(crate) schema: u32,
    /// Over what is to change and from what; not over what changes by itself.
    pub(crate) digest: String,
    pub(crate) request: Request,
    /// It undoes an earlier run.
    #[serde(default)]
    pub(crate) rollback: bool,
    pub(crate) server: String,
    /// What the new images mean, by name.
    pub(crate) images: BTreeMap<String, Target>,
    /// By UID of the workload, or of the Pod that has none.
    pub(crate) groups: BTreeMap<String, Group>,
    /// In the order in which they go.
    pub(crate) pods: Vec<PodPlan>,
    /// UIDs; those of one batch are done before the next begins.
    pub(crate) batches: Vec<Vec<String>>,
    /// Any of these keeps it from beginning.
    pub(crate) problems: Vec<Problem>,
    pub(crate) notes: Vec<String>,
}

/// Why something is not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Problem {
    pub(crate) subject: String,
    pub(crate) reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

/// Pods of one owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Group {
    /// `Deployment`, …; `Pod`: nobody manages it.
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) desired: usize,
    pub(crate) ready: usize,
    /// How many of them may be out of service at once.
    pub(crate) max_unavailable: usize,
    pub(crate) budgets: Vec<BudgetView>,
    /// Images of its template that differ from what its Pods get.
    pub(crate) template: BTreeMap<String, String>,
    /// What becomes of the new images later.
    pub(crate) consequence: String,
}

impl Group {
    /// `Deployment shop/web`.
    pub(crate) fn full_name(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// A PodDisruptionBudget as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BudgetView {
    pub(crate) name: String,
    pub(crate) disruptions_allowed: i64,
    pub(crate) current_healthy: i64,
    pub(crate) desired_healthy: i64,
}

/// What will become of a container or Pod; the later, the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING-KEBAB-CASE")]
pub(crate) enum Verdict {
    /// It has that image already: no request is sent.
    Noop,
    /// Another name for what it runs: the container restarts all the same.
    RestartOnly,
    Change,
    Refuse,
}

impl Verdict {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Noop => "NOOP",
            Self::RestartOnly => "RESTART-ONLY",
            Self::Change => "CHANGE",
            Self::Refuse => "REFUSE",
        }
    }
}

/// One Pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodPlan {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Key of [`Plan::groups`].
    pub(crate) group: String,
    pub(crate) node: String,
    pub(crate) architecture: String,
    pub(crate) ready: bool,
    pub(crate) verdict: Verdict,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    pub(crate) containers: Vec<ContainerPlan>,
    /// At most so long it takes to end: its grace period.
    pub(crate) stop_seconds: u64,
    /// What it took to become ready last time, where that can be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) start_seconds: Option<u64>,
    /// Names of its `imagePullSecrets`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) pull_secrets: Vec<String>,
}

impl PodPlan {
    /// `namespace/name`.
    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Whether something is to be done to it.
    pub(crate) fn is_work(&self) -> bool {
        matches!(self.verdict, Verdict::Change | Verdict::RestartOnly)
    }
}

/// One container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerPlan {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The image as it is written in the Pod.
    pub(crate) from: String,
    /// The image that runs, as the kubelet calls it.
    pub(crate) image_id: String,
    pub(crate) to: String,
    pub(crate) verdict: Verdict,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resize: Option<ResizePlan>,
}

/// New resources of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResizePlan {
    pub(crate) from: Resources,
    pub(crate) to: Resources,
}

impl Plan {
    /// Computes the digest anew.
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
        let templates: BTreeMap<&String, &BTreeMap<String, String>> = self
            .groups
            .iter()
            .map(|(uid, group)| (uid, &group.template))
            .collect();
        let all = serde_json::json!([
            SCHEMA,
            self.request,
            self.rollback,
            self.images,
            templates,
            pods
        ]);
        let bytes = serde_json::to_vec(&all)
            .map_err(|error| Error::failed("cannot write the plan as JSON").caused_by(error))?;
        self.digest = Digest::of(&bytes).to_string();
        Ok(())
    }

    /// Pods to which something is to be done.
    pub(crate) fn work(&self) -> impl Iterator<Item = &PodPlan> {
        self.pods.iter().filter(|pod| pod.is_work())
    }

    /// An error when something keeps it from beginning.
    pub(crate) fn check(&self) -> Result<()> {
        if self.problems.is_empty() {
            return Ok(());
        }
        let mut message = "the Pods cannot be changed in place; nothing was changed:".to_owned();
        for problem in &self.problems {
            message.push_str(&format!("\n  {}: {}", problem.subject, problem.reason));
        }
        let mut error = Error::new(Kind::CheckFailed, message);
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
