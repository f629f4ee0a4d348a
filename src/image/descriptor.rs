//! Content descriptors (image-spec, descriptor.md) and the kind of a cluster image's layer.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::image::{Digest, Platform};

/// Annotation on a layer descriptor that carries its [`LayerKind`].
pub(crate) const LAYER_KIND: &str = "io.imgctl.layer.kind";
/// Label of an image that lists its embedded images: a JSON object from reference to digest.
pub(crate) const EMBEDDED_IMAGES: &str = "io.imgctl.images";
/// Annotation on an index entry that carries the image's name (image-spec, annotations.md).
pub(crate) const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// Annotation by which an index entry says that it attests something of another (`BuildKit`).
pub(crate) const ATTESTED_IMAGE: &str = "vnd.docker.reference.digest";

/// What a blob is, how long, and its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) urls: Vec<String>,
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "null_as_default"
    )]
    pub(crate) annotations: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) artifact_type: Option<String>,
}

impl Descriptor {
    /// A descriptor with nothing but the three required members.
    pub(crate) fn new(media_type: &str, digest: Digest, size: u64) -> Self {
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

    /// The kind annotated on a layer; an image made by another tool has none.
    pub(crate) fn layer_kind(&self) -> Option<LayerKind> {
        LayerKind::parse(self.annotations.get(LAYER_KIND)?)
    }

    /// The image name annotated on an index entry.
    pub(crate) fn ref_name(&self) -> Option<&str> {
        self.annotations.get(REF_NAME).map(String::as_str)
    }
}

/// Go writes empty maps as `null`.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// What a layer of a cluster image holds (design: typed layers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum LayerKind {
    /// Binaries, scripts, units, templates: what every host gets.
    Rootfs,
    /// The embedded registry's tree: what registry hosts get.
    Registry,
    /// Charts, manifests, applications.
    Addons,
}

impl LayerKind {
    /// The annotation's value.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Rootfs => "rootfs",
            Self::Registry => "registry",
            Self::Addons => "addons",
        }
    }

    /// The kind with that name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Rootfs, Self::Registry, Self::Addons]
            .into_iter()
            .find(|kind| kind.as_str() == text)
    }
}

impl fmt::Display for LayerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
