//! The trees that images become on hosts of one architecture, and the digests that name them.
//! Must not know who has which blob.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::agent::protocol::{Checkout, CheckoutLayer, Facts};
use crate::cluster::host::Host;
use crate::cluster::image::ClusterImage;
use crate::cluster::paths::Paths;
use crate::error::{Error, Result};
use crate::image::Digest;
use crate::render::{ImageInputs, Inputs};
use crate::sync::brief::{Brief, Wants, is_application, is_mixed};

/// The tree of rootfs and patches.
pub(crate) const ROOTFS: &str = "rootfs";
/// Characters of a tree's id: 128 bits, so that paths stay readable.
const ID_LENGTH: usize = 32;
/// Goes into every id; a change of how trees are made makes all of them anew.
const FORMAT: u32 = 1;

/// One tree as it is for every host of an architecture that wants it.
#[derive(Debug)]
pub(crate) struct Tree {
    /// Below the cluster's root: `rootfs`, `applications/<mount name>/workdir`.
    pub(crate) name: String,
    pub(crate) images: Vec<ImageInputs>,
    /// What is flattened, lowest first.
    pub(crate) layers: Vec<CheckoutLayer>,
    /// What is applied to the registry of a registry host, once: layers that hold `registry/` alone.
    pub(crate) registry_layers: Vec<CheckoutLayer>,
    /// Some of `layers` may hold `registry/` too.
    pub(crate) mixed: bool,
}

/// The trees of a host with those wants; the first carries the registry layers of all images, of
/// all architectures: the embedded registry serves every host.
pub(crate) fn trees(brief: &Brief, architecture: &str, wants: &Wants) -> Result<Vec<Arc<Tree>>> {
    let images = brief
        .images
        .get(architecture)
        .ok_or_else(|| no_images(brief, architecture))?;
    let mut trees = Vec::new();
    if wants.rootfs {
        let members: Vec<&ClusterImage> = images
            .iter()
            .filter(|image| !is_application(image))
            .collect();
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
        "the host is linux/{architecture}, and the images are here for {} only",
        known.join(", ")
    ))
    .hint(format!(
        "pull or build them with `--platform linux/{architecture}`, or leave the host out"
    ))
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
    ImageInputs {
        name: image.name.clone(),
        environment: image.environment.clone(),
    }
}

/// Each layer only where it comes last: what it did further down it does again (a patch that was
/// made from the rootfs image has all its layers).
fn last_of_each(layers: Vec<CheckoutLayer>) -> Vec<CheckoutLayer> {
    let mut seen = BTreeSet::new();
    let mut kept: Vec<CheckoutLayer> = layers
        .into_iter()
        .rev()
        .filter(|layer| seen.insert(layer.diff_id.clone()))
        .collect();
    kept.reverse();
    kept
}

/// The host's own architecture comes last: where two embed the same tag, its image is meant.
fn registry_layers(brief: &Brief, architecture: &str) -> Vec<CheckoutLayer> {
    let others = brief
        .images
        .iter()
        .filter(|(other, _)| *other != architecture);
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
    /// What rendering it on `host` depends on.
    pub(crate) fn inputs(&self, brief: &Brief, host: &Host, facts: &Facts) -> Inputs {
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

    /// Names what the tree will be: the same layers and inputs give the same id. Registry layers
    /// are no part of the tree and so not of its id.
    pub(crate) fn id(&self, inputs: &Inputs, registry: bool) -> Result<String> {
        let layers: Vec<(&Digest, usize)> = self
            .layers
            .iter()
            .map(|layer| (&layer.diff_id, layer.image))
            .collect();
        // Whether `registry/` of its layers was left out cannot be seen in the tree afterwards.
        let applies = registry && self.mixed;
        let parts = (FORMAT, &self.name, layers, applies, inputs);
        let text = serde_json::to_vec(&parts)
            .map_err(|error| Error::failed("cannot name a tree").caused_by(error))?;
        Ok(Digest::of(&text).hex()[..ID_LENGTH].to_owned())
    }

    /// The request that makes it, and applies those registry layers that are in `apply`. It names
    /// all layers of the tree also where the tree is there and only `apply` is wanting: a host
    /// that has lost it then says so, and makes no empty one.
    pub(crate) fn request(
        &self,
        brief: &Brief,
        inputs: Inputs,
        id: &str,
        registry: bool,
        apply: &BTreeSet<Digest>,
    ) -> Checkout {
        let applied = self
            .registry_layers
            .iter()
            .filter(|layer| apply.contains(&layer.descriptor.digest));
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
