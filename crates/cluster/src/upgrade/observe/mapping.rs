//! Maps Nodes to hosts.

use std::net::IpAddr;

use crate::upgrade::observation::{HostSeen, NodeSeen, Observation};

/// Sets the hosts' Nodes: by the Clusterfile's address, by any other address of the host, by
/// machine ID, by name. The first method that matches exactly one Node decides.
pub(super) fn map(observation: &mut Observation) {
    let Some(api) = &observation.api else { return };
    for host in &mut observation.hosts {
        (host.node, host.rivals) = find(host, &api.nodes);
    }
}

fn find(host: &HostSeen, nodes: &[NodeSeen]) -> (Option<String>, Vec<String>) {
    type Fits = fn(&HostSeen, &NodeSeen) -> bool;
    let ways: [Fits; 4] = [by_address, by_other_address, by_machine, by_name];
    let mut rivals = Vec::new();
    for fits in ways {
        let found: Vec<&NodeSeen> = nodes.iter().filter(|node| fits(host, node)).collect();
        match &found[..] {
            [] => {}
            [node] => return (Some(node.name.clone()), Vec::new()),
            several => rivals = several.iter().map(|node| node.name.clone()).collect(),
        }
    }
    (None, rivals)
}

/// Returns whether two texts are the same address: IPv6 addresses have several notations.
fn same(one: &str, other: &str) -> bool {
    let parse = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    match (parse(one), parse(other)) {
        (Some(one), Some(other)) => one.to_canonical() == other.to_canonical(),
        (None, None) => one.eq_ignore_ascii_case(other),
        _ => false,
    }
}

fn has_address(node: &NodeSeen, address: &str) -> bool {
    node.addresses
        .iter()
        .filter(|one| matches!(one.kind.as_str(), "InternalIP" | "ExternalIP"))
        .any(|one| same(&one.address, address))
}

fn by_address(host: &HostSeen, node: &NodeSeen) -> bool {
    has_address(node, &host.address)
}

fn by_other_address(host: &HostSeen, node: &NodeSeen) -> bool {
    let facts = host.facts.as_ref();
    facts.is_some_and(|facts| facts.addresses.iter().any(|one| has_address(node, one)))
}

fn by_machine(host: &HostSeen, node: &NodeSeen) -> bool {
    let facts = host.facts.as_ref();
    facts.is_some_and(|facts| !facts.machine_id.is_empty() && facts.machine_id == node.machine_id)
}

/// Kubernetes uses lower-case names, even if the machine does not.
fn by_name(host: &HostSeen, node: &NodeSeen) -> bool {
    let told = host.facts.as_ref().map(|facts| facts.hostname.as_str());
    let own = host.node_name.as_deref().or(told).unwrap_or_default();
    let names = [own, &host.address];
    names.iter().any(|name| {
        !name.is_empty()
            && (node.name.eq_ignore_ascii_case(name) || node.hostname.eq_ignore_ascii_case(name))
    })
}
