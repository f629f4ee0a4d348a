//! The answers of a cluster's hosts and API, as values: what they say is judged elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use crate::document::Finding;
use crate::observation::{HostSeen, NodeSeen, Observation};
use imgctl_base::error::{Error, Result};
use imgctl_model::clusterfile::Clusterfile;

/// A cluster as it was read.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// `kubeadm`, `k3s`, `script`.
    pub runtime: String,
    pub observation: Observation,
    /// By host ID; hosts that do not answer are missing.
    pub hosts: BTreeMap<String, HostReading>,
    /// Operating systems by Node name.
    pub systems: BTreeMap<String, String>,
    /// The kubelets' configuration in the API; `None` if there is none that can be read.
    pub kubelet: Option<Value>,
    /// The record that an earlier controller left in the cluster.
    pub record: Option<Record>,
}

/// What a host has, besides what upgrades observe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostReading {
    /// Files below `/etc/kubernetes`.
    pub files: BTreeSet<String>,
    /// Paths of programs, by name.
    pub programs: BTreeMap<String, String>,
    /// The package that the kubelet belongs to.
    pub package: Option<String>,
    /// Clusterfiles that a controller left on the host, the most trustworthy first.
    pub records: Vec<String>,
    /// Names of clusters whose controllers left a Clusterfile on the host.
    pub clusters: Vec<String>,
    /// The host has a copy of the state of an upgrade.
    pub has_upgrade: bool,
    /// What is there of k3s, if one of its services is active.
    pub k3s: Option<K3sReading>,
    /// The host runs RKE2.
    pub is_rke2: bool,
}

/// What a host has of k3s.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct K3sReading {
    /// `server` or `agent`.
    pub role: String,
    /// The service: `k3s`, `k3s-agent`.
    pub unit: String,
    /// Where config.yaml says that the data is.
    pub data_directory: String,
    /// Where a server keeps its data: `etcd` or `sqlite`; `None`: in none of them.
    pub store: Option<String>,
    /// Files below the data directory.
    pub files: BTreeSet<String>,
    /// Files in `config.yaml.d` and drop-ins of the service.
    pub drop_ins: Vec<String>,
}

/// The Clusterfile that a controller recorded.
#[derive(Clone, Debug)]
pub struct Record {
    /// Where it was found.
    pub source: String,
    pub clusterfile: Clusterfile,
}

impl Record {
    /// Fails unless the cluster is recorded as `cluster`.
    pub fn check_name(&self, cluster: &str) -> Result<()> {
        let name = &self.clusterfile.cluster.name;
        if name == cluster {
            return Ok(());
        }
        Err(Error::check_failed(format!(
            "the cluster is recorded as `{name}` ({}), not as `{cluster}`; nothing was changed",
            self.source
        ))
        .hint(format!("pass -c {name}")))
    }
}

impl Reading {
    /// Returns the version of the control plane, which is the version of the cluster.
    pub fn version(&self) -> Option<String> {
        let hosts = self.observation.hosts.iter();
        let servers = hosts.filter_map(|host| self.observation.server_version(host));
        let api = self.observation.api.as_ref();
        servers.min().or_else(|| api?.version.clone())
    }

    /// Returns the UID of the namespace kube-system.
    pub fn cluster_id(&self) -> Option<&str> {
        self.observation.api.as_ref()?.kube_system.as_deref()
    }

    /// Returns kubeadm's ClusterConfiguration.
    pub fn configuration(&self) -> Option<&Value> {
        self.observation.api.as_ref()?.cluster_configuration.as_ref()
    }

    /// Returns `controlPlaneEndpoint`.
    pub fn endpoint(&self) -> Option<&str> {
        let endpoint = self.configuration()?["controlPlaneEndpoint"].as_str()?;
        Some(endpoint).filter(|endpoint| !endpoint.is_empty())
    }

    pub(super) fn of(&self, host: &HostSeen) -> Option<&HostReading> {
        self.hosts.get(&host.id)
    }

    /// Returns the hosts that answered.
    pub(super) fn reachable(&self) -> impl Iterator<Item = &HostSeen> {
        self.observation.hosts.iter().filter(|host| host.unreachable.is_none())
    }

    pub(super) fn control_planes(&self) -> impl Iterator<Item = &HostSeen> {
        self.reachable().filter(|host| host.is_control_plane())
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodeSeen> {
        self.observation.api.iter().flat_map(|api| &api.nodes)
    }
}

/// What an adoption would record, for people and for programs (`--json`).
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Adoption {
    pub cluster: String,
    pub runtime: String,
    pub version: String,
    /// UID of the namespace kube-system.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// The API's own endpoint, if the cluster has one for all control planes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// `stacked`, `external`; absent for other runtimes than kubeadm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd: Option<&'static str>,
    /// Where the record of an earlier controller was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// Images of the cluster according to the record: later commands use them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
    /// This machine manages the cluster already: nothing is changed.
    pub known: bool,
    pub hosts: Vec<AdoptedHost>,
    pub findings: Vec<Finding>,
}

/// One host of an [`Adoption`].
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AdoptedHost {
    pub host: String,
    pub roles: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// Days until the first certificate on the host expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_days: Option<i64>,
}

impl Adoption {
    /// Summarises a reading; `cluster` is the name that the cluster gets.
    pub fn of(cluster: &str, reading: &Reading, findings: Vec<Finding>) -> Self {
        let observation = &reading.observation;
        let etcd = (reading.runtime == "kubeadm" && observation.api.is_some())
            .then(|| if observation.external_etcd() { "external" } else { "stacked" });
        let host = |host: &HostSeen| {
            let node = observation.node_of(host);
            AdoptedHost {
                host: host.id.clone(),
                roles: host.roles.clone(),
                node: host.node.clone(),
                version: observation.version_of(host),
                runtime: node.map(|node| node.runtime.clone()),
                certificate_days: days(observation.at_ms, host),
            }
        };
        Self {
            cluster: cluster.to_owned(),
            runtime: reading.runtime.clone(),
            version: reading.version().unwrap_or_default(),
            cluster_id: reading.cluster_id().map(str::to_owned),
            endpoint: reading.endpoint().map(str::to_owned),
            etcd,
            record: reading.record.as_ref().map(|record| record.source.clone()),
            images: reading
                .record
                .as_ref()
                .map(|record| record.clusterfile.cluster.images.clone())
                .unwrap_or_default(),
            known: false,
            hosts: observation.hosts.iter().map(host).collect(),
            findings,
        }
    }

    pub fn blockers(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity == crate::document::Severity::Error)
    }
}

/// Returns the days until the first certificate of a host expires that is not an authority's.
pub(super) fn days(at_ms: i64, host: &HostSeen) -> Option<i64> {
    let leaves = host.certificates.iter().filter(|certificate| !certificate.authority);
    let first = leaves.map(|certificate| certificate.not_after).min()?;
    Some((first - at_ms / 1000).div_euclid(86_400))
}
