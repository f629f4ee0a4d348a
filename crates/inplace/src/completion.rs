//! Determines whether a changed Pod runs as requested. Pure: only looks at the given Pod.

use std::collections::BTreeMap;

use crate::marks::{Before, PodState};
use crate::object::{Container, ContainerStatus, Pod, Role};
use crate::{plan::Verdict, request::Verify, target::Target, verdict::same};
use imgctl_base::image::Reference;

/// Maximum clock skew between hosts, in seconds.
const SKEW: i64 = 120;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Waiting(String),
    /// The containers are ready but the Pod is not: a readiness gate may be closed.
    ContainersReady,
    Ready,
    Failed(String),
    /// The Pod no longer exists, or another Pod has its name.
    Gone,
}

#[derive(Clone, Debug)]
pub(crate) struct Changed {
    pub uid: String,
    pub architecture: String,
    pub state: PodState,
    /// Images as stored by the API server: admission may have changed them.
    pub stored: BTreeMap<String, String>,
    pub(crate) verdicts: BTreeMap<String, (Verdict, Role)>,
}

/// Judges the progress of a Pod. `targets` is keyed by the requested image name.
pub(crate) fn judge(
    changed: &Changed,
    pod: Option<&Pod>,
    targets: &BTreeMap<String, Target>,
    verify: Verify,
) -> Judgement {
    let Some(pod) = pod.filter(|pod| pod.metadata.uid == changed.uid && !pod.is_going()) else {
        return Judgement::Gone;
    };
    if pod.status.observed_generation.is_some_and(|seen| seen < pod.metadata.generation) {
        return Judgement::Waiting("the kubelet has not observed the change yet".to_owned());
    }
    for (name, before) in &changed.state.containers {
        let (verdict, role) =
            changed.verdicts.get(name).copied().unwrap_or((Verdict::Change, Role::Main));
        let Some(place) = pod.spec.container(name) else {
            return Judgement::Failed(format!("`{name}` is no longer in its Pod"));
        };
        if let Some(stored) = changed.stored.get(name)
            && place.spec.image != *stored
        {
            return Judgement::Failed(format!(
                "another client set the image of `{name}` to {}",
                place.spec.image
            ));
        }
        if role == Role::Init {
            continue;
        }
        let Some(status) = pod.status_of(name) else {
            return Judgement::Waiting(format!("`{name}` has no status"));
        };
        let restarts = verdict != Verdict::Noop;
        let judged = if restarts {
            container(changed, name, before, place.spec, status, targets, verify, verdict)
        } else {
            None
        };
        if let Some(judgement) = judged.or_else(|| resources(pod, before, place.spec, status)) {
            return judgement;
        }
        if !status.ready {
            return Judgement::Waiting(format!("`{name}` is not ready"));
        }
    }
    if pod.is_ready() { Judgement::Ready } else { Judgement::ContainersReady }
}

/// Waiting reasons that do not resolve by themselves.
const FATAL: [&str; 8] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
];

/// Judges a container; `None`: it runs as requested.
#[expect(clippy::too_many_arguments, reason = "all of them are one observation")]
fn container(
    changed: &Changed,
    name: &str,
    before: &Before,
    spec: &Container,
    status: &ContainerStatus,
    targets: &BTreeMap<String, Target>,
    verify: Verify,
    verdict: Verdict,
) -> Option<Judgement> {
    let waits = |why: String| Some(Judgement::Waiting(why));
    let fails = |why: String| Some(Judgement::Failed(why));
    let is_new = !status.container_id.is_empty() && status.container_id != before.container_id;
    if let Some(waiting) = &status.state.waiting {
        let reason = waiting.reason.as_str();
        let told = format!("`{name}`: {reason} {}", waiting.message).trim_end().to_owned();
        // A previous waiting reason says nothing about the new image.
        let ours = is_new || before.waiting != reason || named_alike(&status.image, &spec.image);
        return match reason {
            "CrashLoopBackOff" if is_new => fails(told),
            _ if FATAL.contains(&reason) && ours => fails(told),
            _ => waits(told),
        };
    }
    if status.restart_count > before.restart_count + 1 {
        return fails(format!(
            "`{name}` was started {} times",
            status.restart_count - before.restart_count
        ));
    }
    if !is_new {
        return waits(format!("`{name}` is still the old container"));
    }
    if status.state.terminated.is_some() {
        return waits(format!("`{name}` has ended"));
    }
    let started = status.state.running.as_ref().and_then(|one| one.started_at);
    match started {
        None => return waits(format!("`{name}` is not running")),
        Some(started) if started.as_second() + SKEW < changed.state.time.as_second() => {
            return waits(format!("`{name}` has been running since before the change"));
        }
        Some(_) => {}
    }
    if verdict == Verdict::RestartOnly {
        return None;
    }
    let target = targets.get(&before.to).filter(|_| before.to == spec.image);
    let known = target.map(|target| target.is(&status.image_id, &changed.architecture));
    let alike = named_alike(&status.image, &spec.image)
        // Runtimes that know several names for an image report any of them, or its digest.
        || (!before.image_id.is_empty() && status.image_id != before.image_id);
    match (known, verify) {
        (Some(true), _) => None,
        (Some(false) | None, Verify::Digest) => fails(format!(
            "`{name}` runs {}, which is not the digest of {}",
            status.image_id, before.to
        )),
        _ if alike => None,
        _ => waits(format!("`{name}` runs {}, not {}", status.image, spec.image)),
    }
}

/// Judges the resources of a container; `None`: nothing is pending.
fn resources(
    pod: &Pod,
    before: &Before,
    spec: &Container,
    status: &ContainerStatus,
) -> Option<Judgement> {
    before.resources.as_ref()?;
    let name = &spec.name;
    for kind in ["PodResizePending", "PodResizeInProgress"] {
        let Some(condition) = pod.condition(kind).filter(|one| one.status == "True") else {
            continue;
        };
        let told = format!("`{name}`: {kind} {} {}", condition.reason, condition.message);
        let told = told.trim_end().to_owned();
        return Some(match condition.reason.as_str() {
            "Infeasible" | "Error" => Judgement::Failed(told),
            _ => Judgement::Waiting(told),
        });
    }
    match &status.resources {
        Some(has) if !same(has, &spec.resources) => {
            Some(Judgement::Waiting(format!("`{name}` does not have its new resources yet")))
        }
        _ => None,
    }
}

/// Returns whether two names refer to the same image: `nginx:1` and `docker.io/library/nginx:1`.
fn named_alike(a: &str, b: &str) -> bool {
    let full = |name: &str| {
        let parsed = Reference::parse(name).ok()?;
        let parsed = match parsed.registry() {
            Some(_) => parsed,
            None => parsed.on_docker_hub(),
        };
        let tag = match (parsed.tag(), parsed.digest()) {
            (Some(tag), _) => tag.to_owned(),
            (None, Some(digest)) => digest.to_string(),
            (None, None) => "latest".to_owned(),
        };
        Some((parsed.name(), tag))
    };
    a == b || full(a).is_some_and(|a| full(b) == Some(a))
}

#[cfg(test)]
#[path = "completion_tests.rs"]
mod tests;
