//! Checks whether a workload is stable: otherwise, its Pods would be replaced during the change.

use crate::inplace::marks::{self, Restore};
use crate::inplace::request::WorkloadKind;
use crate::inplace::world::{Known, World};

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
