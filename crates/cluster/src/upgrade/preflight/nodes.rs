//! Checks that Nodes match hosts, and the state of the Nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::look::{Look, error, note, warning};
use crate::upgrade::batches::size;
use crate::upgrade::document::{Finding, few};

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
    let wanted = crate::upgrade::batches::share(
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
