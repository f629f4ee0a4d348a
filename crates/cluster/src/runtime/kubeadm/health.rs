//! Health checks of a host in the cluster.

use std::time::{Duration, Instant};

use crate::cluster::context::Host;
use crate::runtime::action::{Action, Site};
use crate::runtime::kubeadm::init::hostname;
use crate::runtime::kubectl::{Condition, Kubectl};
use imgctl_base::error::{Error, Result};

const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_secs(2);

pub(super) fn actions(host: &Host) -> Vec<Action> {
    let mut actions = Vec::new();
    if host.is_control_plane() {
        actions.push(Action::new(
            "api-ready",
            "wait for `kubectl get --raw /readyz`",
            "",
            |site| {
                wait(site, &|| {
                    let answer = Kubectl::here(site).and_then(|kubectl| kubectl.ready());
                    Ok(answer.err().map(|error| error.to_string()))
                })
            },
        ));
    }
    actions.push(Action::new(
        "node-ready",
        "wait until the Node is Ready, or lacks nothing but the Pod network",
        "",
        node_ready,
    ));
    actions
}

fn node_ready(site: &Site<'_>) -> Result<()> {
    let own = hostname(site)?.to_lowercase();
    wait(site, &|| {
        let kubectl = match Kubectl::anywhere(site) {
            Ok(kubectl) => kubectl,
            Err(error) => return Ok(Some(error.to_string())),
        };
        let name = kubectl.own_node()?.unwrap_or_else(|| own.clone());
        Ok(match kubectl.condition(&name)? {
            Condition::Ready | Condition::WaitsForNetwork => None,
            Condition::Absent => Some(format!("there is no Node {name}")),
            Condition::NotReady(why) => Some(format!("Node {name} is not Ready: {why}")),
        })
    })
}

/// Repeats the check until there is no complaint or the step's timeout expires.
fn wait(site: &Site<'_>, complaint: &dyn Fn() -> Result<Option<String>>) -> Result<()> {
    let end = Instant::now() + site.timeout.unwrap_or(PATIENCE);
    loop {
        let found = complaint()?;
        let Some(found) = found else {
            return Ok(());
        };
        if Instant::now() + PAUSE >= end {
            return Err(Error::failed(format!("{}: {found}", site.agent.host())).hint(
                "on the host: `journalctl -u kubelet`, `crictl ps -a`; then run the same command again",
            ));
        }
        std::thread::sleep(PAUSE);
    }
}
