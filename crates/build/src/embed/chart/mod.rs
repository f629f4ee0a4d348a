//! Helm charts, rendered as `helm template` does: values, dependencies, helpers and Helm's own
//! functions.
//!
//! Pure: turns files and values into text. Must not depend on the source of the files, on clusters
//! or on images. Functions that are random or time-dependent in Helm (`randAlphaNum`, `genCA`,
//! `now`) return fixed values here, so that a chart and its values always produce the same text;
//! `lookup` finds nothing, as without a cluster.

mod archive;
mod capabilities;
mod coalesce;
mod dependencies;
mod glob;
mod ignore;
mod metadata;
mod objects;
mod render;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use imgctl_base::error::{Error, Result};
use imgctl_template::yaml;
use metadata::Metadata;

/// Maximum nesting depth of dependencies.
const MOST_NESTED: usize = 32;

/// A loaded chart with its dependencies.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    metadata: Metadata,
    /// `values.yaml`.
    values: Map<String, Value>,
    /// Files under `templates/`, by path.
    templates: Arc<BTreeMap<String, String>>,
    /// All other files, except the chart's own description and its dependencies.
    files: Arc<BTreeMap<String, Vec<u8>>>,
    dependencies: Vec<Chart>,
}

/// Values of `.Release` and `.Capabilities`.
#[derive(Clone, Debug)]
pub(crate) struct RenderOptions {
    /// Helm's default for `helm template` is `release-name`; sealos uses `dryrun`.
    pub release: String,
    pub namespace: String,
    /// `v1.34.0`.
    pub kubernetes: String,
    /// Additional API versions (`monitoring.coreos.com/v1`).
    pub(crate) api_versions: Vec<String>,
}

/// One rendered template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// `chart/templates/x.yaml`; for a dependency, `chart/charts/sub/templates/x.yaml`.
    pub path: String,
    pub text: String,
}

impl Chart {
    /// Loads a chart from its files, keyed by path relative to the chart directory. Packed
    /// dependencies (`charts/*.tgz`) are unpacked in memory within limits.
    pub(crate) fn load(files: BTreeMap<String, Vec<u8>>) -> Result<Self> {
        let rules = files.get(".helmignore");
        let rules = ignore::Rules::parse(&rules.map_or_else(String::new, |bytes| text(bytes)));
        let mut left = (archive::MOST_FILES, archive::MOST_BYTES);
        let mut kept = BTreeMap::new();
        for (path, content) in files {
            if rules.ignores(&path) && path != "Chart.yaml" {
                continue;
            }
            archive::take(&mut left, &path, content.len())?;
            kept.insert(path, content);
        }
        Self::from_files(kept, &mut left, 0)
    }

    /// Loads a packed chart (`x.tgz`), whose files are below one directory.
    pub(crate) fn load_archive(bytes: &[u8]) -> Result<Self> {
        let mut left = (archive::MOST_FILES, archive::MOST_BYTES);
        let files = archive::unpack(bytes, &mut left)?;
        Self::from_files(files, &mut left, 0)
    }

    /// `name` of Chart.yaml.
    pub(crate) fn name(&self) -> &str {
        &self.metadata.name
    }

    /// Renders with `values` layered over the chart's own; later values override earlier ones. An
    /// error names the template, line and column. CRDs (`crds/`) come first, unmodified.
    pub(crate) fn render(
        &self,
        values: &[Value],
        options: &RenderOptions,
    ) -> Result<Vec<Rendered>> {
        render::render(self, values, options)
    }

    /// `left`: number of files and bytes that may still be unpacked.
    fn from_files(
        files: BTreeMap<String, Vec<u8>>,
        left: &mut (usize, usize),
        depth: usize,
    ) -> Result<Self> {
        if depth > MOST_NESTED {
            return Err(Error::bad_content(format!(
                "the chart's dependencies are nested more than {MOST_NESTED} deep"
            )));
        }
        let description =
            files.get("Chart.yaml").ok_or_else(|| Error::usage("the chart has no Chart.yaml"))?;
        let mut metadata = Metadata::parse(&text(description))?;
        let named =
            |error: Error, name: &str| error.context(format!("cannot load the chart {name}"));
        let mut values = Map::new();
        let mut templates = BTreeMap::new();
        let mut others = BTreeMap::new();
        let mut packed: BTreeMap<String, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
        for (path, content) in files {
            if let Some(below) = path.strip_prefix("charts/") {
                let (name, rest) = below.split_once('/').unwrap_or((below, ""));
                let files = packed.entry(name.to_owned()).or_default();
                files.insert(rest.to_owned(), content);
                continue;
            }
            match path.as_str() {
                "Chart.yaml" | "Chart.lock" | "values.schema.json" => {}
                "values.yaml" => {
                    let parsed = values_of(&text(&content));
                    values = parsed.map_err(|error| named(error, &metadata.name))?;
                }
                _ if path.starts_with("templates/") => {
                    templates.insert(path, text(&content));
                }
                _ => {
                    if path == "requirements.yaml" && metadata.api_version != "v2" {
                        let read = metadata.add_requirements(&text(&content));
                        read.map_err(|error| named(error, &metadata.name))?;
                    }
                    others.insert(path, content);
                }
            }
        }
        let dependencies =
            load_dependencies(packed, left, depth).map_err(|error| named(error, &metadata.name))?;
        Ok(Self {
            metadata,
            values,
            templates: Arc::new(templates),
            files: Arc::new(others),
            dependencies,
        })
    }
}

fn load_dependencies(
    packed: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    left: &mut (usize, usize),
    depth: usize,
) -> Result<Vec<Chart>> {
    let mut charts = Vec::new();
    for (name, files) in packed {
        if name.starts_with(['_', '.']) {
            continue;
        }
        let doing = |error: Error| error.context(format!("cannot load charts/{name}"));
        let only = if files.len() == 1 { files.get("") } else { None };
        let files = match only {
            Some(bytes) if name.ends_with(".tgz") => archive::unpack(bytes, left).map_err(doing)?,
            // A stray file in charts/ is not a chart.
            Some(_) => continue,
            None => files,
        };
        let chart = Chart::from_files(files, left, depth + 1).map_err(doing)?;
        charts.push(chart);
    }
    Ok(charts)
}

/// Reads a table of values from YAML; an empty file is an empty table.
fn values_of(yaml: &str) -> Result<Map<String, Value>> {
    let parsed =
        yaml::parse_first(yaml).map_err(|error| error.context("cannot read values.yaml"))?;
    match parsed {
        Value::Object(table) => Ok(table),
        Value::Null => Ok(Map::new()),
        _ => Err(Error::usage("values.yaml is not a table of values")),
    }
}

/// Returns a file as text. Helm strips a byte order mark.
fn text(bytes: &[u8]) -> String {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    String::from_utf8_lossy(bytes).into_owned()
}
