//! The data of reports: what `--json` prints and what pages are made of.
//!
//! Names in JSON are in camel case. Within a version of a schema members are only added, and readers
//! ignore members that they do not know. Must not know how data are shown.

pub mod cluster;
pub mod comparison;
pub mod files;
pub mod image;
pub mod plan;
pub mod recorded;
pub mod run;
pub mod store;

use serde::{Deserialize, Serialize};

/// Version of the schemas. A change that removes or redefines a member increases it.
pub const SCHEMA_VERSION: u32 = 1;

/// What a report is about, and who made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct About {
    pub report: Kind,
    pub schema_version: u32,
    /// Program and version that collected the data.
    pub generator: String,
    /// When the data were collected: RFC 3339, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
}

impl About {
    /// Describes a report of this version that `generator` collected at `created`.
    pub fn new(report: Kind, generator: &str, created: Option<String>) -> Self {
        Self { report, schema_version: SCHEMA_VERSION, generator: generator.to_owned(), created }
    }
}

/// Kind of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    Image,
    Plan,
    Run,
    Cluster,
    /// The images of a store.
    Store,
    /// A folder or a file of an image.
    Files,
    /// The clusters, runs and plans that a controller has recorded.
    Controller,
    /// A cluster as its controller has recorded it.
    Recorded,
}

/// Something that a reader should know or act on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    pub severity: Severity,
    /// Name of the check.
    pub rule: String,
    pub message: String,
    /// File and line, host, or container that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    Error,
    Warning,
    Note,
}
