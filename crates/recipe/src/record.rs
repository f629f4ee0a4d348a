//! `imgctl-init.yml`: what a folder was written from, so that a part can be added later.

use std::collections::BTreeMap;

use imgctl_base::error::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::File;
use crate::choice::Part;
use crate::composition::{Composition, Forge};

/// Name of the file.
pub(crate) const FILE: &str = "imgctl-init.yml";
/// Longest file that is read, in bytes.
pub(crate) const LONGEST: u64 = 64 << 10;

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) architectures: Vec<String>,
    /// Versions by recipe.
    pub(crate) recipes: BTreeMap<String, String>,
    /// Files and folders of charts, below `charts/`.
    #[serde(default)]
    pub(crate) charts: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) forge: Option<Forge>,
}

impl Record {
    /// The record of a composition.
    pub(crate) fn of(composition: &Composition<'_>) -> Self {
        let version = |part: &Part<'_>| (part.name().to_owned(), part.release.version.clone());
        Self {
            name: composition.name.clone(),
            architectures: composition.architectures.clone(),
            recipes: composition.parts.iter().map(version).collect(),
            charts: composition.charts.iter().map(|chart| chart.place.clone()).collect(),
            forge: composition.forge,
        }
    }

    pub(crate) fn file(&self) -> Result<File> {
        let text = serde_saphyr::to_string(self)
            .map_err(|error| Error::failed(format!("cannot write {FILE}")).caused_by(error))?;
        let head =
            "# What `imgctl init` wrote this folder from; `imgctl init --add RECIPE` reads it.\n";
        Ok(File::text(FILE, format!("{head}{text}")))
    }

    /// Reads the file's text.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        serde_saphyr::from_str(text)
            .map_err(|error| Error::usage(format!("{FILE} cannot be read")).caused_by(error))
    }

    /// The recipes as a request names them.
    pub(crate) fn recipes(&self) -> Vec<String> {
        self.recipes.iter().map(|(name, version)| format!("{name}@{version}")).collect()
    }
}
