//! Decides what will happen to one Pod: the same image, the same content, a different image, or no
//! change at all.

use std::collections::BTreeMap;

use crate::object::{Container, Place, Pod, Resources, Role};
use crate::plan::{ContainerPlan, PodPlan, ResizePlan, Verdict};
use crate::target::Target;
use crate::world::{Owner, World};
use crate::{marks, marks::Before};
use crate::{
    request,
    request::{Request, Resize, Verify, Wanted},
};

/// Default grace period of a Pod, in seconds.
const GRACE: u64 = 30;

/// Judges one Pod. `taken_up`: runs whose changes are to be completed, rather than treated as the
/// previous state.
pub(super) fn pod(
    world: &World,
    pod: &Pod,
    wanted: &Wanted,
    request: &Request,
    targets: &BTreeMap<String, Target>,
    taken_up: &[String],
) -> PodPlan {
    let node = world.nodes.get(&pod.spec.node_name);
    let architecture = node.map_or("", |node| &node.status.node_info.architecture);
    let mut plan = PodPlan {
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        group: world.group(pod),
        node: pod.spec.node_name.clone(),
        architecture: architecture.to_owned(),
        ready: pod.is_ready(),
        verdict: Verdict::Noop,
        reason: None,
        containers: Vec::new(),
        stop_seconds: pod.spec.termination_grace_period_seconds.unwrap_or(GRACE),
        start_seconds: start_seconds(pod),
        pull_secrets: pod.pull_secrets(),
    };
    if let Some(reason) = refusal(world, pod, request) {
        return refused(plan, reason);
    }
    let begun = marks::state(&pod.metadata).filter(|state| taken_up.contains(&state.id));
    let mut names: Vec<&String> = wanted.keys().chain(request.resize.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let Some(place) = pod.spec.container(name) else {
            return refused(plan, format!("it has no container `{name}`"));
        };
        match container(pod, name, place, architecture, wanted, request, targets) {
            Ok(mut container) => {
                let before = begun.as_ref().and_then(|state| state.containers.get(name));
                if let Some(before) = before {
                    see_through(&mut container, before, architecture, targets);
                }
                plan.containers.push(container);
            }
            Err(reason) => return refused(plan, reason),
        }
    }
    if let Some(reason) = qos_changes(pod, &plan.containers) {
        return refused(plan, reason);
    }
    let verdicts = plan.containers.iter().map(|one| match one.resize {
        Some(_) => one.verdict.max(Verdict::Change),
        None => one.verdict,
    });
    plan.verdict = verdicts.max().unwrap_or(Verdict::Noop);
    plan
}

fn refused(mut plan: PodPlan, reason: String) -> PodPlan {
    plan.verdict = Verdict::Refuse;
    plan.reason = Some(reason);
    plan
}

/// Returns why this Pod must not be changed.
fn refusal(world: &World, pod: &Pod, request: &Request) -> Option<String> {
    if pod.is_mirror() {
        return Some("it is a static Pod: change its manifest file on the host".to_owned());
    }
    if let Owner::Stranger { kind, name, .. } = world.owner(pod)
        && !request.force_owner
    {
        return Some(format!(
            "{kind} {name} manages it and may undo the change or recreate the Pod; pass \
             --force-owner to change it anyway"
        ));
    }
    None
}

fn container(
    pod: &Pod,
    name: &str,
    place: Place<'_>,
    architecture: &str,
    wanted: &Wanted,
    request: &Request,
    targets: &BTreeMap<String, Target>,
) -> Result<ContainerPlan, String> {
    match place.role {
        Role::Ephemeral => return Err(format!("`{name}` is an ephemeral container")),
        Role::Sidecar if !request.include_sidecars => {
            return Err(format!("`{name}` is a sidecar; pass --include-sidecars to change it"));
        }
        Role::Init if !request.include_init => {
            return Err(format!(
                "`{name}` is an init container: the change has no effect until the Pod is \
                 recreated; pass --include-init to change it"
            ));
        }
        _ => {}
    }
    let from = place.spec.image.clone();
    let to = wanted.get(name).cloned().unwrap_or_else(|| from.clone());
    let status = pod.status_of(name);
    let image_id = status.map(|status| status.image_id.clone()).unwrap_or_default();
    let target = targets.get(&to);
    let verdict = match target {
        _ if from == to => Verdict::Noop,
        Some(target) if target.is(&image_id, architecture) => Verdict::RestartOnly,
        _ => Verdict::Change,
    };
    if verdict != Verdict::Noop {
        match target {
            None if request.verify == Verify::Digest => {
                return Err(format!(
                    "the digest of {to} is unknown; pass --verify image to compare names"
                ));
            }
            Some(target)
                if !architecture.is_empty()
                    && !target.platforms.is_empty()
                    && target.variant(architecture).is_none() =>
            {
                return Err(format!("{to} has no image for {architecture}"));
            }
            _ => {}
        }
    }
    let resize = match request.resize.get(name) {
        Some(resize) => resized(place.spec, resize)?,
        None => None,
    };
    Ok(ContainerPlan {
        name: name.to_owned(),
        role: place.role,
        from,
        image_id,
        to,
        verdict,
        resize,
    })
}

/// Uses the state from before an earlier run, not the result of that run.
fn see_through(
    container: &mut ContainerPlan,
    before: &Before,
    architecture: &str,
    targets: &BTreeMap<String, Target>,
) {
    let landed = container.from != before.image && before.image != container.to;
    if before.to != container.to || !landed {
        return;
    }
    container.from.clone_from(&before.image);
    container.image_id.clone_from(&before.image_id);
    let target = targets.get(&container.to);
    let same = target.is_some_and(|target| target.is(&before.image_id, architecture));
    container.verdict = if same { Verdict::RestartOnly } else { Verdict::Change };
}

/// Returns the resources that a container is to have; `None`: it already has them.
fn resized(container: &Container, resize: &Resize) -> Result<Option<ResizePlan>, String> {
    let name = &container.name;
    let from = container.resources.clone();
    let mut to = from.clone();
    for (resource, amount) in &resize.both {
        let mut found = false;
        for list in [&mut to.requests, &mut to.limits] {
            if let Some(own) = list.get_mut(resource) {
                own.clone_from(amount);
                found = true;
            }
        }
        if !found {
            return Err(format!("`{name}` neither requests nor limits {resource}"));
        }
    }
    let lists = [
        ("request", &resize.requests, &mut to.requests),
        ("limit", &resize.limits, &mut to.limits),
    ];
    for (what, wanted, own) in lists {
        for (resource, amount) in wanted {
            let Some(own) = own.get_mut(resource) else {
                return Err(format!("`{name}` has no {what} of {resource}"));
            };
            own.clone_from(amount);
        }
    }
    for (resource, limit) in &to.limits {
        let request = to.requests.get(resource);
        let more = |request: &String| match (
            request::parse_quantity(request),
            request::parse_quantity(limit),
        ) {
            (Ok(request), Ok(limit)) => request > limit,
            _ => false,
        };
        if request.is_some_and(more) {
            return Err(format!("`{name}` would request more {resource} than its limit"));
        }
    }
    Ok((!same(&from, &to)).then_some(ResizePlan { from, to }))
}

/// Returns whether two sets of resources are equal.
pub(super) fn same(a: &Resources, b: &Resources) -> bool {
    let equal = |a: &BTreeMap<String, String>, b: &BTreeMap<String, String>| {
        a.len() == b.len()
            && a.iter().all(|(name, amount)| {
                b.get(name).is_some_and(|own| request::equal_quantities(own, amount))
            })
    };
    equal(&a.requests, &b.requests) && equal(&a.limits, &b.limits)
}

/// Returns an error message if the QoS class would change: it is fixed when a Pod is created.
fn qos_changes(pod: &Pod, containers: &[ContainerPlan]) -> Option<String> {
    if containers.iter().all(|one| one.resize.is_none()) {
        return None;
    }
    let all = || pod.spec.containers.iter().chain(&pod.spec.init_containers);
    let before = qos(&mut all().map(|one| one.resources.clone()));
    let after = qos(&mut all().map(|one| {
        let plan = containers.iter().find(|plan| plan.name == one.name);
        let resize = plan.and_then(|plan| plan.resize.as_ref());
        resize.map_or_else(|| one.resources.clone(), |resize| resize.to.clone())
    }));
    (before != after).then(|| {
        format!(
            "its quality of service would change from {before} to {after}, which is impossible for \
             a running Pod; set one of the two with requests.cpu= or limits.memory="
        )
    })
}

fn qos(containers: &mut dyn Iterator<Item = Resources>) -> &'static str {
    let (mut any, mut guaranteed) = (false, true);
    for one in containers {
        any |= !one.requests.is_empty() || !one.limits.is_empty();
        for resource in ["cpu", "memory"] {
            let limit = one.limits.get(resource);
            let request = one.requests.get(resource).or(limit);
            guaranteed &= match (request, limit) {
                (Some(request), Some(limit)) => request::equal_quantities(request, limit),
                _ => false,
            };
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Returns the time from the start of the last container until the Pod became ready.
fn start_seconds(pod: &Pod) -> Option<u64> {
    let ready = pod.condition("Ready").filter(|one| one.status == "True")?;
    let ready: jiff::Timestamp = ready.last_transition_time.as_ref()?.parse().ok()?;
    let running = pod.status.container_statuses.iter();
    let started = running.filter_map(|status| status.state.running.as_ref()?.started_at).max()?;
    u64::try_from(ready.as_second() - started.as_second()).ok()
}
