//! The data of an image's report. Sizes are in bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::comparison::Comparison;
use crate::model::{About, Finding};

/// An image: its layers, files, embedded images, packages and the documents about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ImageReport {
    pub about: About,
    pub image: Identity,
    pub totals: Totals,
    /// Lowest first.
    pub layers: Vec<Layer>,
    /// Files of all layers together, as a container sees them.
    pub files: FileTree,
    /// Container images in the embedded registry.
    pub embedded: Vec<EmbeddedImage>,
    pub packages: Packages,
    /// Variables that the image describes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<Setting>,
    /// Signatures, SBOMs, provenance and other documents that refer to the image.
    pub attachments: Vec<Attachment>,
    pub findings: Vec<Finding>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

/// A variable of the image's scripts and templates, as the image describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Setting {
    pub name: String,
    /// As in a JSON Schema; several joined with `|`.
    #[serde(rename = "type")]
    pub kind: String,
    pub description: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    pub required: bool,
    pub secret: bool,
}

/// Names and configuration of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Digest of the manifest.
    pub digest: String,
    /// As in `linux/amd64`.
    pub platform: String,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// `rootfs`, `patch` or `application`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_type: Option<String>,
    /// Name of the base image, as the manifest records it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    pub entrypoint: Vec<String>,
    pub command: Vec<String>,
    /// Long values are cut.
    pub labels: BTreeMap<String, String>,
}

/// Sums over an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Layers as stored and transferred.
    pub compressed: u64,
    /// Content of the files that are visible.
    pub content: u64,
    pub files: u64,
    pub directories: u64,
    /// Symbolic links, further names of hard-linked files, devices and pipes.
    pub other: u64,
    /// Content of lower layers that higher ones replace or delete.
    pub hidden: u64,
}

/// A layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Layer {
    pub digest: String,
    pub diff_id: String,
    /// `rootfs`, `registry` or `addons`; absent in images of other tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `zstd`, `gzip` or `none`.
    pub compression: String,
    /// As stored and transferred.
    pub size: u64,
    /// Content of the layer's files.
    pub content: u64,
    pub files: u64,
    /// Content that higher layers replace or delete.
    pub hidden: u64,
    /// The instruction that made it.
    pub instruction: String,
    /// Other images in the store that have it.
    pub shared_with: Vec<String>,
}

/// Files as a table of columns: entry N of each list describes file N. File 0 is the root, and a
/// directory precedes what it contains.
///
/// Of an image with very many files the deepest and smallest are left out; their sizes are added to the
/// directories that contain them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FileTree {
    /// Names without the path; long ones are cut.
    pub names: Vec<String>,
    /// Index of the directory; the root's is 0.
    pub parents: Vec<u32>,
    /// Content. For a directory, that of the files below it that are left out.
    pub sizes: Vec<u64>,
    /// Index of the layer; -1 for a directory that no layer lists.
    pub layers: Vec<i32>,
    /// One letter for each file: `f` file, `d` directory, `l` symbolic link, `h` further name of a
    /// hard-linked file, `x` device or pipe.
    pub types: String,
    /// Number of files that are left out.
    pub omitted: u64,
}

/// A container image in the embedded registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EmbeddedImage {
    /// Repository, with the tag if there is one.
    pub name: String,
    pub digest: String,
    pub platforms: Vec<String>,
    /// All its blobs; some may belong to several images.
    pub size: u64,
    /// Blobs that no other embedded image has.
    pub own_size: u64,
}

/// Installed packages of a distribution.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Packages {
    /// `ID` of os-release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution: Option<String>,
    pub list: Vec<Package>,
}

/// A package.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Package {
    /// `deb` or `apk`.
    #[serde(rename = "type")]
    pub kind: String,
    pub name: String,
    pub version: String,
    pub architecture: String,
}

/// A document that refers to an image. Its signature is not verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// `signature`, `sbom`, `provenance` or `other`.
    pub kind: String,
    pub artifact_type: String,
    pub digest: String,
    /// Digest of the manifest or index that it refers to.
    pub subject: String,
    pub size: u64,
    /// What the document says, as names and values.
    pub details: Vec<Detail>,
}

/// A name and a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Detail {
    pub name: String,
    pub value: String,
}
