//! Status of a cluster, which can be queried from anywhere: hosts, trees, registry, health, nodes.
//! Shows no secrets.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;

use crate::pipeline::asked::Asked;
use crate::pipeline::host_names;
use crate::pipeline::kept;
use crate::pipeline::nodes::{self, NodeStatus};
use crate::pipeline::ownership::{self, Owner};
use crate::pipeline::system_pods::{self, PodStatus};
use imgctl_base::error::{Kind, Result};
use imgctl_base::image::Digest;
use imgctl_base::workers::map;
use imgctl_host::agent::protocol::{Facts, Inventory, InventoryQuestion};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::image::{ClusterImage, ImageLayer};
use imgctl_runtime::Runtime;
use imgctl_runtime::action::HostPool;
use imgctl_runtime::certificates::validity;
use imgctl_runtime::renewal::{inventory, inventory::OfHost};
use imgctl_runtime::{
    registry,
    registry::{clients, peer_access, peers},
};

/// Status of a cluster (docs/operations.md has the schema).
#[derive(Debug, Serialize)]
pub struct Status {
    pub cluster: String,
    pub runtime: String,
    pub images: Vec<String>,
    pub hosts: Vec<HostStatus>,
    /// Nodes as the API reports them; empty if there is no API.
    pub nodes: Vec<NodeStatus>,
    /// Pods of the system that are not Ready, except those of Nodes that are not Ready.
    pub pods: Vec<PodStatus>,
}

#[derive(Debug, Serialize)]
pub struct HostStatus {
    pub host: String,
    pub roles: Vec<String>,
    pub reachable: bool,
    pub problems: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub facts: Option<HostFacts>,
    /// Version of the rootfs image that the host's files come from; absent if this machine does not have
    /// that image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Trees and the digests of their content.
    pub trees: BTreeMap<String, String>,
    /// Whether the embedded registry answers; absent on hosts that do not serve it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registry: Option<bool>,
    /// Whether the host shares its images with others; absent if the cluster does not use `--peers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<bool>,
    /// Certificates and the timer that renews them; absent if they could not be read.
    #[serde(flatten)]
    pub certificates: Option<OfHost>,
    /// What needs attention soon, but is no fault yet.
    pub warnings: Vec<String>,
    pub healthy: bool,
}

#[derive(Debug, Serialize)]
pub struct HostFacts {
    pub hostname: String,
    pub architecture: String,
    pub system: String,
    pub(crate) kernel: String,
    pub cpus: u32,
    pub(crate) memory_bytes: u64,
    pub free_bytes: u64,
    pub(crate) skew_ms: i64,
}

impl Status {
    /// Returns what is wrong with Pods of the system.
    pub fn problems_of_pods(&self) -> impl Iterator<Item = String> {
        self.pods.iter().map(PodStatus::problem)
    }

    /// Returns whether all hosts are healthy, and all Nodes and the Pods of the system are Ready.
    pub fn is_well(&self) -> bool {
        self.hosts.iter().all(|host| host.healthy)
            && self.nodes.iter().all(|node| node.ready)
            && self.pods.is_empty()
    }
}

/// Queries all hosts, at most `parallel` at once. `key` names this query among the commands on the
/// hosts. Hosts may also run the rootfs images in `others`.
pub fn ask(
    context: &ClusterContext,
    others: &[ClusterImage],
    runtime: &dyn Runtime,
    pool: &Arc<dyn HostPool + Send>,
    parallel: usize,
    key: &str,
) -> Status {
    let mut hosts =
        map(&context.hosts, parallel, |host| of_host(context, others, runtime, pool, host, key));
    let nodes = if runtime.has_api() {
        nodes::ask(context, pool.as_ref(), &format!("{key}.nodes")).unwrap_or_default()
    } else {
        Vec::new()
    };
    // A host is healthy only if its Node is Ready.
    for node in &nodes {
        let host = hosts.iter_mut().find(|host| host.reachable && is_node_of(node, host));
        if let (Some(host), Some(problem)) = (host, node.problem()) {
            // The runtime's health check may already have reported this.
            let said = format!("Node {} is not Ready", node.name);
            if !host.problems.iter().any(|one| one.contains(&said)) {
                host.problems.push(problem);
            }
            host.healthy = false;
        }
    }
    let pods = if nodes.is_empty() {
        Vec::new()
    } else {
        system_pods::ask(context, pool.as_ref(), &format!("{key}.pods"))
            .inspect_err(|error| tracing::info!("Pods of the system: {error}"))
            .unwrap_or_default()
    };
    let pods = relevant(pods, &nodes);
    for pod in &pods {
        let node = nodes.iter().find(|node| pod.node.as_ref() == Some(&node.name));
        let host = hosts.iter_mut().find(|host| node.is_some_and(|node| is_node_of(node, host)));
        if let Some(host) = host {
            host.problems.push(pod.problem());
            host.healthy = false;
        }
    }
    Status {
        cluster: context.name.clone(),
        runtime: runtime.name().to_owned(),
        images: context.images.iter().map(|image| image.name.clone()).collect(),
        hosts,
        nodes,
        pods,
    }
}

/// Leaves out the Pods that only suffer from what is said of Nodes: those of Nodes that are not Ready,
/// and those that find no Node because the network is missing.
fn relevant(pods: Vec<PodStatus>, nodes: &[NodeStatus]) -> Vec<PodStatus> {
    let lacks_network = nodes.iter().any(|node| node.lacks_network);
    let matters = |pod: &PodStatus| match &pod.node {
        Some(name) => nodes.iter().find(|node| node.name == *name).is_none_or(|node| node.ready),
        None => !lacks_network,
    };
    pods.into_iter().filter(matters).collect()
}

/// Compares by address, otherwise by name: the host may be known by another address than its Node.
fn is_node_of(node: &NodeStatus, host: &HostStatus) -> bool {
    match &node.host {
        Some(id) => *id == host.host,
        None => host.facts.as_ref().is_some_and(|facts| facts.hostname.to_lowercase() == node.name),
    }
}

fn of_host(
    context: &ClusterContext,
    others: &[ClusterImage],
    runtime: &dyn Runtime,
    pool: &Arc<dyn HostPool + Send>,
    host: &Host,
    key: &str,
) -> HostStatus {
    let mut status = HostStatus {
        host: host.id(),
        roles: host.roles.clone(),
        reachable: false,
        problems: Vec::new(),
        facts: None,
        version: None,
        trees: BTreeMap::new(),
        registry: None,
        peers: None,
        certificates: None,
        warnings: Vec::new(),
        healthy: false,
    };
    let agent = pool.agent(host).and_then(|agent| {
        let facts = agent.facts()?;
        Ok((agent, facts))
    });
    let (agent, facts) = match agent {
        Ok(known) => known,
        Err(error) => {
            status.problems.push(error.to_string());
            // It answers: another host key, or no login.
            if error.kind() == Kind::Denied {
                status.problems.extend(error.hints().into_iter().map(str::to_owned));
            }
            return status;
        }
    };
    status.reachable = true;
    if let Some(other) = ownership::taken(context, &facts) {
        status.problems.push(format!("it belongs to cluster {}", other.named()));
    } else if !context.in_process
        && let Some(why) = ownership::membership_lost(context, &facts)
    {
        status.problems.push(why.to_owned());
    }
    for (lines, _) in host_names::lacking(runtime, context, host, &facts) {
        status.problems.push(format!(
            "its hosts file has lost lines of the cluster, which `imgctl run` writes again: {lines}"
        ));
    }
    let has_mark = context.uid.is_some() && !context.is_adopted();
    if has_mark && ownership::owner(context, &facts) == Owner::Unmarked {
        let what =
            "its mark (uid) is gone: other controllers can take it; `imgctl run` writes it again";
        status.problems.push(what.to_owned());
    }
    status.facts = Some(shown(facts.clone()));
    let question = InventoryQuestion {
        root: context.paths.root(),
        trees: vec!["rootfs".to_owned()],
        registry_layers: of_registry(context, host).map(|(_, digest)| digest.clone()).collect(),
        ..InventoryQuestion::default()
    };
    match agent.inventory(&question) {
        Ok(inventory) => {
            let is_lost = ownership::membership_lost(context, &facts).is_some();
            if context.has_rootfs_image() && !is_lost && !inventory.trees.contains_key("rootfs") {
                status.problems.push("it has none of the cluster's files".to_owned());
            }
            if !is_lost && let Some(problem) = lost_by_registry(context, host, &inventory) {
                status.problems.push(problem);
            }
            status.version = inventory
                .layers
                .get("rootfs")
                .and_then(|layers| version_of(layers, context.rootfs().into_iter().chain(others)));
            status.trees = inventory.trees;
        }
        // Each further question would wait for as long again.
        Err(error) if error.kind() == Kind::Network => {
            status.reachable = false;
            status.problems.push(error.to_string());
            return status;
        }
        Err(error) => status.problems.push(error.to_string()),
    }
    let site = Asked { context, host, agent: &*agent, pool: pool.as_ref() };
    if let Some(registry) = &context.registry
        && context.serves_registry(host)
    {
        let line = registry::serves(context, registry);
        let answers = site.line(&format!("{key}.registry"), &line).is_ok();
        if !answers {
            status.problems.push(format!("the registry does not answer on port {}", registry.port));
        }
        status.registry = Some(answers);
    }
    if let Some(registry) = context.registry.as_ref().filter(|_| context.shares_images()) {
        let line = peers::answers(context, registry);
        let answers = site.line(&format!("{key}.peers"), &line).is_ok();
        if !answers {
            status.warnings.push(format!(
                "it gives no images to other hosts: port {} does not answer",
                peer_access::port(context)
            ));
        }
        status.peers = Some(answers);
    }
    if !context.in_process
        && let Ok(true) = kept::lacks_timer(&site, &format!("{key}.kept"), &facts)
    {
        status.problems.push(
            "the timer that renews its certificates is gone or stopped; `imgctl run` starts it again"
                .to_owned(),
        );
    }
    match clients::complaint(context, host, &*agent) {
        Ok(complaint) => status.warnings.extend(complaint),
        Err(error) => status.warnings.push(error.to_string()),
    }
    if let Err(error) = site.health(runtime, key) {
        status.problems.push(error.to_string());
    }
    match site.site(&format!("{key}.certificates"), |site| inventory::ask(site, runtime.name())) {
        Ok(found) => {
            let (problems, warnings) = found.complaints(now());
            status.problems.extend(problems);
            status.warnings.extend(warnings);
            status.certificates = Some(found);
        }
        Err(error) => status.warnings.push(error.to_string()),
    }
    status.healthy = status.problems.is_empty();
    status
}

/// Returns the layers whose data the host's registry should have, with the name of their image.
fn of_registry<'c>(
    context: &'c ClusterContext,
    host: &Host,
) -> impl Iterator<Item = (&'c str, &'c Digest)> {
    // Nobody recorded what an adopted registry has.
    let serves =
        context.registry.is_some() && context.serves_registry(host) && !context.is_adopted();
    let images = context.images.iter().filter(move |_| serves);
    images.flat_map(|image| {
        let layers = image.layers.iter().filter(|layer| layer.may_hold_registry());
        layers.map(|layer| (image.name.as_str(), &layer.descriptor.digest))
    })
}

/// Returns the data that the registry of a host has lost.
fn lost_by_registry(
    context: &ClusterContext,
    host: &Host,
    inventory: &Inventory,
) -> Option<String> {
    let mut images: Vec<&str> = of_registry(context, host)
        .filter(|(_, digest)| !inventory.registry_layers.contains(digest))
        .map(|(image, _)| image)
        .collect();
    images.dedup();
    (!images.is_empty()).then(|| {
        format!(
            "its registry has lost data of {}; if {}/registry is on a disk that is not mounted, mount it, \
             otherwise `imgctl run` puts the data back",
            images.join(", "),
            context.paths.root()
        )
    })
}

/// Returns the version of the image whose layers a tree was made from: of those that fit, the one with the
/// most.
fn version_of<'a>(
    layers: &[Digest],
    images: impl Iterator<Item = &'a ClusterImage>,
) -> Option<String> {
    let count = |image: &ClusterImage| image.layers.iter().filter(|layer| !layer.registry).count();
    let is_there = |layer: &ImageLayer| layer.registry || layers.contains(&layer.diff_id);
    let fits = |image: &&ClusterImage| count(image) > 0 && image.layers.iter().all(is_there);
    let image = images.filter(fits).max_by_key(|image| count(image))?;
    let tag = image.name.rsplit_once(':').map(|(_, tag)| tag).filter(|tag| !tag.contains('/'));
    image.label(&["version"]).or(tag).map(str::to_owned)
}

fn now() -> i64 {
    i64::try_from(validity::now()).unwrap_or(i64::MAX)
}

/// Reads the certificates of all hosts, at most `parallel` at once, in the order of the hosts.
pub fn certificates(
    context: &ClusterContext,
    runtime: &dyn Runtime,
    pool: &Arc<dyn HostPool + Send>,
    parallel: usize,
    key: &str,
) -> Vec<(String, Result<OfHost>)> {
    map(&context.hosts, parallel, |host| {
        let read = pool.agent(host).and_then(|agent| {
            let asked = Asked { context, host, agent: &*agent, pool: pool.as_ref() };
            asked.site(key, |site| inventory::ask(site, runtime.name()))
        });
        (host.id(), read)
    })
}

fn shown(facts: Facts) -> HostFacts {
    HostFacts {
        hostname: facts.hostname,
        architecture: facts.architecture,
        system: facts.system,
        kernel: facts.kernel,
        cpus: facts.cpus,
        memory_bytes: facts.memory_bytes,
        free_bytes: facts.free_bytes,
        skew_ms: facts.skew_ms,
    }
}
