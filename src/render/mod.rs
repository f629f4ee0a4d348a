//! Makes an image's files into one host's files: Config documents, then templates.
//!
//! Works on a directory and plain values; must not know clusters, agents or the store.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// All that rendering depends on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Inputs {
    /// The images whose layers made the tree, in order.
    pub(crate) images: Vec<ImageInputs>,
    /// What beats every image's own variables (cluster, host, flags; already merged).
    pub(crate) environment: BTreeMap<String, String>,
    /// `.Host`, `.Cluster`, `.Registry`, `.Arch`: docs/cluster-image.md.
    pub(crate) facts: serde_json::Map<String, serde_json::Value>,
    /// In order; applied before templates.
    pub(crate) configs: Vec<ConfigEdit>,
    /// A missing key in a `.tmpl` is an error.
    pub(crate) strict: bool,
}

/// What one image brings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ImageInputs {
    /// As in the Clusterfile's `spec.image`.
    pub(crate) name: String,
    /// Its `ENV`, without `PATH`.
    pub(crate) environment: BTreeMap<String, String>,
}

/// One Config document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ConfigEdit {
    pub(crate) name: String,
    /// Relative to the image's root.
    pub(crate) path: String,
    /// Only for the image of this name.
    pub(crate) image: Option<String>,
    pub(crate) strategy: Strategy,
    pub(crate) data: String,
}

/// How a Config changes its file (sealos.md 4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Strategy {
    #[default]
    Override,
    /// Data before what is there.
    Insert,
    /// Data after what is there.
    Append,
    /// YAML merged into YAML; comments and order of keys stay.
    Merge,
}
