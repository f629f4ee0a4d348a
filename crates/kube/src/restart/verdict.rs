//! The prediction for one container: the verdict, its reason and its certainty.

use serde::{Deserialize, Serialize};

use crate::hash::ContainerHash;

/// Predicted effect on a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The container continues to run.
    Keep,
    /// The container is restarted in the same pod.
    Restart,
    /// The whole pod is recreated.
    Recreate,
    /// The effect cannot be determined; expect a restart.
    Unknown,
}

/// Reason for a verdict; one code per cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The new kubelet computes the hash that the container already has.
    SameHash,
    /// Kubelets do not compare the hash of this type of container.
    NotCompared,
    /// The new kubelet is declared to accept hashes of the old one.
    DeclaredCompatible,
    /// The hash in the container runtime's record is brought to that of the new kubelet.
    Rehashed,
    /// The formula changes between 1.30 and 1.31.
    #[serde(rename = "formula-1.31")]
    Formula131,
    /// Name or image in the pod's spec differ from those the container was started with.
    ImageString,
    /// The container uses fields that only one of the two kubelets reads.
    Fields,
    /// The present hash cannot be reproduced from the spec.
    NotReproducible,
    /// The API server does not have the container's pod.
    NoSpec,
    /// The container has no readable hash.
    NoHash,
    Terminating,
    /// Depends on whether the new kubelet resizes pods in place.
    Resize,
    /// The new API server fills in a field that the kubelet hashes.
    ServerDefaults,
    /// Not every patch release of the new kubelet compares sidecars.
    Sidecar,
    /// The spec has control characters that Go releases serialize differently.
    ControlCharacters,
    /// The new kubelet gives the static pod another uid.
    StaticPod,
    /// The new kubelet may give the static pod another uid.
    StaticPodPerhaps,
    /// The pod runs an image of the release itself, which the new release replaces.
    Release,
    Runtime,
    CgroupDriver,
    /// One of the releases is older than those whose hashing is known.
    OldRelease,
}

/// A change of a container's hash in the container runtime's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashChange {
    pub from: String,
    pub to: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPrediction {
    pub namespace: String,
    pub pod: String,
    pub uid: String,
    pub container: String,
    /// The container's id in the runtime before the change.
    pub id: String,
    pub is_static: bool,
    /// The pod's controller (`ReplicaSet/web-5d9c`); none for bare and static pods.
    pub owner: Option<String>,
    pub verdict: Verdict,
    pub code: Code,
    /// One sentence for the operator.
    pub reason: String,
    /// Whether the verdict is computed rather than estimated.
    pub(crate) exact: bool,
    /// The container's hash after the change, if known.
    pub(crate) next_hash: Option<ContainerHash>,
    /// The change of its record that keeps it running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rehash: Option<HashChange>,
}

impl Verdict {
    /// Returns the JSON form of the verdict.
    pub fn word(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Restart => "restart",
            Self::Recreate => "recreate",
            Self::Unknown => "unknown",
        }
    }
}

/// Number of containers per verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    pub keep: usize,
    pub restart: usize,
    pub recreate: usize,
    pub unknown: usize,
    /// Containers that were not running before the change and have no prediction.
    pub ended: usize,
}

impl Counts {
    pub(super) fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Keep => self.keep += 1,
            Verdict::Restart => self.restart += 1,
            Verdict::Recreate => self.recreate += 1,
            Verdict::Unknown => self.unknown += 1,
        }
    }

    /// Returns the number of containers that are not certain to be kept; limits on restarts apply
    /// to it.
    pub fn disturbed(self) -> usize {
        self.restart + self.recreate + self.unknown
    }
}

/// A verdict that is not yet assigned to a container.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    pub(super) code: Code,
    pub(super) reason: String,
    pub(super) exact: bool,
    pub(super) next: Option<ContainerHash>,
}

impl Finding {
    fn new(verdict: Verdict, code: Code, reason: impl Into<String>) -> Self {
        Self { verdict, code, reason: reason.into(), exact: true, next: None }
    }

    pub(super) fn keep(code: Code, reason: impl Into<String>) -> Self {
        Self::new(Verdict::Keep, code, reason)
    }

    pub(super) fn restart(code: Code, reason: impl Into<String>) -> Self {
        Self::new(Verdict::Restart, code, reason)
    }

    pub(super) fn recreate(code: Code, reason: impl Into<String>) -> Self {
        Self::new(Verdict::Recreate, code, reason)
    }

    pub(super) fn unknown(code: Code, reason: impl Into<String>) -> Self {
        let mut finding = Self::new(Verdict::Unknown, code, reason);
        finding.exact = false;
        finding
    }

    pub(super) fn estimated(mut self) -> Self {
        self.exact = false;
        self
    }

    pub(super) fn next(mut self, hash: Option<ContainerHash>) -> Self {
        self.next = hash;
        self
    }
}
