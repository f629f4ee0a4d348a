//! Checks that the API can do what an upgrade requires, that Nodes match hosts, and their state.

use std::collections::{BTreeMap, BTreeSet};

use crate::batches::size;
use crate::document::{Finding, few};
use crate::finding::{error, note, warning};
use crate::preflight::look::Look;
use imgctl_runtime::version::minor;

pub(super) fn mapping(look: &Look<'_>) -> Vec<Finding> {
    if look.api().is_none() {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut owners: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for host in look.hosts() {
        match &host.node {
            Some(node) => owners.entry(node).or_default().push(&host.id),
            None if host.rivals.is_empty() => found.push(
                error("node-mapping", "no Node of the cluster is on this host")
                    .on(host)
                    .hint("compare `kubectl get nodes -o wide` with the Clusterfile's addresses"),
            ),
            None => found.push(
                error("node-mapping", format!("several Nodes match it: {}", few(&host.rivals)))
                    .on(host)
                    .hint("list the host by the InternalIP of its Node"),
            ),
        }
    }
    for (node, ids) in owners.iter().filter(|(_, ids)| ids.len() > 1) {
        let what = format!("Node {node} matches several hosts: {}", few(ids));
        found.push(error("node-mapping", what).hint("list each machine once"));
    }
    found
}

pub(super) fn strangers(look: &Look<'_>) -> Vec<Finding> {
    let Some(api) = look.api() else {
        return Vec::new();
    };
    let ours: BTreeSet<&str> =
        look.observation.hosts.iter().filter_map(|host| host.node.as_deref()).collect();
    let strangers = api.nodes.iter().filter(|node| !ours.contains(node.name.as_str()));
    strangers
        .map(|node| {
            let what = format!(
                "Node {} ({}) belongs to no host of the Clusterfile: it is not changed",
                node.name, node.kubelet
            );
            warning("unknown-node", what)
                .hint("add its host to the cluster, or delete the Node if it is gone")
        })
        .collect()
}

pub(super) fn ready(look: &Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (host, node) in look.nodes() {
        if !node.ready {
            let what = format!("Node {} is not ready: {}", node.name, node.message);
            let hint = "check `journalctl -u kubelet` there";
            found.push(if host.is_control_plane() {
                error("node-not-ready", what).on(host).hint(hint)
            } else {
                warning("node-not-ready", what).on(host).hint(hint)
            });
        }
        if !node.pressure.is_empty() {
            let what = format!("Node {} reports {}", node.name, node.pressure.join(", "));
            found.push(
                error("node-pressure", what)
                    .on(host)
                    .hint("free memory or disk there: Pods are being evicted already"),
            );
        }
    }
    found
}

pub(super) fn cordons(look: &Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (host, node) in look.nodes() {
        if let Some(id) = node.annotations.get(imgctl_kube::drain::MARK) {
            let what = format!("Node {} still has the annotation of upgrade {id}", node.name);
            let hint = "run `imgctl upgrade status`; if no upgrade is open, `kubectl uncordon` the \
                        Node and remove its annotation imgctl.io/upgrade-id";
            found.push(warning("cordoned", what).on(host).hint(hint));
        } else if node.unschedulable {
            let what = format!("Node {} is already cordoned: it stays cordoned", node.name);
            found.push(note("cordoned", what).on(host));
        }
    }
    found
}

/// Workers that are out of service, with the reason if known.
fn out_of_service(look: &Look<'_>) -> Vec<String> {
    let observation = look.observation;
    let workers = observation
        .hosts
        .iter()
        .filter(|host| !host.is_control_plane() && !observation.is_healthy(host));
    workers
        .map(|host| {
            let Some(node) = observation.node_of(host) else {
                let why = host.unreachable.as_deref().unwrap_or("it has no Node");
                return format!("{}: {why}", host.id);
            };
            let pods = look.api().map_or(&[][..], |api| &api.pods);
            let unready: Vec<String> = pods
                .iter()
                .filter(|pod| pod.node == node.name && pod.unready)
                .map(|pod| format!("{}/{}", pod.namespace, pod.name))
                .collect();
            let pods = if unready.is_empty() {
                String::new()
            } else {
                format!(", Pods that are not ready there: {}", few(&unready))
            };
            format!("{} (Node {} is not ready: {}{pods})", host.id, node.name, node.message)
        })
        .collect()
}

pub(super) fn budget(look: &Look<'_>) -> Vec<Finding> {
    let Ok(size) = size(look.observation, look.request) else {
        return Vec::new();
    };
    let moves = !look.document.batches.is_empty() || !look.document.canary.is_empty();
    let mut found = Vec::new();
    if moves && size.is_spent() {
        let what = format!(
            "{} workers are already out of service; --max-unavailable allows {}: {}",
            size.spent,
            size.budget,
            out_of_service(look).join("; ")
        );
        found.push(
            error("unavailable-budget", what)
                .hint("bring them back first, or allow more with --max-unavailable"),
        );
    }
    let wanted = crate::batches::share(
        &look.document.choices.batch,
        look.observation.hosts.iter().filter(|host| !host.is_control_plane()).count(),
        "--batch",
    );
    if let Ok(wanted) = wanted
        && moves
        && wanted > size.together
        && !size.is_spent()
    {
        let what = format!(
            "batches hold {} of the {wanted} hosts that --batch allows, because of \
             --max-unavailable {}",
            size.together, look.document.choices.max_unavailable
        );
        found.push(note("unavailable-budget", what));
    }
    found
}

pub(super) fn answers(look: &Look<'_>) -> Vec<Finding> {
    let problem = look.observation.api_problem.as_ref();
    // The setting to be taken back may be the cause, and the way back can begin without the API.
    let is_taken_back = look.document.is_reconfiguration() && !look.is_forward();
    let say = if is_taken_back { warning } else { error };
    let silent = problem.filter(|_| look.api().is_none()).map(|why| {
        say("api", format!("cannot query the API: {why}"))
            .hint("run `imgctl status` to check the control planes")
    });
    let unknown = look.api().into_iter().flat_map(|api| &api.unknown);
    let parts = unknown
        .filter(|(part, _)| *part != "kubeadm-config")
        .map(|(part, why)| warning("api", format!("cannot query {part}: {why}")));
    silent.into_iter().chain(parts).collect()
}

pub(super) fn services(look: &Look<'_>) -> Vec<Finding> {
    let dead = look.api().into_iter().flat_map(|api| &api.unavailable_services);
    dead.map(|(name, why)| {
        warning("api-services", format!("APIService {name} is not available: {why}"))
            .hint("restore the server behind it, or delete the APIService")
    })
    .collect()
}

pub(super) fn webhooks(look: &Look<'_>) -> Vec<Finding> {
    let dead = look.api().into_iter().flat_map(|api| &api.webhooks);
    dead.map(|hook| {
        let what = format!(
            "webhook {} of {} must answer (failurePolicy: Fail), but {} has no ready endpoints",
            hook.name, hook.configuration, hook.service
        );
        error("webhooks", what).hint(
            "restore its Pods, or remove the webhook during the upgrade: evicted Pods could not be \
             recreated",
        )
    })
    .collect()
}

/// APIs that clients have used since the API server started, and that the upgrade removes.
pub(super) fn removed(look: &Look<'_>) -> Vec<Finding> {
    let Some(api) = look.api().filter(|_| look.is_forward()) else {
        return Vec::new();
    };
    let new = look.new_minors();
    let used = api
        .deprecated
        .iter()
        .filter(|used| minor(&used.removed_release).is_some_and(|minor| new.contains(&minor)));
    used.map(|used| {
        let group = match used.group.as_str() {
            "" => used.version.clone(),
            group => format!("{group}/{}", used.version),
        };
        let what = format!(
            "a client uses {} of {group}, which v{} removes",
            used.resource, used.removed_release
        );
        error("removed-apis", what).hint(
            "find the client in the API server's audit log (annotation k8s.io/removed-release) and \
             move it to the newer version; the metric apiserver_requested_deprecated_apis resets \
             when API servers restart",
        )
    })
    .collect()
}

pub(super) fn lease(look: &Look<'_>) -> Vec<Finding> {
    let holder = look.api().and_then(|api| api.lease_holder.as_ref());
    holder
        .map(|holder| {
            error("lock", format!("{holder} is working on this cluster"))
                .hint("wait, or see `imgctl upgrade status`")
        })
        .into_iter()
        .collect()
}
