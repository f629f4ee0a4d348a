//! Restores the whole cluster from an etcd snapshot. Data written since the snapshot is lost.

use std::time::Duration;

use crate::runtime::action::{Action, Line};
use crate::runtime::kubeadm::upgrade::etcd_manifest::{
    MANIFESTS, Manifest, Member, manifest, member, members,
};
use crate::runtime::kubeadm::upgrade::target::Target;
use crate::runtime::kubeadm::upgrade::{restore, restore_tool};
use crate::runtime::kubectl::quoted;
use imgctl_base::error::Result;

const STOP_LIMIT: Duration = Duration::from_secs(300);
const LONG: Duration = Duration::from_secs(15 * 60);

pub(super) fn phases(target: &Target, snapshot: &str) -> Result<[Vec<Action>; 3]> {
    Ok([
        vec![stop(target)],
        vec![restore(target, snapshot)],
        vec![restore::files(target, true), restore::api_again(target), done(target)],
    ])
}

/// Stops the control plane. The kubelet stops static Pods whose manifests are gone; the runtime
/// stops the remaining ones.
fn stop(target: &Target) -> Action {
    let line = format!(
        "stopped={backup}/stopped; mkdir -p -m 0700 \"$stopped\"\n\
         for name in kube-controller-manager kube-scheduler kube-apiserver etcd; do\n\
         if [ -e {MANIFESTS}/$name.yaml ]; then mv -f {MANIFESTS}/$name.yaml \"$stopped/\"; fi\n\
         done\n\
         sync -f \"$stopped\"\n\
         running() {{\n\
         if command -v crictl >/dev/null 2>&1; then crictl ps --state Running -q --name '^(etcd|kube-apiserver|kube-controller-manager|kube-scheduler)$'\n\
         else for port in 2379 6443; do (exec 3<>/dev/tcp/127.0.0.1/$port) 2>/dev/null && echo \"port $port\"; done; true; fi\n\
         }}\n\
         for second in $(seq 120); do\n\
         left=$(running)\n\
         if [ -z \"$left\" ]; then echo 'the control plane of this host is stopped'; exit 0; fi\n\
         if [ \"$second\" = 60 ] && command -v crictl >/dev/null 2>&1; then crictl stop $left || true; fi\n\
         sleep 1\n\
         done\n\
         echo \"still running: $left\" >&2; exit 1",
        backup = target.backup,
    );
    Action::command("restore-stop", Line::repeatable(line)).within(STOP_LIMIT).saying(format!(
        "move etcd.yaml and kube-*.yaml out of {MANIFESTS}; wait until they have stopped"
    ))
}

fn restore(target: &Target, snapshot: &str) -> Action {
    let says = format!(
        "etcdutl (or etcdctl) snapshot restore {snapshot} as a new cluster (token imgctl-{}), \
         replacing the data of etcd, which is kept in {}/etcd-before",
        target.id, target.backup
    );
    let (target, snapshot) = (target.clone(), snapshot.to_owned());
    Action::new("restore-etcd", says, &snapshot.clone(), move |site| {
        let own = manifest(site.agent, &target)?;
        let members = members(site, &target)?;
        let line = line(&target, &snapshot, &own, &members)?;
        let line = Line::repeatable(line);
        site.run_on(site.agent, &line, "").map(|_| ())
    })
    .within(LONG)
}

/// Returns the shell line that restores the data beside the old data and replaces it at the end. If
/// etcdutl supports it, revisions are bumped, so that watchers do not mistake old objects for new
/// ones.
fn line(target: &Target, snapshot: &str, own: &Manifest, members: &[Member]) -> Result<String> {
    let me = member(own, "this host")?;
    let all: Vec<String> =
        members.iter().map(|member| format!("{}={}", member.name, member.peer)).collect();
    let data = own.flag("data-dir").unwrap_or("/var/lib/etcd");
    Ok(format!(
        "snapshot={snapshot} data={data} backup={backup} image={image}\n\
         [ -s \"$snapshot\" ] || {{ echo \"there is no snapshot $snapshot on this host\" >&2; exit 1; }}\n\
         digest=$(sha256sum <\"$snapshot\")\n\
         if [ \"$(cat \"$backup/restored\" 2>/dev/null)\" = \"$digest\" ]; then echo 'restored already'; exit 0; fi\n\
         if (exec 3<>/dev/tcp/127.0.0.1/2379) 2>/dev/null; then echo 'etcd still runs here' >&2; exit 1; fi\n\
         new=$(dirname \"$data\")/imgctl-etcd-restore; rm -rf \"$new\"\n\
         arguments=(--name {name} --initial-cluster {all} --initial-cluster-token {token} --initial-advertise-peer-urls {peer} --data-dir \"$new\")\n\
         {find}\
         if \"${{tool[@]}}\" snapshot restore --help 2>&1 | grep -e --bump-revision >/dev/null; then arguments+=(--bump-revision 1000000000 --mark-compacted); fi\n\
         \"${{tool[@]}}\" snapshot restore \"$snapshot\" \"${{arguments[@]}}\"\n\
         [ -d \"$new/member\" ] || {{ echo 'nothing was restored' >&2; exit 1; }}\n\
         if [ -e \"$data/member\" ]; then\n\
         rm -rf \"$backup/etcd-before\"; mkdir -m 0700 \"$backup/etcd-before\"; mv \"$data/member\" \"$backup/etcd-before/\"\n\
         fi\n\
         mkdir -p -m 0700 \"$data\"; mv \"$new/member\" \"$data/member\"; rm -rf \"$new\"\n\
         sync -f \"$data\"\n\
         # Members of a restored cluster have other ids than before.\n\
         rm -f {members}\n\
         printf '%s\\n' \"$digest\" >\"$backup/restored\"; sync -f \"$backup\"\n\
         echo \"the data of etcd is that of $snapshot\"",
        find = restore_tool::find_anywhere(target),
        snapshot = quoted(snapshot),
        data = quoted(data),
        backup = quoted(&target.backup),
        image = quoted(own.image()?),
        name = quoted(&me.name),
        peer = quoted(&me.peer),
        members = quoted(&target.known_members()),
        all = quoted(&all.join(",")),
        token = quoted(&format!("imgctl-{}", target.id)),
    ))
}

/// Removes the restore's marks, so that a later restore starts from the beginning.
fn done(target: &Target) -> Action {
    Action::command(
        "restore-done",
        Line::repeatable(format!("rm -rf {0}/restored {0}/stopped", target.backup)),
    )
}

/// Restarts all watchers. Revisions continue from the snapshot unless etcdutl can bump them. A
/// watch from a later revision that resumes after the API server's restart receives no events until
/// that revision is reached, so the kubelets and the Pods in kube-system must list all objects
/// again.
pub(super) fn watch_again() -> Action {
    let line = "systemctl restart kubelet\n\
         command -v crictl >/dev/null 2>&1 || exit 0\n\
         for id in $(crictl ps --state Running -q --label io.kubernetes.pod.namespace=kube-system); do\n\
         name=$(crictl inspect -o go-template --template '{{.status.metadata.name}}' \"$id\" 2>/dev/null || true)\n\
         case $name in etcd | kube-apiserver | kube-controller-manager | kube-scheduler | kube-lvscare) continue ;; esac\n\
         crictl stop -t 10 \"$id\" >/dev/null || true; echo \"$name starts anew\"\n\
         done";
    Action::command("watch-anew", Line::repeatable(line.to_owned())).within(STOP_LIMIT).saying(
        "systemctl restart kubelet; crictl stop <containers of kube-system except the control \
         plane>: they hold API data that no longer exists",
    )
}
