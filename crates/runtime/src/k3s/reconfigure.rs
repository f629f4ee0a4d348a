//! Other options for the hosts of a k3s cluster, and the way back: `/etc/rancher/k3s/config.yaml`, which
//! k3s reads when it starts. Only what differs changes there.

use std::time::Duration;

use serde_json::Value;

use crate::action::{Line, Site};
use crate::k3s::steps::{LIMIT, action, keep, out_of_service, script, take_snapshot};
use crate::k3s::{CONFIG, K3s, host::HOST};
use crate::k3s::{config, config::Role};
use crate::setting::{Component, Difference, Setting, differences, put};
use crate::upgrade::{Move, Place, Upgrader};
use crate::{Action, ImageFiles};
use imgctl_base::error::{Error, Result};
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::image::ClusterImage;
use imgctl_template::yaml;

/// Options that decide on networks, data and identity.
const FIXED: [&str; 28] = [
    "advertise-address",
    "advertise-port",
    "agent-token",
    "agent-token-file",
    "bind-address",
    "cluster-cidr",
    "cluster-dns",
    "cluster-domain",
    "cluster-init",
    "container-runtime-endpoint",
    "data-dir",
    "datastore-endpoint",
    "disable-agent",
    "disable-apiserver",
    "disable-controller-manager",
    "disable-etcd",
    "disable-scheduler",
    "docker",
    "egress-selector-mode",
    "flannel-backend",
    "https-listen-port",
    "node-ip",
    "node-name",
    "server",
    "service-cidr",
    "snapshotter",
    "token",
    "token-file",
];

/// Options that k3s gives to its Node once, when the Node joins.
const ONCE: [&str; 2] = ["node-label", "node-taint"];

fn role(context: &ClusterContext, host: &Host) -> Role {
    let is_first = context.first().is_some_and(|first| first.address == host.address);
    match (is_first, host.is_control_plane()) {
        (true, _) => Role::First,
        (false, true) => Role::Server,
        (false, false) => Role::Agent,
    }
}

/// Returns the options of one host that differ.
fn of(
    from: &ClusterContext,
    to: &ClusterContext,
    host: &Host,
    files: &dyn ImageFiles,
) -> Result<Vec<Difference>> {
    let options = |context: &ClusterContext| -> Result<Value> {
        yaml::parse(&config::of(context, host, role(context, host), files)?)
    };
    Ok(differences(&options(from)?, &options(to)?))
}

/// Returns all options that differ, for a plan.
///
/// # Errors
/// If options cannot change while the cluster runs; names all of them.
pub(super) fn settings(
    from: &ClusterContext,
    to: &ClusterContext,
    files: &dyn ImageFiles,
) -> Result<Vec<Setting>> {
    let mut all: Vec<Setting> = Vec::new();
    let mut refused: Vec<String> = Vec::new();
    for host in &to.hosts {
        for one in of(from, to, host, files)? {
            let name = one.path.first().map(String::as_str).unwrap_or_default();
            if FIXED.contains(&name.trim_end_matches('+')) {
                if !refused.contains(&one.name()) {
                    refused.push(one.name());
                }
                continue;
            }
            let component = if ONCE.contains(&name) { Component::Later } else { Component::K3s };
            let shown = one.shown("k3s", component, vec![host.id()]);
            let same = |own: &&mut Setting| {
                own.name == shown.name && own.old == shown.old && own.new == shown.new
            };
            match all.iter_mut().find(same) {
                Some(own) => own.hosts.push(host.id()),
                None => all.push(shown),
            }
        }
    }
    if !refused.is_empty() {
        return Err(Error::usage(format!(
            "these options of k3s cannot change while the cluster runs: {}",
            refused.join(", ")
        ))
        .hint(
            "they decide on networks, data and the identity of hosts: a new cluster is the way",
        ));
    }
    if from.is_adopted() && !all.is_empty() {
        return Err(Error::usage(format!(
            "cluster {} was adopted, and the options of its hosts are theirs",
            to.name
        ))
        .hint(
            "change /etc/rancher/k3s/config.yaml or the unit of k3s on each host, and restart it",
        ));
    }
    Ok(all)
}

/// Changes options of hosts and takes them back.
pub(super) struct Reconfigurer<'a>(pub(super) &'a K3s<'a>);

impl Reconfigurer<'_> {
    fn change(&self, step: &Move<'_>) -> Result<Vec<Difference>> {
        let mut all = of(step.from, step.to, step.host, self.0.files)?;
        all.retain(|one| !one.path.first().is_some_and(|name| ONCE.contains(&name.as_str())));
        Ok(all)
    }
}

impl Upgrader for Reconfigurer<'_> {
    fn version(&self, image: &ClusterImage) -> Result<String> {
        self.0.version(image)
    }

    fn permits(&self, _from: &str, _to: &str) -> Result<()> {
        Ok(())
    }

    fn backup(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let mut actions = vec![keep(step)];
        if step.place == Place::First {
            actions.push(take_snapshot(step));
        }
        Ok(actions)
    }

    /// Writes the new file beside the backup and has k3s read it without starting anything.
    fn pull(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let change = self.change(step)?;
        if step.back || change.is_empty() {
            return Ok(Vec::new());
        }
        let new = format!("{}/new.yaml", step.backup());
        let verb = if step.place == Place::Worker { "agent" } else { "server" };
        let says = format!("write {new}; k3s {verb} --config {new} --help: k3s knows all options");
        let action = Action::new("try", says, move |site| {
            write(site, &new, &change)?;
            tried(site, &new, verb, &change)
        });
        Ok(vec![action.within(Duration::from_secs(120))])
    }

    fn before(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        self.0.before(step)
    }

    fn before_control_planes(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        self.0.before_control_planes(step)
    }

    fn apply(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let line = script(step, include_str!("scripts/put-settings.sh"));
        if self.change(step)?.is_empty() {
            let (says, line) = ("nothing of this host changes", line.with([("IMGCTL_NEW", "")]));
            return Ok(vec![action("settings", says.to_owned(), line, LIMIT)]);
        }
        let line = line.with([("IMGCTL_NEW", &format!("{}/new.yaml", step.backup()))]);
        let says = format!("put the new {CONFIG} in place; systemctl restart k3s");
        Ok(vec![out_of_service(step, action("settings", says, line, LIMIT))])
    }

    fn gate(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        self.0.gate(step)
    }

    fn back_in_service(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        self.0.back_in_service(step)
    }

    fn restore(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        self.0.restore(step)
    }
}

/// Writes this host's file with the new options to `path`.
fn write(site: &Site<'_>, path: &str, change: &[Difference]) -> Result<()> {
    let bytes = site.agent.read_file(CONFIG, 1 << 20)?.ok_or_else(|| {
        Error::not_found(format!("{}: {CONFIG} does not exist", site.agent.host()))
    })?;
    let mut options = yaml::parse(&String::from_utf8_lossy(&bytes))?;
    for one in change {
        put(&mut options, one)?;
    }
    let mut content = yaml::write(&options)?;
    content.push('\n');
    let file = FileToWrite { path: path.to_owned(), mode: 0o600, content: content.into_bytes() };
    site.agent.write_file(&file).map(|_| ())
}

/// k3s passes over options that it does not know, with a warning, and then ends at `--help`.
fn tried(site: &Site<'_>, path: &str, verb: &str, change: &[Difference]) -> Result<()> {
    let mut names: Vec<&str> = change
        .iter()
        .filter(|one| one.new.is_some())
        .filter_map(|one| one.path.first().map(|name| name.trim_end_matches('+')))
        .collect();
    names.dedup();
    let line = Line::script(&[HOST, include_str!("scripts/try-options.sh")]).with([
        ("IMGCTL_VERB", verb),
        ("IMGCTL_NEW", path),
        ("IMGCTL_OPTIONS", &names.join(" ")),
    ]);
    let line = Line { quiet: true, ..line };
    site.run_on(site.agent, &line, "-try").map(|_| ()).map_err(|error| {
        Error::check_failed(format!(
            "{}: k3s refuses the new options; nothing was changed",
            site.agent.host()
        ))
        .caused_by(error)
        .hint("correct them in the Clusterfile, then run `imgctl apply` again")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::k3s::config::tests::{Files, context};

    #[test]
    fn options_change_where_they_are_read_and_networks_stay() {
        let files = Files("{}");
        let old = context(&[]);
        let of = |document: &Value| settings(&old, &context(&[&document.to_string()]), &files);
        let found = of(&json!({"kubelet-arg": ["max-pods=50"], "tls-san": ["a.example"]})).unwrap();
        let shown: Vec<(&str, usize)> =
            found.iter().map(|one| (one.name.as_str(), one.hosts.len())).collect();
        assert_eq!(shown, [("kubelet-arg", 3), ("tls-san", 2)]);
        let error = of(&json!({"cluster-cidr": "10.1.0.0/16", "service-cidr": "10.2.0.0/16"}));
        let told = error.unwrap_err().to_string();
        assert!(told.contains("cluster-cidr, service-cidr"), "{told}");
        let label = of(&json!({"node-label": ["a=b"]})).unwrap();
        assert_eq!(label[0].component, Component::Later);
        assert!(of(&json!({})).unwrap().is_empty());
    }
}
