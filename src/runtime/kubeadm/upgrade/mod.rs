//! How hosts of a kubeadm cluster get another version, and how they go back.
//!
//! Every action looks first, does what is left to do, and verifies. kubeadm does what kubeadm does;
//! around it stand a backup, gates and the way back. Facts: the rules of upgrades of kubeadm.

mod apply;
mod backup;
mod cluster_objects;
mod etcd_manifest;
mod finish;
mod gate;
mod kubelet;
mod marks;
mod members;
mod node;
mod pull;
mod restore;
mod snapshot;
mod snapshot_restore;
mod wait;

use crate::cluster::image::ClusterImage;
use crate::error::{Error, Result};
use crate::runtime::Action;
use crate::runtime::kubeadm::Kubeadm;
use crate::runtime::kubeadm::version::Version;
use crate::runtime::upgrade::{Move, Place, Upgrader};
use crate::runtime::version::{self, Version as Number};

/// What actions need of a [`Move`], to keep.
#[derive(Clone)]
struct Target {
    version: Version,
    /// The directory of the backup on the host.
    backup: String,
    /// Everything of the cluster on the host.
    root: String,
    /// The rootfs as it is linked now.
    rootfs: String,
    /// The tree of the image that the host gets.
    tree: String,
    place: Place,
    external_etcd: bool,
    id: String,
}

impl Target {
    fn of(step: &Move<'_>) -> Result<Self> {
        Ok(Self {
            version: Version::of(step.to)?,
            backup: step.backup(),
            root: step.to.paths.root(),
            rootfs: step.to.paths.rootfs(),
            tree: step.tree.clone(),
            place: step.place,
            external_etcd: step.external_etcd,
            id: step.id.to_owned(),
        })
    }

    fn is_control_plane(&self) -> bool {
        self.place != Place::Worker
    }

    /// Whether this host runs a member of the cluster's etcd.
    fn has_etcd(&self) -> bool {
        self.is_control_plane() && !self.external_etcd
    }
}

impl Upgrader for Kubeadm<'_> {
    fn version(&self, image: &ClusterImage) -> Result<String> {
        Version::parse(&version::of(image)?).map(|version| version.text)
    }

    fn permits(&self, from: &str, to: &str) -> Result<()> {
        permits(from, to)
    }

    fn backup(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let target = Target::of(step)?;
        let mut actions = vec![backup::files(step, &target)];
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
        Ok(if target.has_etcd() {
            members::before(&target)
        } else {
            Vec::new()
        })
    }

    fn apply(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        apply::actions(step, &Target::of(step)?)
    }

    fn gate(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        Ok(gate::actions(&Target::of(step)?))
    }

    fn restore(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        Ok(restore::actions(&Target::of(step)?))
    }

    fn finish(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        Ok(finish::actions(&Target::of(step)?))
    }

    fn restore_snapshot(&self, step: &Move<'_>, snapshot: &str) -> Result<[Vec<Action>; 3]> {
        if step.external_etcd {
            return Err(Error::usage(
                "the etcd of this cluster is not its own: no member of it is touched",
            )
            .hint("restore the snapshot where that etcd runs, then `imgctl rollback`"));
        }
        snapshot_restore::phases(&Target::of(step)?, snapshot)
    }
}

/// kubeadm's rule: a patch, or one minor.
pub(in crate::runtime) fn permits(from: &str, to: &str) -> Result<()> {
    let number = |text: &str| {
        Number::parse(text)
            .ok_or_else(|| Error::usage(format!("`{text}` is not a version of Kubernetes")))
    };
    let (old, new) = (number(from)?, number(to)?);
    if new < old {
        return Err(
            Error::usage(format!("{to} is older than {from}, which the cluster runs"))
                .hint("`imgctl rollback` takes a cluster back to what it was before"),
        );
    }
    let (major, minor) = (new.number(0), new.number(1));
    if major != old.number(0) || minor > old.number(1) + 1 {
        let chain: Vec<String> = (old.number(1) + 1..=minor)
            .map(|minor| format!("v{major}.{minor}"))
            .collect();
        return Err(Error::usage(format!(
            "control planes go one minor at a time: from {from} to {to} by way of {}",
            chain.join(", ")
        ))
        .hint("name an image of each, in this order, with --hop auto"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_minor_at_a_time() {
        for (from, to) in [
            ("v1.33.13", "v1.33.13"),
            ("v1.33.13", "v1.33.14"),
            ("v1.33.13", "v1.34.0"),
            ("v1.34.0-rc.1", "v1.34.0"),
            ("v1.34.1+k3s1", "v1.34.1+k3s2"),
        ] {
            permits(from, to).unwrap();
        }
        let error = permits("v1.31.2", "v1.34.1").unwrap_err();
        assert!(error.to_string().contains("v1.32, v1.33, v1.34"), "{error}");
        for (from, to) in [("v1.34.1", "v1.34.0"), ("v1.34.1", "v1.33.9")] {
            let error = permits(from, to).unwrap_err();
            assert!(error.hints()[0].contains("rollback"), "{error}");
        }
    }
}
