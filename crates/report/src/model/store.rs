//! The data of the console's view of a store: its images. Sizes are in bytes.

use serde::{Deserialize, Serialize};

use crate::model::About;

/// The images of a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StoreReport {
    pub about: About,
    /// In the order of their names.
    pub images: Vec<StoredImage>,
}

/// An image of a store, under one of its names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StoredImage {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Digest of the manifest or index.
    pub digest: String,
    /// `rootfs`, `patch` or `application`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_type: Option<String>,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// All blobs together.
    pub size: u64,
    /// As in `linux/amd64`.
    pub platforms: Vec<String>,
    pub layers: u64,
    /// Why it cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
