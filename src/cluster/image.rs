//! What a cluster needs to know of an image: type, labels, environment, commands, layers.

use std::collections::BTreeMap;

use crate::image::{Descriptor, Digest};

/// What an image is for: label `sealos.io.type` or `apps.sealos.io/type` (sealos.md 2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageKind {
    Rootfs,
    Patch,
    Application,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ImageLayer {
    pub(crate) descriptor: Descriptor,
    pub(crate) diff_id: Digest,
    /// Holds `registry/` alone.
    pub(crate) registry: bool,
}

/// One image of one platform, as pipelines use it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClusterImage {
    /// As in `spec.image`.
    pub(crate) name: String,
    /// Names its directories: `<cluster>-<8 characters of the manifest's digest>`.
    pub(crate) mount_name: String,
    pub(crate) kind: ImageKind,
    /// The manifest's.
    pub(crate) digest: Digest,
    pub(crate) labels: BTreeMap<String, String>,
    /// Its `ENV`, without `PATH`.
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) entrypoint: Vec<String>,
    pub(crate) command: Vec<String>,
    pub(crate) layers: Vec<ImageLayer>,
}

impl ClusterImage {
    /// The first non-empty label of `names`.
    pub(crate) fn label(&self, names: &[&str]) -> Option<&str> {
        names
            .iter()
            .filter_map(|name| self.labels.get(*name))
            .map(String::as_str)
            .find(|value| !value.is_empty())
    }
}
