//! What a Clusterfile says, as values.

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
    /// kubeadm, kube-proxy, kubelet and k3s documents, as they were read.
    pub(crate) documents: Vec<Value>,
    /// Documents of kinds that mean nothing to us; kept.
    pub(crate) others: Vec<Value>,
}

/// `kind: Cluster`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ClusterDocument {
    pub(crate) name: String,
    /// `metadata.creationTimestamp`, RFC 3339: when the cluster was first made; `None` before.
    pub(crate) created: Option<String>,
    /// `metadata.deletionTimestamp`.
    pub(crate) deleted: Option<String>,
    /// What else stands in `metadata`.
    pub(crate) metadata: Map<String, Value>,
    /// `spec.image`, in the order of installation.
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

/// One entry of `spec.hosts`: hosts that are alike.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HostGroup {
    /// As written: `ip`, `ip:port`, `[v6]:port`, ranges.
    pub(crate) ips: Vec<String>,
    pub(crate) roles: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
    /// What differs from `spec.ssh`.
    pub(crate) ssh: Option<Ssh>,
}

/// `status`: what has become of the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Status {
    pub(crate) phase: Option<Phase>,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) command_conditions: Vec<CommandCondition>,
    /// `--env` of this and earlier commands. Not in sealos.
    pub(crate) environment: BTreeMap<String, String>,
    /// Members that we do not know.
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

    /// As sealos writes it.
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

/// `status.mounts[]`: an image that the cluster has.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Mount {
    /// Names its directories on hosts.
    pub(crate) name: String,
    /// `rootfs`, `patch`, `application`.
    pub(crate) kind: String,
    /// As in `spec.image`.
    pub(crate) image: String,
    /// Where sealos had mounted it; written empty.
    pub(crate) mount_point: String,
    /// The manifest's digest; sealos writes none.
    pub(crate) digest: Option<String>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) command: Vec<String>,
    pub(crate) entrypoint: Vec<String>,
    /// Members that we do not know.
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

/// `status.commandCondition[]`: outcomes of installations.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CommandCondition {
    /// `ApplyCommandSuccess`, `ApplyCommandError`, `ApplyCommandCancelled`.
    pub(crate) condition: Condition,
    pub(crate) images: Vec<String>,
}

impl Clusterfile {
    /// Whether the cluster has been made (sealos: a creation time that is set).
    pub(crate) fn exists(&self) -> bool {
        self.cluster.created.is_some()
    }

    /// Whether sealos has kept it so far: it does not record digests.
    pub(crate) fn is_of_sealos(&self) -> bool {
        let mounts = &self.cluster.status.mounts;
        self.exists() && mounts.iter().all(|mount| mount.digest.is_none())
    }

    /// The same without the secrets that stand in the file itself and the variables that look like
    /// some: for copies that others may read.
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
