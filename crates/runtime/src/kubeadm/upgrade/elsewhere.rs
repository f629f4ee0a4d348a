//! A backup of the cluster for other hosts, and the cluster from it: `kubeadm init` on a control plane
//! whose etcd has the data of the snapshot, with the authorities that the controller has.
//!
//! kubeadm writes the objects that name addresses again (cluster-info, kubeadm-config). kube-proxy and
//! CoreDNS stay as they are in the data, with the changes that were made to them. What
//! is left of the former hosts is removed when the API answers; then the other hosts join.

use std::time::Duration;

use crate::action::{Action, Site};
use crate::kubeadm::config::Config;
use crate::kubeadm::settings::{Settings, etc};
use crate::kubeadm::upgrade::snapshot_restore::ETCD_TOOL;
use crate::kubeadm::upgrade::target::{KEEP_FILES, Target, own_name};
use crate::kubeadm::{
    init,
    init::{Restored, hostname},
};
use crate::kubeadm::{join::resolves, local_files::NAMED};
use crate::kubectl::Kubectl;
use imgctl_base::address::join_port;
use imgctl_base::error::{Error, Result};
use imgctl_kube::lease::NAME as LEASE;
use imgctl_model::context::{ClusterContext, Host};

/// List of the saved files that static Pods name, below `files/`.
const LIST: &str = "imgctl-local-files";
const LIMIT: Duration = Duration::from_secs(600);
const LONG: Duration = Duration::from_secs(60 * 60);

/// Saves the files of this control plane that are not in the image, for reference: a restore makes its
/// own.
pub(super) fn save_files(target: &Target) -> Action {
    let line = target
        .script(&[NAMED, KEEP_FILES, include_str!("scripts/save-files.sh")])
        .with([("IMGCTL_LIST", LIST)]);
    Action::command("save-files", line).within(LIMIT).saying(format!(
        "copy to {}/files: /etc/kubernetes (pki, manifests, *.conf), kubelet's configuration and \
         unit, the configuration of the container runtime",
        target.backup
    ))
}

/// Returns what takes the place of `init` on the first control plane.
pub(super) fn restored(
    context: &ClusterContext,
    host: &Host,
    settings: &Settings,
    planned: &Config,
    target: &Target,
    folder: &str,
) -> Result<Vec<Action>> {
    if !planned.has_local_etcd() {
        return Err(Error::usage("the etcd of this cluster is external: it is not in the backup")
            .hint("restore it where it runs, then create the cluster with `imgctl run`"));
    }
    let data = restore_etcd(context, settings, target, folder);
    let restored = Restored { data, folder: folder.to_owned() };
    let mut actions = init::actions_with(context, host, settings, planned, Some(restored))?;
    if context.is_adopted() {
        // Its policy is a file of the backup, and its endpoint is not imgctl's.
        actions.retain(|action| !["audit-policy", "api-name"].contains(&action.name.as_str()));
        actions.splice(..0, planned.shared_endpoint().map(resolves));
    }
    actions.push(remove_former());
    Ok(actions)
}

fn restore_etcd(
    context: &ClusterContext,
    settings: &Settings,
    target: &Target,
    folder: &str,
) -> Action {
    let snapshot = format!("{folder}/snapshot.db");
    let says = format!(
        "etcdutl (or etcdctl) snapshot restore {snapshot} as a new member (token imgctl-{})",
        target.id
    );
    let configuration = etc(context, init::CONFIG);
    let settings = settings.clone();
    let target = Target { backup: folder.to_owned(), ..target.clone() };
    Action::depending_on("restore-etcd", says, folder, move |site| {
        let (_, config) = settings.config(site)?;
        let name = config.node_name(true, &hostname(site)?);
        let peer = format!("https://{}", join_port(config.address(), 2380));
        let line =
            target.script(&[ETCD_TOOL, include_str!("scripts/restore-elsewhere.sh")]).with([
                ("IMGCTL_LIST", LIST),
                ("IMGCTL_CONFIG", &configuration),
                ("IMGCTL_DATA", config.etcd_data()),
                ("IMGCTL_NAME", &name),
                ("IMGCTL_PEER", &peer),
                ("IMGCTL_NEW_CLUSTER", &format!("imgctl-{}", target.id)),
            ]);
        site.run(&line).map(|_| ())
    })
    .within(LONG)
}

/// Prints the names of all Nodes.
const NODES: &str = "jsonpath={range .items[*]}{.metadata.name}{\"\\n\"}{end}";

/// Removes the Nodes of the former hosts and their Pods, which nothing runs any more. Without that, a
/// host of the same name cannot join, and kubeadm asks former members of etcd. The backup was made
/// under the cluster's lock, which the snapshot contains: without its removal, every other controller
/// waits until that lock expires, and until then none is locked out of the restored cluster.
fn remove_former() -> Action {
    let says = "kubectl delete node <those of the former hosts>, and the Pods that were there; \
                kubectl delete the Lease kube-system/imgctl of the backup";
    Action::new("former-nodes", says, |site: &Site<'_>| {
        let kubectl = Kubectl::here(site)?;
        kubectl.run(&["delete", "lease", LEASE, "-n", "kube-system", "--ignore-not-found"])?;
        let own = own_name(site, &kubectl)?;
        let names = kubectl.run(&["get", "nodes", "-o", NODES])?;
        for name in names.lines().map(str::trim).filter(|name| !name.is_empty() && *name != own) {
            kubectl.delete_node(name)?;
            let there = format!("spec.nodeName={name}");
            kubectl.run_shown(&[
                "delete",
                "pods",
                "-A",
                "--field-selector",
                &there,
                "--force",
                "--grace-period=0",
                "--ignore-not-found",
            ])?;
        }
        Ok(())
    })
    .within(LIMIT)
}
