//! Removing a host from a cluster that continues to run, and removing from a host what kubeadm and
//! its cluster created there.

use crate::action::{Action, Line, Site};
use crate::kubeadm::{etcd, lvscare, settings::etc};
use crate::kubeadm::{init, init::hosts_block};
use crate::kubectl::{ADMIN_CONF, Kubectl};
use crate::{load_balancer, nodes};
use imgctl_base::error::{Error, Result};
use imgctl_host::agent::protocol::HostsBlock;
use imgctl_kube::drain;
use imgctl_model::context::{ClusterContext, Host};

pub(super) fn actions(
    context: &ClusterContext,
    host: &Host,
    local_etcd: bool,
    draining: &drain::Options,
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
    let mut actions = vec![nodes::drain_leaving(host, draining)];
    if host.is_control_plane() && local_etcd {
        actions.push(Action::new(
            "etcd-member",
            format!(
                "kubeadm reset phase remove-etcd-member on {address}; etcdctl member list elsewhere"
            ),
            remove_etcd_member,
        ));
    }
    actions.push(Action::new(
        "delete-node",
        format!("kubectl delete node <the Node of {address}>"),
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

/// Directories to remove with their contents.
const TREES: [&str; 7] = [
    "/etc/kubernetes",
    "/etc/cni",
    "/opt/cni",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/log/kubernetes",
    "/run/flannel",
];

/// Returns the actions that remove everything that kubeadm and its cluster created on a host, even
/// after a partial setup.
pub(super) fn reset(context: &ClusterContext, host: &Host, etcd_data: &str) -> Vec<Action> {
    let mut actions = load_balancer::removal(context, host);
    actions.push(
        Action::command("kubeadm-reset", Line::script(&[include_str!("scripts/reset.sh")]))
            .saying("kubeadm reset -f"),
    );
    actions.push(Action::command("network", lvscare::removal(context)).saying(
        "remove the ipvs service and interfaces kube-ipvs0, lvscare, cni0, flannel.1\n\
         remove kube-proxy's chains from iptables",
    ));
    let mut trees: Vec<String> = TREES.map(str::to_owned).to_vec();
    trees.push(etcd_data.to_owned());
    let says = format!("remove {}, $HOME/.kube/config", trees.join(", "));
    actions.push(Action::new("files", says, move |site| remove(site, &trees)));
    actions
}

fn remove(site: &Site<'_>, trees: &[String]) -> Result<()> {
    site.agent
        .set_hosts(&HostsBlock { cluster: hosts_block(site.context), entries: Vec::new() })?;
    let mut paths = trees.to_vec();
    for name in [
        "kubeadm-init.yaml",
        "kubeadm-cluster.yaml",
        "kubeadm-join-master.yaml",
        "kubeadm-join-node.yaml",
    ] {
        paths.push(etc(site.context, name));
    }
    // Remove the markers last: until everything else is gone, the host counts as started.
    let left = site.agent.remove(&paths)?;
    if !left.is_empty() {
        return Err(Error::failed(format!("{}: left behind:", site.agent.host()))
            .lines(left.iter().map(|path| format!("    {path}")))
            .hint("unmount or remove it manually, then run the same command again"));
    }
    let left = site.agent.remove(&init::markers(site))?;
    if left.is_empty() {
        Ok(())
    } else {
        Err(Error::failed(format!("{}: left behind: {}", site.agent.host(), left.join(", "))))
    }
}
