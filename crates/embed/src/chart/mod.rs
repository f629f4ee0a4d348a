//! Helm charts, rendered as `helm template` does: values, dependencies, helpers and Helm's own
//! functions.
//!
//! Pure: turns files and values into text. Must not depend on the source of the files, on clusters
//! or on images. Functions that are random or time-dependent in Helm (`randAlphaNum`, `genCA`,
//! `now`) return fixed values here, so that a chart and its values always produce the same text;
//! `lookup` finds nothing, as without a cluster.

#[cfg(test)]
mod against_helm;
mod coalesce;
mod glob;
mod manifests;
mod objects;
mod render;
mod schema;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde_json::{Map, Value};

use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::semver::Version;
use imgctl_layer::{EntryKind, Limits, Names, TarReader};
use imgctl_template::yaml;

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
    /// `values.schema.json`.
    schema: Option<Arc<[u8]>>,
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
        let rules = glob::IgnoreRules::parse(&rules.map_or_else(String::new, |bytes| text(bytes)));
        let mut left = (MOST_FILES, MOST_BYTES);
        let mut kept = BTreeMap::new();
        for (path, content) in files {
            if rules.ignores(&path) {
                continue;
            }
            take(&mut left, &path, content.len())?;
            kept.insert(path, content);
        }
        Self::from_files(kept, &mut left, 0)
    }

    /// Loads a packed chart (`x.tgz`), whose files are below one directory.
    pub(crate) fn load_archive(bytes: &[u8]) -> Result<Self> {
        let mut left = (MOST_FILES, MOST_BYTES);
        let files = unpack(bytes, &mut left)?;
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
        render::render(self, values, options, manifests::check)
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
        let mut schema = None;
        let mut others = BTreeMap::new();
        let mut packed: BTreeMap<String, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
        for (path, content) in files {
            if let Some(below) = path.strip_prefix("charts/")
                && !path.ends_with(".prov")
            {
                let (name, rest) = below.split_once('/').unwrap_or((below, ""));
                let files = packed.entry(name.to_owned()).or_default();
                files.insert(rest.to_owned(), content);
                continue;
            }
            match path.as_str() {
                "Chart.yaml" | "Chart.lock" => {}
                "values.schema.json" => schema = Some(content.into()),
                "values.yaml" => {
                    let parsed = values_of(&text(&content));
                    let parsed = parsed.map_err(|error| error.context("cannot read values.yaml"));
                    values = parsed.map_err(|error| named(error, &metadata.name))?;
                }
                _ if path.starts_with("templates/") => {
                    templates.insert(path, text(&content));
                }
                "requirements.yaml" => {
                    let read = metadata.add_requirements(&text(&content));
                    read.map_err(|error| named(error, &metadata.name))?;
                    if metadata.api_version != "v2" {
                        others.insert(path, content);
                    }
                }
                _ => {
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
            schema,
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
            Some(bytes) if name.ends_with(".tgz") => unpack(bytes, left).map_err(doing)?,
            // A stray file is a chart without Chart.yaml.
            Some(_) => BTreeMap::new(),
            None => files,
        };
        let chart = Chart::from_files(files, left, depth + 1).map_err(doing)?;
        charts.push(chart);
    }
    Ok(charts)
}

/// Reads a table of values from YAML as Helm 4 does: later documents override earlier ones, the last of equal keys
/// wins; an empty file is an empty table.
pub(crate) fn values_of(yaml: &str) -> Result<Map<String, Value>> {
    let mut values = Map::new();
    let mut document = String::new();
    let yaml = yaml.strip_prefix('\u{feff}').unwrap_or(yaml);
    for line in yaml.split_inclusive('\n') {
        if line.starts_with("---") {
            coalesce::overlay(&mut values, &table_of(&document)?);
            document.clear();
        }
        document.push_str(line);
    }
    coalesce::overlay(&mut values, &table_of(&document)?);
    Ok(values)
}

fn table_of(yaml: &str) -> Result<Map<String, Value>> {
    match yaml::parse_first(yaml)? {
        Value::Object(table) => Ok(table),
        Value::Null => Ok(Map::new()),
        _ => Err(Error::usage("this is not a table of values")),
    }
}

/// Returns a file as text. Helm strips a byte order mark.
fn text(bytes: &[u8]) -> String {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    String::from_utf8_lossy(bytes).into_owned()
}

/// Maximum number of files in one chart, including its dependencies.
pub(super) const MOST_FILES: usize = 10_000;
/// Maximum size of all files in one chart, including its dependencies, in bytes.
pub(super) const MOST_BYTES: usize = 64 << 20;

/// Unpacks a chart; paths are relative to its single top-level directory. `left` is the remaining
/// limit, in files and bytes, and is reduced.
pub(super) fn unpack(bytes: &[u8], left: &mut (usize, usize)) -> Result<BTreeMap<String, Vec<u8>>> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Err(Error::bad_content("the chart is not a gzip-compressed archive"));
    }
    let limits =
        Limits { entries: MOST_FILES as u64 * 2, size: 2 * MOST_BYTES as u64, ..Limits::default() };
    let mut reader = TarReader::new(MultiGzDecoder::new(bytes), limits, Names::Plain);
    let mut files = BTreeMap::new();
    while let Some(entry) = reader.next_entry().context(|| "cannot unpack the chart".to_owned())? {
        // A chart does not contain links or devices; Helm skips them too.
        let EntryKind::File { size } = entry.kind else {
            continue;
        };
        let path = String::from_utf8_lossy(entry.path.as_bytes()).into_owned();
        // Entries outside of the chart's directory do not belong to the chart.
        let Some((_, path)) = path.split_once('/') else {
            return Err(Error::bad_content(format!(
                "the chart's archive contains {path}, which is outside the chart's directory"
            )));
        };
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        take(left, path, size)?;
        let mut content = Vec::with_capacity(size.min(1 << 20));
        reader
            .read_to_end(&mut content)
            .map_err(|error| Error::io(format!("cannot unpack {path} of the chart"), error))?;
        files.insert(path.to_owned(), content);
    }
    Ok(files)
}

/// Counts one more file against the limits.
pub(super) fn take(left: &mut (usize, usize), path: &str, size: usize) -> Result<()> {
    let (files, bytes) = (left.0.checked_sub(1), left.1.checked_sub(size));
    match (files, bytes) {
        (Some(files), Some(bytes)) => {
            *left = (files, bytes);
            Ok(())
        }
        _ => Err(Error::bad_content(format!(
            "the chart is too large: {path} is beyond {MOST_FILES} files or {} MiB",
            MOST_BYTES >> 20
        ))),
    }
}

/// `Chart.yaml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    #[serde(deserialize_with = "scalar")]
    pub(super) api_version: String,
    #[serde(deserialize_with = "scalar")]
    pub(super) name: String,
    #[serde(deserialize_with = "scalar")]
    pub(super) version: String,
    #[serde(deserialize_with = "scalar")]
    pub(super) app_version: String,
    #[serde(deserialize_with = "scalar")]
    pub(super) kube_version: String,
    #[serde(deserialize_with = "optional")]
    pub(super) description: Option<String>,
    #[serde(deserialize_with = "optional")]
    pub(super) home: Option<String>,
    #[serde(deserialize_with = "optional")]
    pub(super) icon: Option<String>,
    #[serde(deserialize_with = "texts")]
    pub(super) sources: Option<Vec<String>>,
    #[serde(deserialize_with = "texts")]
    pub(super) keywords: Option<Vec<String>>,
    pub(super) maintainers: Option<Vec<Value>>,
    #[serde(deserialize_with = "annotations")]
    pub(super) annotations: Option<BTreeMap<String, String>>,
    pub(super) deprecated: bool,
    #[serde(deserialize_with = "optional")]
    pub(super) condition: Option<String>,
    #[serde(deserialize_with = "optional")]
    pub(super) tags: Option<String>,
    /// `application` or `library`.
    #[serde(rename = "type", deserialize_with = "optional")]
    pub(super) kind: Option<String>,
    pub(super) dependencies: Option<Vec<Dependency>>,
}

/// One entry of `dependencies`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Dependency {
    #[serde(deserialize_with = "scalar")]
    pub(super) name: String,
    #[serde(deserialize_with = "scalar")]
    pub(super) version: String,
    #[serde(deserialize_with = "optional")]
    pub(super) repository: Option<String>,
    /// Paths of values, separated by commas; the first one that exists decides.
    #[serde(deserialize_with = "optional")]
    pub(super) condition: Option<String>,
    #[serde(deserialize_with = "texts")]
    pub(super) tags: Option<Vec<String>>,
    #[serde(rename = "import-values")]
    pub(super) import_values: Option<Vec<Value>>,
    #[serde(deserialize_with = "optional")]
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
    Ok(optional(from)?.unwrap_or_default())
}

fn optional<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::String(text) => Some(text),
        Value::Null => None,
        // Go formats a float with `%g`: `1.0` is `1`.
        Value::Number(number) if number.is_f64() => {
            Some(imgctl_template::go_float(number.as_f64().unwrap_or(0.0)))
        }
        value @ (Value::Bool(_) | Value::Number(_)) => Some(value.to_string()),
        _ => return Err(serde::de::Error::custom("a table or list is not text")),
    })
}

/// [`scalar`] within a collection.
#[derive(Deserialize)]
struct Text(#[serde(deserialize_with = "scalar")] String);

fn texts<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    let texts = Option::<Vec<Text>>::deserialize(from)?;
    Ok(texts.map(|texts| texts.into_iter().map(|text| text.0).collect()))
}

fn annotations<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    let all = Option::<BTreeMap<String, Text>>::deserialize(from)?;
    Ok(all.map(|all| all.into_iter().map(|(key, text)| (key, text.0)).collect()))
}

impl Metadata {
    /// Reads `Chart.yaml`. What Helm refuses in it is an error.
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
        if let Some(wrong) = metadata.wrong() {
            return Err(Error::usage(format!("Chart.yaml: {wrong}")));
        }
        Ok(metadata)
    }

    /// Returns what Helm refuses.
    fn wrong(&self) -> Option<String> {
        if !matches!(&*self.api_version, "" | "v1" | "v2") {
            return Some(format!("imgctl knows apiVersion v1 and v2, not {}", self.api_version));
        }
        if Version::parse(&self.version).is_none() {
            return Some(format!("{:?} is not a version", self.version));
        }
        if !matches!(self.kind.as_deref(), None | Some("" | "application" | "library")) {
            return Some("its type is neither application nor library".to_owned());
        }
        let mut names = BTreeSet::new();
        for dependency in self.dependencies.iter().flatten() {
            let alias = dependency.alias.as_deref().unwrap_or("");
            let is_usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
            if !alias.chars().all(is_usual) {
                return Some(format!(
                    "the alias {alias:?} has other characters than letters, digits, _ and -"
                ));
            }
            let name = if alias.is_empty() { &*dependency.name } else { alias };
            if !names.insert(name) {
                return Some(format!("two dependencies have the name or alias {name:?}"));
            }
        }
        None
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
        self.kind.as_deref().is_some_and(|kind| kind == "library")
    }
}
