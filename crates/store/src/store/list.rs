//! Output of `imgctl images`: one summary per name.

use std::collections::BTreeMap;

use crate::store::images::is_platform;
use crate::store::{Image, Named, Store};
use imgctl_base::error::Result;
use imgctl_base::image::{Descriptor, Digest, Document, Platform, Reference};

/// A name and its image.
#[derive(Clone, Debug)]
pub struct ImageSummary {
    /// `None` for an image without a name, and for names of other tools that imgctl does not
    /// accept.
    pub reference: Option<Reference>,
    /// Name as written in the table.
    pub name: Option<String>,
    /// Digest of the manifest or index.
    pub digest: Digest,
    /// Docker's image ID; for an index, the ID for the host's platform (or otherwise the first).
    pub id: Option<Digest>,
    /// RFC 3339, from the config.
    pub created: Option<String>,
    /// Size of all blobs, in bytes.
    pub size: u64,
    pub platforms: Vec<Platform>,
    pub labels: BTreeMap<String, String>,
    /// Number of layers.
    pub layers: usize,
    /// Why the image cannot be used, if applicable.
    pub problem: Option<String>,
}

impl Store {
    /// Returns summaries of all names, sorted like [`Store::names`]. Lists damaged images with
    /// their problem.
    pub fn list(&self) -> Result<Vec<ImageSummary>> {
        self.names()?.iter().map(|named| self.summary(named)).collect()
    }

    /// Returns the summary of one name.
    pub fn summary(&self, named: &Named) -> Result<ImageSummary> {
        let descriptor = &named.descriptor;
        let mut summary = ImageSummary {
            reference: named.reference.clone(),
            name: descriptor.ref_name().map(str::to_owned),
            digest: descriptor.digest.clone(),
            id: None,
            created: None,
            size: self.parts(descriptor)?.values().sum(),
            platforms: Vec::new(),
            labels: BTreeMap::new(),
            layers: 0,
            problem: None,
        };
        match self.platform_images(descriptor) {
            Ok(images) => {
                summary.platforms = images.iter().map(|image| image.config.platform()).collect();
                let host = Platform::host();
                let nearest = images.iter().min_by_key(|image| {
                    let distance = image.config.platform().distance_to(&host);
                    distance.unwrap_or(u32::MAX)
                });
                if let Some(image) = nearest {
                    summary.id = Some(image.id().clone());
                    summary.created.clone_from(&image.config.created);
                    summary.labels.clone_from(&image.config.config.labels);
                    summary.layers = image.manifest.layers.len();
                }
            }
            Err(error) => summary.problem = Some(error.to_string()),
        }
        Ok(summary)
    }

    /// Returns the images of all existing platforms of a descriptor. Skips artifacts inside an
    /// index (attestations).
    pub fn platform_images(&self, descriptor: &Descriptor) -> Result<Vec<Image>> {
        let index = match self.document(descriptor)? {
            Document::Manifest(manifest) => {
                return Ok(vec![self.image_of(descriptor.clone(), manifest)?]);
            }
            Document::Index(index) => index,
        };
        let mut images = Vec::new();
        for child in index.manifests {
            if !is_platform(&child) || self.blob_size(&child.digest)?.is_none() {
                continue;
            }
            if let Document::Manifest(manifest) = self.document(&child)? {
                images.push(self.image_of(child, manifest)?);
            }
        }
        Ok(images)
    }
}
