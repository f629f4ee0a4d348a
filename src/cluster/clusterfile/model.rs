//! Values of a Clusterfile.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::cluster::clusterfile::login::Ssh;
use crate::cluster::compose::is_confidential;
use crate::render::ConfigEdit;

/// All documents of one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Clusterfile {
    pub(crate) cluster: ClusterDocument,
    /// `kind: Config`, in the file's order.
    pub(crate) configs: Vec<ConfigEdit>,
    /// kubeadm, kube-proxy, kubelet and k3s documents as read.
    pub(crate) documents: Vec<Value>,
    /// Documents of unknown kinds, which are kept.
    pub(crate) others: Vec<Value>,
}

/// `kind: Cluster`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ClusterDocument {
    pub(crate) name: String,
    /// `metadata.creationTimestamp`, RFC 3339: the time of the cluster's first creation; `None`
    /// before.
    pub(crate) created: Option<String>,
    /// `metadata.deletionTimestamp`.
    pub(crate) deleted: Option<String>,
    /// Other members of `metadata`.
    pub(crate) metadata: Map<String, Value>,
    /// `spec.image`, in installation order.
    pub(crate) images: Vec<String>,
    /// `spec.ssh`.
    pub(crate) ssh: Ssh,
    /// `spec.hosts`.
    pub(crate) hosts: Vec<HostGroup>,
    /// `spec.env`.
    pub(crate) environment: BTreeMap<String, String>,
    /// `spec.command`: replaces the CMD of the last image.
    pub(crate) command: Vec<String>,
    pub(crate) status: Status,
}

/// One entry of `spec.hosts`: hosts with the same settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HostGroup {
    /// As written: `ip`, `ip:port`, `[v6]:port`, ranges.
    pub(crate) ips: Vec<String>,
    pub(crate) roles: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
    /// Differences from `spec.ssh`.
    pub(crate) ssh: Option<Ssh>,
}

/// `status`: the current state of the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Status {
    pub(crate) phase: Option<Phase>,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) command_conditions: Vec<CommandCondition>,
    /// `--env` of this and earlier commands. sealos does not have it.
    pub(crate) environment: BTreeMap<String, String>,
    /// Unknown members.
    pub(crate) extra: Map<String, Value>,
}

/// `status.phase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    InProcess,
    Success,
    Failed,
}

impl Phase {
    pub(crate) const ALL: [Self; 3] = [Self::InProcess, Self::Success, Self::Failed];

    /// Returns the form that sealos writes.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::InProcess => "ClusterInProcess",
            Self::Success => "ClusterSuccess",
            Self::Failed => "ClusterFailed",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == text)
    }
}

/// `status.mounts[]`: an image installed in the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Mount {
    /// Name of the image's directories on hosts.
    pub(crate) name: String,
    /// `rootfs`, `patch`, `application`.
    pub(crate) kind: String,
    /// As in `spec.image`.
    pub(crate) image: String,
    /// Directory where sealos mounted the image; written empty.
    pub(crate) mount_point: String,
    /// Digest of the manifest; sealos writes none.
    pub(crate) digest: Option<String>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) command: Vec<String>,
    pub(crate) entrypoint: Vec<String>,
    /// Unknown members.
    pub(crate) extra: Map<String, Value>,
}

/// `status.conditions[]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Condition {
    /// `ApplyClusterSuccess`, `ApplyClusterError`.
    pub(crate) kind: String,
    pub(crate) status: String,
    /// RFC 3339.
    pub(crate) time: Option<String>,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// `status.commandCondition[]`: results of installations.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CommandCondition {
    /// `ApplyCommandSuccess`, `ApplyCommandError`, `ApplyCommandCancelled`.
    pub(crate) condition: Condition,
    pub(crate) images: Vec<String>,
}

impl Clusterfile {
    /// Whether the cluster has been created (in sealos: a creation time is set).
    pub(crate) fn exists(&self) -> bool {
        self.cluster.created.is_some()
    }

    /// Whether sealos has managed the cluster so far: it does not record digests.
    pub(crate) fn is_of_sealos(&self) -> bool {
        let mounts = &self.cluster.status.mounts;
        self.exists() && mounts.iter().all(|mount| mount.digest.is_none())
    }

    /// Returns a copy without the secrets in the file itself and without variables that look like
    /// secrets, for readers who must not see them.
    pub(crate) fn without_secrets(&self) -> Self {
        let mut copy = self.clone();
        copy.cluster.ssh.forget_secrets();
        for group in &mut copy.cluster.hosts {
            group.environment.retain(|name, _| !is_confidential(name));
            if let Some(ssh) = &mut group.ssh {
                ssh.forget_secrets();
            }
        }
        let status = &mut copy.cluster.status;
        copy.cluster
            .environment
            .retain(|name, _| !is_confidential(name));
        status.environment.retain(|name, _| !is_confidential(name));
        for mount in &mut status.mounts {
            mount.environment.retain(|name, _| !is_confidential(name));
        }
        copy
    }
}
