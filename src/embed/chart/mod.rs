//! Helm charts, rendered as `helm template` does it: values, dependencies, helpers, Helm's own
//! functions.
//!
//! Pure: files and values to texts. Must not know where the files come from, clusters, or images.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::Result;

/// A loaded chart with its dependencies.
#[derive(Debug)]
pub(crate) struct Chart {}

/// What `.Release` and `.Capabilities` say.
#[derive(Clone, Debug)]
pub(crate) struct RenderOptions {
    /// Helm's default for `helm template` is `release-name`; sealos says `dryrun`.
    pub(crate) release: String,
    pub(crate) namespace: String,
    /// `v1.34.0`.
    pub(crate) kubernetes: String,
    /// Further API versions (`monitoring.coreos.com/v1`).
    pub(crate) api_versions: Vec<String>,
}

/// One rendered template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rendered {
    /// `chart/templates/x.yaml`, of a dependency `chart/charts/sub/templates/x.yaml`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Chart {
    /// Loads a chart from its files, by path relative to the chart's directory; packed dependencies
    /// (`charts/*.tgz`) are unpacked in memory within limits.
    pub(crate) fn load(files: BTreeMap<String, Vec<u8>>) -> Result<Self> {
        todo!()
    }

    /// Loads a packed chart (`x.tgz`), whose files lie below one directory.
    pub(crate) fn load_archive(bytes: &[u8]) -> Result<Self> {
        todo!()
    }

    /// `name` of Chart.yaml.
    pub(crate) fn name(&self) -> &str {
        todo!()
    }

    /// Renders with `values` laid over the chart's own, later ones over earlier ones. An error names
    /// template, line and column. CRDs (`crds/`) come first, as they are.
    pub(crate) fn render(
        &self,
        values: &[Value],
        options: &RenderOptions,
    ) -> Result<Vec<Rendered>> {
        todo!()
    }
}
