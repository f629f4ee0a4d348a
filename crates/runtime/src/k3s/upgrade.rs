//! Upgrade and rollback of k3s servers and agents: renames the new binary into place and restarts
//! the service. Containers keep running during the restart. Also takes and restores snapshots of etcd.

use std::time::Duration;

use serde_json::Value;

use crate::action::{Line, Site};
use crate::k3s::config::Role;
use crate::k3s::steps::{LIMIT, SNAPSHOT, action, keep, out_of_service, script, take_snapshot};
use crate::k3s::{K3s, KUBECTL, PAPERS, elsewhere, first_answer, kubeconfig, node_name, ready};
use crate::k3s::{reconfigure, reconfigure::Reconfigurer};
use crate::kubectl;
use crate::setting::Setting;
use crate::upgrade::{Move, Place, Restoration, Upgrader};
use crate::{Action, load_balancer, version, wait::waiting};
use imgctl_base::error::{Error, Result};
use imgctl_base::semver::Version;
use imgctl_model::{context::ClusterContext, image::ClusterImage};

const PATIENCE: Duration = Duration::from_secs(420);
const LONG: Duration = Duration::from_secs(30 * 60);
const HINT: &str = "on the host: `journalctl -u k3s`, `k3s kubectl get nodes -o wide`; then \
`imgctl upgrade resume`, or `imgctl rollback`";

fn wanted(step: &Move<'_>) -> Result<String> {
    let rootfs = step
        .to
        .rootfs()
        .ok_or_else(|| Error::usage(format!("cluster {} has no rootfs image", step.to.name)))?;
    version_of(rootfs)
}

fn version_of(image: &ClusterImage) -> Result<String> {
    let text = version::of(image)?;
    if Version::parse(&text).is_none() {
        return Err(Error::usage(format!("`{text}` of image {} is not a k3s version", image.name))
            .hint("the rootfs image's label `version` looks like v1.34.1+k3s1"));
    }
    Ok(text)
}

impl Upgrader for K3s<'_> {
    fn version(&self, image: &ClusterImage) -> Result<String> {
        version_of(image)
    }

    fn permits(&self, from: &str, to: &str) -> Result<()> {
        version::permits_kubernetes(from, to)
    }

    fn settings(&self, from: &ClusterContext, to: &ClusterContext) -> Result<Vec<Setting>> {
        reconfigure::settings(from, to, self.files)
    }

    fn reconfigurer(&self, _settings: &[Setting]) -> Result<Box<dyn Upgrader + '_>> {
        Ok(Box::new(Reconfigurer(self)))
    }

    fn backup(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let mut actions = vec![keep(step)];
        if step.place == Place::First {
            actions.push(take_snapshot(step));
        }
        Ok(actions)
    }

    fn save(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        Ok(elsewhere::saved(step, take_snapshot(step)))
    }

    /// Servers other than the first have no data of their own: they join it, and its etcd.
    fn restore_cluster(&self, step: &Move<'_>, folder: &str) -> Result<Restoration> {
        let mut actions = self.start(step.to, step.host, Role::First)?;
        let start = actions.pop();
        actions.push(elsewhere::tokens(folder));
        actions.push(elsewhere::data(folder));
        actions.extend(start);
        actions.push(ready());
        actions.push(elsewhere::remove_former());
        actions.push(kubeconfig());
        Ok(Restoration::First(actions))
    }

    fn pull(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let says = format!("k3s crictl pull the images listed in {}/images/shim", step.tree);
        let line = script(step, include_str!("scripts/pull-images.sh"));
        Ok(vec![action("pull", says, line, LONG)])
    }

    fn before(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        if step.place == Place::Worker {
            return Ok(Vec::new());
        }
        Ok(vec![waiting(
            "servers-ready",
            "all servers are Ready, and each etcd member votes",
            Duration::from_secs(90),
            HINT,
            servers,
        )])
    }

    fn apply(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let says =
            format!("replace k3s and its unit with those of {}; systemctl restart k3s", step.tree);
        let line = script(step, include_str!("scripts/replace.sh"));
        Ok(vec![out_of_service(step, action("k3s", says, line, LIMIT))])
    }

    fn back_in_service(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        Ok(match step.place {
            Place::Worker => Vec::new(),
            _ if step.to.is_adopted() => Vec::new(),
            _ => load_balancer::put_back(step.to),
        })
    }

    fn before_control_planes(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        if step.to.is_adopted() {
            return Ok(Vec::new());
        }
        Ok(load_balancer::actions(step.to, step.host, PAPERS))
    }

    fn gate(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let wanted = wanted(step)?;
        let mut actions = Vec::new();
        if step.place != Place::Worker {
            let says = "the API of this host is ready and live";
            actions.push(waiting("gate-api", says, PATIENCE, HINT, |site| {
                for path in ["/readyz?verbose", "/livez"] {
                    let question = format!("{KUBECTL} get --raw '{path}' --request-timeout=10s");
                    site.run_on(site.agent, &Line::query(question), "-raw")?;
                }
                Ok(None)
            }));
            let says = "all servers are Ready, and each etcd member votes";
            actions.push(waiting("gate-servers", says, PATIENCE, HINT, servers));
        }
        let started = format!("{}/kubelet-started", step.backup());
        let says = format!(
            "the Node is Ready with {wanted}, has reported since the restart and is under no \
             pressure"
        );
        let node = move |site: &Site<'_>| own_node(site, &wanted, &started);
        actions.push(waiting("gate-node", says, PATIENCE, HINT, node));
        Ok(actions)
    }

    fn restore(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let says = format!(
            "restore from {}/files: k3s, its unit and configuration; systemctl restart k3s",
            step.backup()
        );
        let line = script(step, include_str!("scripts/restore-files.sh"));
        let restore = action("restore-files", says, line, LIMIT);
        Ok(vec![out_of_service(step, restore)])
    }

    fn restore_snapshot(&self, step: &Move<'_>, snapshot: &str) -> Result<[Vec<Action>; 3]> {
        Ok(restore_snapshot(step, snapshot))
    }
}

/// Queries the first server that responds. Keeps the response out of the log.
fn ask(site: &Site<'_>, arguments: &str, suffix: &str) -> Result<String> {
    let line = Line::query(format!("{KUBECTL} --request-timeout=10s {arguments}"));
    first_answer(site, &line, suffix)
}

fn servers(site: &Site<'_>) -> Result<Option<String>> {
    let text = ask(
        site,
        "get nodes -l node-role.kubernetes.io/control-plane -o 'jsonpath={range .items[*]}{.metadata.name}|\
         {.status.conditions[?(@.type==\"Ready\")].status}|{.status.conditions[?(@.type==\"EtcdIsVoter\")].status}{\"\\n\"}{end}'",
        "servers",
    )?;
    Ok(text.lines().find_map(complaint))
}

/// Checks one line of the response above; servers without etcd report no voting status.
fn complaint(line: &str) -> Option<String> {
    let fields: Vec<&str> = line.split('|').collect();
    match fields[..] {
        [_, "True", "True" | ""] => None,
        [name, "True", _] => Some(format!("the etcd member of server {name} does not vote")),
        [name, ..] => Some(format!("server {name} is not Ready")),
        [] => None,
    }
}

fn own_node(site: &Site<'_>, wanted: &str, started: &str) -> Result<Option<String>> {
    let name = node_name(site, site.host)?;
    let object = |kind: &str| -> Result<Value> {
        let text = ask(site, &format!("get {kind} -o json --ignore-not-found"), "node")?;
        Ok(serde_json::from_str(&text).unwrap_or_default())
    };
    let node = object(&format!("node {name}"))?;
    let lease = object(&format!("lease {name} -n kube-node-lease"))?;
    let started = site.agent.read_file(started, 1 << 10)?;
    let started = started.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok(kubectl::complaint(&name, &node, &lease, wanted, started.as_deref()))
}

/// Stops all servers, restores the first, removes the data of the others so that they rejoin, and
/// starts all servers.
fn restore_snapshot(step: &Move<'_>, snapshot: &str) -> [Vec<Action>; 3] {
    let stop = action(
        "restore-stop",
        "systemctl stop k3s".to_owned(),
        Line::repeatable("systemctl stop k3s; echo 'k3s is stopped; its containers go on'"),
        SNAPSHOT,
    );
    let (snapshot, says) = match step.place {
        Place::First => (
            snapshot,
            format!(
                "restore k3s; k3s server --cluster-reset --cluster-reset-restore-path={snapshot}"
            ),
        ),
        _ => (
            "",
            format!(
                "restore k3s; its member's data moves to {}/db-before, and it joins again",
                step.backup()
            ),
        ),
    };
    let line = script(step, include_str!("scripts/restore-snapshot.sh"));
    let line = line.with([("IMGCTL_SNAPSHOT", snapshot)]);
    let restore = action("restore-etcd", says, line, SNAPSHOT);
    let start = action(
        "restore-start",
        "systemctl start k3s; wait until its API is ready".to_owned(),
        script(step, include_str!("scripts/start-restored.sh")),
        SNAPSHOT,
    );
    [vec![stop], vec![restore], vec![start]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_keep_others_from_being_touched() {
        for (line, expected) in [
            ("a|True|True", None),
            ("a|True|", None),
            ("b|False|True", Some("server b is not Ready")),
            ("c|True|False", Some("the etcd member of server c does not vote")),
        ] {
            assert_eq!(complaint(line).as_deref(), expected, "{line}");
        }
    }
}
