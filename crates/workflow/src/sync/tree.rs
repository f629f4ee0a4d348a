//! The trees that images become on hosts of one architecture, and the digests that identify them.
//! Must not know who has which blob.

use std::{collections::BTreeSet, sync::Arc};

use crate::sync::brief::{Brief, Wants, is_application, is_mixed};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::Digest;
use imgctl_host::agent::protocol::{Checkout, CheckoutLayer, Facts};
use imgctl_host::render::{ImageInputs, Inputs};
use imgctl_model::context::{Host, Paths};
use imgctl_model::image::ClusterImage;

/// Name of the tree of rootfs and patches.
pub const ROOTFS: &str = "rootfs";
/// Length of a tree's ID in characters: 128 bits, short enough for readable paths.
const ID_LENGTH: usize = 32;
/// Part of every ID: a new format recreates all trees.
const FORMAT: u32 = 1;

/// A tree, identical for every host of an architecture that needs it.
#[derive(Debug)]
pub struct Tree {
    /// Path below the cluster's root: `rootfs`, `applications/<mount name>/workdir`.
    pub name: String,
    pub images: Vec<ImageInputs>,
    /// Layers to flatten, lowest first.
    pub layers: Vec<CheckoutLayer>,
    /// Layers that contain only `registry/`, applied once to the registry of a registry host.
    pub(crate) registry_layers: Vec<CheckoutLayer>,
    /// Whether some of `layers` can also contain `registry/`.
    pub mixed: bool,
}

/// Returns the trees of a host with this content. The first tree has the registry layers of all
/// images and all architectures, because the embedded registry serves every host.
pub fn trees(brief: &Brief, architecture: &str, wants: &Wants) -> Result<Vec<Arc<Tree>>> {
    let images = brief.images.get(architecture).ok_or_else(|| no_images(brief, architecture))?;
    let mut trees = Vec::new();
    if wants.rootfs {
        let members: Vec<&ClusterImage> =
            images.iter().filter(|image| !is_application(image)).collect();
        trees.push(tree(ROOTFS.to_owned(), &members));
    }
    for image in images.iter().filter(|image| is_application(image)) {
        if wants.applications.contains(&image.name) {
            let name = Paths::application_tree(&image.mount_name);
            trees.push(tree(name, &[image]));
        }
    }
    if wants.registry
        && let Some(first) = trees.first_mut()
    {
        first.registry_layers = registry_layers(brief, architecture);
    }
    Ok(trees.into_iter().map(Arc::new).collect())
}

fn no_images(brief: &Brief, architecture: &str) -> Error {
    let known: Vec<&str> = brief.images.keys().map(String::as_str).collect();
    Error::not_found(format!(
        "the host is linux/{architecture}, but the images are available for {} only",
        known.join(", ")
    ))
    .hint(format!("pull or build them with `--platform linux/{architecture}`, or omit the host"))
}

fn tree(name: String, images: &[&ClusterImage]) -> Tree {
    let mut layers = Vec::new();
    for (index, image) in images.iter().enumerate() {
        for layer in image.layers.iter().filter(|layer| !layer.registry) {
            layers.push(CheckoutLayer {
                descriptor: layer.descriptor.clone(),
                diff_id: layer.diff_id.clone(),
                registry: false,
                image: index,
            });
        }
    }
    Tree {
        name,
        images: images.iter().map(|image| inputs(image)).collect(),
        layers: last_of_each(layers),
        registry_layers: Vec::new(),
        mixed: images.iter().any(|image| is_mixed(image)),
    }
}

fn inputs(image: &ClusterImage) -> ImageInputs {
    ImageInputs { name: image.name.clone(), environment: image.environment.clone() }
}

/// Keeps only the last occurrence of each layer, which repeats the effect of earlier ones (a patch
/// built from the rootfs image has all its layers).
fn last_of_each(layers: Vec<CheckoutLayer>) -> Vec<CheckoutLayer> {
    let mut seen = BTreeSet::new();
    let mut kept: Vec<CheckoutLayer> =
        layers.into_iter().rev().filter(|layer| seen.insert(layer.diff_id.clone())).collect();
    kept.reverse();
    kept
}

/// Returns the registry layers. The host's own architecture comes last: if two architectures embed
/// the same tag, its image wins.
fn registry_layers(brief: &Brief, architecture: &str) -> Vec<CheckoutLayer> {
    let others = brief.images.iter().filter(|(other, _)| *other != architecture);
    let own = brief.images.get_key_value(architecture);
    let layers = others
        .chain(own)
        .flat_map(|(_, images)| images)
        .flat_map(|image| image.layers.iter().filter(|layer| layer.registry))
        .map(|layer| CheckoutLayer {
            descriptor: layer.descriptor.clone(),
            diff_id: layer.diff_id.clone(),
            registry: true,
            image: 0,
        });
    last_of_each(layers.collect())
}

impl Tree {
    /// Returns the tree's own layers that may also contain `registry/`.
    pub(crate) fn mixed_layers(&self) -> impl Iterator<Item = &CheckoutLayer> {
        self.layers.iter().filter(|layer| layer.descriptor.layer_kind().is_none())
    }

    /// Returns the inputs that rendering the tree on `host` depends on.
    pub fn inputs(&self, brief: &Brief, host: &Host, facts: &Facts) -> Inputs {
        let is_ours = |name: &str| self.images.iter().any(|image| image.name == name);
        Inputs {
            images: self.images.clone(),
            environment: brief.surroundings.environment(host),
            facts: brief.surroundings.facts(host, facts),
            configs: brief
                .configs
                .iter()
                .filter(|config| config.image.as_deref().is_none_or(is_ours))
                .cloned()
                .collect(),
            strict: brief.strict,
        }
    }

    /// Returns the ID of the tree: the same layers and inputs give the same ID. Registry layers are
    /// not part of the tree, so they are not part of its ID.
    pub fn id(&self, inputs: &Inputs, registry: bool) -> Result<String> {
        let layers: Vec<(&Digest, usize)> =
            self.layers.iter().map(|layer| (&layer.diff_id, layer.image)).collect();
        // The finished tree does not show whether its layers' `registry/` was left out.
        let applies = registry && self.mixed;
        let parts = (FORMAT, &self.name, layers, applies, inputs);
        let text = serde_json::to_vec(&parts).doing(|| "cannot name a tree".to_owned())?;
        Ok(Digest::of(&text).hex()[..ID_LENGTH].to_owned())
    }

    /// Returns the request that creates the tree and applies the registry layers in `apply`. It
    /// lists all layers of the tree even if the tree exists and only `apply` is pending: a host
    /// that has lost the tree then reports that instead of creating an empty one.
    pub fn request(
        &self,
        brief: &Brief,
        inputs: Inputs,
        id: &str,
        registry: bool,
        apply: &BTreeSet<Digest>,
    ) -> Checkout {
        let applied =
            self.registry_layers.iter().filter(|layer| apply.contains(&layer.descriptor.digest));
        Checkout {
            root: brief.root.clone(),
            tree: self.name.clone(),
            id: id.to_owned(),
            layers: self.layers.iter().chain(applied).cloned().collect(),
            registry,
            inputs,
            keep: brief.keep,
            stage: brief.stage,
        }
    }
}
