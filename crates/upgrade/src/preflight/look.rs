//! The input of a check.

use serde_json::Value;

use crate::document::{Direction, Document};
use crate::observation::{ApiSeen, HostSeen, NodeSeen, Observation};
use crate::request::{Request, SCRIPT, Target};
use imgctl_runtime::version::minor;

/// The input of a check.
#[derive(Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) document: &'a Document,
    pub(super) observation: &'a Observation,
    pub(super) request: &'a Request<'a>,
}

impl<'a> Look<'a> {
    pub(super) fn is_kubernetes(&self) -> bool {
        self.document.runtime != SCRIPT
    }

    pub(super) fn is_kubeadm(&self) -> bool {
        self.document.runtime == "kubeadm"
    }

    pub(super) fn is_forward(&self) -> bool {
        self.document.direction == Direction::Forward
    }

    pub(super) fn api(&self) -> Option<&'a ApiSeen> {
        self.observation.api.as_ref()
    }

    /// Returns the KubeletConfiguration that `kubeadm upgrade` writes to the hosts, apart from patches.
    pub(super) fn written_by_kubeadm(&self) -> Option<&'a Value> {
        self.api()?
            .kubelet_configuration
            .as_ref()
            .filter(|_| self.is_kubeadm() && self.is_forward())
    }

    /// Returns the final target image of the cluster.
    pub(super) fn target(&self) -> Option<&'a Target> {
        self.request.targets.last()
    }

    /// Kubernetes minors that are new to the cluster.
    pub(super) fn new_minors(&self) -> std::ops::RangeInclusive<u64> {
        let from = minor(&self.document.from.version).unwrap_or(u64::MAX - 1);
        let to = minor(&self.document.target().version).unwrap_or(0);
        from.saturating_add(1)..=to
    }

    /// Returns the hosts that take part.
    pub(super) fn hosts(&self) -> impl Iterator<Item = &'a HostSeen> + use<'a> {
        let document = self.document;
        self.observation
            .hosts
            .iter()
            .filter(move |host| document.hosts.get(&host.id).is_some_and(|it| it.skipped.is_none()))
    }

    /// Returns the hosts in the requested scope, including unreachable ones.
    pub(super) fn in_scope(&self) -> impl Iterator<Item = &'a HostSeen> + use<'a> {
        let only = &self.request.only;
        let hosts = self.observation.hosts.iter();
        hosts.filter(move |host| only.is_empty() || only.contains(&host.id))
    }

    /// Returns the Nodes of hosts that take part.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (&'a HostSeen, &'a NodeSeen)> + use<'a> {
        let observation = self.observation;
        self.hosts().filter_map(|host| Some((host, observation.node_of(host)?)))
    }
}
