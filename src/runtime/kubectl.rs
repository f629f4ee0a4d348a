//! kubectl on a control plane, with that host's `admin.conf`.
//!
//! Nothing is asked of the controller's own network: the API may not be reachable from there.

use std::sync::Arc;

use serde_json::Value;

use crate::agent::Agent;
use crate::cluster::host::Host;
use crate::error::{Context, Error, Result};
use crate::image::Digest;
use crate::runtime::action::{Line, Site};

/// Where kubeadm leaves the administrator's kubeconfig.
pub(crate) const ADMIN_CONF: &str = "/etc/kubernetes/admin.conf";

/// A line `NAME|ADDRESS ADDRESS …` for each Node: whole Nodes of a large cluster are megabytes.
const ADDRESSES: &str =
    r#"jsonpath={range .items[*]}{.metadata.name}{"|"}{.status.addresses[*].address}{"\n"}{end}"#;

/// kubectl on one control plane whose API answers.
pub(crate) struct Kubectl<'a> {
    site: &'a Site<'a>,
    agent: Arc<dyn Agent>,
    address: String,
}

impl<'a> Kubectl<'a> {
    /// On the first control plane of the cluster that answers and says that it is ready.
    pub(crate) fn anywhere(site: &'a Site<'a>) -> Result<Self> {
        Self::first_of(site, &mut site.scene.control_planes())
    }

    /// The same, but not on the host that the action runs on: it is still joining.
    pub(crate) fn elsewhere(site: &'a Site<'a>) -> Result<Self> {
        let hosts = site.scene.control_planes();
        Self::first_of(
            site,
            &mut hosts.filter(|host| host.address != site.host.address),
        )
    }

    fn first_of(site: &'a Site<'a>, hosts: &mut dyn Iterator<Item = &Host>) -> Result<Self> {
        let mut problems = Vec::new();
        for host in hosts {
            let tried = site.crew.agent(host).and_then(|agent| {
                let kubectl = Self {
                    site,
                    agent,
                    address: host.ip().to_owned(),
                };
                kubectl.ready().map(|()| kubectl)
            });
            match tried {
                Ok(kubectl) => return Ok(kubectl),
                Err(error) => problems.push(error.to_string()),
            }
        }
        let error = Error::failed(format!(
            "no control plane of cluster {} answers:\n  {}",
            site.scene.name,
            problems.join("\n  ")
        ));
        Err(error.hint(
            "on a control plane: `kubectl --kubeconfig /etc/kubernetes/admin.conf get --raw /readyz?verbose`, \
             `crictl ps -a`, `journalctl -u kubelet`",
        ))
    }

    /// On the host that the action runs on.
    pub(crate) fn here(site: &'a Site<'a>) -> Result<Self> {
        Ok(Self {
            site,
            agent: site.crew.agent(site.host)?,
            address: site.host.ip().to_owned(),
        })
    }

    /// The control plane's address.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn agent(&self) -> &dyn Agent {
        &*self.agent
    }

    /// Whether the API that this host's `admin.conf` names is ready.
    pub(crate) fn ready(&self) -> Result<()> {
        self.run(&["get", "--raw", "/readyz", "--request-timeout=10s"])
            .map(|_| ())
    }

    /// Runs kubectl; stdout, or an error with the end of its output.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String> {
        self.with_input(arguments, None, true)
    }

    /// The same with its output in the step's log.
    pub(crate) fn run_shown(&self, arguments: &[&str]) -> Result<String> {
        self.with_input(arguments, None, false)
    }

    fn with_input(&self, arguments: &[&str], input: Option<String>, quiet: bool) -> Result<String> {
        let line = Line {
            line: command(arguments),
            input,
            again: true,
            quiet,
            ..Line::default()
        };
        // A host knows commands by their keys: one that still ends must not be taken for another.
        let verb = arguments.first().copied().unwrap_or("kubectl");
        let what = format!(
            "{}\0{}",
            line.line,
            line.input.as_deref().unwrap_or_default()
        );
        let digest = Digest::of(what.as_bytes());
        let key = digest.hex().get(..8).unwrap_or_default();
        self.site
            .run_on(&*self.agent, &line, &format!("-kubectl-{verb}-{key}"))
    }

    /// Makes objects what `document` says. It goes over stdin: it may hold secrets.
    pub(crate) fn apply(&self, document: &Value) -> Result<()> {
        self.with_input(&["apply", "-f", "-"], Some(document.to_string()), true)
            .map(|_| ())
    }

    /// The same for an object that is there already, whole.
    pub(crate) fn replace(&self, document: &Value) -> Result<()> {
        self.with_input(&["replace", "-f", "-"], Some(document.to_string()), true)
            .map(|_| ())
    }

    /// `get … -o json` of what may not be there.
    pub(crate) fn find(&self, arguments: &[&str]) -> Result<Option<Value>> {
        let all: Vec<&str> = ["get"]
            .iter()
            .chain(arguments)
            .chain(&["-o", "json", "--ignore-not-found"])
            .copied()
            .collect();
        let text = self.run(&all)?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        serde_json::from_str(&text).map(Some).map_err(|error| {
            Error::bad_content(format!("`{}` gave no JSON", command(&all))).caused_by(error)
        })
    }

    /// `get … -o json`.
    pub(crate) fn get(&self, arguments: &[&str]) -> Result<Value> {
        let all: Vec<&str> = ["get"]
            .iter()
            .chain(arguments)
            .chain(&["-o", "json"])
            .copied()
            .collect();
        let text = self.run(&all)?;
        serde_json::from_str(&text).map_err(|error| {
            Error::bad_content(format!("`{}` gave no JSON", command(&all))).caused_by(error)
        })
    }

    /// The name of the Node that has `address`; `None` when there is no such Node.
    pub(crate) fn node_of(&self, address: &str) -> Result<Option<String>> {
        let nodes = self.run(&["get", "nodes", "-o", ADDRESSES])?;
        Ok(node_with(&nodes, address))
    }

    /// The Node of the host that the action runs on: by its address, else by its name.
    pub(crate) fn own_node(&self) -> Result<Option<String>> {
        if let Some(node) = self.node_of(self.site.host.ip())? {
            return Ok(Some(node));
        }
        match self.site.agent.facts() {
            Ok(facts) => self.node_of(&facts.hostname.to_lowercase()),
            // It is gone for good; what has no Node under its address is then out already.
            Err(_) => Ok(None),
        }
    }

    /// Cordons the Node and evicts its Pods, heeding PodDisruptionBudgets. When that does not
    /// succeed in time, the Node is uncordoned and the error names what stands in the way.
    pub(crate) fn drain(&self, node: &str, seconds: u64) -> Result<()> {
        let timeout = format!("--timeout={seconds}s");
        let drained = self.run_shown(&[
            "drain",
            node,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            &timeout,
        ]);
        let Err(error) = drained else {
            return Ok(());
        };
        let error = match self.run(&["uncordon", node]) {
            Ok(_) => error.hint(format!(
                "Node {node} takes Pods again; see to the Pods and PodDisruptionBudgets named \
                 above (`kubectl get pdb -A`), then run the same command again"
            )),
            Err(_) => error.hint(format!(
                "Node {node} is still cordoned: `kubectl uncordon {node}`"
            )),
        };
        Err(error).context(|| format!("cannot drain Node {node}"))
    }

    /// Takes the Node out of the API; it may be gone already.
    pub(crate) fn delete_node(&self, node: &str) -> Result<()> {
        self.run_shown(&["delete", "node", node, "--ignore-not-found"])
            .map(|_| ())
    }

    /// What the Node says of itself.
    pub(crate) fn condition(&self, node: &str) -> Result<Condition> {
        let node = match self.get(&["node", node]) {
            Ok(node) => node,
            // kubectl's own word for it; anything else is a failure to ask.
            Err(error) if error.to_string().contains("NotFound") => return Ok(Condition::Absent),
            Err(error) => return Err(error),
        };
        Ok(condition(&node))
    }
}

/// How a Node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Absent,
    Ready,
    /// Everything but the Pod network, which comes with an application.
    WaitsForNetwork,
    NotReady(String),
}

fn condition(node: &Value) -> Condition {
    let conditions = node["status"]["conditions"].as_array();
    let ready = conditions.and_then(|all| all.iter().find(|one| one["type"] == "Ready"));
    let Some(ready) = ready else {
        return Condition::NotReady("it has not reported yet".to_owned());
    };
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

/// Whether the message of a Node's condition Ready says that nothing but the Pod network is missing.
pub(crate) fn lacks_network(message: &str) -> bool {
    message.contains("NetworkPluginNotReady") || message.contains("cni plugin not")
}

/// The Node that has `address`, by what [`ADDRESSES`] gives.
fn node_with(nodes: &str, address: &str) -> Option<String> {
    let mut all = nodes.lines().filter_map(|line| line.split_once('|'));
    let found = all.find(|(_, own)| own.split_whitespace().any(|one| one == address));
    found.map(|(name, _)| name.to_owned())
}

/// The line of shell; arguments may hold anything.
fn command(arguments: &[&str]) -> String {
    let mut line = format!("kubectl --kubeconfig {ADMIN_CONF}");
    for argument in arguments {
        line.push(' ');
        line.push_str(&quoted(argument));
    }
    line
}

/// One word of shell.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
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
}
