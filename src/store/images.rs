//! Names: the store's `index.json`, from full references to descriptors, and images read by name.

use crate::error::Result;
use crate::image::{Descriptor, Digest, ImageConfig, Manifest, Platform, Reference};
use crate::store::Store;

/// One name of the store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Named {
    /// The full name; `None` for an image that has lost its name (`<none>`).
    pub(crate) reference: Option<Reference>,
    /// A manifest or an index.
    pub(crate) descriptor: Descriptor,
}

/// One image of one platform, read from the store.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// The name by which it was found, if by name.
    pub(crate) reference: Option<Reference>,
    /// The manifest's descriptor.
    pub(crate) descriptor: Descriptor,
    pub(crate) manifest: Manifest,
    pub(crate) config: ImageConfig,
}

impl Image {
    /// Docker's image ID: the config's digest.
    pub(crate) fn id(&self) -> &Digest {
        &self.manifest.config.digest
    }
}

impl Store {
    /// All names, sorted.
    pub(crate) fn names(&self) -> Result<Vec<Named>> {
        todo!()
    }

    /// What `name` means here: a full or short name, a digest, or an image ID prefix (at least
    /// four hex digits, unambiguous).
    pub(crate) fn resolve(&self, _name: &str) -> Result<Named> {
        todo!()
    }

    /// Reads the image called `name` for `platform` (an index is resolved; a single manifest of
    /// another platform is an error unless `platform` is `None`). Checks media types, digests and
    /// that layers and diff-ids agree in number.
    pub(crate) fn image(&self, _name: &str, _platform: Option<&Platform>) -> Result<Image> {
        todo!()
    }

    /// Reads the image behind a manifest or index descriptor.
    pub(crate) fn image_at(
        &self,
        _descriptor: &Descriptor,
        _platform: Option<&Platform>,
    ) -> Result<Image> {
        todo!()
    }

    /// Points `references` (or, if empty, an unnamed entry) at `descriptor`, after making durable
    /// everything written so far. An image that loses its last name stays as `<none>`.
    pub(crate) fn tag(&self, _references: &[Reference], _descriptor: &Descriptor) -> Result<()> {
        todo!()
    }

    /// Removes names; returns the descriptors that no name points at any more.
    pub(crate) fn untag(&self, _names: &[Named]) -> Result<Vec<Descriptor>> {
        todo!()
    }
}
