//! What a plan is asked for.

use std::collections::BTreeMap;

use crate::cluster::image::ClusterImage;
use crate::error::Result;
use crate::image::Digest;
use crate::upgrade::document::{Choices, Direction, Release};

/// A rootfs image that the cluster has or is to have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    /// As in `spec.image`.
    pub(crate) name: String,
    /// What it holds, see [`crate::runtime::upgrade::Upgrader::version`].
    pub(crate) version: String,
    /// By architecture of the hosts; those that the image lacks are missing.
    pub(crate) images: BTreeMap<String, ClusterImage>,
}

/// The question.
pub(crate) struct Request<'a> {
    pub(crate) cluster: &'a str,
    /// `kubeadm`, `k3s`, `script`.
    pub(crate) runtime: &'a str,
    /// What the cluster is.
    pub(crate) from: Target,
    /// One for each version on the way, in order.
    pub(crate) targets: Vec<Target>,
    pub(crate) choices: Choices,
    pub(crate) direction: Direction,
    /// `--id`.
    pub(crate) id: Option<String>,
    /// `--scope`: ids of the only hosts that move; empty: all.
    pub(crate) only: Vec<String>,
    /// Back to a snapshot of etcd: its data go back, too.
    pub(crate) to_snapshot: bool,
    /// Whether control planes may go from one version to the other in one move.
    pub(crate) permits: &'a dyn Fn(&str, &str) -> Result<()>,
}

/// The runtime whose clusters have no Kubernetes that we know of.
pub(crate) const SCRIPT: &str = "script";

impl Target {
    /// The digests of its manifests.
    pub(crate) fn digests(&self) -> BTreeMap<String, Digest> {
        self.images
            .iter()
            .map(|(architecture, image)| (architecture.clone(), image.digest.clone()))
            .collect()
    }

    /// As a document names it.
    pub(crate) fn release(&self) -> Release {
        Release {
            image: self.name.clone(),
            digests: self.digests(),
            version: self.version.clone(),
            workers: true,
        }
    }

    /// A label; those of all architectures say the same.
    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.images.values().find_map(|image| image.label(&[name]))
    }
}
