//! The Kubernetes objects and Helm charts in the files of two images that differ. Objects are told apart as the API server does: by
//! group, kind, namespace and name, whatever file they are in.

use std::collections::{BTreeMap, BTreeSet};

use crate::values::{self, differences, documents};
use crate::{Inspected, cut};
use imgctl_base::error::Result;
use imgctl_layer::{EntryKind, LayerPath, Tree};
use imgctl_report::model::comparison::{Change, ChartChange, NamedChange, ObjectChange};
use serde_json::Value;

/// Maximum number of files that are read, and size of each in bytes.
const MOST_FILES: usize = 5000;
const LONGEST_FILE: u64 = 1 << 20;
/// Maximum number of members that are listed of one object or chart.
const MOST_MEMBERS: usize = 50;
/// Maximum number of charts.
const MOST_CHARTS: usize = 500;
/// Maximum length of a value, in bytes.
const LONGEST_VALUE: usize = 256;

/// Among the paths that differ, those that may hold objects or belong to a chart.
#[derive(Default)]
pub(super) struct Candidates {
    manifests: BTreeSet<LayerPath>,
    /// Directories of charts.
    charts: BTreeSet<LayerPath>,
}

/// The identity of an object: group, kind, namespace, name.
type Key = (String, String, Option<String>, String);

struct Object {
    api_version: String,
    file: String,
    value: Value,
}

impl Candidates {
    /// Notes a path that differs between the two trees.
    pub(super) fn add(&mut self, path: &LayerPath, trees: [&Tree; 2]) {
        let has_chart = |directory: &LayerPath| {
            let file = directory.join(b"Chart.yaml");
            trees.iter().any(|tree| tree.lookup(&file).is_some())
        };
        // The outermost chart: its dependencies belong to it.
        let mut chart = None;
        let mut directory = path.parent();
        while let Some(here) = directory.filter(|here| !here.is_root()) {
            if has_chart(&here) {
                chart = Some(here.clone());
            }
            directory = here.parent();
        }
        if let Some(chart) = chart {
            if self.charts.len() < MOST_CHARTS {
                self.charts.insert(chart);
            }
            return;
        }
        let name = path.file_name().unwrap_or_default();
        let is_manifest = [&b".yaml"[..], b".yml", b".json"].iter().any(|end| name.ends_with(end));
        if is_manifest && self.manifests.len() < MOST_FILES {
            self.manifests.insert(path.clone());
        }
    }

    /// Returns the changed objects, sorted by kind and name.
    pub(super) fn objects(
        &self,
        before: &Inspected<'_>,
        after: &Inspected<'_>,
    ) -> Result<Vec<ObjectChange>> {
        let paths: Vec<LayerPath> = self.manifests.iter().cloned().collect();
        let (old, new) = (objects(before, &paths)?, objects(after, &paths)?);
        let keys: BTreeSet<&Key> = old.keys().chain(new.keys()).collect();
        let mut changes = Vec::new();
        for key in keys {
            let (was, is) = (old.get(key), new.get(key));
            let (change, shown, members) = match (was, is) {
                (Some(was), Some(is)) => {
                    let members = differences(&was.value, &is.value, MOST_MEMBERS);
                    let members: Vec<String> = members.into_iter().map(|one| one.path).collect();
                    if members.is_empty() {
                        continue;
                    }
                    (Change::Changed, is, members)
                }
                (None, Some(is)) => (Change::Added, is, Vec::new()),
                (Some(was), None) => (Change::Removed, was, Vec::new()),
                (None, None) => continue,
            };
            let (_, kind, namespace, name) = key.clone();
            let (api_version, file) = (shown.api_version.clone(), shown.file.clone());
            changes.push(ObjectChange {
                change,
                kind,
                api_version,
                namespace,
                name,
                file,
                members,
            });
        }
        Ok(changes)
    }

    /// Returns the changed charts, sorted by path.
    pub(super) fn charts(
        &self,
        before: &Inspected<'_>,
        after: &Inspected<'_>,
    ) -> Result<Vec<ChartChange>> {
        let mut changes = Vec::new();
        for path in &self.charts {
            let (was, is) = (chart(before, path)?, chart(after, path)?);
            let change = match (&was, &is) {
                (None, None) => continue,
                (None, Some(_)) => Change::Added,
                (Some(_), None) => Change::Removed,
                (Some(_), Some(_)) => Change::Changed,
            };
            let values = match (&was, &is) {
                (Some(was), Some(is)) => {
                    let found = differences(&was.values, &is.values, MOST_MEMBERS);
                    found.into_iter().map(value_change).collect()
                }
                _ => Vec::new(),
            };
            let name = is.as_ref().or(was.as_ref()).map(|chart| chart.name.clone());
            changes.push(ChartChange {
                change,
                name: name.unwrap_or_default(),
                path: text(path),
                before: was.map(|chart| chart.version),
                after: is.map(|chart| chart.version),
                values,
            });
        }
        Ok(changes)
    }
}

fn value_change(one: values::Difference<'_>) -> NamedChange {
    let shown = |value: &Value| match value {
        Value::String(text) => cut(text, LONGEST_VALUE),
        other => cut(&other.to_string(), LONGEST_VALUE),
    };
    NamedChange {
        change: match (one.before, one.after) {
            (None, _) => Change::Added,
            (_, None) => Change::Removed,
            _ => Change::Changed,
        },
        name: one.path,
        before: one.before.map(shown),
        after: one.after.map(shown),
    }
}

fn text(path: &LayerPath) -> String {
    String::from_utf8_lossy(path.as_bytes()).into_owned()
}

fn is_file(image: &Inspected<'_>, path: &LayerPath) -> bool {
    let found = image.contents.tree().lookup(path);
    found.is_some_and(|found| matches!(found.entry().kind, EntryKind::File { .. }))
}

/// Reads the objects of those of `paths` that the image has.
fn objects(image: &Inspected<'_>, paths: &[LayerPath]) -> Result<BTreeMap<Key, Object>> {
    // The target of a link is listed under its own path.
    let paths: Vec<LayerPath> = paths.iter().filter(|path| is_file(image, path)).cloned().collect();
    let mut found = BTreeMap::new();
    for (path, content) in paths.iter().zip(image.contents.read(&paths, LONGEST_FILE)?) {
        let Some(content) = content.and_then(|bytes| String::from_utf8(bytes).ok()) else {
            continue;
        };
        for document in documents(&content) {
            add(document, &text(path), &mut found);
        }
    }
    Ok(found)
}

/// Adds an object, or each of a list.
fn add(document: Value, file: &str, found: &mut BTreeMap<Key, Object>) {
    let member = |value: &Value, name: &str| value[name].as_str().map(str::to_owned);
    let (Some(api_version), Some(kind)) =
        (member(&document, "apiVersion"), member(&document, "kind"))
    else {
        return;
    };
    if kind.ends_with("List")
        && let Some(items) = document["items"].as_array()
    {
        items.iter().for_each(|item| add(item.clone(), file, found));
        return;
    }
    let Some(name) = member(&document["metadata"], "name") else { return };
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group).to_owned();
    let key = (group, kind, member(&document["metadata"], "namespace"), name);
    found.insert(key, Object { api_version, file: file.to_owned(), value: document });
}

struct Chart {
    name: String,
    version: String,
    values: Value,
}

fn chart(image: &Inspected<'_>, directory: &LayerPath) -> Result<Option<Chart>> {
    let read = |name: &[u8]| -> Result<Option<Value>> {
        let path = directory.join(name);
        if !is_file(image, &path) {
            return Ok(None);
        }
        let content = image.contents.read(&[path], LONGEST_FILE)?.into_iter().next().flatten();
        let text = content.and_then(|bytes| String::from_utf8(bytes).ok());
        Ok(text.and_then(|text| values::parse(&text).ok()))
    };
    let Some(about) = read(b"Chart.yaml")? else { return Ok(None) };
    let values = read(b"values.yaml")?;
    let member = |name: &str| about[name].as_str().unwrap_or_default().to_owned();
    Ok(Some(Chart {
        name: member("name"),
        version: member("version"),
        values: values.unwrap_or_default(),
    }))
}
