//! Checks for obstacles to drains: PodDisruptionBudgets, unmanaged Pods, data that is lost.

use std::collections::BTreeSet;

use crate::document::{Finding, KeepContainers, KubeletSwap, Severity, few};
use crate::finding::{error, note, warning};
use crate::observation::{HostSeen, PodSeen};
use crate::preflight::look::Look;
use crate::{batches::lonely_pods, restarts::forward};
use imgctl_kube::drain::{PdbProblem, PodName};

/// Maximum number of findings of one kind.
const MOST: usize = 20;

/// Nodes that will be drained.
fn drained<'a>(look: &Look<'a>) -> BTreeSet<&'a str> {
    if look.document.choices.kubelet_swap == KubeletSwap::InPlace {
        return BTreeSet::new();
    }
    look.nodes().map(|(_, node)| node.name.as_str()).collect()
}

/// Pods that drains move.
fn moved<'a>(look: &Look<'a>) -> Vec<&'a PodSeen> {
    let nodes = drained(look);
    let pods = look.api().into_iter().flat_map(|api| &api.pods);
    pods.filter(|pod| {
        !pod.finished
            && !pod.mirror
            && !pod.owner.starts_with("DaemonSet/")
            && nodes.contains(pod.node.as_str())
    })
    .collect()
}

fn names(pods: &[&PodSeen]) -> Vec<String> {
    pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect()
}

pub(super) fn budgets(look: &Look<'_>) -> Vec<Finding> {
    let moved: BTreeSet<(&str, &str)> =
        moved(look).into_iter().map(|pod| (pod.namespace.as_str(), pod.name.as_str())).collect();
    let moves = |pod: &PodName| moved.contains(&(pod.namespace.as_str(), pod.name.as_str()));
    let problems = look.api().into_iter().flat_map(|api| &api.budgets);
    let mut found = Vec::new();
    for problem in problems {
        let what = problem.to_string();
        match problem {
            PdbProblem::Several { pod, .. } if moves(pod) => {
                found.push(error("pod-disruption-budgets", what).hint("leave it only one of them"));
            }
            PdbProblem::NoneAllowed { pods, .. } if pods.iter().any(moves) => {
                found.push(warning("pod-disruption-budgets", what).hint(
                    "give its owner one more replica, or let the budget allow one disruption; \
                     --drain-on-timeout decides what happens when the drain times out",
                ));
            }
            PdbProblem::Stale { .. } if !moved.is_empty() => {
                found.push(warning("pod-disruption-budgets", what));
            }
            _ => {}
        }
    }
    found
}

pub(super) fn unmanaged(look: &Look<'_>) -> Vec<Finding> {
    let mut found = orphans(look);
    let bare: Vec<&PodSeen> = moved(look).into_iter().filter(|pod| pod.owner.is_empty()).collect();
    if bare.is_empty() {
        return found;
    }
    let what =
        format!("no controller recreates these Pods when they are evicted: {}", few(&names(&bare)));
    found.push(if look.document.choices.force_unmanaged {
        note("unmanaged-pods", what)
    } else {
        error("unmanaged-pods", what)
            .hint("delete them, give them an owner, or pass --force-unmanaged to evict them")
    });
    found
}

/// Pods whose DaemonSet no longer exists: a drain would leave them running, and no controller
/// recreates them.
fn orphans(look: &Look<'_>) -> Vec<Finding> {
    let Some(api) = look.api().filter(|api| !api.unknown.contains_key("DaemonSet")) else {
        return Vec::new();
    };
    let nodes = drained(look);
    let is_orphan = |pod: &&PodSeen| {
        let Some(set) = pod.owner.strip_prefix("DaemonSet/") else {
            return false;
        };
        let has = api.workloads.iter().any(|one| {
            one.kind == "DaemonSet" && one.name == set && one.namespace == pod.namespace
        });
        !has && !pod.finished && nodes.contains(pod.node.as_str())
    };
    let orphans: Vec<&PodSeen> = api.pods.iter().filter(is_orphan).collect();
    if orphans.is_empty() {
        return Vec::new();
    }
    let what = format!(
        "the DaemonSets of these Pods are gone, no controller recreates them: {}",
        few(&names(&orphans))
    );
    vec![if look.document.choices.force_unmanaged {
        note("unmanaged-pods", what)
    } else {
        error("unmanaged-pods", what).hint("delete them, or pass --force-unmanaged to evict them")
    }]
}

/// Terminating Pods past their deadline: a drain would wait for them until its timeout.
pub(super) fn stuck(look: &Look<'_>) -> Vec<Finding> {
    let stuck = moved(look);
    let stuck = stuck.iter().filter_map(|pod| {
        let why = pod.stuck.as_ref()?;
        let what = format!(
            "Pod {}/{} on {} should have terminated by now: {why}",
            pod.namespace, pod.name, pod.node
        );
        Some(warning("terminating-pods", what).hint(
            "fix what blocks it; --drain-on-timeout decides what happens when the drain times out",
        ))
    });
    stuck.take(MOST).collect()
}

pub(super) fn local_data(look: &Look<'_>) -> Vec<Finding> {
    let holding: Vec<&PodSeen> =
        moved(look).into_iter().filter(|pod| !pod.local_volumes.is_empty()).collect();
    if holding.is_empty() {
        return Vec::new();
    }
    let what = format!(
        "{} Pods have emptyDir volumes, which are lost when they are evicted: {}",
        holding.len(),
        few(&names(&holding))
    );
    vec![if look.document.choices.delete_emptydir_data {
        note("local-data", what)
    } else {
        error("local-data", what).hint("allow it with --delete-emptydir-data")
    }]
}

/// Pods that the kubelets of v1.36 refuse; those of v1.33 to v1.35 do, too, without a feature gate.
pub(super) fn git_volumes(look: &Look<'_>) -> Vec<Finding> {
    let pods = look.api().into_iter().flat_map(|api| &api.pods);
    let holding: Vec<&PodSeen> =
        pods.filter(|pod| !pod.finished && !pod.git_volumes.is_empty()).collect();
    let new = look.new_minors();
    if holding.is_empty() || !look.is_kubernetes() {
        return Vec::new();
    }
    let told = format!("these Pods have gitRepo volumes: {}", few(&names(&holding)));
    let hint = "clone in an init container into an emptyDir volume instead";
    if new.contains(&36) {
        let what = format!("{told}; kubelets of v1.36 and newer do not start them");
        vec![error("git-volumes", what).hint(hint)]
    } else if new.contains(&33) {
        let what = format!(
            "{told}; kubelets of v1.33 and newer start them only with the feature gate \
             GitRepoVolumeDriver"
        );
        vec![warning("git-volumes", what).hint(hint)]
    } else {
        Vec::new()
    }
}

pub(super) fn single(look: &Look<'_>) -> Vec<Finding> {
    let nodes = drained(look);
    let lonely: usize = lonely_pods(look.observation)
        .iter()
        .filter(|(node, _)| nodes.contains(*node))
        .map(|(_, count)| count)
        .sum();
    if lonely == 0 {
        return Vec::new();
    }
    let what = format!(
        "{lonely} Pods are the only replica of their owner: their service is interrupted while \
         they move"
    );
    vec![
        note("single-replicas", what)
            .hint("add a second replica first where that is not acceptable"),
    ]
}

pub(super) fn unhealthy(look: &Look<'_>) -> Vec<Finding> {
    let workloads = look.api().into_iter().flat_map(|api| &api.workloads);
    let ill: Vec<String> = workloads
        .filter(|workload| workload.ready < workload.desired)
        .map(|workload| {
            format!(
                "{} {}/{} ({} of {})",
                workload.kind, workload.namespace, workload.name, workload.ready, workload.desired
            )
        })
        .collect();
    if ill.is_empty() {
        return Vec::new();
    }
    let what = format!("some Pods are not ready before the upgrade: {}", few(&ill));
    vec![
        warning("unhealthy-workloads", what)
            .hint("fix them first: the upgrade cannot tell them from Pods that it broke"),
    ]
}

/// Checks the limits of `--max-restarts` and `--no-restart`, and finds hosts without a prediction.
pub(super) fn restarts(look: &Look<'_>) -> Vec<Finding> {
    let Some(most) = look.document.choices.max_restarts.filter(|_| look.is_kubernetes()) else {
        let is_to_keep = look.document.choices.keep_containers != KeepContainers::None;
        let severity = if is_to_keep { Severity::Error } else { Severity::Warning };
        let all = look.hosts().filter_map(untold);
        return all.map(|one| Finding { severity, ..one }).collect();
    };
    let mut found = Vec::new();
    let mut all: u64 = 0;
    for host in look.hosts() {
        match forward(look.document, &host.id) {
            Some(told) => all += u64::try_from(told.counts.disturbed()).unwrap_or(u64::MAX),
            None => {
                let mut one = untold(host).unwrap_or_else(|| {
                    error("restarts", UNTOLD)
                        .on(host)
                        .hint("`crictl ps` must work there, and the API must show its Pods")
                });
                one.severity = Severity::Error;
                found.push(one);
            }
        }
    }
    if all > most {
        let what = format!("{all} containers restart or may restart; {most} are allowed");
        found.push(error("restarts", what).hint(
            "see the plan for which; pass --kubelet-swap drain to move Pods away first, or raise \
             --max-restarts",
        ));
    }
    found
}

const UNTOLD: &str = "cannot predict which of its containers restart";

/// Reports a host that did not list its containers.
fn untold(host: &HostSeen) -> Option<Finding> {
    let why = host.containers_problem.as_ref()?;
    let what = format!("{UNTOLD}: {why}");
    let hint = "`crictl ps` and `crictl inspect` must work there";
    Some(warning("restarts", what).on(host).hint(hint))
}
