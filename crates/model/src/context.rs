//! The cluster context: everything known about one cluster during an operation, its hosts and the
//! locations of its files there.

use std::collections::BTreeMap;

use crate::image::{ClusterImage, ImageKind};
use crate::state_files::StateFiles;
use crate::variables::SharedCache;
use imgctl_base::{image::Digest, secret::Secret};
use imgctl_host::host::{address::Address, login::Login};

/// Embedded registry as hosts see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryAccess {
    /// Domain, such as `sealos.hub`.
    pub domain: String,
    pub port: u16,
    pub username: String,
    pub password: Secret,
    /// Data directory on a registry host, such as `/var/lib/registry`.
    pub data: String,
}

impl RegistryAccess {
    /// Returns whether the registry asks for user and password.
    pub fn needs_login(&self) -> bool {
        !self.username.is_empty() && !self.password.expose().is_empty()
    }
}

/// A cluster in its state after the pipeline has run.
#[derive(Clone, Debug)]
pub struct ClusterContext {
    pub name: String,
    /// `metadata.uid`: with it, hosts say whose they are. `None` for a cluster that is only looked at.
    pub uid: Option<String>,
    /// All hosts, in the Clusterfile's order; the first control plane bootstraps the cluster.
    pub hosts: Vec<Host>,
    /// Hosts to be removed; not in `hosts`.
    pub leaving: Vec<Host>,
    /// All images of the cluster, in `spec.image` order.
    pub images: Vec<ClusterImage>,
    pub paths: Paths,
    /// `~/.sealos/<cluster>` on the controller.
    pub state: StateFiles,
    /// `spec.env`.
    pub environment: BTreeMap<String, String>,
    /// `--env` of this and earlier commands; overrides everything.
    pub flag_environment: BTreeMap<String, String>,
    pub registry: Option<RegistryAccess>,
    /// Virtual address of the API, if the image names one.
    pub vip: Option<String>,
    /// kubeadm and k3s documents of the Clusterfile, as read.
    pub documents: Vec<serde_json::Value>,
    /// The cluster was made by another program: its runtime and version, in the form of a rootfs
    /// image without files. It counts as long as no rootfs image is among `images`.
    pub adopted: Option<ClusterImage>,
    /// The rootfs image that an unfinished run brought to hosts, if the cluster has none: its scripts
    /// clean them.
    pub unfinished: Option<ClusterImage>,
    /// A run is in progress or was killed, so its last results may be missing.
    pub in_process: bool,
    /// `spec.certificates.renew`.
    pub renew_certificates: Option<bool>,
    /// `spec.registry.peers`.
    pub share_images: Option<bool>,
    /// Variables that all hosts have in common.
    pub shared: SharedCache,
}

impl ClusterContext {
    pub fn rootfs(&self) -> Option<&ClusterImage> {
        let own = self.images.iter().find(|image| image.kind == ImageKind::Rootfs);
        own.or(self.adopted.as_ref())
    }

    /// Returns the image whose scripts clean hosts.
    pub fn cleaning_rootfs(&self) -> Option<&ClusterImage> {
        if self.has_rootfs_image() {
            self.rootfs()
        } else {
            self.unfinished.as_ref().or(self.rootfs())
        }
    }

    /// Returns whether the cluster keeps the API endpoint and the settings of the program that
    /// made it.
    pub fn is_adopted(&self) -> bool {
        self.adopted.is_some()
    }

    /// Returns whether hosts renew their certificates themselves. In an adopted cluster they do so only
    /// if somebody asked for it.
    pub fn renews_certificates(&self) -> bool {
        self.renew_certificates.unwrap_or(!self.is_adopted())
    }

    /// Returns whether hosts share the images of the cluster's registry with each other.
    pub fn shares_images(&self) -> bool {
        self.registry.is_some() && self.share_images.unwrap_or(false)
    }

    /// Returns whether the files of the hosts come from a rootfs image.
    pub fn has_rootfs_image(&self) -> bool {
        self.images.iter().any(|image| image.kind == ImageKind::Rootfs)
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
        registry_hosts_of(&self.hosts)
    }

    pub fn serves_registry(&self, host: &Host) -> bool {
        let is_member = |host: &Host| self.hosts.iter().any(|own| own.address == host.address);
        if host.has_role(REGISTRY) && is_member(host) {
            return true;
        }
        // Nearly all hosts of a large cluster end here.
        self.first().is_some_and(|first| first.address == host.address)
            && self.registry_hosts().iter().any(|other| other.address == host.address)
    }

    /// Identifies the files that rootfs and patches put on every host: scripts, programs,
    /// templates.
    pub fn rootfs_content(&self) -> String {
        let images = self.images.iter();
        content(images.filter(|image| image.kind != ImageKind::Application), false)
    }

    /// Identifies the container images that the embedded registry serves.
    pub fn registry_content(&self) -> String {
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

/// Role of control planes, under the name that sealos uses.
pub const MASTER: &str = "master";
/// Role of workers.
pub const NODE: &str = "node";
/// Role of hosts that serve the embedded registry.
pub const REGISTRY: &str = "registry";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub address: Address,
    /// `master`, `node`, `registry` and arbitrary other roles, in the Clusterfile's order.
    pub roles: Vec<String>,
    /// `hosts[].env`.
    pub environment: BTreeMap<String, String>,
    /// `spec.ssh` of the cluster, overridden by the host's own values.
    pub login: Login,
    /// Whether this is the local machine, reached without SSH.
    pub local: bool,
}

impl Host {
    /// Returns the IP or name without the port, under which other hosts reach this one.
    pub fn ip(&self) -> &str {
        &self.address.name
    }

    pub fn has_role(&self, role: &str) -> bool {
        self.roles.iter().any(|own| own == role)
    }

    pub fn is_control_plane(&self) -> bool {
        self.has_role(MASTER)
    }

    /// Returns the address as `Display` writes it, for step identifiers, file names and JSON.
    pub fn id(&self) -> String {
        self.address.to_string()
    }

    /// Returns the OCI name of the architecture, such as `amd64` or `arm64`, if a role gives it, as
    /// in sealos.
    pub fn architecture(&self) -> Option<&str> {
        let known = |role: &&String| ARCHITECTURES.contains(&role.as_str());
        self.roles.iter().find(known).map(String::as_str)
    }
}

/// Returns the registry hosts among `hosts`: those with role `registry`, otherwise the first control
/// plane.
pub fn registry_hosts_of<'h>(hosts: impl IntoIterator<Item = &'h Host>) -> Vec<&'h Host> {
    let all: Vec<&Host> = hosts.into_iter().collect();
    let named: Vec<&Host> = all.iter().copied().filter(|host| host.has_role(REGISTRY)).collect();
    if named.is_empty() {
        all.into_iter().find(|host| host.is_control_plane()).into_iter().collect()
    } else {
        named
    }
}

/// Roles that are architectures.
const ARCHITECTURES: [&str; 8] =
    ["386", "amd64", "arm", "arm64", "loong64", "ppc64le", "riscv64", "s390x"];

/// Default of `SEALOS_DATA_ROOT`.
pub const DATA_ROOT: &str = "/var/lib/sealos";

/// Paths on every host. They are text because they belong to another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    data_root: String,
    cluster: String,
}

impl Paths {
    pub fn new(data_root: &str, cluster: &str) -> Self {
        Self { data_root: data_root.trim_end_matches('/').to_owned(), cluster: cluster.to_owned() }
    }

    /// Returns the directory of this cluster's files.
    pub fn root(&self) -> String {
        format!("{}/data/{}", self.data_root, self.cluster)
    }

    /// Returns the link to the current tree, with rootfs and patches.
    pub fn rootfs(&self) -> String {
        format!("{}/rootfs", self.root())
    }

    /// Returns the directory in which scripts run.
    pub fn scripts(&self) -> String {
        format!("{}/scripts", self.rootfs())
    }

    /// Returns the directory of this host's generated configuration.
    pub fn etc(&self) -> String {
        format!("{}/etc", self.root())
    }

    /// Returns the directory of the embedded registry's data; `rootfs/registry` is a link to it.
    pub fn registry(&self) -> String {
        format!("{}/registry", self.root())
    }

    /// Returns the tree of an application, relative to [`Paths::root`].
    pub fn application_tree(mount_name: &str) -> String {
        format!("applications/{mount_name}/workdir")
    }

    /// Returns the directory of logs and outcomes of commands.
    pub fn runs(&self) -> String {
        format!("{}/runs", self.root())
    }
}
