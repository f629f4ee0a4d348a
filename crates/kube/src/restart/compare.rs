//! Compares a prediction with what happened.

use serde::{Deserialize, Serialize};

use crate::restart::verdict::{Code, ContainerPrediction, Verdict};
use crate::restart::{Prediction, RunningContainer};

/// What happened to a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Actual {
    /// The same container is still running.
    Kept,
    /// Another container is running in the same pod.
    Restarted,
    /// The container is running in another pod of the same name.
    Recreated,
    /// No container of that name is running here.
    Gone,
}

impl Actual {
    /// Returns the JSON form.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Restarted => "restarted",
            Self::Recreated => "recreated",
            Self::Gone => "gone",
        }
    }
}

/// A container for which the prediction was wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mismatch {
    pub predicted: ContainerPrediction,
    pub actual: Actual,
    /// The cause, as far as it can be determined afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ContainerPrediction { namespace, pod, container, verdict, reason, .. } =
            &self.predicted;
        let became = match self.actual {
            Actual::Kept => "it was kept",
            Actual::Restarted => "it was restarted",
            Actual::Recreated => "its pod was recreated",
            Actual::Gone => "it is gone",
        };
        let verdict = verdict.word();
        write!(f, "{namespace}/{pod} {container}: predicted {verdict} ({reason}), but {became}")?;
        match &self.why {
            Some(why) => write!(f, ": {why}"),
            None => Ok(()),
        }
    }
}

impl Mismatch {
    /// Returns the container of the same name that runs after the change.
    pub fn successor<'a>(&self, after: &'a [RunningContainer]) -> Option<&'a RunningContainer> {
        after.iter().find(|now| is_of(now, &self.predicted))
    }
}

/// Result of comparing a prediction with what happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    pub agreed: usize,
    pub mismatches: Vec<Mismatch>,
    /// Containers without a prediction, and what happened to them.
    pub undecided: Vec<Mismatch>,
}

/// Compares `prediction` with the host's containers `after` the change. New containers are ignored.
pub fn compare(prediction: &Prediction, after: &[RunningContainer]) -> Comparison {
    let mut comparison = Comparison::default();
    for predicted in &prediction.containers {
        let actual = actual(predicted, after);
        let outcome = || Mismatch { predicted: predicted.clone(), actual, why: None };
        match agrees(predicted, actual) {
            None => comparison.undecided.push(outcome()),
            Some(true) => comparison.agreed += 1,
            Some(false) => comparison.mismatches.push(outcome()),
        }
    }
    comparison
}

fn is_of(now: &RunningContainer, predicted: &ContainerPrediction) -> bool {
    now.running
        && now.container == predicted.container
        && now.pod == predicted.pod
        && now.namespace == predicted.namespace
}

fn actual(predicted: &ContainerPrediction, after: &[RunningContainer]) -> Actual {
    let mut best = Actual::Gone;
    for now in after.iter().filter(|now| is_of(now, predicted)) {
        if now.id == predicted.id {
            return Actual::Kept;
        }
        if now.uid == predicted.uid {
            best = Actual::Restarted;
        } else if best == Actual::Gone {
            best = Actual::Recreated;
        }
    }
    best
}

fn agrees(predicted: &ContainerPrediction, actual: Actual) -> Option<bool> {
    match predicted.verdict {
        Verdict::Unknown => None,
        Verdict::Keep => Some(actual == Actual::Kept),
        // kubeadm removes the manifest and restores it.
        Verdict::Restart if predicted.code == Code::Release && predicted.is_static => {
            Some(matches!(actual, Actual::Restarted | Actual::Recreated))
        }
        Verdict::Restart => Some(actual == Actual::Restarted),
        // A change of runtime recreates the sandbox, not the pod.
        Verdict::Recreate if predicted.code == Code::Runtime => {
            Some(matches!(actual, Actual::Restarted | Actual::Recreated))
        }
        // A recreated DaemonSet Pod has a different name.
        Verdict::Recreate if predicted.code == Code::Release && !predicted.is_static => {
            Some(matches!(actual, Actual::Recreated | Actual::Gone))
        }
        Verdict::Recreate => Some(actual == Actual::Recreated),
    }
}
