//! The cluster context: everything known about one cluster during an operation.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::cluster::host::Host;
use crate::cluster::image::{ClusterImage, ImageKind};
use crate::cluster::paths::Paths;
use imgctl_base::image::Digest;
use imgctl_base::secret::Secret;

/// Embedded registry as hosts see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryAccess {
    /// Domain, such as `sealos.hub`.
    pub(crate) domain: String,
    pub port: u16,
    pub username: String,
    pub password: Secret,
    /// Data directory on a registry host, such as `/var/lib/registry`.
    pub data: String,
}

impl RegistryAccess {
    pub(crate) fn needs_login(&self) -> bool {
        !self.username.is_empty() && !self.password.expose().is_empty()
    }
}

/// A cluster in its state after the pipeline has run.
#[derive(Clone, Debug)]
pub struct ClusterContext {
    pub name: String,
    /// All hosts, in the Clusterfile's order; the first control plane bootstraps the cluster.
    pub hosts: Vec<Host>,
    /// Hosts to be removed; not in `hosts`.
    pub leaving: Vec<Host>,
    /// All images of the cluster, in `spec.image` order.
    pub images: Vec<ClusterImage>,
    pub paths: Paths,
    /// `~/.sealos/<cluster>` on the controller.
    pub state_directory: PathBuf,
    /// `spec.env`.
    pub environment: BTreeMap<String, String>,
    /// `--env` of this and earlier commands; overrides everything.
    pub flag_environment: BTreeMap<String, String>,
    pub registry: Option<RegistryAccess>,
    /// Virtual address of the API, if the image names one.
    pub(crate) vip: Option<String>,
    /// kubeadm and k3s documents of the Clusterfile, as read.
    pub documents: Vec<serde_json::Value>,
}

impl ClusterContext {
    /// Returns the rootfs image.
    pub fn rootfs(&self) -> Option<&ClusterImage> {
        self.images.iter().find(|image| image.kind == ImageKind::Rootfs)
    }

    pub fn control_planes(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().filter(|host| host.is_control_plane())
    }

    pub fn workers(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().filter(|host| !host.is_control_plane())
    }

    /// Returns the host that bootstraps the cluster and runs applications' commands.
    pub fn first(&self) -> Option<&Host> {
        self.control_planes().next()
    }

    /// Returns the hosts that serve the embedded registry: those with role `registry`, otherwise
    /// the first control plane.
    pub fn registry_hosts(&self) -> Vec<&Host> {
        let named: Vec<&Host> = self
            .hosts
            .iter()
            .filter(|host| host.has_role(crate::cluster::host::REGISTRY))
            .collect();
        if named.is_empty() { self.first().into_iter().collect() } else { named }
    }

    /// Identifies the files that rootfs and patches put on every host: scripts, programs,
    /// templates.
    pub(crate) fn rootfs_content(&self) -> String {
        let images = self.images.iter();
        content(images.filter(|image| image.kind != ImageKind::Application), false)
    }

    /// Identifies the container images that the embedded registry serves.
    pub(crate) fn registry_content(&self) -> String {
        content(self.images.iter(), true)
    }
}

/// Identifies the content of layers, regardless of their compression.
fn content<'a>(images: impl Iterator<Item = &'a ClusterImage>, registry: bool) -> String {
    let mut text = String::new();
    for layer in images.flat_map(|image| &image.layers) {
        if layer.registry == registry {
            text.push_str(&layer.diff_id.to_string());
            text.push('\n');
        }
    }
    Digest::of(text.as_bytes()).to_string()
}
