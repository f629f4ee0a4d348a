//! Health checks of a host in the cluster.

use std::time::Duration;

use crate::action::{Action, Site};
use crate::kubeadm::init::hostname;
use crate::kubectl::{Condition, Kubectl};
use crate::wait::until_well;
use imgctl_base::error::Result;
use imgctl_model::context::Host;

const PATIENCE: Duration = Duration::from_secs(300);
const HINT: &str =
    "on the host: `journalctl -u kubelet`, `crictl ps -a`; then run the same command again";

pub(super) fn actions(host: &Host) -> Vec<Action> {
    let mut actions = Vec::new();
    if host.is_control_plane() {
        actions.push(Action::new("api-ready", "wait for `kubectl get --raw /readyz`", |site| {
            wait(site, &|| Kubectl::here(site)?.ready().map(|()| None))
        }));
    }
    actions.push(Action::new(
        "node-ready",
        "wait until the Node is Ready, or lacks nothing but the Pod network",
        node_ready,
    ));
    actions
}

fn node_ready(site: &Site<'_>) -> Result<()> {
    let own = hostname(site)?.to_lowercase();
    wait(site, &|| {
        let kubectl = Kubectl::anywhere(site)?;
        let name = kubectl.own_node()?.unwrap_or_else(|| own.clone());
        Ok(match kubectl.condition(&name)? {
            Condition::Ready | Condition::WaitsForNetwork => None,
            Condition::Absent => Some(format!("there is no Node {name}")),
            Condition::NotReady(why) => Some(format!("Node {name} is not Ready: {why}")),
        })
    })
}

fn wait(site: &Site<'_>, complaint: &dyn Fn() -> Result<Option<String>>) -> Result<()> {
    until_well(site, site.timeout.unwrap_or(PATIENCE), HINT, complaint)
}
