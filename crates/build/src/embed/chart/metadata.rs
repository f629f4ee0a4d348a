//! `Chart.yaml`, and `requirements.yaml` of older charts.

use serde::Deserialize;
use serde_json::Value;

use imgctl_base::error::{Error, Result};
use imgctl_template::yaml;

/// `Chart.yaml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    pub(super) api_version: String,
    pub(super) name: String,
    #[serde(deserialize_with = "scalar")]
    pub(super) version: String,
    #[serde(deserialize_with = "scalar")]
    pub(super) app_version: String,
    #[serde(deserialize_with = "scalar")]
    pub(super) kube_version: String,
    pub(super) description: Option<String>,
    pub(super) home: Option<String>,
    pub(super) icon: Option<String>,
    pub(super) sources: Option<Vec<String>>,
    pub(super) keywords: Option<Vec<String>>,
    pub(super) maintainers: Option<Vec<Value>>,
    pub(super) annotations: Option<Value>,
    pub(super) deprecated: bool,
    pub(super) condition: Option<String>,
    pub(super) tags: Option<String>,
    /// `application` or `library`.
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) dependencies: Option<Vec<Dependency>>,
}

/// One entry of `dependencies`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Dependency {
    pub(super) name: String,
    #[serde(deserialize_with = "scalar")]
    pub(super) version: String,
    pub(super) repository: Option<String>,
    /// Paths of values, separated by commas; the first one that exists decides.
    pub(super) condition: Option<String>,
    pub(super) tags: Option<Vec<String>>,
    #[serde(rename = "import-values")]
    pub(super) import_values: Option<Vec<Value>>,
    pub(super) alias: Option<String>,
    #[serde(skip)]
    pub(super) enabled: bool,
}

/// `requirements.yaml`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Requirements {
    dependencies: Option<Vec<Dependency>>,
}

/// Accepts a scalar of any type as a string: `version: 1.0` means a string, as Go's decoder reads
/// it.
fn scalar<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::String(text) => text,
        Value::Null => String::new(),
        other => other.to_string(),
    })
}

impl Metadata {
    /// Reads `Chart.yaml`. A chart without a name or with an unknown `apiVersion` is an error.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let yaml =
            yaml::parse_first(text).map_err(|error| error.context("cannot read Chart.yaml"))?;
        let metadata: Self = serde_json::from_value(yaml)
            .map_err(|error| Error::usage("cannot read Chart.yaml").caused_by(error))?;
        if metadata.name.is_empty() || metadata.name.contains(['/', '\\']) {
            return Err(Error::usage(format!(
                "Chart.yaml: {:?} is not a chart's name",
                metadata.name
            )));
        }
        match metadata.api_version.as_str() {
            "" | "v1" | "v2" => Ok(metadata),
            other => Err(Error::usage(format!(
                "Chart.yaml: imgctl knows apiVersion v1 and v2, not {other}"
            ))),
        }
    }

    /// Adds the dependencies of `requirements.yaml`.
    pub(super) fn add_requirements(&mut self, text: &str) -> Result<()> {
        let yaml = yaml::parse_first(text)
            .map_err(|error| error.context("cannot read requirements.yaml"))?;
        if yaml.is_null() {
            return Ok(());
        }
        let requirements: Requirements = serde_json::from_value(yaml)
            .map_err(|error| Error::usage("cannot read requirements.yaml").caused_by(error))?;
        if requirements.dependencies.is_some() {
            self.dependencies = requirements.dependencies;
        }
        Ok(())
    }

    /// Returns whether the chart only provides named templates for other charts.
    pub(super) fn is_library(&self) -> bool {
        self.kind.as_deref().is_some_and(|kind| kind.eq_ignore_ascii_case("library"))
    }
}
