//! Reports read back from their JSON.

use serde::{Deserialize, Serialize};

use crate::model::cluster::ClusterReport;
use crate::model::image::ImageReport;
use crate::model::plan::PlanReport;
use crate::model::run::RunReport;
use crate::model::{About, Kind, SCHEMA_VERSION};
use crate::report::Report;
use imgctl_base::error::{Error, Result};

/// A report of any kind, as data.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Loaded {
    Image(Box<ImageReport>),
    Plan(Box<PlanReport>),
    Run(Box<RunReport>),
    Cluster(Box<ClusterReport>),
}

/// What every report has.
#[derive(Deserialize)]
struct Head {
    about: About,
}

impl Loaded {
    /// Reads the JSON of a report.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let malformed = |error: serde_json::Error| {
            Error::bad_content("the file does not have the form of a report")
                .caused_by(error)
                .hint("docs/schemas describes it; `imgctl report … --json` writes it")
        };
        let head: Head = serde_json::from_slice(bytes).map_err(malformed)?;
        let version = head.about.schema_version;
        if version != SCHEMA_VERSION {
            return Err(Error::bad_content(format!(
                "the report has version {version} of its schema; this imgctl reads {SCHEMA_VERSION}"
            ))
            .hint("use the imgctl that wrote it"));
        }
        match head.about.report {
            Kind::Image => serde_json::from_slice(bytes).map(|it| Self::Image(Box::new(it))),
            Kind::Plan => serde_json::from_slice(bytes).map(|it| Self::Plan(Box::new(it))),
            Kind::Run => serde_json::from_slice(bytes).map(|it| Self::Run(Box::new(it))),
            Kind::Cluster => serde_json::from_slice(bytes).map(|it| Self::Cluster(Box::new(it))),
            Kind::Store | Kind::Files | Kind::Controller | Kind::Recorded => {
                return Err(Error::bad_content(
                    "these data are of the console, which has no reports",
                )
                .hint("look at them with `imgctl ui`"));
            }
        }
        .map_err(malformed)
    }

    /// Returns the report, of which a page can be made.
    pub fn report(&self) -> Report<'_> {
        match self {
            Self::Image(report) => Report::Image(report),
            Self::Plan(report) => Report::Plan(report),
            Self::Run(report) => Report::Run(report),
            Self::Cluster(report) => Report::Cluster(report),
        }
    }
}
