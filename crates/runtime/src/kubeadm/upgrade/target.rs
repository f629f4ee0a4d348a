//! What the actions of an upgrade know of their host, its backup, and the marks in the backup that
//! record changes since it was made.

use std::time::Duration;

use serde_json::Value;

use crate::action::{Action, Line, Site};
use crate::kubeadm::{init::hostname, version::Version};
use crate::kubectl::Kubectl;
use crate::upgrade::{Move, Place};
use imgctl_base::error::{Error, Result};

/// Data of a [`Move`] that actions keep.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) version: Version,
    pub(super) backup: String,
    /// Directory of all cluster files on the host.
    pub(super) root: String,
    /// Path of the currently linked rootfs.
    pub(super) rootfs: String,
    /// Tree of the image that the host is upgraded to.
    pub(super) tree: String,
    pub(super) place: Place,
    pub(super) external_etcd: bool,
    pub(super) keeps_corefile: bool,
    pub(super) id: String,
}

impl Target {
    pub(super) fn of(step: &Move<'_>) -> Result<Self> {
        Ok(Self {
            version: Version::of(step.to)?,
            backup: step.backup(),
            root: step.to.paths.root(),
            rootfs: step.to.paths.rootfs(),
            tree: step.tree.clone(),
            place: step.place,
            external_etcd: step.external_etcd,
            keeps_corefile: step.keeps_corefile,
            id: step.id.to_owned(),
        })
    }

    pub(super) fn is_control_plane(&self) -> bool {
        self.place != Place::Worker
    }

    /// Reports whether this host runs a member of the cluster's etcd.
    pub(super) fn has_etcd(&self) -> bool {
        self.is_control_plane() && !self.external_etcd
    }

    /// The host has been changed: the backup must not be recreated.
    pub(super) fn touched(&self) -> String {
        format!("{}/touched", self.backup)
    }

    /// Returns the line of a program that gets this data: see the variables.
    pub(super) fn script(&self, parts: &[&str]) -> Line {
        Line::script(parts).with([
            ("IMGCTL_BACKUP", &self.backup),
            ("IMGCTL_CLUSTER_ROOT", &self.root),
            ("IMGCTL_ROOTFS", &self.rootfs),
            ("IMGCTL_TREE", &self.tree),
            ("IMGCTL_VERSION", &self.version.text),
            ("IMGCTL_STARTED", &self.restarted()),
        ])
    }

    /// `kubeadm upgrade` has succeeded on the host.
    pub(super) fn applied(&self) -> String {
        format!("{}/kubeadm-{}", self.backup, self.version.text)
    }

    /// Flags that `kubeadm upgrade` was started with, after the attempt's key.
    pub(super) fn decided(&self) -> String {
        format!("{}/kubeadm-flags", self.backup)
    }

    /// Time when imgctl last started the kubelet, in the host's time: `2026-11-22T08:15:00`.
    pub(super) fn restarted(&self) -> String {
        format!("{}/kubelet-started", self.backup)
    }

    /// etcd members before this host was changed.
    pub(super) fn known_members(&self) -> String {
        format!("{}/etcd-members.json", self.backup)
    }
}

/// Functions that keep files of a host in its backup.
pub(super) const KEEP_FILES: &str = include_str!("scripts/keep-files.sh");

/// Label with the minimum version of the container runtime. The runtime is replaced only if an
/// image sets it.
pub(super) const RUNTIME_LABEL: &str = "imgctl.io/cri-version";

/// Returns the runtime version that the image requires.
pub(super) fn wanted_runtime<'a>(step: &Move<'a>) -> Option<&'a str> {
    step.to.rootfs()?.label(&[RUNTIME_LABEL])
}

pub(super) fn backup_files(step: &Move<'_>, target: &Target) -> Action {
    let runtime = wanted_runtime(step).is_some().to_string();
    let line = target
        .script(&[KEEP_FILES, include_str!("scripts/backup-files.sh")])
        .with([("IMGCTL_RUNTIME", &runtime)]);
    Action::command("backup", line).within(Duration::from_secs(600)).saying(format!(
        "back up to {}/files: /etc/kubernetes (pki, manifests, *.conf), kubelet's configuration \
         and unit, the configuration of the container runtime, the programs; with checksums",
        target.backup
    ))
}

/// Relevant fields of one Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    /// `namespace/name`.
    pub(super) name: String,
    pub(super) owner: String,
    pub(super) priority: String,
    pub(super) is_mirror: bool,
    pub(super) phase: String,
    pub(super) is_ready: bool,
}

pub(super) fn own_name(site: &Site<'_>, kubectl: &Kubectl<'_>) -> Result<String> {
    match kubectl.own_node()? {
        Some(name) => Ok(name),
        None => Ok(hostname(site)?.to_lowercase()),
    }
}

pub(super) fn own_node(site: &Site<'_>, kubectl: &Kubectl<'_>) -> Result<(String, Value)> {
    let name = own_name(site, kubectl)?;
    let node = kubectl
        .find(&["node", &name])?
        .ok_or_else(|| Error::not_found(format!("there is no Node {name}")))?;
    Ok((name, node))
}

/// Returns all Pods of one Node; queries only a few fields, because there can be hundreds.
pub(super) fn pods_of(kubectl: &Kubectl<'_>, node: &str) -> Result<Vec<Pod>> {
    let selector = format!("spec.nodeName={node}");
    let text = kubectl.run(&[
        "get",
        "pods",
        "-A",
        "--field-selector",
        &selector,
        "-o",
        "jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}|{.metadata.ownerReferences[0].kind}|{.spec.priorityClassName}|{.metadata.annotations.kubernetes\\.io/config\\.mirror}|{.status.phase}|{.status.conditions[?(@.type==\"Ready\")].status}{\"\\n\"}{end}",
    ])?;
    Ok(text.lines().filter_map(parse_pod).collect())
}

fn parse_pod(line: &str) -> Option<Pod> {
    let fields: Vec<&str> = line.split('|').collect();
    let [name, owner, priority, mirror, phase, ready] = fields[..] else {
        return None;
    };
    Some(Pod {
        name: name.to_owned(),
        owner: owner.to_owned(),
        priority: priority.to_owned(),
        is_mirror: !mirror.is_empty(),
        phase: phase.to_owned(),
        is_ready: ready == "True",
    })
}

/// Returns the Pods that a drain would have evicted.
pub(super) fn evictable(site: &Site<'_>) -> Result<Vec<String>> {
    let kubectl = Kubectl::anywhere(site)?;
    let node = own_name(site, &kubectl)?;
    let pods = pods_of(&kubectl, &node)?;
    let left = pods.into_iter().filter(|pod| {
        !pod.is_mirror
            && pod.owner != "DaemonSet"
            && !["Succeeded", "Failed"].contains(&pod.phase.as_str())
    });
    Ok(left.map(|pod| pod.name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_read() {
        let pod =
            parse_pod("kube-system/kube-proxy-x|DaemonSet|system-node-critical||Running|True");
        let pod = pod.unwrap();
        assert_eq!(pod.owner, "DaemonSet");
        assert!(pod.is_ready && !pod.is_mirror);
        let pod = parse_pod("kube-system/etcd-cp-1|Node|system-node-critical|0a1b|Running|False");
        let pod = pod.unwrap();
        assert!(pod.is_mirror && !pod.is_ready);
        assert_eq!(parse_pod("half a line"), None);
    }
}
