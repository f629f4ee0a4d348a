//! What `imgctl images` shows: one summary per name.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::image::{Descriptor, Digest, Document, Platform, Reference};
use crate::store::images::is_platform;
use crate::store::{Image, Named, Store};

/// One name and the image behind it.
#[derive(Clone, Debug)]
pub(crate) struct ImageSummary {
    /// `None` for an image without a name, and for names of other tools that are none of ours.
    pub(crate) reference: Option<Reference>,
    /// The name as it stands in the table.
    pub(crate) name: Option<String>,
    /// Of the manifest or index.
    pub(crate) digest: Digest,
    /// Docker's image ID; of an index, that of the host's platform (else of the first).
    pub(crate) id: Option<Digest>,
    /// RFC 3339, as the config says.
    pub(crate) created: Option<String>,
    /// All blobs, in bytes.
    pub(crate) size: u64,
    pub(crate) platforms: Vec<Platform>,
    pub(crate) labels: BTreeMap<String, String>,
    /// Number of layers.
    pub(crate) layers: usize,
    /// Why the image cannot be used, if it cannot.
    pub(crate) problem: Option<String>,
}

impl Store {
    /// Summaries of all names, sorted as [`Store::names`] are. An image that is damaged is listed
    /// with its problem.
    pub(crate) fn list(&self) -> Result<Vec<ImageSummary>> {
        self.names()?
            .iter()
            .map(|named| self.summary(named))
            .collect()
    }

    /// The summary of one name.
    pub(crate) fn summary(&self, named: &Named) -> Result<ImageSummary> {
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

    /// The images of all platforms behind a descriptor that are here; artifacts inside an index
    /// (attestations) are passed over.
    pub(crate) fn platform_images(&self, descriptor: &Descriptor) -> Result<Vec<Image>> {
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
