//! The data of a comparison of two images. Sizes are in bytes.

use serde::{Deserialize, Serialize};

/// What an image changes compared with an older one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub digest: String,
    /// Layers of the older image as stored.
    pub compressed: u64,
    /// From the older image to this one.
    pub forward: Transfer,
    /// From this image to the older one.
    pub back: Transfer,
    /// Layers that both have.
    pub layers_kept: u64,
    pub layers: Vec<LayerChange>,
    /// Labels, variables, commands and the other settings of a container.
    #[serde(default)]
    pub configuration: Vec<NamedChange>,
    /// Container images of the embedded registry, paired by repository.
    pub embedded: Vec<ImageChange>,
    /// Helm charts in directories.
    #[serde(default)]
    pub charts: Vec<ChartChange>,
    /// Kubernetes objects in the manifests that differ.
    #[serde(default)]
    pub objects: Vec<ObjectChange>,
    /// Without those of the embedded registry.
    pub files: FileChanges,
    /// Packages of the image's own files.
    pub packages: Vec<NamedChange>,
}

/// A container image of the embedded registry that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ImageChange {
    pub change: Change,
    /// Without a registry and a tag.
    pub repository: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<ImageVersion>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<ImageVersion>,
    /// Packages of distributions and modules of Go programs inside that differ; empty for an image that was added or removed.
    pub packages: Vec<NamedChange>,
    /// Why the packages are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<String>,
}

/// A version of a container image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ImageVersion {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Digest of the manifest or index.
    pub digest: String,
}

/// A Helm chart that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ChartChange {
    pub change: Change,
    pub name: String,
    /// Its directory.
    pub path: String,
    /// `version` of Chart.yaml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Values of values.yaml that differ, by their path; long texts are cut.
    pub values: Vec<NamedChange>,
}

/// A Kubernetes object that differs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ObjectChange {
    pub change: Change,
    pub kind: String,
    pub api_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    /// The file that has it now, or had it.
    pub file: String,
    /// Paths of the members that differ, as in `spec.replicas`.
    pub members: Vec<String>,
}

/// What a machine that has one image fetches for the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Transfer {
    pub layers: u64,
    /// All bytes of those layers.
    pub whole: u64,
    /// Bytes without the parts that layers of the image it has contain.
    pub missing: u64,
}

/// A layer that only one of two images has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LayerChange {
    pub change: Change,
    pub digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub size: u64,
    /// Bytes of an added layer to transfer, without the parts that layers of the older image contain.
    pub missing: u64,
    pub instruction: String,
}

/// Direction of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Change {
    Added,
    Changed,
    Removed,
}

/// Files that differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FileChanges {
    pub added: Amount,
    pub changed: Amount,
    pub removed: Amount,
    /// The largest, by their larger size.
    pub list: Vec<FileChange>,
    /// Number of changes that are not in the list.
    pub omitted: u64,
}

/// A number of files and their content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Amount {
    pub count: u64,
    pub bytes: u64,
}

/// One file that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FileChange {
    pub change: Change,
    pub path: String,
    pub before: u64,
    pub after: u64,
}

/// A setting, a value or a package that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NamedChange {
    pub change: Change,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}
