//! What a folder is made from: parts, charts, architectures. Data alone.

use serde::{Deserialize, Serialize};

use crate::chart::Chart;
use crate::choice::Part;
use crate::declaration::{Download, Kind};

/// Architectures that images are made for if nothing else is asked for.
pub const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];
/// A CI system whose file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Forge {
    Github,
    Gitlab,
}

/// What a folder is made from.
#[derive(Clone, Debug)]
pub struct Composition<'a> {
    /// Of the image, without a tag.
    pub name: String,
    pub parts: Vec<Part<'a>>,
    pub architectures: Vec<String>,
    pub charts: Vec<Chart>,
    pub forge: Option<Forge>,
}

impl Composition<'_> {
    /// Returns the cluster of the image, if it is one.
    pub fn cluster(&self) -> Option<&Part<'_>> {
        self.parts.iter().find(|part| part.recipe.declaration.kind == Kind::Rootfs)
    }

    /// Returns the files that no checksum of a recipe verifies.
    pub fn unpinned(&self) -> Vec<&Download> {
        let files = self.parts.iter().flat_map(|part| &part.release.files);
        files.filter(|file| file.sha256.is_empty()).collect()
    }
}
