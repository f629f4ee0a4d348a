//! Whether a change of kubelet changes the uid of a static pod.
//!
//! That uid is a hash of the manifest as the kubelet holds it: a hash of a dump of its internal Go
//! struct. A new field in a struct that the pod uses changes the uid, and the kubelet recreates the
//! pod including its sandbox.

use crate::hash::{Minor, Pod};

/// Effect of an upgrade to a release on the uids of static pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// No known change; the internal structs have not been compared.
    NothingKnown,
    /// A new field in a struct that most manifests use (probes, volumes, security contexts).
    Nested,
    /// A new field in every pod or container, or a new way of hashing.
    Every,
}

/// Expected effect on the uid of a static pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Uid {
    Stays,
    Perhaps,
    Changes,
    /// Changes for nearly all manifests, and this manifest is not available for inspection.
    Probably,
}

fn step(to: u32) -> Step {
    match to {
        19 | 21 | 23 | 25..=28 | 32 | 34..=36 => Step::Every,
        18 | 22 | 24 | 29..=31 | 33 => Step::Nested,
        _ => Step::NothingKnown,
    }
}

/// Predicts the effect on a static pod's uid of moving between two releases, in either direction.
/// `mirror` is the mirror of the static pod, as the API server shows it.
pub(super) fn uid(one: Minor, other: Minor, mirror: Option<&Pod>) -> Uid {
    let (low, high) = (one.min(other).0, one.max(other).0);
    match ((low + 1)..=high).map(step).max() {
        None => Uid::Stays,
        Some(Step::Every) => Uid::Changes,
        Some(Step::NothingKnown) => Uid::Perhaps,
        Some(Step::Nested) => match mirror.map(uses_nested) {
            Some(true) => Uid::Changes,
            Some(false) => Uid::Perhaps,
            None => Uid::Probably,
        },
    }
}

fn uses_nested(pod: &Pod) -> bool {
    let fields = [
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle",
        "volumeMounts",
        "securityContext",
    ];
    pod.volumes_or_security
        || pod
            .containers
            .iter()
            .any(|container| fields.iter().any(|key| container.spec.contains_key(*key)))
}
