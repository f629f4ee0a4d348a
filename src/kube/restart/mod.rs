//! Which containers a change of kubelet restarts, said before it and checked after it.
//!
//! Facts go in (what runs on a host, the host's pods as the API server sends them, the releases
//! before and after) and a [`Prediction`] comes out; afterwards [`compare`] holds it against what
//! happened. Nothing here asks a host or a server, and nothing is rounded in favour: what is not
//! surely kept is not called kept.
#![cfg_attr(
    not(test),
    allow(
        dead_code,
        unused_imports,
        reason = "for what plans and checks upgrades"
    )
)]

mod compare;
mod decide;
mod running;
mod static_pods;
mod verdict;

#[cfg(test)]
mod test_scenes;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::kube::hash::{Minor, Pod};

pub(crate) use compare::{Actual, Comparison, Mismatch, compare};
pub(crate) use running::{RunningContainer, running};
pub(crate) use verdict::{Code, ContainerPrediction, Counts, Verdict};

/// What is to change on one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KubeletChange {
    /// The release of the kubelet that runs (not of the file on disk).
    pub(crate) from: Minor,
    pub(crate) to: Minor,
    /// The API server's releases before and after, where they are known.
    pub(crate) server: Option<(Minor, Minor)>,
    /// The releases whose hashes the new kubelet declares to accept besides its own
    /// (`imgctl.io/kubelet-hash-compat`).
    pub(crate) compatible: Vec<Minor>,
    /// The container runtimes' names before and after (`docker`, `containerd`).
    pub(crate) runtime: Option<(String, String)>,
    /// The cgroup drivers before and after.
    pub(crate) cgroup_driver: Option<(String, String)>,
}

impl KubeletChange {
    pub(crate) fn new(from: Minor, to: Minor) -> Self {
        Self {
            from,
            to,
            server: None,
            compatible: Vec::new(),
            runtime: None,
            cgroup_driver: None,
        }
    }

    /// The way back. What the new kubelet accepts says nothing about the old one.
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

/// What will happen to the containers of one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Prediction {
    pub(crate) from: Minor,
    pub(crate) to: Minor,
    pub(crate) containers: Vec<ContainerPrediction>,
    pub(crate) counts: Counts,
    /// What besides hashes may end containers, in sentences for the operator.
    pub(crate) others: Vec<String>,
}

impl Prediction {
    /// The pods of these containers are made anew by whoever brings the release, whatever hashes
    /// say.
    pub(crate) fn recreates(&mut self, reason: &str, which: impl Fn(&ContainerPrediction) -> bool) {
        self.becomes(Verdict::Recreate, reason, which);
    }

    /// The pods of these containers may be made anew by whoever brings the release.
    pub(crate) fn perhaps_recreates(
        &mut self,
        reason: &str,
        which: impl Fn(&ContainerPrediction) -> bool,
    ) {
        self.becomes(Verdict::Unknown, reason, which);
    }

    /// These containers are ended and started again by whoever brings the release, though their pods
    /// stay what they are.
    pub(crate) fn restarts_again(
        &mut self,
        reason: &str,
        which: impl Fn(&ContainerPrediction) -> bool,
    ) {
        self.becomes(Verdict::Restart, reason, which);
    }

    fn becomes(
        &mut self,
        verdict: Verdict,
        reason: &str,
        which: impl Fn(&ContainerPrediction) -> bool,
    ) {
        let changed = self
            .containers
            .iter_mut()
            .filter(|one| one.verdict != Verdict::Recreate && which(one));
        for one in changed {
            one.verdict = verdict;
            one.code = Code::Release;
            one.reason = reason.to_owned();
            one.exact = verdict != Verdict::Unknown;
            one.next_hash = None;
        }
        let ended = self.counts.ended;
        self.counts = Counts {
            ended,
            ..Counts::default()
        };
        for one in &self.containers {
            self.counts.count(one.verdict);
        }
    }
}

/// The way there and the way back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BothWays {
    pub(crate) forward: Prediction,
    /// Of a rollback right after: what was restarted on the way has the hash of the new kubelet.
    pub(crate) back: Prediction,
}

/// Foretells what `change` does to `running`, a host's containers. `pods` are that host's pods
/// from the API server's raw answer.
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
    Prediction {
        from: change.from,
        to: change.to,
        containers,
        counts,
        others: others(change),
    }
}

/// Foretells the change and its undoing.
pub(crate) fn predict_both(
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
    BothWays {
        back: predict(&then, pods, &change.back()),
        forward,
    }
}

/// Reasons that no single container shows.
fn others(change: &KubeletChange) -> Vec<String> {
    let mut found = Vec::new();
    if let Some((before, after)) = change.runtime.as_ref().filter(|(a, b)| a != b) {
        found.push(format!(
            "the container runtime changes from {before} to {after}: every container ends"
        ));
    } else if change.runtime.is_none() && change.from < Minor(24) && change.to >= Minor(24) {
        found.push(
            "kubelets from 1.24 on do not drive Docker themselves: if Docker runs this host's \
             containers, every one ends"
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
            "a kubelet that starts admits its pods anew: one that no longer fits the host \
             (node selector, resources, device plugins) is ended"
                .to_owned(),
        );
    }
    found
}
