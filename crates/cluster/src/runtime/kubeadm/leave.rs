//! Removing a host from a cluster that continues to run.

use std::time::Duration;

use crate::cluster::context::{ClusterContext, Host};
use crate::runtime::action::{Action, Line, Site};
use crate::runtime::kubeadm::etcd;
use crate::runtime::kubectl::{ADMIN_CONF, Kubectl};
use imgctl_base::error::{Error, Result};

const DRAIN_SECONDS: u64 = 300;

pub(super) fn actions(
    context: &ClusterContext,
    host: &Host,
    local_etcd: bool,
) -> Result<Vec<Action>> {
    if context.control_planes().next().is_none() {
        return Err(Error::usage(format!(
            "cannot remove {}: cluster {} would have no control plane",
            host.id(),
            context.name
        ))
        .hint("`imgctl reset` removes the whole cluster"));
    }
    let address = host.ip().to_owned();
    let mut actions = vec![
        Action::new(
            "drain",
            format!(
                "kubectl drain <the Node of {address}> --ignore-daemonsets --delete-emptydir-data \
                 --timeout={DRAIN_SECONDS}s"
            ),
            "",
            |site| {
                let kubectl = Kubectl::anywhere(site)?;
                match kubectl.own_node()? {
                    Some(node) => {
                        // drain times out before the step does, so that its final output is
                        // captured.
                        let limit = site.timeout.map_or(DRAIN_SECONDS, |limit| limit.as_secs());
                        kubectl.drain(&node, limit.saturating_sub(15).max(5))
                    }
                    // The host never joined, or has already left.
                    None => Ok(()),
                }
            },
        )
        .within(Duration::from_secs(DRAIN_SECONDS + 15)),
    ];
    if host.is_control_plane() && local_etcd {
        actions.push(Action::new(
            "etcd-member",
            format!(
                "kubeadm reset phase remove-etcd-member on {address}; etcdctl member list elsewhere"
            ),
            "",
            remove_etcd_member,
        ));
    }
    actions.push(Action::new(
        "delete-node",
        format!("kubectl delete node <the Node of {address}>"),
        "",
        |site| {
            let kubectl = Kubectl::anywhere(site)?;
            match kubectl.own_node()? {
                Some(node) => kubectl.delete_node(&node),
                None => Ok(()),
            }
        },
    ));
    Ok(actions)
}

/// Removes the etcd member from its own host if possible. The members' view on a control plane that
/// responds decides.
fn remove_etcd_member(site: &Site<'_>) -> Result<()> {
    let line = Line::repeatable(format!(
        "if [ -e /etc/kubernetes/manifests/etcd.yaml ]; then \
             kubeadm reset phase remove-etcd-member --kubeconfig {ADMIN_CONF}; fi"
    ));
    let own = site.run(&line);
    let kubectl = Kubectl::anywhere(site)?;
    match etcd::remove_member(site, &kubectl, site.host.ip())? {
        Some(()) => Ok(()),
        // No control plane can be queried, so the host's own result counts.
        None => own.map(|_| ()),
    }
}
