//! Upgrade and rollback of hosts in a kubeadm cluster.
//!
//! Every action inspects the host first, does the remaining work, and verifies the result. kubeadm
//! performs the upgrade itself; this module adds a backup, gates and rollback. Facts: kubeadm's
//! upgrade rules.

mod apply;
mod balancers;
mod cluster_objects;
mod daemon_set;
mod elsewhere;
#[cfg(test)]
mod elsewhere_tests;
mod etcd_manifest;
mod finish;
mod gate;
mod kubelet;
#[cfg(test)]
mod kubelet_trial_tests;
mod members;
mod pull;
mod reconfigure;
mod restore;
mod snapshot;
mod snapshot_restore;
#[cfg(test)]
mod stand_in_tests;
mod target;
mod trial;

use balancers::out_of_service;
use reconfigure::Reconfigurer;
use target::Target;

use crate::kubeadm::{Kubeadm, config::has_balancers, defaults::PAPERS, version::Version};
use crate::setting::Setting;
use crate::upgrade::{Move, Place, Restoration, Upgrader};
use crate::{Action, load_balancer, version};
use imgctl_base::error::{Error, Result};
use imgctl_model::{context::ClusterContext, image::ClusterImage};

impl Upgrader for Kubeadm<'_> {
    fn version(&self, image: &ClusterImage) -> Result<String> {
        Version::parse(&version::of(image)?).map(|version| version.text)
    }

    fn permits(&self, from: &str, to: &str) -> Result<()> {
        version::permits_kubernetes(from, to)
    }

    fn settings(&self, from: &ClusterContext, to: &ClusterContext) -> Result<Vec<Setting>> {
        reconfigure::settings_of(self, from, to)
    }

    fn reconfigurer(&self, settings: &[Setting]) -> Result<Box<dyn Upgrader + '_>> {
        Ok(Box::new(Reconfigurer::new(self, settings)))
    }

    fn backup(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let target = Target::of(step)?;
        let mut actions = vec![target::backup_files(step, &target)];
        if target.has_etcd() {
            actions.push(snapshot_restore::keep_tool(&target));
        }
        if target.place == Place::First {
            actions.push(cluster_objects::keep(&target));
            actions.push(snapshot::take(&target));
        }
        Ok(actions)
    }

    fn save(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let (_, planned) = self.of(step.to, step.host)?;
        if !planned.has_local_etcd() {
            return Err(Error::usage(
                "the etcd of this cluster is external: a backup would be without its data",
            )
            .hint("back up that etcd where it runs"));
        }
        let target = Target::of(step)?;
        Ok(vec![
            elsewhere::save_files(&target),
            snapshot_restore::keep_tool(&target),
            cluster_objects::keep(&target),
            snapshot::take(&target),
        ])
    }

    fn restore_cluster(&self, step: &Move<'_>, folder: &str) -> Result<Restoration> {
        let (settings, planned) = self.of(step.to, step.host)?;
        let target = Target::of(step)?;
        elsewhere::restored(step.to, step.host, &settings, &planned, &target, folder)
            .map(Restoration::First)
    }

    fn pull(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        pull::actions(step, &Target::of(step)?)
    }

    fn before(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let target = Target::of(step)?;
        Ok(if target.has_etcd() { members::before(&target) } else { Vec::new() })
    }

    fn apply(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let actions = apply::actions(step, &Target::of(step)?)?;
        // The new kubelet recreates static Pods, including the API server's.
        Ok(out_of_service(step, actions, &["kubeadm-upgrade", "kubelet"]))
    }

    fn gate(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let target = Target::of(step)?;
        let mut actions = gate::actions(&target);
        // Forward, they are rolled out when all control planes are upgraded; `restore` has put their
        // former definitions back, and the controllers begin when they have become leader again.
        if step.back && step.place == Place::First {
            actions.push(finish::addons_again());
        }
        Ok(actions)
    }

    fn back_in_service(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        if step.place == Place::Worker || !has_balancers(step.to) {
            return Ok(Vec::new());
        }
        Ok(load_balancer::put_back(step.to))
    }

    fn before_control_planes(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        if !has_balancers(step.to) {
            return Ok(Vec::new());
        }
        Ok(load_balancer::actions(step.to, step.host, PAPERS))
    }

    fn restore(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let actions = restore::actions(&Target::of(step)?);
        Ok(out_of_service(step, actions, &["restore-files"]))
    }

    fn finish(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        Ok(finish::actions(&Target::of(step)?))
    }

    fn restore_snapshot(&self, step: &Move<'_>, snapshot: &str) -> Result<[Vec<Action>; 3]> {
        if step.external_etcd {
            return Err(Error::usage(
                "the etcd of this cluster is external: its members are not touched",
            )
            .hint("restore the snapshot where that etcd runs, then run `imgctl rollback`"));
        }
        snapshot_restore::phases(&Target::of(step)?, snapshot)
    }

    fn before_snapshot(&self, step: &Move<'_>, snapshot: &str) -> Result<Vec<Action>> {
        Ok(vec![snapshot_restore::check_tool(&Target::of(step)?, snapshot)])
    }

    fn after_snapshot(&self, _step: &Move<'_>) -> Result<Vec<Action>> {
        Ok(vec![snapshot_restore::watch_again()])
    }
}
