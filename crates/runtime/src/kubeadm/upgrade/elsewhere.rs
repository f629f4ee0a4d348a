//! A backup of the cluster for other hosts, and the cluster from it: `kubeadm init` on a control plane
//! whose etcd has the data of the snapshot, with the authorities that the controller has.
//!
//! kubeadm writes the objects that name addresses again (cluster-info, kubeadm-config). kube-proxy and
//! CoreDNS stay as they are in the data, with the changes that were made to them. What
//! is left of the former hosts is removed when the API answers; then the other hosts join.

use std::time::Duration;

use crate::action::{Action, Line, Site};
use crate::kubeadm::config::Config;
use crate::kubeadm::settings::{Settings, etc};
use crate::kubeadm::upgrade::snapshot_restore::find_tool_anywhere;
use crate::kubeadm::upgrade::target::{Target, own_name};
use crate::kubeadm::{
    init,
    init::{Restored, hostname},
};
use crate::kubeadm::{join::resolves, local_files};
use crate::kubectl::{Kubectl, quoted};
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
    let line = format!(
        "backup={backup}; mkdir -p -m 0700 \"$backup\"; chmod 0700 \"$backup\"; cd \"$backup\"\n\
         rm -rf files; mkdir -m 0700 files\n\
         keep() {{ local file; for file; do if [ -e \"$file\" ]; then (cd / && cp -a --parents \".$file\" \"$backup/files/\"); fi; done; }}\n\
         keep /etc/kubernetes/pki /etc/kubernetes/manifests /etc/kubernetes/*.conf /etc/kubernetes/audit-policy.yml\n\
         keep /var/lib/kubelet/config.yaml /var/lib/kubelet/kubeadm-flags.env /var/lib/kubelet/instance-config.yaml\n\
         keep /etc/default/kubelet /etc/sysconfig/kubelet /etc/containerd /etc/crictl.yaml /etc/docker/daemon.json /etc/crio\n\
         for directory in /etc/systemd/system /usr/lib/systemd/system; do\n\
         keep \"$directory\"/kubelet.service \"$directory\"/kubelet.service.d\n\
         done\n\
         {named}\
         named | while read -r file; do keep \"$file\"; printf '%s\\n' \"$file\"; done >files/{LIST}\n\
         [ -e files/etc/kubernetes/manifests ] || {{ echo 'nothing of Kubernetes was found on this host' >&2; exit 1; }}\n\
         sync -f .",
        backup = quoted(&target.backup),
        named = local_files::NAMED,
    );
    Action::command("save-files", Line::repeatable(line)).within(LIMIT).saying(format!(
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
    let (settings, target, folder) = (settings.clone(), target.clone(), folder.to_owned());
    Action::depending_on("restore-etcd", says, &folder.clone(), move |site| {
        let (_, config) = settings.config(site)?;
        let name = config.node_name(true, &hostname(site)?);
        let peer = format!("https://{}", join_port(config.address(), 2380));
        let found = Found { data: config.etcd_data(), name: &name, peer: &peer };
        let line = restore_line(&target, &folder, &configuration, &found);
        site.run(&Line::repeatable(line)).map(|_| ())
    })
    .within(LONG)
}

/// etcd appends a SHA-256 sum to each snapshot and verifies it on restore. Reading that sum takes milliseconds;
/// `sha256sum` of a large snapshot would take as long as the restore.
const DIGEST: &str = "digest=\"$(stat -c %s \"$snapshot\") $(tail -c 32 \"$snapshot\" | od -An -v -tx1 | tr -d ' \\n')\"\n";

/// The member that the host becomes.
struct Found<'a> {
    data: &'a str,
    name: &'a str,
    peer: &'a str,
}

/// Returns the shell line of the restore. Data that it did not make itself stays as it is.
fn restore_line(target: &Target, folder: &str, configuration: &str, member: &Found<'_>) -> String {
    format!(
        "folder={folder} data={data} snapshot={folder}/snapshot.db\n\
         [ -s \"$snapshot\" ] || {{ echo \"there is no snapshot $snapshot on this host\" >&2; exit 1; }}\n\
         {DIGEST}\
         if [ \"$(cat \"$folder/restored\" 2>/dev/null)\" = \"$digest\" ] && [ -d \"$data/member\" ]; then echo 'restored already'; exit 0; fi\n\
         if (exec 3<>/dev/tcp/127.0.0.1/2379) 2>/dev/null; then echo 'an etcd runs here' >&2; exit 1; fi\n\
         if [ -e \"$data/member\" ] && [ ! -e \"$folder/restoring\" ]; then\n\
         echo \"$data holds the data of another etcd: move it away\" >&2; exit 1\n\
         fi\n\
         : >\"$folder/restoring\"\n\
         if [ -e \"$folder/files.tar\" ]; then tar -C \"$folder\" --no-same-owner -xf \"$folder/files.tar\" ./bin 2>/dev/null || true; fi\n\
         if [ -e \"$folder/files.tar\" ]; then tar -C \"$folder\" --no-same-owner -xf \"$folder/files.tar\" ./files 2>/dev/null || true; fi\n\
         if [ -e \"$folder/files/{LIST}\" ]; then\n\
         while read -r file; do\n\
         if [ ! -e \"$file\" ] && [ -f \"$folder/files$file\" ]; then\n\
         mkdir -p \"$(dirname \"$file\")\"; install -m 0600 \"$folder/files$file\" \"$file.imgctl-new\"; sync \"$file.imgctl-new\"; mv \"$file.imgctl-new\" \"$file\"; echo \"$file is that of the backup\"\n\
         fi; done <\"$folder/files/{LIST}\"\n\
         fi\n\
         image=$(kubeadm config images list --config {configuration} 2>/dev/null | grep '/etcd:' | head -n 1 || true)\n\
         {find}\
         new=$(dirname \"$data\")/imgctl-etcd-restore; rm -rf \"$new\"\n\
         arguments=(--name {name} --initial-cluster {name}={peer} --initial-cluster-token {token} --initial-advertise-peer-urls {peer} --data-dir \"$new\")\n\
         if \"${{tool[@]}}\" snapshot restore --help 2>&1 | grep -e --bump-revision >/dev/null; then arguments+=(--bump-revision 1000000000 --mark-compacted); fi\n\
         \"${{tool[@]}}\" snapshot restore \"$snapshot\" \"${{arguments[@]}}\"\n\
         [ -d \"$new/member\" ] || {{ echo 'nothing was restored' >&2; exit 1; }}\n\
         mkdir -p -m 0700 \"$data\"; rm -rf \"$data/member\"; mv \"$new/member\" \"$data/member\"; rm -rf \"$new\"\n\
         sync -f \"$data\"\n\
         printf '%s\\n' \"$digest\" >\"$folder/restored\"; sync -f \"$folder\"\n\
         echo \"the data of etcd is that of $snapshot\"",
        find = find_tool_anywhere(&Target { backup: folder.to_owned(), ..target.clone() }),
        folder = quoted(folder),
        data = quoted(member.data),
        configuration = quoted(configuration),
        name = quoted(member.name),
        peer = quoted(member.peer),
        token = quoted(&format!("imgctl-{}", target.id)),
    )
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
