//! A cluster as it was found: hosts, Nodes, etcd, workloads, certificates. A value, so that plans
//! and checks are functions of it.
//!
//! Must not know how it was found out.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent::protocol::Facts;
use crate::cluster::host::MASTER;
use crate::image::Digest;
use crate::kube::drain::PdbProblem;
use crate::kube::restart::RunningContainer;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Observation {
    /// When, in milliseconds since 1970.
    pub(crate) at_ms: i64,
    /// In the Clusterfile's order.
    pub(crate) hosts: Vec<HostSeen>,
    /// What the API told; `None` where there is none, or where it did not answer.
    pub(crate) api: Option<ApiSeen>,
    /// Why the API told nothing although there is one.
    pub(crate) api_problem: Option<String>,
    /// Members as etcd lists them; `None` where no etcd of ours could be asked.
    pub(crate) etcd: Option<EtcdSeen>,
    /// Why etcd told nothing although there is one.
    pub(crate) etcd_problem: Option<String>,
    /// Images of the cluster beside its rootfs.
    pub(crate) installed: Vec<InstalledSeen>,
    /// Manifest digests of the images that a plan may name, by name and architecture.
    pub(crate) images: BTreeMap<String, BTreeMap<String, Digest>>,
}

/// A host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HostSeen {
    pub(crate) id: String,
    /// Its IP or name, without the port.
    pub(crate) address: String,
    pub(crate) roles: Vec<String>,
    /// It is the machine that we run on.
    pub(crate) local: bool,
    /// Why it cannot be asked.
    pub(crate) unreachable: Option<String>,
    pub(crate) facts: Option<Facts>,
    /// The name of its Node.
    pub(crate) node: Option<String>,
    /// Other Nodes that fit as well: it is not known which is its own.
    pub(crate) rivals: Vec<String>,
    /// `--hostname-override` of its kubelet.
    pub(crate) node_name: Option<String>,
    /// The version of what runs there, where no Node tells.
    pub(crate) version: Option<String>,
    /// The id of the tree that its rootfs is.
    pub(crate) tree: Option<String>,
    /// Free bytes by directory; each is told once, also where several share a file system.
    pub(crate) free_bytes: BTreeMap<String, u64>,
    /// Swap is in use.
    pub(crate) swap: bool,
    /// `sandbox_image` of its container runtime.
    pub(crate) sandbox_image: Option<String>,
    pub(crate) certificates: Vec<CertificateSeen>,
    /// Its running containers, where they were asked for.
    pub(crate) containers: Vec<RunningContainer>,
    /// Why its containers are not known although they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) containers_problem: Option<String>,
    /// Files of an upgrade that did not end.
    pub(crate) leftovers: Vec<String>,
    /// Static Pods of kubeadm by the name of their file.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) manifests: BTreeMap<String, ManifestSeen>,
    /// Patches that `kubeadm upgrade` would apply there, by the static Pod that they are for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) patches: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) kubelet: KubeletSeen,
}

/// What is told of a static Pod's manifest; values of its environment are not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ManifestSeen {
    pub(crate) containers: Vec<String>,
    /// Of its first container, as all that follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<String>,
    /// Command and arguments.
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<String>,
    pub(crate) has_limits: bool,
    /// Names of the Pod's volumes.
    pub(crate) volumes: Vec<String>,
}

/// How a kubelet is set, by names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KubeletSeen {
    /// Flags that it runs with, without the dashes.
    pub(crate) flags: BTreeSet<String>,
    /// Of these, those that kubeadm has written, and changes itself.
    pub(crate) kubeadm_flags: BTreeSet<String>,
    /// Feature gates of its flags and configuration.
    pub(crate) gates: BTreeSet<String>,
    /// Fields of its configuration, the nested ones with dots.
    pub(crate) fields: BTreeSet<String>,
}

/// A certificate on a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CertificateSeen {
    pub(crate) path: String,
    /// Seconds since 1970.
    pub(crate) not_after: i64,
    pub(crate) authority: bool,
    /// The authority's key lies beside it, so that certificates can be renewed here.
    pub(crate) key_is_here: bool,
}

/// What one API server told of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ApiSeen {
    /// Its own version.
    pub(crate) version: Option<String>,
    /// UID of the namespace kube-system.
    pub(crate) kube_system: Option<String>,
    pub(crate) nodes: Vec<NodeSeen>,
    pub(crate) pods: Vec<PodSeen>,
    /// What PodDisruptionBudgets would not allow now.
    pub(crate) budgets: Vec<PdbProblem>,
    pub(crate) workloads: Vec<WorkloadSeen>,
    pub(crate) webhooks: Vec<WebhookSeen>,
    /// APIServices that are not available, with their reason.
    pub(crate) unavailable_services: BTreeMap<String, String>,
    pub(crate) deprecated: Vec<DeprecatedSeen>,
    /// `ClusterConfiguration` of kubeadm-config.
    pub(crate) cluster_configuration: Option<Value>,
    /// The Corefile of CoreDNS.
    pub(crate) corefile: Option<String>,
    /// Who holds the Lease of upgrades, if somebody does.
    pub(crate) lease_holder: Option<String>,
    /// Pages of the list of Pods byte for byte, where containers were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) raw_pods: Vec<String>,
    /// What could not be asked, with the reason.
    pub(crate) unknown: BTreeMap<String, String>,
}

/// A Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeSeen {
    pub(crate) name: String,
    pub(crate) ready: bool,
    /// What it says when it is not ready.
    pub(crate) message: String,
    /// `MemoryPressure`, `DiskPressure`, … that are true.
    pub(crate) pressure: Vec<String>,
    pub(crate) unschedulable: bool,
    /// Those that begin with `imgctl.io/`.
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) kubelet: String,
    /// `containerd://1.7.27`.
    pub(crate) runtime: String,
    pub(crate) architecture: String,
    pub(crate) machine_id: String,
    /// Its label `kubernetes.io/hostname`.
    pub(crate) hostname: String,
    pub(crate) addresses: Vec<NodeAddress>,
    /// `key=value:effect`.
    pub(crate) taints: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeAddress {
    /// `InternalIP`, `Hostname`, …
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) address: String,
}

/// A Pod, as far as plans want to know it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodSeen {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) node: String,
    /// `ReplicaSet/web-5d4`; empty: nobody makes it anew.
    pub(crate) owner: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// A file of its Node is what it is made from.
    pub(crate) mirror: bool,
    /// It has ended.
    pub(crate) finished: bool,
    /// It runs and does not serve.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) unready: bool,
    /// It was to be gone by now, and what may hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stuck: Option<String>,
    /// Volumes that are lost with it (`emptyDir`) or bound to its Node (`hostPath`).
    pub(crate) local_volumes: Vec<String>,
    /// Container name to image.
    pub(crate) images: BTreeMap<String, String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// A Deployment, StatefulSet or DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WorkloadSeen {
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) desired: i64,
    pub(crate) ready: i64,
}

/// A webhook that must answer, and whose Service nobody serves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WebhookSeen {
    /// `ValidatingWebhookConfiguration/x`.
    pub(crate) configuration: String,
    pub(crate) name: String,
    /// `namespace/name`.
    pub(crate) service: String,
}

/// Requests to an API that a later release has no more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeprecatedSeen {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    /// `1.32`.
    pub(crate) removed_release: String,
}

/// etcd of the control planes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EtcdSeen {
    pub(crate) members: Vec<MemberSeen>,
    /// `NOSPACE`, `CORRUPT`.
    pub(crate) alarms: Vec<String>,
}

/// A member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MemberSeen {
    pub(crate) name: String,
    /// Its first client URL.
    pub(crate) endpoint: String,
    pub(crate) learner: bool,
    pub(crate) leader: bool,
    /// `None`: it did not answer.
    pub(crate) version: Option<String>,
    pub(crate) db_bytes: u64,
}

/// An image that is installed on the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InstalledSeen {
    pub(crate) name: String,
    /// The range of Kubernetes versions that it says it supports.
    pub(crate) supports: Option<String>,
}

impl MemberSeen {
    /// Whether its endpoint is at this address.
    pub(crate) fn is_at(&self, address: &str) -> bool {
        let rest = self.endpoint.split("://").nth(1).unwrap_or_default();
        let host = rest.split('/').next().unwrap_or_default();
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        host.trim_matches(['[', ']']) == address
    }
}

impl HostSeen {
    pub(crate) fn is_control_plane(&self) -> bool {
        self.roles.iter().any(|role| role == MASTER)
    }

    /// Whether the operator may mean it by `word`.
    pub(crate) fn is_called(&self, word: &str) -> bool {
        let known = self.facts.as_ref().map(|facts| facts.hostname.as_str());
        [
            Some(self.id.as_str()),
            Some(&self.address),
            known,
            self.node.as_deref(),
        ]
        .into_iter()
        .flatten()
        .any(|name| name.eq_ignore_ascii_case(word))
    }
}

impl Observation {
    /// The Node of a host.
    pub(crate) fn node_of(&self, host: &HostSeen) -> Option<&NodeSeen> {
        let name = host.node.as_deref()?;
        let api = self.api.as_ref()?;
        api.nodes.iter().find(|node| node.name == name)
    }

    pub(crate) fn host(&self, id: &str) -> Option<&HostSeen> {
        self.hosts.iter().find(|host| host.id == id)
    }

    /// What runs on a host: its kubelet's version, or what it said itself.
    pub(crate) fn version_of(&self, host: &HostSeen) -> Option<String> {
        match self.node_of(host) {
            Some(node) => Some(node.kubelet.clone()).filter(|version| !version.is_empty()),
            None => host.version.clone(),
        }
    }

    /// The version of the API server on a control plane: its static Pod's image says so; where the
    /// server is part of something else (k3s), the Node does.
    pub(crate) fn server_version(&self, host: &HostSeen) -> Option<String> {
        if !host.is_control_plane() {
            return None;
        }
        let (node, api) = (self.node_of(host)?, self.api.as_ref()?);
        let image = api
            .pods
            .iter()
            .filter(|pod| pod.mirror && pod.node == node.name)
            .find_map(|pod| pod.images.get("kube-apiserver"));
        match image {
            Some(image) => {
                let named = image.split('@').next().unwrap_or_default();
                let tag = named.rsplit_once(':')?.1;
                (!tag.contains('/')).then(|| tag.to_owned())
            }
            None => Some(node.kubelet.clone()),
        }
    }

    /// Whether the host does its part as far as can be told from outside.
    pub(crate) fn is_healthy(&self, host: &HostSeen) -> bool {
        match self.node_of(host) {
            Some(node) => node.ready,
            None => self.api.is_none() && host.unreachable.is_none(),
        }
    }

    /// Whether the etcd of the cluster is somebody else's.
    pub(crate) fn external_etcd(&self) -> bool {
        let configuration = self
            .api
            .as_ref()
            .and_then(|api| api.cluster_configuration.as_ref());
        configuration.is_some_and(|value| {
            value
                .pointer("/etcd/external")
                .is_some_and(Value::is_object)
        })
    }
}
