//! Upgrade and rollback of hosts in a kubeadm cluster.
//!
//! Every action inspects the host first, does the remaining work, and verifies the result. kubeadm
//! performs the upgrade itself; this module adds a backup, gates and rollback. Facts: kubeadm's
//! upgrade rules.

mod apply;
mod cluster_objects;
mod daemon_set;
mod etcd_manifest;
mod finish;
mod gate;
mod kubelet;
mod members;
mod pull;
mod restore;
mod snapshot;
mod snapshot_restore;
#[cfg(test)]
mod stand_in_tests;
mod target;
mod trial;

use target::Target;

use crate::cluster::image::ClusterImage;
use crate::runtime::kubeadm::{Kubeadm, config::lvscare_image, defaults::PAPERS, version::Version};
use crate::runtime::upgrade::{Move, Place, Upgrader};
use crate::runtime::{Action, load_balancer, version};
use imgctl_base::error::{Error, Result};

/// Redirects workers to other API servers before `stopping`, the actions that stop this host's API
/// server. LVScare has no such list: it detects the state through `/readyz`.
fn out_of_service(step: &Move<'_>, actions: Vec<Action>, stopping: &[&str]) -> Vec<Action> {
    if step.place == Place::Worker || lvscare_image(step.to).is_some() {
        return actions;
    }
    let taken_out = |action: Action| {
        if stopping.contains(&action.name.as_str()) {
            load_balancer::taken_out_before(step.to, action)
        } else {
            action
        }
    };
    actions.into_iter().map(taken_out).collect()
}

impl Upgrader for Kubeadm<'_> {
    fn version(&self, image: &ClusterImage) -> Result<String> {
        Version::parse(&version::of(image)?).map(|version| version.text)
    }

    fn permits(&self, from: &str, to: &str) -> Result<()> {
        version::permits_kubernetes(from, to)
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
        Ok(gate::actions(&Target::of(step)?))
    }

    fn back_in_service(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        if step.place == Place::Worker || lvscare_image(step.to).is_some() {
            return Ok(Vec::new());
        }
        Ok(load_balancer::put_back(step.to))
    }

    fn before_control_planes(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        if lvscare_image(step.to).is_some() {
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
