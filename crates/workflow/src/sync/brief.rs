//! Content that a cluster's hosts should have: images for each architecture, Config documents, and
//! rendering inputs. Must not depend on agents' responses or on which host has which blob.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Map, Value};

use crate::sync::recipe::Delta;
use crate::sync::source::Source;
use imgctl_host::{agent::protocol::Facts, render::ConfigEdit};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::image::{ClusterImage, ImageKind};

/// Template data of a host besides the variables of images.
pub trait Surroundings: Send + Sync {
    /// Returns the variables that override every image's own.
    fn environment(&self, host: &Host) -> BTreeMap<String, String>;

    /// Returns `.Host`, `.Cluster`, `.Registry`, `.Arch`.
    fn facts(&self, host: &Host, known: &Facts) -> Map<String, Value>;
}

impl Surroundings for ClusterContext {
    fn environment(&self, host: &Host) -> BTreeMap<String, String> {
        self.environment_on(host, None).to_map()
    }

    fn facts(&self, host: &Host, known: &Facts) -> Map<String, Value> {
        self.facts_on(host, known)
    }
}

/// The cluster's images in `spec.image` order, by OCI architecture.
pub(crate) type Images = BTreeMap<String, Vec<ClusterImage>>;

/// Everything about a cluster that syncing needs.
pub struct Brief {
    /// `<data>/<cluster>` on every host.
    pub root: String,
    pub images: Images,
    /// Config documents, in order.
    pub configs: Vec<ConfigEdit>,
    /// Whether a missing key in a `.tmpl` is an error.
    pub strict: bool,
    /// Number of previous trees that stay on the host.
    pub keep: u32,
    /// Whether to create trees beside the current ones, which stay in place until a later step
    /// switches.
    pub stage: bool,
    /// Whether hosts get changed layers as differences.
    pub delta: Delta,
    pub source: Source,
    pub surroundings: Arc<dyn Surroundings>,
}

/// Default number of previous trees to keep, for rollback.
pub(crate) const KEEP: u32 = 1;

impl Brief {
    /// Creates the brief of a cluster, with the default number of previous trees.
    pub fn new(
        context: &Arc<ClusterContext>,
        images: Images,
        configs: Vec<ConfigEdit>,
        strict: bool,
    ) -> Self {
        Self {
            root: context.paths.root(),
            images,
            configs,
            strict,
            keep: KEEP,
            stage: false,
            delta: Delta::default(),
            source: Source::default(),
            surroundings: Arc::<ClusterContext>::clone(context),
        }
    }
}

/// Content for one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Whether the host gets the tree of rootfs and patches.
    pub rootfs: bool,
    /// Names of the applications whose trees the host gets.
    pub applications: Vec<String>,
    /// Whether the host gets the `registry/` content of all images.
    pub registry: bool,
}

impl Wants {
    /// Returns the content for `host` by its role in the cluster: rootfs and patches for all hosts,
    /// applications for the first control plane, embedded images for registry hosts.
    ///
    /// An image of another tool can contain `registry/` in any layer, so registry hosts also unpack
    /// such applications.
    pub fn of(context: &ClusterContext, host: &Host) -> Self {
        let is_first = context.first().is_some_and(|first| first.address == host.address);
        let registry = context.serves_registry(host);
        let of_kind =
            |application| move |image: &&ClusterImage| is_application(image) == application;
        Self {
            rootfs: context.images.iter().any(|image| !is_application(image)),
            applications: context
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

/// Reports whether a layer can contain `registry/` beside other files.
pub(super) fn is_mixed(image: &ClusterImage) -> bool {
    image.layers.iter().any(|layer| !layer.registry && layer.descriptor.layer_kind().is_none())
}
