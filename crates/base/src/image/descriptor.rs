//! Content descriptors (image-spec, descriptor.md) and the kind of a cluster image's layer.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::image::null::{or_default, or_defaults};
use crate::image::{Digest, Platform};

/// Annotation on a layer descriptor that carries its [`LayerKind`].
pub const LAYER_KIND: &str = "io.imgctl.layer.kind";
/// Label that lists the embedded images of an image: a JSON object from reference to digest.
pub const EMBEDDED_IMAGES: &str = "io.imgctl.images";
/// Annotation on an index entry that contains the image name (image-spec, annotations.md).
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// Annotation that marks an index entry as an attestation for another entry (`BuildKit`).
pub const ATTESTED_IMAGE: &str = "vnd.docker.reference.digest";

/// Media type, size and digest of a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub urls: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_defaults")]
    pub annotations: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
}

impl Descriptor {
    /// Returns a descriptor with only the three required members.
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest,
            size,
            urls: Vec::new(),
            annotations: BTreeMap::new(),
            data: None,
            platform: None,
            artifact_type: None,
        }
    }

    /// Returns the kind annotated on a layer; an image built by another tool has none.
    pub fn layer_kind(&self) -> Option<LayerKind> {
        LayerKind::parse(self.annotations.get(LAYER_KIND)?)
    }

    /// Returns the image name annotated on an index entry.
    pub fn ref_name(&self) -> Option<&str> {
        self.annotations.get(REF_NAME).map(String::as_str)
    }
}

/// Content type of a cluster image's layer (design: typed layers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LayerKind {
    /// Binaries, scripts, units, templates: rendered on every host.
    Rootfs,
    /// The embedded registry's tree, for registry hosts.
    Registry,
    /// Charts, manifests, applications.
    Addons,
}

impl LayerKind {
    /// Returns the value of the annotation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rootfs => "rootfs",
            Self::Registry => "registry",
            Self::Addons => "addons",
        }
    }

    /// Returns the kind with the given name.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Rootfs, Self::Registry, Self::Addons].into_iter().find(|kind| kind.as_str() == text)
    }
}

impl fmt::Display for LayerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
