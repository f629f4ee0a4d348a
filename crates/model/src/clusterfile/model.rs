//! Values of a Clusterfile.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::clusterfile::login::Ssh;
use imgctl_host::render::ConfigEdit;

/// Parts of variable names that mark confidential values.
const CONFIDENTIAL: [&str; 6] = ["passw", "secret", "token", "credential", "privatekey", "apikey"];

/// All documents of one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clusterfile {
    pub cluster: ClusterDocument,
    /// `kind: Config`, in the file's order.
    pub configs: Vec<ConfigEdit>,
    /// kubeadm, kube-proxy, kubelet and k3s documents as read.
    pub documents: Vec<Value>,
    /// Documents of unknown kinds, which are kept.
    pub others: Vec<Value>,
}

/// `kind: Cluster`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterDocument {
    pub name: String,
    /// `metadata.creationTimestamp`, RFC 3339: the time of the cluster's first creation; `None`
    /// before.
    pub created: Option<String>,
    /// `metadata.uid`, see [`crate::uid`]; `None` before the cluster's first change.
    pub uid: Option<String>,
    /// `metadata.deletionTimestamp`.
    pub deleted: Option<String>,
    /// Other members of `metadata`.
    pub metadata: Map<String, Value>,
    /// `spec.image`, in installation order.
    pub images: Vec<String>,
    pub ssh: Ssh,
    pub hosts: Vec<HostGroup>,
    /// `spec.env`.
    pub environment: BTreeMap<String, String>,
    /// `spec.command`: replaces the CMD of the last image.
    pub command: Vec<String>,
    /// `spec.certificates.renew`: whether hosts renew their certificates; `None`: they do, unless the
    /// cluster was adopted. sealos does not have it.
    pub renew_certificates: Option<bool>,
    /// `spec.registry.peers`: whether hosts share images; `None`: they do not. sealos does not
    /// have it.
    pub share_images: Option<bool>,
    pub status: Status,
}

/// One entry of `spec.hosts`: hosts with the same settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostGroup {
    /// As written: `ip`, `ip:port`, `[v6]:port`, ranges.
    pub ips: Vec<String>,
    pub roles: Vec<String>,
    pub environment: BTreeMap<String, String>,
    /// Differences from `spec.ssh`.
    pub ssh: Option<Ssh>,
}

/// `status`: the current state of the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    pub phase: Option<Phase>,
    pub mounts: Vec<Mount>,
    pub conditions: Vec<Condition>,
    pub command_conditions: Vec<CommandCondition>,
    /// `--env` of this and earlier commands. sealos does not have it.
    pub environment: BTreeMap<String, String>,
    /// Another program made the cluster, and `imgctl adopt` recorded it.
    pub adopted: Option<Adopted>,
    /// Unknown members.
    pub extra: Map<String, Value>,
}

/// `status.adopted`: a cluster that another program made. It keeps its own API endpoint and
/// settings, also after it has got a rootfs image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Adopted {
    /// `kubeadm` or `k3s`.
    pub runtime: String,
    /// Version of the control plane when it was adopted; the cluster's version until it has a
    /// rootfs image.
    pub version: String,
    /// UID of the namespace kube-system, which identifies the cluster.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    InProcess,
    Success,
    Failed,
}

impl Phase {
    pub(crate) const ALL: [Self; 3] = [Self::InProcess, Self::Success, Self::Failed];

    /// Returns the form that sealos writes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProcess => "ClusterInProcess",
            Self::Success => "ClusterSuccess",
            Self::Failed => "ClusterFailed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == text)
    }
}

/// `status.mounts[]`: an image installed in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Name of the image's directories on hosts.
    pub name: String,
    /// `rootfs`, `patch`, `application`.
    #[serde(rename = "type")]
    pub kind: String,
    /// As in `spec.image`.
    #[serde(rename = "imageName")]
    pub image: String,
    /// Directory where sealos mounted the image; written empty.
    pub mount_point: String,
    /// Digest of the manifest; sealos writes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    #[serde(rename = "env", skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(rename = "cmd", skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// Unknown members.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Type of the condition after a change that failed.
pub const FAILED: &str = "ApplyClusterError";

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Condition {
    /// `ApplyClusterSuccess`, or [`FAILED`].
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    /// RFC 3339.
    #[serde(rename = "lastHeartbeatTime", skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// `status.commandCondition[]`: results of installations.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CommandCondition {
    /// `ApplyCommandSuccess`, `ApplyCommandError`, `ApplyCommandCancelled`.
    #[serde(flatten)]
    pub condition: Condition,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
}

impl Clusterfile {
    /// Whether the cluster has been created (in sealos: a creation time is set).
    pub fn exists(&self) -> bool {
        self.cluster.created.is_some()
    }

    /// Returns when the last change failed, and why, if it did.
    pub fn last_failure(&self) -> Option<String> {
        let last = self.cluster.status.conditions.last()?;
        let time = last.time.as_deref().unwrap_or("an unknown time");
        (last.kind == FAILED).then(|| format!("{time}: {}", last.message))
    }

    /// Whether sealos has managed the cluster so far: it does not record digests.
    pub fn is_of_sealos(&self) -> bool {
        let mounts = &self.cluster.status.mounts;
        self.exists()
            && self.cluster.status.adopted.is_none()
            && mounts.iter().all(|mount| mount.digest.is_none())
    }

    /// Removes the passwords and keys for logging in to hosts.
    pub fn forget_logins(&mut self) {
        self.cluster.ssh.forget_secrets();
        for ssh in self.cluster.hosts.iter_mut().filter_map(|group| group.ssh.as_mut()) {
            ssh.forget_secrets();
        }
    }

    /// Returns a copy without the secrets in the file itself and without variables that look like
    /// secrets, for readers who must not see them.
    pub fn without_secrets(&self) -> Self {
        let mut copy = self.clone();
        copy.forget_logins();
        for group in &mut copy.cluster.hosts {
            group.environment.retain(|name, _| !is_confidential(name));
        }
        let status = &mut copy.cluster.status;
        copy.cluster.environment.retain(|name, _| !is_confidential(name));
        status.environment.retain(|name, _| !is_confidential(name));
        for mount in &mut status.mounts {
            mount.environment.retain(|name, _| !is_confidential(name));
        }
        copy
    }
}

/// Whether a variable of this name holds a secret, judging by the name alone.
pub fn is_confidential(name: &str) -> bool {
    let name: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    CONFIDENTIAL.iter().any(|word| name.contains(word))
}
