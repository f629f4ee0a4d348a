//! The verdict on one container, and whether a change of kubelet changes the uid of a static Pod.

use serde_json::{Map, Value};

use crate::hash::{
    ContainerHash, Era, Minor, Pod, PodContainer, Resources, Role, container_hash, fields_added,
    has_unsettled_escape, json, json_hash,
};
use crate::restart::verdict::{Code, ContainerPrediction, Finding, Verdict};
use crate::restart::{KubeletChange, RunningContainer, running::made_of_a_manifest};

/// Predicts what happens to the running container `container`.
pub(super) fn decide(
    container: &RunningContainer,
    pods: &[Pod],
    change: &KubeletChange,
) -> ContainerPrediction {
    // The containers of a static pod carry the kubelet's uid; its mirror carries the API server's.
    let pod = pods.iter().find(|pod| match &pod.mirror_of {
        Some(uid) => *uid == container.uid,
        None => pod.uid == container.uid,
    });
    let is_static = container.is_static || pod.is_some_and(|pod| pod.mirror_of.is_some());
    let finding = finding(container, pod, is_static, change);
    ContainerPrediction {
        namespace: container.namespace.clone(),
        pod: container.pod.clone(),
        uid: container.uid.clone(),
        container: container.container.clone(),
        id: container.id.clone(),
        is_static,
        owner: pod.and_then(|pod| pod.owner.clone()),
        verdict: finding.verdict,
        code: finding.code,
        reason: finding.reason,
        exact: finding.exact,
        next_hash: finding.next,
        rehash: None,
    }
}

fn finding(
    container: &RunningContainer,
    pod: Option<&Pod>,
    is_static: bool,
    change: &KubeletChange,
) -> Finding {
    let spec = pod.and_then(|pod| {
        let mut all = pod.containers.iter();
        all.find(|spec| spec.name == container.container)
    });
    let next = spec.and_then(|spec| container_hash(&spec.spec, change.to).ok());
    if let Some((before, after)) = change.runtime.as_ref().filter(|(a, b)| a != b) {
        let reason = format!("{after} does not take over the containers of {before}");
        return Finding::recreate(Code::Runtime, reason).next(next);
    }
    let by_hash = || by_hash(container, pod, spec, is_static, change);
    // A uid that the manifest itself sets does not change.
    let finding = if is_static && made_of_a_manifest(&container.uid) {
        of_static(uid(change.from, change.to, pod), change, by_hash).next(next)
    } else {
        by_hash()
    };
    match change.cgroup_driver.as_ref().filter(|(a, b)| a != b) {
        Some(_) if finding.verdict == Verdict::Keep => {
            Finding::unknown(Code::CgroupDriver, "the kubelet's cgroup driver changes")
        }
        _ => finding,
    }
}

fn of_static(uid: Uid, change: &KubeletChange, by_hash: impl FnOnce() -> Finding) -> Finding {
    let (from, to) = (change.from, change.to);
    let changes = || format!("static pod: between {from} and {to} its uid changes");
    match uid {
        Uid::Changes => Finding::recreate(Code::StaticPod, changes()),
        Uid::Probably => Finding::recreate(Code::StaticPod, changes()).estimated(),
        Uid::Stays => by_hash(),
        Uid::Perhaps => match by_hash() {
            finding if finding.verdict == Verdict::Restart => finding,
            _ => Finding::unknown(
                Code::StaticPodPerhaps,
                format!("static pod: it is unknown whether its uid is the same in {from} and {to}"),
            ),
        },
    }
}

/// Decides by the hash of the container, as the kubelet would compare it.
fn by_hash(
    container: &RunningContainer,
    pod: Option<&Pod>,
    spec: Option<&PodContainer>,
    is_static: bool,
    change: &KubeletChange,
) -> Finding {
    let (Some(pod), Some(spec)) = (pod, spec) else {
        return Finding::unknown(Code::NoSpec, "the API server shows no such container");
    };
    let has =
        container.hash_annotation.as_ref().and_then(|text| text.parse::<ContainerHash>().ok());
    match spec.role {
        _ if pod.terminating => {
            return Finding::unknown(Code::Terminating, "its pod is being deleted");
        }
        Role::Init => {
            let reason = "kubelets let an init container that runs finish";
            return Finding::keep(Code::NotCompared, reason).next(has);
        }
        Role::Ephemeral => {
            let reason = "kubelets never restart ephemeral containers";
            return Finding::keep(Code::NotCompared, reason).next(has);
        }
        Role::Main | Role::Sidecar => {}
    }
    if change.compatible.contains(&change.from) {
        let reason = format!("the new kubelet is declared to accept hashes of {}", change.from);
        return Finding::keep(Code::DeclaredCompatible, reason).next(has);
    }
    let finding = Question {
        spec,
        has,
        without_resources: container.hash_without_resources.as_deref(),
        is_static,
        change,
    }
    .answer();
    // Kubelets compare sidecars since 1.32, and in some earlier patch releases.
    match spec.role {
        Role::Sidecar if finding.verdict == Verdict::Restart && change.to < Minor(32) => {
            let reason = format!(
                "sidecar: not every kubelet of {} restarts one whose hash differs",
                change.to
            );
            Finding::unknown(Code::Sidecar, reason).next(finding.next)
        }
        _ => finding,
    }
}

/// The inputs for comparing one container's hash as a kubelet does.
struct Question<'a> {
    spec: &'a PodContainer,
    has: Option<ContainerHash>,
    without_resources: Option<&'a str>,
    is_static: bool,
    change: &'a KubeletChange,
}

impl Question<'_> {
    fn answer(&self) -> Finding {
        let (from, to) = (self.change.from, self.change.to);
        let (before, era) = match (from.era(), to.era()) {
            (Ok(before), Ok(era)) => (before, era),
            (Err(error), _) | (_, Err(error)) => {
                return Finding::unknown(Code::OldRelease, error.to_string());
            }
        };
        let next = match container_hash(&self.spec.spec, to) {
            Ok(hash) => hash,
            // A different formula gives a different hash in any case.
            Err(_) if before != era => return crossing(),
            Err(error) => return Finding::unknown(Code::NotReproducible, error.to_string()),
        };
        if before != era {
            // The hashes are equal only if the new hash was already written before.
            return if self.has == Some(next) {
                same(to, next)
            } else {
                crossing().next(Some(next))
            };
        }
        let Some(has) = self.has else {
            return Finding::unknown(Code::NoHash, "the container has no readable hash");
        };
        match era {
            Era::NameAndImage if has == next => same(to, next),
            Era::NameAndImage => Finding::restart(
                Code::ImageString,
                format!(
                    "its hash is not that of {} with image {}",
                    self.spec.name, self.spec.image
                ),
            )
            .next(Some(next)),
            Era::Json => self.within_json(has),
        }
    }

    /// Compares two releases of 1.16 to 1.30. The present hash must be reproduced first: only then
    /// does imgctl see the container as the kubelet does.
    fn within_json(&self, has: ContainerHash) -> Finding {
        let (from, to) = (self.change.from, self.change.to);
        let of = |minor| json(&self.spec.spec, minor, Resources::Kept);
        let (old, new) = match (of(from), of(to)) {
            (Ok(old), Ok(new)) => (old, new),
            (Err(error), _) | (_, Err(error)) => {
                return Finding::unknown(Code::NotReproducible, error.to_string());
            }
        };
        let next = json_hash(&new);
        // The raw bytes may hold fields that our tables do not have.
        let raw = json_hash(self.spec.raw.get().as_bytes());
        if json_hash(&old) != has && raw != has {
            return if has_unsettled_escape(&old) {
                Finding::unknown(
                    Code::ControlCharacters,
                    "its spec has control characters that Go releases write differently",
                )
            } else {
                Finding::unknown(
                    Code::NotReproducible,
                    "its hash cannot be reproduced from the pod's spec",
                )
            };
        }
        if has_unsettled_escape(&new) {
            return Finding::unknown(
                Code::ControlCharacters,
                "its spec has control characters that Go releases write differently",
            );
        }
        if self.server_fills_in() {
            return Finding::unknown(
                Code::ServerDefaults,
                "API servers from 1.33 on fill in resizePolicy, which this kubelet hashes",
            );
        }
        if next == has || old == new {
            return same(to, has);
        }
        if json_hash(&old) != has {
            return Finding::unknown(
                Code::NotReproducible,
                "its spec has fields that upstream kubelets do not know",
            );
        }
        if self.resources_alone(has) {
            return Finding::unknown(
                Code::Resize,
                "depends on whether the new kubelet resizes pods in place",
            );
        }
        let (low, high) = (from.min(to), from.max(to));
        Finding::restart(
            Code::Fields,
            format!(
                "its spec has {}, which kubelets of {low} do not read",
                fields_added(&self.spec.spec, low, high).join(", ")
            ),
        )
        .next(Some(next))
    }

    /// Kubelets that resize in place accept a hash that differs only by `resources`.
    fn resources_alone(&self, has: ContainerHash) -> bool {
        let to = self.change.to;
        if self.is_static || !(27..=30).contains(&to.0) {
            return false;
        }
        let Some(rest) = self.without_resources else {
            return false;
        };
        let Ok(json) = json(&self.spec.spec, to, Resources::LeftOut) else {
            return false;
        };
        rest.parse() == Ok(json_hash(&json)) && rest != has.to_string()
    }

    fn server_fills_in(&self) -> bool {
        let crossed = self
            .change
            .server
            .is_some_and(|(before, after)| before < Minor(33) && after >= Minor(33));
        let spec = &self.spec.spec;
        let set = |value: Option<&Value>| value.and_then(Value::as_object).is_some_and(some);
        crossed
            && (27..=30).contains(&self.change.to.0)
            && !spec.contains_key("resizePolicy")
            && set(spec.get("resources"))
    }
}

/// Returns the finding for a change of formula.
fn crossing() -> Finding {
    Finding::restart(Code::Formula131, "kubelets hash containers differently from 1.31 on")
}

fn same(to: Minor, hash: ContainerHash) -> Finding {
    Finding::keep(Code::SameHash, format!("kubelets of {to} compute the same hash"))
        .next(Some(hash))
}

fn some(map: &Map<String, Value>) -> bool {
    !map.is_empty()
}

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
