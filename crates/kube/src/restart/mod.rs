//! Predicts which containers a change of kubelet restarts, and checks the prediction afterwards.
//!
//! The input is facts (what runs on a host, the host's pods as the API server sends them, the
//! releases before and after) and the output is a [`Prediction`]; afterwards [`compare`] compares
//! it with what happened. This module contacts neither hosts nor servers, and it errs on the side
//! of caution: a container is predicted to be kept only if that is certain.

mod compare;
mod decide;
mod rehash;
mod running;
mod verdict;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::hash::{Minor, Pod};

pub use compare::{Actual, Comparison, Mismatch, compare};
pub use running::{RunningContainer, running};
pub use verdict::{Code, ContainerPrediction, Counts, HashChange, Verdict};

/// The planned change on one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletChange {
    /// The release of the kubelet that runs (not of the file on disk).
    pub from: Minor,
    pub to: Minor,
    /// The API server's releases before and after, if known.
    pub server: Option<(Minor, Minor)>,
    /// The releases whose hashes the new kubelet declares to accept in addition to its own
    /// (`imgctl.io/kubelet-hash-compat`).
    pub compatible: Vec<Minor>,
    /// The container runtimes' names before and after (`docker`, `containerd`).
    pub runtime: Option<(String, String)>,
    /// The cgroup drivers before and after.
    pub cgroup_driver: Option<(String, String)>,
}

impl KubeletChange {
    pub fn new(from: Minor, to: Minor) -> Self {
        Self { from, to, server: None, compatible: Vec::new(), runtime: None, cgroup_driver: None }
    }

    /// Returns the reverse change. What the new kubelet accepts says nothing about the old one.
    fn back(&self) -> Self {
        let swapped = |pair: &Option<(String, String)>| pair.clone().map(|(a, b)| (b, a));
        Self {
            from: self.to,
            to: self.from,
            server: self.server.map(|(before, after)| (after, before)),
            compatible: Vec::new(),
            runtime: swapped(&self.runtime),
            cgroup_driver: swapped(&self.cgroup_driver),
        }
    }
}

/// The predicted effect on the containers of one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prediction {
    pub from: Minor,
    pub to: Minor,
    pub containers: Vec<ContainerPrediction>,
    pub counts: Counts,
    /// Reasons other than hashes that may end containers, as sentences for the operator.
    pub others: Vec<String>,
}

impl Prediction {
    /// Marks the pods of these containers as recreated by the tool that installs the release,
    /// whatever their hashes are.
    pub fn recreates(&mut self, reason: &str, which: impl Fn(&ContainerPrediction) -> bool) {
        self.becomes(Verdict::Recreate, reason, which);
    }

    /// Marks the pods of these containers as possibly recreated by the tool that installs the
    /// release.
    pub fn perhaps_recreates(
        &mut self,
        reason: &str,
        which: impl Fn(&ContainerPrediction) -> bool,
    ) {
        self.becomes(Verdict::Unknown, reason, which);
    }

    /// Marks these containers as restarted by the tool that installs the release, although their
    /// pods remain the same.
    pub fn restarts_again(&mut self, reason: &str, which: impl Fn(&ContainerPrediction) -> bool) {
        self.becomes(Verdict::Restart, reason, which);
    }

    fn becomes(
        &mut self,
        verdict: Verdict,
        reason: &str,
        which: impl Fn(&ContainerPrediction) -> bool,
    ) {
        let changed =
            self.containers.iter_mut().filter(|one| one.verdict != Verdict::Recreate && which(one));
        for one in changed {
            one.verdict = verdict;
            one.code = Code::Release;
            one.reason = reason.to_owned();
            one.exact = verdict != Verdict::Unknown;
            one.next_hash = None;
            // If it is not recreated after all, its hash must not restart it.
            if verdict != Verdict::Unknown {
                one.rehash = None;
            }
        }
        self.count();
    }
}

/// The predictions for an upgrade and its rollback.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BothWays {
    pub forward: Prediction,
    /// The prediction for an immediate rollback: containers restarted by the upgrade have the hash
    /// of the new kubelet.
    pub back: Prediction,
}

/// Predicts what `change` does to `running`, the containers of a host. `pods` are the pods of that
/// host, read from the API server's raw answer.
pub(crate) fn predict(
    running: &[RunningContainer],
    pods: &[Pod],
    change: &KubeletChange,
) -> Prediction {
    let mut counts = Counts::default();
    let mut containers = Vec::new();
    for container in running {
        if !container.running {
            counts.ended += 1;
            continue;
        }
        let prediction = decide::decide(container, pods, change);
        counts.count(prediction.verdict);
        containers.push(prediction);
    }
    Prediction { from: change.from, to: change.to, containers, counts, others: others(change) }
}

/// Predicts the change and its rollback.
pub fn predict_both(
    running: &[RunningContainer],
    pods: &[Pod],
    change: &KubeletChange,
) -> BothWays {
    let forward = predict(running, pods, change);
    let then: Vec<RunningContainer> = running
        .iter()
        .filter(|container| container.running)
        .zip(&forward.containers)
        .map(|(container, prediction)| RunningContainer {
            hash_annotation: prediction.next_hash.map(|hash| hash.to_string()),
            hash_without_resources: None,
            ..container.clone()
        })
        .collect();
    BothWays { back: predict(&then, pods, &change.back()), forward }
}

/// Returns the reasons that apply to the whole host.
fn others(change: &KubeletChange) -> Vec<String> {
    let mut found = Vec::new();
    if let Some((before, after)) = change.runtime.as_ref().filter(|(a, b)| a != b) {
        found.push(format!(
            "the container runtime changes from {before} to {after}: every container stops"
        ));
    } else if change.runtime.is_none() && change.from < Minor(24) && change.to >= Minor(24) {
        found.push(
            "kubelets from 1.24 on do not support Docker directly: if Docker runs this host's \
             containers, every one stops"
                .to_owned(),
        );
    }
    if let Some((before, after)) = change.cgroup_driver.as_ref().filter(|(a, b)| a != b) {
        found.push(format!(
            "the kubelet's cgroup driver changes from {before} to {after}: drain the host"
        ));
    }
    if change.from != change.to {
        found.push(
            "a kubelet admits its pods again when it starts: it stops those that no longer fit the \
             host (node selector, resources, device plugins)"
                .to_owned(),
        );
    }
    found
}
