//! A cluster that is reached through a kubeconfig, as its applications see it: paths on this machine,
//! variables, the registry that its Nodes pull from.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, json};

use crate::apps::objects::ObjectAccess;
use crate::apps::wrapper;
use imgctl_base::error::{IoContext, Result};
use imgctl_base::image::{Digest, LayerKind};
use imgctl_host::agent::protocol::{Checkout, CheckoutLayer};
use imgctl_host::render::{ConfigEdit, ImageInputs, Inputs};
use imgctl_model::context::{ClusterContext, Paths};
use imgctl_model::environment::SEALOS_VERSION;
use imgctl_model::image::ClusterImage;
use imgctl_model::state_files::StateFiles;
use imgctl_transfer::transfer::mirror_place::Place;

/// Length of a tree's ID in characters.
const ID_LENGTH: usize = 32;
/// Part of every ID: a new format recreates all trees.
const FORMAT: &str = "application 1";
/// Name of an application's tree below its directory.
const TREE: &str = "workdir";

/// A registry that embedded images are pushed to.
pub struct Registry {
    pub place: Place,
    pub host: String,
    /// All repositories are below it.
    pub prefix: Option<String>,
}

impl Registry {
    /// Returns `HOST[:PORT][/PREFIX]`.
    pub fn name(&self) -> String {
        match &self.prefix {
            Some(prefix) => format!("{}/{prefix}", self.host),
            None => self.host.clone(),
        }
    }

    /// Returns the host's name and port.
    fn parts(&self) -> (&str, &str) {
        match self.host.rsplit_once(':') {
            Some((name, port)) if port.chars().all(|c| c.is_ascii_digit()) => (name, port),
            _ => (&self.host, "443"),
        }
    }
}

/// The cluster.
pub struct Target {
    /// Has no hosts.
    pub context: Arc<ClusterContext>,
    pub access: ObjectAccess,
    /// `v1.34.0`.
    pub version: String,
    /// Namespace of objects that name none.
    pub namespace: String,
    /// A kubeconfig that has this cluster alone.
    pub kubeconfig: PathBuf,
    /// imgctl itself.
    pub program: PathBuf,
    /// This machine's architecture.
    pub architecture: String,
    pub registry: Option<Registry>,
    /// Whether references to pushed images get their new names.
    pub rewrite: bool,
    pub configs: Vec<ConfigEdit>,
    /// Whether a missing key in a `.tmpl` is an error.
    pub strict: bool,
}

impl Target {
    /// Returns the context of a cluster without hosts, whose files are below its directory on this
    /// machine.
    pub fn context(
        name: &str,
        images: Vec<ClusterImage>,
        directory: PathBuf,
        flags: BTreeMap<String, String>,
    ) -> ClusterContext {
        ClusterContext {
            name: name.to_owned(),
            hosts: Vec::new(),
            leaving: Vec::new(),
            images,
            adopted: None,
            unfinished: None,
            in_process: false,
            uid: None,
            renew_certificates: None,
            share_images: None,
            shared: imgctl_model::variables::SharedCache::default(),
            paths: Paths::new(&directory.to_string_lossy(), name),
            state: StateFiles::plain(directory),
            environment: BTreeMap::new(),
            flag_environment: flags,
            registry: None,
            vip: None,
            documents: Vec::new(),
        }
    }

    fn below(&self, name: &str) -> String {
        format!("{}/{name}", self.context.paths.root())
    }

    /// Returns the directory of an application's files.
    pub(super) fn directory(&self, image: &ClusterImage) -> String {
        self.below(&format!("images/{}", image.mount_name))
    }

    /// Returns the same for an image that is not at hand.
    pub(super) fn directory_of(&self, digest: &Digest) -> String {
        self.below(&format!("images/{}-{}", self.context.name, &digest.hex()[..8]))
    }

    /// Returns the directory in which the commands of an application run.
    pub(super) fn workdir(&self, image: &ClusterImage) -> String {
        format!("{}/{TREE}", self.directory(image))
    }

    /// Returns the directory of the wrappers of kubectl and helm.
    pub(super) fn wrappers(&self) -> String {
        self.below("wrappers")
    }

    /// Returns the file with the wrappers' settings.
    pub(super) fn settings(&self, image: &ClusterImage) -> String {
        self.below(&format!("settings/{}.json", image.mount_name))
    }

    /// Returns the directory of the objects that commands have sent.
    pub(super) fn objects(&self) -> String {
        self.below("objects")
    }

    /// Returns the variables of an application's commands. `PATH` is the part before the user's own.
    pub(super) fn environment(&self, image: &ClusterImage) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::from([
            ("CLUSTER_NAME".to_owned(), self.context.name.clone()),
            ("ARCH".to_owned(), self.architecture.clone()),
        ]);
        if let Some(registry) = &self.registry {
            let (name, port) = registry.parts();
            variables.insert("REGISTRY_DOMAIN".to_owned(), name.to_owned());
            variables.insert("REGISTRY_PORT".to_owned(), port.to_owned());
        }
        variables.extend(image.environment.clone());
        variables.extend(self.facts());
        variables.insert("IMGCTL_IMAGE".to_owned(), image.name.clone());
        variables.insert("IMGCTL_IMAGE_DIGEST".to_owned(), image.digest.to_string());
        variables.extend(self.context.flag_environment.clone());
        let workdir = self.workdir(image);
        let path = format!("{}:{workdir}/opt:{workdir}/bin:{workdir}", self.wrappers());
        variables.insert("PATH".to_owned(), path);
        variables.insert("KUBECONFIG".to_owned(), self.kubeconfig.display().to_string());
        variables.insert(wrapper::SETTINGS.to_owned(), self.settings(image));
        variables
    }

    /// Returns the variables that images cannot override.
    fn facts(&self) -> BTreeMap<String, String> {
        let mut facts = vec![
            ("IMGCTL_VERSION", env!("CARGO_PKG_VERSION").to_owned()),
            ("SEALOS_SYS_SEALOS_VERSION", SEALOS_VERSION.to_owned()),
            ("SEALOS_SYS_KUBE_VERSION", self.version.clone()),
        ];
        if let Some(registry) = &self.registry {
            let (name, port) = registry.parts();
            facts.extend([
                ("registryDomain", name.to_owned()),
                ("registryPort", port.to_owned()),
                ("IMGCTL_REGISTRY", registry.name()),
            ]);
        }
        facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Returns what templates of an application see.
    fn inputs(&self, image: &ClusterImage) -> Inputs {
        let mut environment = self.facts();
        environment.extend(self.context.flag_environment.clone());
        let registry = match &self.registry {
            Some(registry) => {
                let (name, port) = registry.parts();
                json!({"Domain": name, "Port": port.parse::<u16>().unwrap_or(443)})
            }
            None => json!({"Domain": "", "Port": 0}),
        };
        let facts = Map::from_iter([
            ("Cluster".to_owned(), json!({"Name": self.context.name})),
            ("Registry".to_owned(), registry),
            ("Arch".to_owned(), json!(self.architecture)),
        ]);
        let is_for =
            |config: &&ConfigEdit| config.image.as_deref().is_none_or(|name| name == image.name);
        Inputs {
            images: vec![ImageInputs {
                name: image.name.clone(),
                environment: image.environment.clone(),
            }],
            environment,
            facts,
            configs: self.configs.iter().filter(is_for).cloned().collect(),
            strict: self.strict,
        }
    }

    /// Returns the request for an application's files.
    pub(super) fn checkout(&self, image: &ClusterImage) -> Result<Checkout> {
        let inputs = self.inputs(image);
        let registry = self.registry.is_some();
        let layers: Vec<CheckoutLayer> = image
            .layers
            .iter()
            .filter(|layer| registry || !layer.registry)
            .map(|layer| CheckoutLayer {
                descriptor: layer.descriptor.clone(),
                diff_id: layer.diff_id.clone(),
                registry: layer.registry,
                image: 0,
            })
            .collect();
        let tree = image.layers.iter().filter(|layer| !layer.registry);
        let tree: Vec<&Digest> = tree.map(|layer| &layer.diff_id).collect();
        let text = serde_json::to_vec(&(FORMAT, tree, &inputs))
            .doing(|| "cannot name a tree".to_owned())?;
        Ok(Checkout {
            root: self.directory(image),
            tree: TREE.to_owned(),
            id: Digest::of(&text).hex()[..ID_LENGTH].to_owned(),
            layers,
            registry,
            inputs,
            keep: 0,
            stage: false,
        })
    }
}

/// Returns the size of an image's embedded images, as far as its layers say that they hold them.
pub fn embedded_bytes(image: &ClusterImage) -> u64 {
    let layers = image.layers.iter();
    layers.filter(|layer| layer.registry).map(|layer| layer.descriptor.size).sum()
}

/// Reports whether an image can have embedded images. Layers of other tools do not say.
pub fn may_embed(image: &ClusterImage) -> bool {
    image.layers.iter().any(|layer| {
        layer.registry
            || layer.descriptor.layer_kind().is_none_or(|kind| kind == LayerKind::Registry)
    })
}
