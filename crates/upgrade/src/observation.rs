//! An observed cluster: hosts, Nodes, etcd, workloads, certificates. A value, so that plans and
//! checks are functions of it.
//!
//! Must not depend on how the data was collected.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use imgctl_base::image::Digest;
use imgctl_host::agent::protocol::Facts;
use imgctl_kube::{drain::PdbProblem, restart::RunningContainer};
use imgctl_model::context::MASTER;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observation {
    /// Time of the observation, in milliseconds since 1970.
    pub(crate) at_ms: i64,
    /// In the Clusterfile's order.
    pub hosts: Vec<HostSeen>,
    /// Data from the API; `None` if there is no API or it did not respond.
    pub api: Option<ApiSeen>,
    /// Why an existing API gave no data.
    pub(crate) api_problem: Option<String>,
    /// Members as listed by etcd; `None` if no etcd of the cluster's own could be queried.
    pub etcd: Option<EtcdSeen>,
    /// Why an existing etcd gave no data.
    pub(crate) etcd_problem: Option<String>,
    /// Images installed in addition to the rootfs.
    pub installed: Vec<InstalledSeen>,
    /// Manifest digests of the images that a plan can name, by name and architecture.
    pub images: BTreeMap<String, BTreeMap<String, Digest>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostSeen {
    pub id: String,
    /// IP address or name, without the port.
    pub address: String,
    pub roles: Vec<String>,
    /// The host is the controller itself.
    pub local: bool,
    pub unreachable: Option<String>,
    /// What to do if the host answers but cannot be used: another host key, a refused login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<String>,
    /// Why it is no longer a working member: it was installed anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lost: Option<String>,
    pub facts: Option<Facts>,
    pub node: Option<String>,
    /// Several Nodes that match equally well, so that the host's own is unknown.
    pub(crate) rivals: Vec<String>,
    /// `--hostname-override` of the kubelet.
    pub(crate) node_name: Option<String>,
    /// The running version, if no Node reports it.
    pub version: Option<String>,
    /// ID of the host's current rootfs tree.
    pub tree: Option<String>,
    /// Free bytes by directory; each is listed, even if several share a file system.
    pub free_bytes: BTreeMap<String, u64>,
    pub swap: bool,
    /// `sandbox_image` of the container runtime.
    pub(crate) sandbox_image: Option<String>,
    pub certificates: Vec<CertificateSeen>,
    /// Running containers, if requested.
    pub containers: Vec<RunningContainer>,
    /// Why the requested containers are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) containers_problem: Option<String>,
    /// Files left by an unfinished upgrade.
    pub leftovers: Vec<String>,
    /// kubeadm's static Pods by file name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub manifests: BTreeMap<String, ManifestSeen>,
    /// Patches that `kubeadm upgrade` would apply, by static Pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub patches: BTreeMap<String, String>,
    #[serde(default)]
    pub kubelet: KubeletSeen,
}

/// Recorded parts of a static Pod's manifest; values of its environment are not recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManifestSeen {
    pub containers: Vec<String>,
    /// Image of the first container; the fields below also describe this container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    pub arguments: Vec<String>,
    pub environment: Vec<String>,
    pub(crate) has_limits: bool,
    pub volumes: Vec<String>,
}

/// Settings of a kubelet, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletSeen {
    /// Flags in use, without the dashes.
    pub flags: BTreeSet<String>,
    /// Those of the flags that kubeadm has written and changes itself.
    pub(crate) kubeadm_flags: BTreeSet<String>,
    /// Feature gates in its flags and configuration.
    pub(crate) gates: BTreeSet<String>,
    /// Those of the gates that its flags set.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) flag_gates: BTreeSet<String>,
    /// `--fail-cgroupv1`, and `failCgroupV1` of its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fail_cgroup_v1_flag: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fail_cgroup_v1: Option<bool>,
    /// `failSwapOn` of its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fail_swap_on: Option<bool>,
    /// Fields of its configuration; nested fields with dots.
    pub fields: BTreeSet<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateSeen {
    pub path: String,
    /// Seconds since 1970.
    pub not_after: i64,
    pub authority: bool,
    /// The CA key is next to the certificate, so that certificates can be renewed on this host.
    pub(crate) key_is_here: bool,
}

/// Data about the cluster from one API server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiSeen {
    /// Version of the API server.
    pub version: Option<String>,
    /// UID of the namespace kube-system.
    pub kube_system: Option<String>,
    pub nodes: Vec<NodeSeen>,
    pub pods: Vec<PodSeen>,
    /// Evictions that PodDisruptionBudgets would not allow now.
    pub budgets: Vec<PdbProblem>,
    pub workloads: Vec<WorkloadSeen>,
    pub(crate) webhooks: Vec<WebhookSeen>,
    /// Unavailable APIServices, with the reason.
    pub(crate) unavailable_services: BTreeMap<String, String>,
    pub(crate) deprecated: Vec<DeprecatedSeen>,
    /// `ClusterConfiguration` of kubeadm-config.
    pub(crate) cluster_configuration: Option<Value>,
    /// `KubeletConfiguration` of kubelet-config, which `kubeadm upgrade` and `kubeadm join` write to hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kubelet_configuration: Option<Value>,
    /// `KubeProxyConfiguration` of kube-proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) proxy_configuration: Option<Value>,
    pub(crate) corefile: Option<String>,
    /// Who else holds the cluster's Lease; set by whoever plans without holding it.
    pub lease_holder: Option<String>,
    /// Pages of the Pod list, byte for byte, if containers were requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) raw_pods: Vec<String>,
    /// Failed requests, with the reason.
    pub unknown: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSeen {
    pub name: String,
    pub ready: bool,
    /// Message of the Node's condition if it is not ready.
    pub message: String,
    /// `MemoryPressure`, `DiskPressure`, … conditions that are true.
    pub(crate) pressure: Vec<String>,
    pub(crate) unschedulable: bool,
    /// Annotations that begin with `imgctl.io/`, and those with the options of k3s.
    pub annotations: BTreeMap<String, String>,
    pub kubelet: String,
    /// `containerd://1.7.27`.
    pub runtime: String,
    pub architecture: String,
    pub(crate) machine_id: String,
    /// Its label `kubernetes.io/hostname`.
    pub hostname: String,
    pub addresses: Vec<NodeAddress>,
    /// `key=value:effect`.
    pub(crate) taints: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeAddress {
    /// `InternalIP`, `Hostname`, …
    #[serde(rename = "type")]
    pub kind: String,
    pub address: String,
}

/// A Pod, with the data that plans need.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSeen {
    pub namespace: String,
    pub name: String,
    pub node: String,
    /// `ReplicaSet/web-5d4`; empty if no controller recreates it.
    pub owner: String,
    pub labels: BTreeMap<String, String>,
    /// Created from a file on its Node.
    pub mirror: bool,
    pub finished: bool,
    /// It runs but is not ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unready: bool,
    /// Why it is still present after its deletion deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stuck: Option<String>,
    /// Volumes that are lost with the Pod (`emptyDir`) or bound to its Node (`hostPath`).
    pub(crate) local_volumes: Vec<String>,
    /// Volumes of the removed type `gitRepo`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) git_volumes: Vec<String>,
    /// Images by container name.
    pub images: BTreeMap<String, String>,
}

/// A Deployment, StatefulSet or DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadSeen {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub desired: i64,
    pub ready: i64,
}

/// A required webhook whose Service has no endpoints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WebhookSeen {
    /// `ValidatingWebhookConfiguration/x`.
    pub configuration: String,
    pub name: String,
    /// `namespace/name`.
    pub service: String,
}

/// Requests to an API that a later release removes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeprecatedSeen {
    pub group: String,
    pub version: String,
    pub(crate) resource: String,
    /// `1.32`.
    pub(crate) removed_release: String,
}

/// etcd on the control planes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EtcdSeen {
    pub members: Vec<MemberSeen>,
    /// `NOSPACE`, `CORRUPT`.
    pub(crate) alarms: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberSeen {
    pub name: String,
    /// The member's first client URL.
    pub(crate) endpoint: String,
    pub(crate) learner: bool,
    pub(crate) leader: bool,
    /// `None` if the member did not respond.
    pub version: Option<String>,
    pub(crate) db_bytes: u64,
}

/// An image installed on the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstalledSeen {
    pub name: String,
    /// The supported range of Kubernetes versions declared by the image.
    pub(crate) supports: Option<String>,
}

impl MemberSeen {
    /// Returns whether the endpoint has this address.
    pub(crate) fn is_at(&self, address: &str) -> bool {
        let rest = self.endpoint.split("://").nth(1).unwrap_or_default();
        let host = rest.split('/').next().unwrap_or_default();
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        host.trim_matches(['[', ']']) == address
    }
}

impl HostSeen {
    pub fn is_control_plane(&self) -> bool {
        self.roles.iter().any(|role| role == MASTER)
    }

    /// Returns whether `word` identifies this host: its ID, address, hostname or Node name.
    pub(crate) fn is_called(&self, word: &str) -> bool {
        let known = self.facts.as_ref().map(|facts| facts.hostname.as_str());
        [Some(self.id.as_str()), Some(&self.address), known, self.node.as_deref()]
            .into_iter()
            .flatten()
            .any(|name| name.eq_ignore_ascii_case(word))
    }
}

impl Observation {
    pub(crate) fn node_of(&self, host: &HostSeen) -> Option<&NodeSeen> {
        let name = host.node.as_deref()?;
        let api = self.api.as_ref()?;
        api.nodes.iter().find(|node| node.name == name)
    }

    pub fn host(&self, id: &str) -> Option<&HostSeen> {
        self.hosts.iter().find(|host| host.id == id)
    }

    /// The version on a host: that of its Node's kubelet, or the one the host reported.
    pub(crate) fn version_of(&self, host: &HostSeen) -> Option<String> {
        match self.node_of(host) {
            Some(node) => Some(node.kubelet.clone()).filter(|version| !version.is_empty()),
            None => host.version.clone(),
        }
    }

    /// The version of the API server on a control plane: from its static Pod's image, or from the
    /// Node if the server is part of another program (k3s).
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

    /// Returns whether the host is healthy, as far as visible from outside.
    pub(crate) fn is_healthy(&self, host: &HostSeen) -> bool {
        match self.node_of(host) {
            Some(node) => node.ready,
            None => self.api.is_none() && host.unreachable.is_none(),
        }
    }

    /// Returns whether the cluster uses an external etcd.
    pub fn external_etcd(&self) -> bool {
        let configuration = self.api.as_ref().and_then(|api| api.cluster_configuration.as_ref());
        configuration
            .is_some_and(|value| value.pointer("/etcd/external").is_some_and(Value::is_object))
    }
}
