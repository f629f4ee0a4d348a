//! k3s: server and agent in one binary, embedded etcd, join by token.
//!
//! The image's `init` script installs the binary and the unit; this module writes the configuration
//! and starts and watches the service.

mod config;
mod elsewhere;
pub(crate) mod host;
pub mod options;
mod reconfigure;
#[cfg(test)]
mod script_tests;
mod steps;
mod upgrade;

pub use config::{AGENT_TOKEN, DATA_DIRECTORY, password, tokens_of};
use config::{API_NAME, Role};

use crate::action::{Line, Site};
use crate::certificates::host_kubeconfig;
use crate::k3s::host::HOST;
use crate::{Action, ImageFiles, Runtime, nodes, upgrade::Upgrader};
use crate::{kubectl, kubectl::quoted};
use crate::{load_balancer, load_balancer::API_PORT};
use imgctl_base::error::{Error, Result};
use imgctl_host::agent::Agent;
use imgctl_kube::drain;
use imgctl_model::context::{ClusterContext, Host};

const CONFIG: &str = "/etc/rancher/k3s/config.yaml";
const KUBECTL: &str = "k3s kubectl";
/// Kubeconfig of the administrator that k3s writes on servers.
pub const KUBECONFIG: &str = "/etc/rancher/k3s/k3s.yaml";

/// Client certificate files that k3s writes on workers.
const PAPERS: load_balancer::Papers = load_balancer::Papers {
    authority: "/var/lib/rancher/k3s/agent/server-ca.crt",
    certificate: "/var/lib/rancher/k3s/agent/client-kubelet.crt",
    key: "/var/lib/rancher/k3s/agent/client-kubelet.key",
};

/// Runtime of images labeled `distribution=k3s`.
pub struct K3s<'a> {
    files: &'a dyn ImageFiles,
}

impl<'a> K3s<'a> {
    pub fn new(files: &'a dyn ImageFiles) -> Self {
        Self { files }
    }

    /// Returns the options that `gen` prints for the user to change in a Clusterfile.
    pub fn default_document(&self, context: &ClusterContext) -> Result<String> {
        config::defaults_of(context, self.files)
    }

    /// Returns the actions that init and every join have in common: configuration, tokens, service.
    fn start(&self, context: &ClusterContext, host: &Host, role: Role) -> Result<Vec<Action>> {
        let content = config::of(context, host, role, self.files)?;
        let role_word = role.word();
        Ok(vec![
            Action::file("k3s-config", CONFIG.to_owned(), 0o600, content),
            Action::depending_on(
                "k3s-token",
                format!("write {} (mode 0600)", role.token_file()),
                role_word,
                move |site| config::deliver_tokens(site, role),
            ),
            Action::command(
                "k3s-start",
                Line {
                    // The step is not repeated while its inputs stay the same, so the service runs on.
                    line: "systemctl daemon-reload && systemctl enable --quiet k3s && systemctl restart k3s"
                        .to_owned(),
                    ..Line::default()
                },
            )
            .bringing(&context.rootfs_content()),
        ])
    }
}

/// Returns the name of the host's Node. k3s derives it from the hostname; other programs that
/// installed it may have chosen another one.
fn node_name(site: &Site<'_>, host: &Host) -> Result<String> {
    if site.context.is_adopted() {
        let line = format!("{KUBECTL} get nodes -o {}", quoted(kubectl::ADDRESSES));
        let nodes = first_answer(site, &Line::query(line), "names")?;
        if let Some(name) = kubectl::node_with(&nodes, host.ip()) {
            return Ok(name);
        }
    }
    let facts = site.pool.agent(host)?.facts()?;
    Ok(facts.hostname.to_lowercase())
}

/// Runs kubectl on the first control plane that responds.
fn kubectl(site: &Site<'_>, arguments: &str, suffix: &str) -> Result<String> {
    first_answer(site, &Line::repeatable(format!("{KUBECTL} {arguments}")), suffix)
}

/// Runs a line on the first control plane that responds.
fn first_answer(site: &Site<'_>, line: &Line, suffix: &str) -> Result<String> {
    let mut failures = Vec::new();
    for host in site.context.control_planes() {
        let agent = site.pool.agent(host);
        match agent.and_then(|agent| site.run_on(&*agent, line, &format!("-{suffix}"))) {
            Ok(text) => return Ok(text),
            Err(error) => failures.push((host.id(), error)),
        }
    }
    Err(no_answer(&site.context.name, failures))
}

/// Returns the error for a cluster none of whose servers answers, with the reason of each.
fn no_answer(cluster: &str, mut failures: Vec<(String, Error)>) -> Error {
    let kind = match failures.as_slice() {
        [_, _, ..] => failures[0].1.kind(),
        _ => {
            return failures.pop().map_or_else(
                || Error::failed(format!("cluster {cluster} has no other control plane to ask")),
                |(_, error)| error,
            );
        }
    };
    let mut error = Error::new(kind, format!("no server of cluster {cluster} answers"));
    for hint in failures.iter().flat_map(|(_, error)| error.hints()) {
        error = error.hint(hint.to_owned());
    }
    let reasons = failures.iter().map(|(host, error)| {
        let reason = error.chain().join(": ");
        if reason.starts_with(host.as_str()) { reason } else { format!("{host}: {reason}") }
    });
    error.caused_by(Error::several(kind, reasons))
}

impl Runtime for K3s<'_> {
    fn name(&self) -> &'static str {
        "k3s"
    }

    fn check(&self, context: &ClusterContext) -> Result<()> {
        let Some(first) = context.first() else {
            return Err(Error::usage(format!(
                "cluster {} has no control plane: k3s needs a server",
                context.name
            ))
            .hint("name at least one host with --masters"));
        };
        config::of(context, first, Role::First, self.files).map(|_| ())
    }

    fn init(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        let mut actions = self.start(context, host, Role::First)?;
        actions.push(ready());
        actions.push(kubeconfig());
        Ok(actions)
    }

    fn join_control_plane(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        let mut actions = Vec::new();
        if context.is_adopted() {
            actions.push(takes_servers());
        }
        actions.extend(self.start(context, host, Role::Server)?);
        actions.push(ready());
        Ok(actions)
    }

    fn join_worker(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        let mut actions = self.settle(context, host)?;
        actions.extend(self.start(context, host, Role::Agent)?);
        Ok(actions)
    }

    fn settle(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        // Agents of k3s know all servers; those that imgctl installed reach them by its balancer.
        if host.is_control_plane() || context.is_adopted() {
            return Ok(Vec::new());
        }
        Ok(load_balancer::actions(context, host, PAPERS))
    }

    fn health(&self, _context: &ClusterContext, _host: &Host) -> Result<Vec<Action>> {
        Ok(vec![Action::new(
            "node-ready",
            format!("{KUBECTL} wait --for=condition=Ready node/<this host> --timeout=300s"),
            |site| {
                let name = node_name(site, site.host)?;
                // The Node object appears a few seconds after the service starts.
                let patience = site.timeout.map_or(300, |timeout| timeout.as_secs().min(300));
                let line = Line::script(&[include_str!("scripts/wait-for-node.sh")]).with([
                    ("IMGCTL_NODE", &name),
                    ("IMGCTL_APPEARS", &(patience / 3).max(1).to_string()),
                    ("IMGCTL_READY", &(patience / 2).max(1).to_string()),
                ]);
                first_answer(site, &line, "ready").map(drop)
            },
        )])
    }

    fn leave(
        &self,
        _context: &ClusterContext,
        host: &Host,
        draining: &drain::Options,
    ) -> Result<Vec<Action>> {
        let gone = host.clone();
        Ok(vec![
            nodes::drain_leaving(host, draining),
            // Deleting a server's Node also removes its etcd member.
            Action::new(
                "delete-node",
                format!("{KUBECTL} delete node <{}>", host.ip()),
                move |site| {
                    let name = node_name(site, &gone)?;
                    kubectl(site, &format!("delete node {name} --ignore-not-found"), "delete")
                        .map(|_| ())
                },
            ),
        ])
    }

    /// k3s documents that an agent takes its address from `node-ip` when it starts, and that a server
    /// with embedded etcd takes a new one by a reset to a single member, which a single server is.
    fn renumber(&self, context: &ClusterContext, host: &Host, old: &str) -> Result<Vec<Action>> {
        if context.is_adopted() {
            return Err(Error::usage(format!(
                "cluster {} was adopted, and the options of its hosts are theirs",
                context.name
            ))
            .hint(format!(
                "change node-ip in /etc/rancher/k3s/config.yaml or in the unit of k3s on {old}, \
                 restart it, and change the address in the Clusterfile"
            )));
        }
        if !host.is_control_plane() {
            return self.start(context, host, Role::Agent);
        }
        if context.control_planes().count() > 1 {
            return Err(Error::usage(format!(
                "{old} is one of several k3s servers, whose etcd knows it by its address"
            ))
            .hint(
                "k3s changes the address of a single server only; remove a server that is not the \
                 first one with `imgctl delete`, and add it under its new address",
            ));
        }
        let mut actions = self.start(context, host, Role::First)?;
        let start = actions.pop();
        actions.push(elsewhere::reset_member());
        actions.extend(start);
        actions.push(ready());
        Ok(actions)
    }

    fn reset(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        let mut actions = load_balancer::removal(context, host);
        if context.is_adopted() {
            actions.push(Action::command("k3s-uninstall", Line::repeatable(UNINSTALL)));
        }
        let stop = Line::script(&[include_str!("scripts/stop.sh")]);
        actions.push(Action::command("k3s-stop", stop));
        Ok(actions)
    }

    fn hosts_entries(&self, context: &ClusterContext, host: &Host) -> Vec<(String, String)> {
        if context.is_adopted() {
            return Vec::new();
        }
        let address = if host.is_control_plane() { host.ip() } else { load_balancer::ADDRESS };
        vec![(address.to_owned(), API_NAME.to_owned())]
    }

    fn ports(&self, _context: &ClusterContext, host: &Host) -> Vec<u16> {
        if host.is_control_plane() {
            vec![API_PORT, 2379, 2380, 10250]
        } else {
            vec![API_PORT, 10250]
        }
    }

    fn has_api(&self) -> bool {
        true
    }

    fn upgrader(&self) -> Result<&dyn Upgrader> {
        Ok(self)
    }
}

/// Runs what the installer of get.k3s.io has left for the purpose.
const UNINSTALL: &str = "for name in k3s-agent-uninstall.sh k3s-uninstall.sh; do \
     if path=$(type -P \"$name\"); then \"$path\"; fi; done";

/// Fails if the cluster keeps its data where a second server cannot join it.
fn takes_servers() -> Action {
    let says = "the first server keeps its data in etcd: others can join it";
    Action::new("datastore", says, |site| {
        let Some(first) = site.context.first() else { return Ok(()) };
        let line = Line::script(&[HOST, include_str!("scripts/datastore.sh")]);
        let line = Line { quiet: true, ..line };
        let agent = site.pool.agent(first)?;
        let told = site.run_on(&*agent, &line, "-datastore")?;
        if told.trim().is_empty() {
            return Ok(());
        }
        Err(Error::check_failed(format!(
            "{} keeps the data of k3s in SQLite, which one server has for itself",
            first.id()
        ))
        .hint("convert it first: start k3s there with --cluster-init"))
    })
}

/// Waits until the API of this host responds.
fn ready() -> Action {
    Action::command("k3s-ready", Line::script(&[include_str!("scripts/wait-for-api.sh")]))
        .saying("wait until the API of this host answers")
}

/// Fetches the administrator's kubeconfig for the controller and for kubectl on the host.
fn kubeconfig() -> Action {
    let says = format!("fetch {KUBECONFIG} to the controller as etc/admin.conf");
    Action::new("kubeconfig", says, bring_kubeconfig)
}

fn bring_kubeconfig(site: &Site<'_>) -> Result<()> {
    fetch_kubeconfig(site.agent, site.context, site.host)?;
    site.run(&Line::repeatable(format!(
        "mkdir -p \"$HOME/.kube\" && [ -e \"$HOME/.kube/config\" ] || ln -s {KUBECONFIG} \"$HOME/.kube/config\""
    )))
    .map(|_| ())
}

/// Writes the administrator's kubeconfig of the server behind `agent` to the controller's state, with
/// the name that hosts know, or that server's address if the cluster keeps its own endpoint.
pub fn fetch_kubeconfig(agent: &dyn Agent, context: &ClusterContext, host: &Host) -> Result<()> {
    let bytes = agent.read_file(KUBECONFIG, 1 << 20)?.ok_or_else(|| {
        Error::not_found(format!("{}: {KUBECONFIG} does not exist", agent.host()))
            .hint("k3s writes it when its server starts: see journalctl -u k3s")
    })?;
    let server = if context.is_adopted() { host.ip() } else { API_NAME };
    let server = if server.contains(':') { format!("[{server}]") } else { server.to_owned() };
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    for local in ["127.0.0.1", "0.0.0.0", "[::1]"] {
        text = text.replace(&format!("https://{local}:"), &format!("https://{server}:"));
    }
    host_kubeconfig::keep(&context.state, &text, agent, KUBECONFIG)
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::error::Kind;

    #[test]
    fn the_reason_of_each_server_is_told() {
        let failure = |host: &str, message: &str| {
            let error = Error::network(message.to_owned()).hint(format!("see {host}"));
            (host.to_owned(), error)
        };
        let both = no_answer(
            "c",
            vec![failure("10.0.0.1", "10.0.0.1: timed out"), failure("10.0.0.2", "refused")],
        );
        let told = both.chain().join(" | ");
        assert_eq!(both.kind(), Kind::Network);
        for part in ["no server of cluster c", "10.0.0.1: timed out\n10.0.0.2: refused"] {
            assert!(told.contains(part), "{told}");
        }
        assert_eq!(both.hints(), ["see 10.0.0.1", "see 10.0.0.2"]);
        let one = no_answer("c", vec![failure("10.0.0.1", "refused")]);
        assert_eq!(one.message(), "refused");
        assert!(no_answer("c", Vec::new()).message().contains("no other control plane"));
    }
}
