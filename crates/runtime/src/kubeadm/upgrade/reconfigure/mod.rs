//! Other settings for the hosts of a kubeadm cluster, and the way back.
//!
//! The documents of the Clusterfile say what differs; only that changes on hosts and in the API, so
//! that what somebody else has changed there stays. kubeadm renders manifests, and imgctl puts them in
//! place; the kubelet's files are edited. Everything is tried before the first host is touched, and
//! what was tried is what is installed.

mod change;
mod host;
mod objects;
mod rules;
#[cfg(test)]
mod stand_in_tests;
mod tried;

use change::{Change, settings};

use crate::kubeadm::Kubeadm;
use crate::kubeadm::config::has_balancers;
use crate::kubeadm::upgrade::balancers::out_of_service;
use crate::kubeadm::upgrade::target::Target;
use crate::kubeadm::upgrade::{cluster_objects, finish, gate, members, restore, snapshot};
use crate::setting::{Component, Setting};
use crate::upgrade::{Move, Place, Upgrader};
use crate::{Action, load_balancer};
use imgctl_base::error::Result;
use imgctl_model::{context::ClusterContext, image::ClusterImage};

/// Returns the settings that differ, for a plan.
pub(super) fn settings_of(
    kubeadm: &Kubeadm<'_>,
    from: &ClusterContext,
    to: &ClusterContext,
) -> Result<Vec<Setting>> {
    settings(kubeadm, from, to)
}

/// Changes settings of hosts and takes them back.
pub(super) struct Reconfigurer<'a> {
    kubeadm: &'a Kubeadm<'a>,
    /// Whether Nodes take no new Pods while their host changes.
    cordons: bool,
    /// Config documents change the configuration of containerd.
    containerd: bool,
}

impl<'a> Reconfigurer<'a> {
    pub(super) fn new(kubeadm: &'a Kubeadm<'a>, settings: &[Setting]) -> Self {
        let cordons = settings.iter().any(|setting| setting.component.starts_pods());
        let containerd = settings.iter().any(|one| one.component == Component::Containerd);
        Self { kubeadm, cordons, containerd }
    }

    fn change(&self, step: &Move<'_>) -> Result<Change> {
        let change = Change::of(self.kubeadm, step.from, step.to, step.host)?;
        Ok(change.with_files(self.containerd))
    }
}

impl Upgrader for Reconfigurer<'_> {
    fn version(&self, image: &ClusterImage) -> Result<String> {
        self.kubeadm.version(image)
    }

    fn permits(&self, _from: &str, _to: &str) -> Result<()> {
        Ok(())
    }

    fn backup(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let (target, change) = (Target::of(step)?, self.change(step)?);
        let mut actions = vec![host::backup(&target, &change)];
        if target.place == Place::First {
            actions.push(cluster_objects::keep(&target));
            if change.has_pods() && target.has_etcd() {
                actions.push(snapshot::take(&target));
            }
        }
        Ok(actions)
    }

    /// Everything new is rendered and tried here.
    fn pull(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        // The way back takes everything from the backup.
        if step.back {
            return Ok(Vec::new());
        }
        Ok(vec![tried::action(step, &Target::of(step)?, &self.change(step)?)])
    }

    fn before(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let target = Target::of(step)?;
        let stops = self.change(step)?.has_pods() && target.has_etcd();
        Ok(if stops { members::before(&target) } else { Vec::new() })
    }

    fn before_control_planes(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        self.kubeadm.before_control_planes(step)
    }

    fn apply(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let actions = vec![host::apply(&Target::of(step)?, &self.change(step)?)];
        self.out_of_service(step, actions, "settings")
    }

    fn gate(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let (target, change) = (Target::of(step)?, self.change(step)?);
        let mut actions: Vec<_> = host::gate(&target, &change).into_iter().collect();
        actions.extend(gate::actions(&target));
        Ok(actions)
    }

    fn back_in_service(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let is_out = step.place != Place::Worker && has_balancers(step.to);
        Ok(if is_out && self.change(step)?.has_pods() {
            load_balancer::put_back(step.to)
        } else {
            Vec::new()
        })
    }

    fn restore(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let (target, change) = (Target::of(step)?, self.change(step)?);
        let mut actions = vec![host::restore(&target, &change)];
        if change.has_pods() {
            actions.push(restore::api_again(&target));
        }
        if target.place == Place::First {
            actions.extend(objects::actions(&target, &change));
        }
        self.out_of_service(step, actions, "restore-settings")
    }

    /// The cluster's objects, which hosts that join later are made from.
    fn finish(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let (target, change) = (Target::of(step)?, self.change(step)?);
        let mut actions = objects::actions(&target, &change);
        if change.has(Component::KubeProxy) {
            actions.push(finish::addons(&target));
        }
        Ok(actions)
    }

    fn drains(&self) -> bool {
        self.cordons
    }
}

impl Reconfigurer<'_> {
    /// Workers use other API servers while this host's restarts.
    fn out_of_service(
        &self,
        step: &Move<'_>,
        actions: Vec<Action>,
        stopping: &str,
    ) -> Result<Vec<Action>> {
        if self.change(step)?.has_pods() {
            Ok(out_of_service(step, actions, &[stopping]))
        } else {
            Ok(actions)
        }
    }
}
