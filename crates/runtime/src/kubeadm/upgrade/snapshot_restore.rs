//! Restores the whole cluster from an etcd snapshot. Data written since the snapshot is lost.
//!
//! The tools that restore it are stored with the backup and located before anything is stopped.

use std::time::Duration;

use crate::action::{Action, Line};
use crate::kubeadm::upgrade::etcd_manifest::{
    MANIFESTS, Manifest, Member, manifest, member, members,
};
use crate::kubeadm::upgrade::{restore, target::Target};
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
    let line = target.script(&[include_str!("scripts/stop-control-plane.sh")]);
    Action::command("restore-stop", line).within(STOP_LIMIT).saying(format!(
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
    Action::depending_on("restore-etcd", says, &snapshot.clone(), move |site| {
        let own = manifest(site.agent, &target)?;
        let members = members(site, &target)?;
        let line = line(&target, &snapshot, &own, &members)?;
        site.run_on(site.agent, &line, "").map(|_| ())
    })
    .within(LONG)
}

/// Returns the line that restores the data.
fn line(target: &Target, snapshot: &str, own: &Manifest, members: &[Member]) -> Result<Line> {
    let me = member(own, "this host")?;
    let all: Vec<String> =
        members.iter().map(|member| format!("{}={}", member.name, member.peer)).collect();
    let line = on_snapshot(target, include_str!("scripts/restore-etcd.sh"), snapshot, own)?;
    Ok(line.with([
        ("IMGCTL_NAME", &me.name),
        ("IMGCTL_PEER", &me.peer),
        ("IMGCTL_MEMBERS", &all.join(",")),
        ("IMGCTL_NEW_CLUSTER", &format!("imgctl-{}", target.id)),
    ]))
}

/// Returns the line of a program that gets a snapshot, and the data and the image of this host's etcd.
fn on_snapshot(target: &Target, script: &str, snapshot: &str, own: &Manifest) -> Result<Line> {
    Ok(target.script(&[ETCD_TOOL, script]).with([
        ("IMGCTL_SNAPSHOT", snapshot),
        ("IMGCTL_DATA", own.flag("data-dir").unwrap_or("/var/lib/etcd")),
        ("IMGCTL_IMAGE", own.image()?),
    ]))
}

/// Removes the restore's marks, so that a later restore starts from the beginning.
fn done(target: &Target) -> Action {
    Action::command(
        "restore-done",
        Line::repeatable(format!("rm -rf {0}/restored {0}/stopped", target.backup)),
    )
}

/// Restarts all watchers.
pub(super) fn watch_again() -> Action {
    let line = Line::script(&[include_str!("scripts/watch-anew.sh")]);
    Action::command("watch-anew", line).within(STOP_LIMIT).saying(
        "systemctl restart kubelet; crictl stop <containers of kube-system except the control \
         plane>: they hold API data that no longer exists",
    )
}

const LIMIT: Duration = Duration::from_secs(300);

/// Functions that find what restores a snapshot.
pub(super) const ETCD_TOOL: &str = include_str!("scripts/etcd-tool.sh");

/// Copies the running etcd's tools to the backup: its image can be gone when they are needed.
pub(super) fn keep_tool(target: &Target) -> Action {
    let line = target.script(&[ETCD_TOOL, include_str!("scripts/keep-etcd-tool.sh")]);
    Action::command("backup-etcd-tools", line).within(LIMIT).saying(format!(
        "back up to {}/bin the tool that restores a snapshot of etcd: etcdutl or etcdctl of the \
         running etcd",
        target.backup
    ))
}

/// Checks that this host has everything that the restore needs and that the snapshot is intact.
pub(super) fn check_tool(target: &Target, snapshot: &str) -> Action {
    let says = format!(
        "check what restoring {snapshot} needs: etcdutl or etcdctl, {}/files, space for the data",
        target.backup
    );
    let (target, snapshot) = (target.clone(), snapshot.to_owned());
    Action::depending_on("snapshot-check", says, &snapshot.clone(), move |site| {
        let own = manifest(site.agent, &target)?;
        members(site, &target)?;
        let check = include_str!("scripts/check-snapshot.sh");
        let line = on_snapshot(&target, check, &snapshot, &own)?;
        site.run_on(site.agent, &line, "").map(|_| ())
    })
    .within(LIMIT)
}
