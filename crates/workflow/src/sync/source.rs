//! Where hosts get the layers that no other host has: from the controller, or from a registry. Must
//! not depend on plans or on agents.

use std::collections::BTreeMap;

use imgctl_base::image::Digest;
use imgctl_model::image::ClusterImage;
use imgctl_registry::client::access::Access;

/// A cluster's images by OCI architecture.
type ByArchitecture = BTreeMap<String, Vec<ClusterImage>>;

#[derive(Clone, Debug, Default)]
pub enum Source {
    #[default]
    Controller,
    Registry(RegistryLayers),
}

impl Source {
    /// Returns the repositories from which a layer comes, for people; none if the controller sends
    /// it.
    pub(super) fn names(&self, images: &ByArchitecture, blob: &Digest) -> Vec<String> {
        match self {
            Self::Controller => Vec::new(),
            Self::Registry(layers) => {
                layers.of(images, blob).iter().map(|access| access.name().to_owned()).collect()
            }
        }
    }
}

/// The repositories of a cluster's images.
#[derive(Clone, Debug, Default)]
pub struct RegistryLayers {
    /// By the image's name in `spec.image`, in the order in which they are asked.
    repositories: BTreeMap<String, Vec<Access>>,
}

impl RegistryLayers {
    pub fn new(repositories: BTreeMap<String, Vec<Access>>) -> Self {
        Self { repositories }
    }

    /// Returns the repositories that should have a layer: those of the images that contain it.
    pub(super) fn of(&self, images: &ByArchitecture, blob: &Digest) -> Vec<Access> {
        let mut found: Vec<Access> = Vec::new();
        for image in images.values().flatten() {
            if !image.layers.iter().any(|layer| layer.descriptor.digest == *blob) {
                continue;
            }
            for access in self.repositories.get(&image.name).into_iter().flatten() {
                if found.iter().all(|known| known.name() != access.name()) {
                    found.push(access.clone());
                }
            }
        }
        found
    }
}
