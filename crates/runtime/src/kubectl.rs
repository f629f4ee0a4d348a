//! kubectl on a control plane, with that host's `admin.conf`, and the state that a Node reports.
//!
//! Never runs on the controller: the API can be unreachable from there.

use std::sync::Arc;

use serde_json::Value;

use crate::action::{Line, Site};
use crate::load_balancer::API_PORT;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::Digest;
use imgctl_host::agent::Agent;
use imgctl_model::context::Host;

pub(crate) use imgctl_base::quote::quote as quoted;

/// Path of the administrator's kubeconfig that kubeadm writes.
pub const ADMIN_CONF: &str = "/etc/kubernetes/admin.conf";

/// Prints a line `NAME|ADDRESS ADDRESS …` for each Node: the complete Nodes of a large cluster are
/// megabytes.
pub(crate) const ADDRESSES: &str =
    r#"jsonpath={range .items[*]}{.metadata.name}{"|"}{.status.addresses[*].address}{"\n"}{end}"#;

/// kubectl on one control plane whose API responds.
pub(crate) struct Kubectl<'a> {
    site: &'a Site<'a>,
    agent: Arc<dyn Agent>,
    address: String,
}

impl<'a> Kubectl<'a> {
    /// Selects the first control plane of the cluster that responds and is ready.
    pub(crate) fn anywhere(site: &'a Site<'a>) -> Result<Self> {
        Self::first_of(site, &mut site.context.control_planes())
    }

    /// Like [`Kubectl::anywhere`], but excludes the host that the action runs on, because it is
    /// still joining.
    pub(crate) fn elsewhere(site: &'a Site<'a>) -> Result<Self> {
        let hosts = site.context.control_planes();
        Self::first_of(site, &mut hosts.filter(|host| host.address != site.host.address))
    }

    fn first_of(site: &'a Site<'a>, hosts: &mut dyn Iterator<Item = &Host>) -> Result<Self> {
        let mut problems = Vec::new();
        for host in hosts {
            let tried = site.pool.agent(host).and_then(|agent| {
                let kubectl = Self { site, agent, address: host.ip().to_owned() };
                kubectl.ready().map(|()| kubectl)
            });
            match tried {
                Ok(kubectl) => return Ok(kubectl),
                Err(error) => problems.push(error.to_string()),
            }
        }
        let error =
            Error::failed(format!("no control plane of cluster {} answers:", site.context.name))
                .lines(problems.iter().map(|problem| format!("  {problem}")));
        Err(error.hint(
            "check on a control plane: `kubectl --kubeconfig /etc/kubernetes/admin.conf get --raw \
             /readyz?verbose`, `crictl ps -a`, `journalctl -u kubelet`",
        ))
    }

    /// Selects the host that the action runs on.
    pub(crate) fn here(site: &'a Site<'a>) -> Result<Self> {
        Ok(Self { site, agent: site.pool.agent(site.host)?, address: site.host.ip().to_owned() })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn agent(&self) -> &dyn Agent {
        &*self.agent
    }

    /// Checks that the API in this host's `admin.conf` is ready.
    pub(crate) fn ready(&self) -> Result<()> {
        self.run(&["get", "--raw", "/readyz", "--request-timeout=10s"]).map(|_| ())
    }

    /// Runs kubectl and returns its stdout, or an error with the end of its output.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String> {
        self.with_input(arguments, None, true)
    }

    /// Like [`Kubectl::run`], with the output in the step's log.
    pub(crate) fn run_shown(&self, arguments: &[&str]) -> Result<String> {
        self.with_input(arguments, None, false)
    }

    fn with_input(&self, arguments: &[&str], input: Option<String>, quiet: bool) -> Result<String> {
        let mut line = command(arguments);
        if self.site.context.is_adopted() {
            // Its admin.conf may name a load balancer, behind which any server answers.
            let port = api_port(&self.site.context.documents);
            line.push_str(&format!(
                " --server https://127.0.0.1:{port} --tls-server-name kubernetes"
            ));
        }
        let line = Line { line, input, again: true, quiet, ..Line::default() };
        // A host identifies commands by their keys, so different commands need different keys while
        // one is still running.
        let verb = arguments.first().copied().unwrap_or("kubectl");
        let what = format!("{}\0{}", line.line, line.input.as_deref().unwrap_or_default());
        let digest = Digest::of(what.as_bytes());
        let key = digest.hex().get(..8).unwrap_or_default();
        self.site.run_on(&*self.agent, &line, &format!("-kubectl-{verb}-{key}"))
    }

    /// Applies the objects in `document`. Passes them over stdin, because they can contain secrets.
    pub(crate) fn apply(&self, document: &Value) -> Result<()> {
        self.with_input(&["apply", "-f", "-"], Some(document.to_string()), true).map(|_| ())
    }

    pub(crate) fn replace(&self, document: &Value) -> Result<()> {
        self.with_input(&["replace", "-f", "-"], Some(document.to_string()), true).map(|_| ())
    }

    /// Runs `get … -o json` for an object that may be missing.
    pub(crate) fn find(&self, arguments: &[&str]) -> Result<Option<Value>> {
        let all: Vec<&str> = ["get"]
            .iter()
            .chain(arguments)
            .chain(&["-o", "json", "--ignore-not-found"])
            .copied()
            .collect();
        let text = self.run(&all)?;
        if text.trim().is_empty() { Ok(None) } else { parsed(&all, &text).map(Some) }
    }

    /// Runs `get … -o json`.
    pub(crate) fn get(&self, arguments: &[&str]) -> Result<Value> {
        let all: Vec<&str> =
            ["get"].iter().chain(arguments).chain(&["-o", "json"]).copied().collect();
        parsed(&all, &self.run(&all)?)
    }

    /// Returns the name of the Node with `address`; `None` if there is no such Node.
    pub(crate) fn node_of(&self, address: &str) -> Result<Option<String>> {
        let nodes = self.run(&["get", "nodes", "-o", ADDRESSES])?;
        Ok(node_with(&nodes, address))
    }

    /// Returns the Node of the host that the action runs on, by its address or otherwise by its
    /// name.
    pub(crate) fn own_node(&self) -> Result<Option<String>> {
        if let Some(node) = self.node_of(self.site.host.ip())? {
            return Ok(Some(node));
        }
        match self.site.agent.facts() {
            Ok(facts) => self.node_of(&facts.hostname.to_lowercase()),
            // The host is gone for good. Without a Node under its address, it has already been
            // removed.
            Err(_) => Ok(None),
        }
    }

    /// Deletes the Node from the API; succeeds if it is already gone.
    pub(crate) fn delete_node(&self, node: &str) -> Result<()> {
        self.run_shown(&["delete", "node", node, "--ignore-not-found"]).map(|_| ())
    }

    pub(crate) fn condition(&self, node: &str) -> Result<Condition> {
        let node = match self.get(&["node", node]) {
            Ok(node) => node,
            // kubectl's own error text; any other error means that the query failed.
            Err(error) if error.to_string().contains("NotFound") => return Ok(Condition::Absent),
            Err(error) => return Err(error),
        };
        Ok(condition(&node))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Absent,
    Ready,
    /// Ready except for the Pod network, which an application provides.
    WaitsForNetwork,
    NotReady(String),
}

/// Returns the condition Ready of a Node; null if it has not reported yet.
fn reported(node: &Value) -> &Value {
    let conditions = node["status"]["conditions"].as_array();
    conditions.and_then(|all| all.iter().find(|one| one["type"] == "Ready")).unwrap_or(&Value::Null)
}

fn condition(node: &Value) -> Condition {
    let ready = reported(node);
    if ready.is_null() {
        return Condition::NotReady("it has not reported yet".to_owned());
    }
    let message = ready["message"].as_str().unwrap_or_default();
    match ready["status"].as_str() {
        Some("True") => Condition::Ready,
        _ if lacks_network(message) => Condition::WaitsForNetwork,
        _ => Condition::NotReady(format!(
            "{}: {message}",
            ready["reason"].as_str().unwrap_or("no reason given")
        )),
    }
}

/// Reports whether the message of a Node's Ready condition says that only the Pod network is
/// missing.
pub fn lacks_network(message: &str) -> bool {
    message.contains("NetworkPluginNotReady") || message.contains("cni plugin not")
}

/// Returns the Node with `address`, from the output of [`ADDRESSES`].
pub(crate) fn node_with(nodes: &str, address: &str) -> Option<String> {
    let mut all = nodes.lines().filter_map(|line| line.split_once('|'));
    let found = all.find(|(_, own)| own.split_whitespace().any(|one| one == address));
    found.map(|(name, _)| name.to_owned())
}

fn parsed(arguments: &[&str], text: &str) -> Result<Value> {
    serde_json::from_str(text).doing(|| format!("`{}` did not return JSON", command(arguments)))
}

/// Returns the port of API servers that kubeadm's documents name.
pub(crate) fn api_port(documents: &[Value]) -> u64 {
    let init = documents.iter().find(|document| document["kind"] == "InitConfiguration");
    let port = init.and_then(|init| init["localAPIEndpoint"]["bindPort"].as_u64());
    port.unwrap_or(u64::from(API_PORT))
}

/// Returns the shell line; arguments can contain any characters.
fn command(arguments: &[&str]) -> String {
    let mut line = format!("kubectl --kubeconfig {ADMIN_CONF}");
    for argument in arguments {
        line.push(' ');
        line.push_str(&quoted(argument));
    }
    line
}

const PRESSURES: [&str; 3] = ["MemoryPressure", "DiskPressure", "PIDPressure"];

/// Reports whether the versions match. Vendor builds append to the version: `v1.34.1-vendor.2`,
/// `v1.34.1+k3s1`.
pub(crate) fn is_version(found: &str, wanted: &str) -> bool {
    found.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', '-']))
}

/// Reports whether a condition of a Node or Pod is True.
pub fn is_true(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .is_some_and(|all| all.iter().any(|one| one["type"] == kind && one["status"] == "True"))
}

/// Returns why the Node is not healthy after its kubelet was started at `started`: in UTC by the
/// host's clock, like the times in the Node and its Lease (`2026-11-22T08:15:00`).
pub(crate) fn complaint(
    name: &str,
    node: &Value,
    lease: &Value,
    wanted: &str,
    started: Option<&str>,
) -> Option<String> {
    let version = node["status"]["nodeInfo"]["kubeletVersion"].as_str();
    let version = version.unwrap_or("unknown");
    if !is_version(version, wanted) {
        return Some(format!("the kubelet of Node {name} is {version} instead of {wanted}"));
    }
    if !is_true(node, "Ready") {
        let why = match reported(node)["message"].as_str() {
            None | Some("") => String::new(),
            Some(message) => format!(": {message}"),
        };
        return Some(format!("Node {name} is not Ready{why}"));
    }
    if let Some(started) = started.map(str::trim) {
        let conditions = node["status"]["conditions"].as_array();
        let beats = conditions
            .into_iter()
            .flatten()
            .map(|condition| &condition["lastHeartbeatTime"])
            .chain([&lease["spec"]["renewTime"]]);
        // All times have the same format, so that text order is time order.
        let heard = beats
            .filter_map(Value::as_str)
            .any(|beat| beat.get(..19).is_some_and(|beat| beat > started));
        if !heard {
            return Some(format!(
                "Node {name} has not reported since its kubelet was started at {started}"
            ));
        }
    }
    let pressure = PRESSURES.into_iter().find(|kind| is_true(node, kind))?;
    Some(format!("Node {name} is under {pressure}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_are_quoted_for_the_shell() {
        assert_eq!(
            command(&["get", "node", "a b", "it's", "-o", "jsonpath={.x}"]),
            "kubectl --kubeconfig /etc/kubernetes/admin.conf get node 'a b' 'it'\\''s' -o 'jsonpath={.x}'"
        );
    }

    #[test]
    fn nodes_are_known_by_their_whole_address() {
        let nodes = "a|10.0.0.11 a.example\nb|10.0.0.1 b\nnew|\n";
        assert_eq!(node_with(nodes, "10.0.0.1").as_deref(), Some("b"));
        assert_eq!(node_with(nodes, "a.example").as_deref(), Some("a"));
        assert_eq!(node_with(nodes, "10.0.0"), None);
        assert_eq!(node_with("", "new"), None);
    }

    #[test]
    fn a_node_without_network_has_joined() {
        let node = |status: &str, message: &str| {
            condition(&json!({"status": {"conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": status, "reason": "KubeletNotReady", "message": message},
            ]}}))
        };
        assert_eq!(node("True", ""), Condition::Ready);
        assert_eq!(
            node(
                "False",
                "container runtime network not ready: NetworkReady=false \
                 reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized"
            ),
            Condition::WaitsForNetwork
        );
        assert_eq!(
            node("Unknown", "Kubelet stopped posting node status."),
            Condition::NotReady("KubeletNotReady: Kubelet stopped posting node status.".to_owned())
        );
        assert!(matches!(condition(&json!({})), Condition::NotReady(_)));
    }

    #[test]
    fn versions_of_vendors_count() {
        assert!(is_version("v1.34.9", "v1.34.9"));
        assert!(is_version("v1.34.9-vendor.2", "v1.34.9"));
        assert!(!is_version("v1.34.91", "v1.34.9"));
        assert!(!is_version("v1.33.9", "v1.34.9"));
    }

    #[test]
    fn a_node_must_be_whole() {
        let node = |version: &str, ready: &str, pressure: &str| {
            json!({"status": {
                "nodeInfo": {"kubeletVersion": version},
                "conditions": [
                    {"type": "DiskPressure", "status": pressure, "lastHeartbeatTime": "2026-11-22T08:00:00Z"},
                    {"type": "Ready", "status": ready, "lastHeartbeatTime": "2026-11-22T08:00:00Z"},
                ],
            }})
        };
        let lease = |time: &str| json!({"spec": {"renewTime": time}});
        let fresh = lease("2026-11-22T08:15:31.000000Z");
        let started = Some("2026-11-22T08:15:00\n");
        let say = |node: &Value, lease: &Value| {
            complaint("w", node, lease, "v1.34.9", started).unwrap_or_default()
        };
        assert_eq!(say(&node("v1.34.9", "True", "False"), &fresh), "");
        assert!(say(&node("v1.33.1", "True", "False"), &fresh).contains("v1.33.1"));
        assert_eq!(say(&node("v1.34.9", "False", "False"), &fresh), "Node w is not Ready");
        let mut without_network = node("v1.34.9", "False", "False");
        without_network["status"]["conditions"][1]["message"] = "cni plugin not initialized".into();
        assert_eq!(
            say(&without_network, &fresh),
            "Node w is not Ready: cni plugin not initialized"
        );
        assert!(say(&node("v1.34.9", "True", "True"), &fresh).contains("DiskPressure"));
        let stale = lease("2026-11-22T08:14:59.000000Z");
        assert!(say(&node("v1.34.9", "True", "False"), &stale).contains("has not reported"));
    }
}
