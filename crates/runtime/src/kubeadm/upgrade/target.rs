//! What the actions of an upgrade know of their host, its backup, and the marks in the backup that
//! record changes since it was made.

use std::time::Duration;

use serde_json::Value;

use crate::kubeadm::{init::hostname, version::Version};
use crate::kubectl::Kubectl;
use crate::upgrade::{Move, Place};
use crate::{
    action,
    action::{Action, Line, Site},
};
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

/// Label with the minimum version of the container runtime. The runtime is replaced only if an
/// image sets it.
pub(super) const RUNTIME_LABEL: &str = "imgctl.io/cri-version";

/// Returns the runtime version that the image requires.
pub(super) fn wanted_runtime<'a>(step: &Move<'a>) -> Option<&'a str> {
    step.to.rootfs()?.label(&[RUNTIME_LABEL])
}

pub(super) fn backup_files(step: &Move<'_>, target: &Target) -> Action {
    let programs = if wanted_runtime(step).is_some() {
        // Back up every program that would be replaced.
        "\"$root\"/rootfs/bin/* \"$tree\"/bin/* \"$tree\"/cri/*"
    } else {
        "\"$root\"/rootfs/bin/* \"$tree\"/bin/*"
    };
    let line = format!(
        "{functions}backup={backup} root={root} tree={tree}\n\
         mkdir -p \"$backup\"; chmod 0700 \"$backup\"; cd \"$backup\"\n\
         if [ -e {touched} ] && [ -s host.sha256 ]; then\n\
         sha256sum --quiet -c host.sha256\n\
         echo 'the host has been touched since: what it was before is kept'; exit 0\n\
         fi\n\
         rm -rf files.new host.sha256; mkdir -m 0700 files.new\n\
         keep() {{ local file; for file; do if [ -e \"$file\" ]; then (cd / && cp -a --parents \".$file\" {backup}/files.new/); fi; done; }}\n\
         keep /etc/kubernetes/pki /etc/kubernetes/manifests /etc/kubernetes/*.conf /etc/kubernetes/audit-policy.yml\n\
         keep /var/lib/kubelet/config.yaml /var/lib/kubelet/kubeadm-flags.env /var/lib/kubelet/instance-config.yaml\n\
         keep /etc/default/kubelet /etc/sysconfig/kubelet\n\
         for directory in /etc/systemd/system /usr/lib/systemd/system; do\n\
         keep \"$directory\"/kubelet.service \"$directory\"/kubelet.service.d\n\
         done\n\
         keep /etc/containerd /etc/crictl.yaml /etc/docker/daemon.json /etc/crio\n\
         for program in kubeadm kubelet kubectl {programs}; do\n\
         keep \"$(type -P \"$(basename \"$program\")\" || true)\"\n\
         done\n\
         rm -rf files; mv files.new files\n\
         find files -type f -print0 | sort -z | xargs -0 -r sha256sum >host.sha256.new\n\
         [ -s host.sha256.new ] || {{ echo \"nothing of Kubernetes was found on this host\" >&2; exit 1; }}\n\
         sha256sum --quiet -c host.sha256.new\n\
         sync -f .; mv host.sha256.new host.sha256; sync -f .\n\
         echo \"$(wc -l <host.sha256) files are kept in $backup/files\"",
        functions = action::PUT,
        backup = target.backup,
        root = target.root,
        tree = target.tree,
        touched = target.touched(),
    );
    Action::command("backup", Line::repeatable(line))
        .within(Duration::from_secs(600)).saying(format!(
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
