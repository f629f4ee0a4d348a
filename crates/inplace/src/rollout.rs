//! Checks whether a workload is stable, as its Pods would otherwise be replaced during the change, and
//! whether another Pod may be taken out of service now. Pure.

use crate::world::{Known, World};
use crate::{marks, marks::Restore};
use crate::{object::Pod, plan::Group, request::WorkloadKind};

/// Returns what is in progress; `None`: nothing, or only what the runs `ids` left unfinished.
pub(crate) fn in_progress(world: &World, known: &Known, ids: &[String]) -> Option<String> {
    let object = &known.object;
    match marks::restore(&object.metadata) {
        Some(Ok(Restore { id: other, .. })) if !ids.contains(&other) => {
            return Some(format!(
                "run {other} changed its template and was interrupted: resume it with `imgctl \
                 inplace apply --id {other}`"
            ));
        }
        // Paused or held back by this run or one that it undoes.
        Some(Ok(_)) => return None,
        Some(Err(why)) => return Some(why),
        None => {}
    }
    let (spec, status) = (&object.spec, &object.status);
    if status.observed_generation < object.metadata.generation {
        return Some("its controller has not observed its last change yet".to_owned());
    }
    let replicas = spec.replicas.unwrap_or(1);
    match known.kind {
        WorkloadKind::Deployment => {
            let active = world
                .replica_sets(&object.metadata.uid)
                .filter(|set| {
                    set.object.spec.replicas.unwrap_or(1) > 0 || set.object.status.replicas > 0
                })
                .count();
            if active > 1 {
                return Some(format!("a rollout is in progress: {active} ReplicaSets have Pods"));
            }
            (status.updated_replicas != replicas || status.replicas != replicas).then(|| {
                format!(
                    "a rollout is in progress: {} of {replicas} replicas match its template, {} \
                     exist",
                    status.updated_replicas, status.replicas
                )
            })
        }
        WorkloadKind::StatefulSet if spec.update_strategy.kind != "OnDelete" => {
            let partition = spec.update_strategy.rolling_update.as_ref();
            let partition = partition.and_then(|one| one.partition).unwrap_or(0);
            let mixed = !status.update_revision.is_empty()
                && status.current_revision != status.update_revision
                && status.updated_replicas != replicas;
            mixed.then(|| match partition {
                0 => "a rollout is in progress: its Pods have two revisions".to_owned(),
                _ => format!(
                    "a rollout is held at partition {partition}: its Pods have two revisions"
                ),
            })
        }
        WorkloadKind::DaemonSet if spec.update_strategy.kind != "OnDelete" => {
            let (updated, desired) =
                (status.updated_number_scheduled, status.desired_number_scheduled);
            (updated < desired).then(|| {
                format!("a rollout is in progress: {updated} of {desired} Pods match its template")
            })
        }
        _ => None,
    }
}

/// `Err` contains the reason why it may not. `flying`: UIDs of Pods that this run took out of
/// service and that are not ready again.
pub(crate) fn may_start(
    world: &World,
    pod: &Pod,
    group: &Group,
    flying: &[&str],
) -> Result<(), String> {
    if let Some(node) = world.nodes.get(&pod.spec.node_name)
        && let Some(trouble) = node.trouble()
    {
        return Err(trouble);
    }
    if !pod.is_ready() {
        // It is already out of service.
        return Ok(());
    }
    let serves = |pod: &&Pod| pod.is_ready() && !flying.contains(&pod.metadata.uid.as_str());
    let key = world.group(pod);
    let ready = world.members(&key).filter(serves).count();
    let missing = group.desired.saturating_sub(ready);
    if missing + 1 > group.max_unavailable {
        return Err(format!(
            "{missing} of {} Pods of {} are out of service, and at most {} may be",
            group.desired,
            group.full_name(),
            group.max_unavailable
        ));
    }
    for budget in world.budgets_of(pod) {
        let (name, status) = (&budget.metadata.name, &budget.status);
        let selector = budget.spec.selector.as_ref();
        let counted =
            |pod: &&Pod| selector.is_some_and(|selector| selector.matches(&pod.metadata.labels));
        let alive = || {
            let pods = world.pods.iter();
            pods.filter(|pod| !pod.is_finished() && !pod.is_going()).filter(counted)
        };
        // The budget's controller may not have observed yet that they are out of service.
        let out = alive().filter(|pod| flying.contains(&pod.metadata.uid.as_str())).count();
        let healthy = alive().filter(serves).count();
        let out = i64::try_from(out).unwrap_or(i64::MAX);
        let healthy = i64::try_from(healthy).unwrap_or(0);
        if status.disruptions_allowed - out < 1 || healthy - 1 < status.desired_healthy {
            return Err(format!(
                "PodDisruptionBudget {}/{name} allows no disruption ({healthy} healthy, {} needed)",
                world.namespace, status.desired_healthy
            ));
        }
    }
    Ok(())
}
