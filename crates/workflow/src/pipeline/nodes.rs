//! Nodes as the API shows them: which are Ready, what the others lack, and how to wait for them.
//!
//! Must not depend on how a runtime creates Nodes.

use std::time::{Duration, Instant};
use std::{collections::BTreeSet, sync::Arc};

use serde::Serialize;

use crate::pipeline::record::kubectl;
use crate::pipeline::step::{Step, StepContext};
use imgctl_base::error::{Error, Result};
use imgctl_host::agent::protocol::OutputLine;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_runtime::action::{HostPool, Line, Site};
use imgctl_runtime::kubectl::lacks_network;

/// Query that prints one line for each Node: complete Nodes of a large cluster are megabytes. The
/// message is the last field because it may contain any text.
const NODES: &str = "get nodes -o 'jsonpath={range .items[*]}{.metadata.name}\
                     |{.status.conditions[?(@.type==\"Ready\")].status}\
                     |{.status.nodeInfo.kubeletVersion} {.status.nodeInfo.containerRuntimeVersion}\
                     |{.status.addresses[*].address}\
                     |{.status.conditions[?(@.type==\"Ready\")].reason}\
                     |{.status.conditions[?(@.type==\"Ready\")].message}{\"\\n\"}{end}'";

/// Query that prints the host directories that DaemonSets mount, the resource with which Tigera's
/// operator installs Calico (whose DaemonSet appears only later), and a network configuration that
/// an image's script wrote.
const NETWORK: &str = "get daemonsets -A -o 'jsonpath={range .items[*]}\
                       {.spec.template.spec.volumes[*].hostPath.path}{\"\\n\"}{end}' && \
                       kubectl get customresourcedefinitions installations.operator.tigera.io \
                       --ignore-not-found -o name && \
                       { ls /etc/cni/net.d 2>/dev/null | grep -qE '\\.(conf|conflist|json)$' && \
                       echo /etc/cni/net.d; true; }";

/// Prefix of the label of an image that brings a network plugin (sealer's `CNI` instruction writes
/// it).
const NETWORK_LABEL: &str = "cluster.alpha.sealer.io/kube-cni-";

/// Hint for Nodes that lack a network plugin.
pub const NETWORK_HINT: &str = "install a network plugin (CNI): `imgctl run IMAGE` with an image that brings one, \
such as Flannel, Calico or Cilium";

const PAUSE: Duration = Duration::from_secs(2);
/// Timeout of one API query, so that it does not outlast the wait.
const QUESTION: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeStatus {
    pub name: String,
    pub ready: bool,
    pub version: String,
    /// Name and version of the container runtime: `containerd://1.7.22`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container_runtime: String,
    /// ID of the host that runs the Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Reason why the Node is not Ready, as its kubelet reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The Node lacks only the Pod network.
    #[serde(skip)]
    pub lacks_network: bool,
}

impl NodeStatus {
    pub fn problem(&self) -> Option<String> {
        let reason = self.reason.as_deref()?;
        Some(format!("Node {} is not Ready: {reason}", self.name))
    }
}

/// Whether, and for how long, a run waits until Nodes are Ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    #[default]
    Never,
    /// Waits if a network plugin is installed. Without one, Nodes cannot become Ready, and the run
    /// reports that.
    WhereNetwork(Duration),
    /// Waits in any case.
    Always(Duration),
}

/// Queries the first control plane. `key` names the query among the commands on that host.
pub fn ask(context: &ClusterContext, pool: &dyn HostPool, key: &str) -> Result<Vec<NodeStatus>> {
    let text = line(context, pool, key, NODES)?;
    Ok(text.lines().filter_map(|line| node(line, context)).collect())
}

/// Runs `kubectl` with these arguments on the first control plane, and returns its output.
pub(crate) fn line(
    context: &ClusterContext,
    pool: &dyn HostPool,
    key: &str,
    arguments: &str,
) -> Result<String> {
    let first = context.first().ok_or_else(|| Error::failed("there is no control plane"))?;
    let agent = pool.agent(first)?;
    let site = Site {
        host: first,
        agent: &*agent,
        pool,
        context,
        key,
        attempt: 1,
        timeout: Some(QUESTION),
        output: &|_: OutputLine| {},
    };
    site.run(&Line { quiet: true, ..kubectl(arguments, None) })
}

/// Parses one line of the output of [`NODES`].
fn node(line: &str, context: &ClusterContext) -> Option<NodeStatus> {
    let mut fields = line.splitn(6, '|');
    let name = fields.next().filter(|name| !name.is_empty())?;
    let ready = fields.next()? == "True";
    let versions = fields.next()?;
    let (version, container_runtime) = versions.split_once(' ').unwrap_or((versions, ""));
    let addresses: BTreeSet<&str> = fields.next().unwrap_or_default().split(' ').collect();
    let (reason, message) = (fields.next(), fields.next().unwrap_or_default());
    let is_named = |host: &Host| {
        let known = host.environment.get("HOST_NAME");
        known.is_some_and(|known| known.to_lowercase() == name)
    };
    let own = |host: &&Host| addresses.contains(host.ip()) || is_named(host);
    let reason = match reason.filter(|reason| !reason.is_empty()) {
        Some(reason) => format!("{reason}: {message}"),
        None => "its kubelet has not reported yet".to_owned(),
    };
    Some(NodeStatus {
        name: name.to_owned(),
        ready,
        version: version.to_owned(),
        container_runtime: container_runtime.to_owned(),
        host: context.hosts.iter().find(own).map(Host::id),
        reason: (!ready).then_some(reason),
        lacks_network: !ready && lacks_network(message),
    })
}

/// Returns the step that waits at the end of a run. It considers Nodes of `new` hosts and Nodes
/// that lack only the network; other Nodes were not ready before.
pub(crate) fn wait_step(context: &Arc<ClusterContext>, wait: Wait, new: &[Host]) -> Option<Step> {
    let (limit, always) = match wait {
        Wait::Never => return None,
        Wait::WhereNetwork(limit) => (limit, false),
        Wait::Always(limit) => (limit, true),
    };
    let mut says = format!("wait up to {} s until Nodes are Ready", limit.as_secs());
    if !always {
        says.push_str(", if a network plugin (CNI) is installed");
    }
    let new: BTreeSet<String> = new.iter().map(Host::id).collect();
    let context = Arc::clone(context);
    let step = Step::local("nodes-ready", says, "", move |step| {
        let all_are_new = context.hosts.iter().all(|host| new.contains(&host.id()));
        let waiting = Waiting {
            context: &context,
            step,
            counts: &|node| {
                all_are_new
                    || node.lacks_network
                    || node.host.as_ref().is_some_and(|host| new.contains(host))
            },
            limit,
            always,
        };
        waiting.run()
    });
    Some(step.always())
}

struct Waiting<'a> {
    context: &'a ClusterContext,
    step: &'a StepContext<'a>,
    counts: &'a dyn Fn(&NodeStatus) -> bool,
    limit: Duration,
    always: bool,
}

#[derive(Debug, PartialEq)]
enum Found {
    Ready,
    /// The Nodes cannot become Ready: no installed component provides a network.
    NoNetwork(String),
    Waits {
        complaint: String,
        hint: Option<&'static str>,
    },
}

impl Waiting<'_> {
    fn run(&self) -> Result<()> {
        let end = Instant::now() + self.limit;
        let mut told = String::new();
        loop {
            let (complaint, hint) = match self.look() {
                Ok(Found::Ready) => return Ok(()),
                Ok(Found::NoNetwork(what)) => {
                    (self.step.announce)(&what);
                    return Ok(());
                }
                Ok(Found::Waits { complaint, hint }) => (complaint, hint),
                // A stop was requested.
                Err(error) if error.to_string().ends_with("cancelled") => return Err(error),
                // API servers restart when load balancers and networks are installed.
                Err(error) => (error.to_string(), None),
            };
            if Instant::now() + PAUSE >= end {
                let limit = self.limit.as_secs();
                return Err(Error::failed(format!("timed out after {limit} s: {complaint}")).hint(
                    hint.unwrap_or(
                        "see `kubectl describe node`, `kubectl -n kube-system get pods -o wide`, \
                         and on the host `journalctl -u kubelet`; then run the same command again, \
                         or pass --no-wait to skip the wait",
                    ),
                ));
            }
            if complaint != told {
                (self.step.note)(&format!("waiting: {complaint}"));
                told = complaint;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn look(&self) -> Result<Found> {
        let mut nodes = ask(self.context, self.step.pool, "nodes-ready")?;
        nodes.retain(|node| !node.ready && (self.counts)(node));
        let lacks_network = nodes.iter().any(|node| node.lacks_network);
        let has_network = !lacks_network || brings_network(self.context) || {
            let text = line(self.context, self.step.pool, "nodes-network", NETWORK)?;
            installs_network(&text)
        };
        Ok(found(&nodes, has_network, self.always))
    }
}

fn brings_network(context: &ClusterContext) -> bool {
    let mut labels = context.images.iter().flat_map(|image| &image.labels);
    labels.any(|(key, value)| key.starts_with(NETWORK_LABEL) && value == "true")
}

/// Returns whether an installed component writes a network configuration, judging by the output of
/// [`NETWORK`].
fn installs_network(text: &str) -> bool {
    text.split_whitespace().any(|word| {
        word == "/etc/cni"
            || word.starts_with("/etc/cni/")
            || word.starts_with("customresourcedefinition")
    })
}

/// Evaluates `nodes`, the relevant Nodes that are not Ready.
fn found(nodes: &[NodeStatus], has_network: bool, always: bool) -> Found {
    if nodes.is_empty() {
        return Found::Ready;
    }
    let names = |nodes: &mut dyn Iterator<Item = &NodeStatus>| {
        let names: Vec<&str> = nodes.map(|node| node.name.as_str()).collect();
        names.join(", ")
    };
    let ill = nodes.iter().find(|node| !node.lacks_network).and_then(NodeStatus::problem);
    if has_network {
        let complaint = ill.unwrap_or_else(|| {
            let all = names(&mut nodes.iter());
            format!("the network plugin is not up on {all}")
        });
        return Found::Waits { complaint, hint: None };
    }
    match ill {
        Some(complaint) => Found::Waits { complaint, hint: None },
        None => {
            let what = format!(
                "these Nodes are not Ready, because no network plugin (CNI) is installed: {}",
                names(&mut nodes.iter())
            );
            if always {
                Found::Waits { complaint: what, hint: Some(NETWORK_HINT) }
            } else {
                Found::NoNetwork(format!("{what}; {NETWORK_HINT}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::testing::{hosts, sample_context};

    const NO_CNI: &str = "container runtime network not ready: NetworkReady=false \
        reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized";

    fn of(line: &str) -> Option<NodeStatus> {
        let context = sample_context("c", hosts(1, 1), std::path::Path::new("/nowhere"));
        node(line, &context)
    }

    fn ill(name: &str, reason: &str, lacks_network: bool) -> NodeStatus {
        NodeStatus {
            name: name.to_owned(),
            reason: Some(reason.to_owned()),
            lacks_network,
            ..NodeStatus::default()
        }
    }

    #[test]
    fn nodes_are_lines_and_say_why_they_are_not_ready() {
        let well = of(
            "a|True|v1.34.0 containerd://2.1.4|10.77.0.2 b|KubeletReady|kubelet is posting ready status",
        );
        let well = well.unwrap();
        assert_eq!((well.ready, &*well.version), (true, "v1.34.0"));
        assert_eq!(well.container_runtime, "containerd://2.1.4");
        assert_eq!(well.host.as_deref(), Some("10.77.0.2"));
        assert_eq!((well.reason.as_deref(), well.problem()), (None, None));
        let lost = of("a|Unknown|v1.34.0|10.77.0.9|NodeStatusUnknown|a | b").unwrap();
        assert!(!lost.ready && !lost.lacks_network && lost.host.is_none());
        assert_eq!(
            lost.problem().as_deref(),
            Some("Node a is not Ready: NodeStatusUnknown: a | b")
        );
        let bare = of(&format!("a|False|v1.34.0||KubeletNotReady|{NO_CNI}")).unwrap();
        assert!(bare.lacks_network);
        // A Node that has not reported yet, and a Node of a server that reports less.
        assert!(of("a||").unwrap().reason.unwrap().contains("not reported"));
        assert!(of("a|True|v1").unwrap().ready);
        assert_eq!(of("No resources found"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn a_network_that_is_installed_is_seen() {
        // Flannel and kube-proxy; Calico installed by its operator; kube-proxy only.
        let proxy = "/run/xtables.lock /lib/modules\n";
        assert!(installs_network(&format!("{proxy}/run/flannel /opt/cni/bin /etc/cni/net.d\n")));
        assert!(installs_network(&format!(
            "{proxy}customresourcedefinition.apiextensions.k8s.io/installations.operator.tigera.io\n"
        )));
        assert!(!installs_network(proxy));
        assert!(!installs_network(""));
    }

    #[test]
    fn what_cannot_come_is_said_and_not_waited_for() {
        assert_eq!(found(&[], false, true), Found::Ready);
        let bare = [ill("a", NO_CNI, true), ill("b", NO_CNI, true)];
        let Found::NoNetwork(what) = found(&bare, false, false) else {
            panic!("it waits");
        };
        assert!(what.contains("a, b") && what.contains("imgctl run IMAGE"), "{what}");
        let waits =
            |nodes: &[NodeStatus], has_network, always| match found(nodes, has_network, always) {
                Found::Waits { complaint, hint } => (complaint, hint.is_some()),
                other => panic!("{other:?}"),
            };
        assert!(waits(&bare, false, true).1, "--wait waits, and says why");
        assert_eq!(waits(&bare, true, false).0, "the network plugin is not up on a, b");
        let mixed = [ill("a", NO_CNI, true), ill("b", "x: y", false)];
        assert_eq!(waits(&mixed, false, false).0, "Node b is not Ready: x: y");
    }
}
