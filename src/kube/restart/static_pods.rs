//! Whether another kubelet gives a static pod another uid.
//!
//! That uid is a hash of the manifest as the kubelet holds it: of a dump of its internal Go struct.
//! A new field in what the pod uses is another uid, and the pod is made anew, sandbox and all.

use crate::kube::hash::{Minor, Pod};

/// What a step up to a release does to uids of static pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// Nothing that is known; the internal structs have not been compared.
    NothingKnown,
    /// A field in a struct that most manifests use (probes, volumes, security contexts).
    Nested,
    /// A field in every pod or container, or the way of hashing.
    Every,
}

/// What is to be expected of a static pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Uid {
    Stays,
    Perhaps,
    Changes,
    /// Changes for nearly all manifests, and this one could not be looked at.
    Probably,
}

fn step(to: u32) -> Step {
    match to {
        13 | 15 | 16 | 19 | 21 | 23 | 25..=28 | 32 | 34..=36 => Step::Every,
        14 | 18 | 22 | 24 | 29..=31 | 33 => Step::Nested,
        _ => Step::NothingKnown,
    }
}

/// The uid of a static pod between two releases, in either direction. `mirror` is what the API
/// server shows of it.
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
