//! What a cluster wants on its hosts: images for each architecture, Config documents, and what
//! rendering depends on. Must not know agents' answers nor who has what.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::agent::protocol::Facts;
use crate::cluster::host::Host;
use crate::cluster::image::{ClusterImage, ImageKind};
use crate::cluster::scene::Scene;
use crate::render::ConfigEdit;

/// What templates on a host see besides the variables of images.
pub(crate) trait Surroundings: Send + Sync {
    /// What beats every image's own variables.
    fn environment(&self, host: &Host) -> BTreeMap<String, String>;

    /// `.Host`, `.Cluster`, `.Registry`, `.Arch`.
    fn facts(&self, host: &Host, known: &Facts) -> Map<String, Value>;
}

impl Surroundings for Scene {
    fn environment(&self, host: &Host) -> BTreeMap<String, String> {
        self.environment_on(host, None)
    }

    fn facts(&self, host: &Host, known: &Facts) -> Map<String, Value> {
        self.facts_on(host, known)
    }
}

/// The cluster's images in `spec.image` order, by OCI architecture.
pub(crate) type Images = BTreeMap<String, Vec<ClusterImage>>;

/// All that syncing has to know of a cluster.
pub(crate) struct Brief {
    /// `<data>/<cluster>` on every host.
    pub(crate) root: String,
    pub(crate) images: Images,
    /// In order.
    pub(crate) configs: Vec<ConfigEdit>,
    /// A missing key in a `.tmpl` is an error.
    pub(crate) strict: bool,
    /// Former trees that stay on the host.
    pub(crate) keep: u32,
    /// Trees are made beside the current ones, which stay: a later step switches.
    pub(crate) stage: bool,
    pub(crate) surroundings: Arc<dyn Surroundings>,
}

/// Former trees that stay unless told otherwise: what a rollback goes back to.
pub(crate) const KEEP: u32 = 1;

impl Brief {
    /// That of a cluster, with the usual number of former trees.
    pub(crate) fn new(
        scene: &Arc<Scene>,
        images: Images,
        configs: Vec<ConfigEdit>,
        strict: bool,
    ) -> Self {
        Self {
            root: scene.paths.root(),
            images,
            configs,
            strict,
            keep: KEEP,
            stage: false,
            surroundings: Arc::<Scene>::clone(scene),
        }
    }
}

/// What one host gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wants {
    /// The tree of rootfs and patches.
    pub(crate) rootfs: bool,
    /// Names of the applications whose trees it gets.
    pub(crate) applications: Vec<String>,
    /// What lies under `registry/` of all images.
    pub(crate) registry: bool,
}

impl Wants {
    /// What `host` gets by its place in the cluster: all hosts rootfs and patches, the first
    /// control plane the applications, registry hosts the embedded images.
    ///
    /// An image of another tool may hold `registry/` in any layer, so registry hosts unpack such
    /// applications too.
    pub(crate) fn of(scene: &Scene, host: &Host) -> Self {
        let is_first = scene
            .first()
            .is_some_and(|first| first.address == host.address);
        let registry = scene
            .registry_hosts()
            .iter()
            .any(|other| other.address == host.address);
        let of_kind =
            |application| move |image: &&ClusterImage| is_application(image) == application;
        Self {
            rootfs: scene.images.iter().any(|image| !is_application(image)),
            applications: scene
                .images
                .iter()
                .filter(of_kind(true))
                .filter(|image| is_first || (registry && is_mixed(image)))
                .map(|image| image.name.clone())
                .collect(),
            registry,
        }
    }
}

pub(super) fn is_application(image: &ClusterImage) -> bool {
    image.kind == ImageKind::Application
}

/// Whether some layer may hold `registry/` beside other files.
pub(super) fn is_mixed(image: &ClusterImage) -> bool {
    image
        .layers
        .iter()
        .any(|layer| !layer.registry && layer.descriptor.layer_kind().is_none())
}
