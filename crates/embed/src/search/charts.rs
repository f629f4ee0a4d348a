//! The charts of a context: renders each directory and each `.tgz` directly below `charts/` with
//! its values, and scans the output like any other manifest.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::chart::{self, Chart, RenderOptions};
use crate::found::{ContextFiles, How, Place};
use crate::search::collector::Collector;
use crate::search::{SearchOptions, manifest, text};
use imgctl_base::error::{Context, Error, Kind, Result};

/// Maximum size of a packed chart, and of all files of an unpacked chart, in bytes.
pub const MAX_CHART: u64 = 64 << 20;
/// Maximum size of a chart file; larger files are not templates (Helm rejects them at 5 MiB).
const MAX_MEMBER: u64 = 16 << 20;
const VALUES: &str = ".values.yaml";

/// Renders all charts and collects the images of the output.
pub(super) fn search(
    files: &dyn ContextFiles,
    options: &SearchOptions,
    found: &mut Collector,
) -> Result<()> {
    let all = files.list("charts")?;
    let (charts, values) = sorted_out(&all);
    let mut unused = values.clone();
    for (place, members) in charts {
        let chart = match &members {
            None => Chart::load_archive(&files.read(&place, MAX_CHART)?),
            Some(members) => load_directory(files, &place, members, found),
        };
        let chart = chart.context(|| format!("cannot load the chart {place}"))?;
        let name = chart.name().to_owned();
        let mut layers = Vec::new();
        let own = format!("charts/{name}{VALUES}");
        if values.contains(&own) {
            unused.remove(&own);
            layers.push(values_of(files, &own)?);
        }
        let given = options.values.iter();
        let for_it = given.filter(|(chart, _)| chart.as_deref().is_none_or(|chart| chart == name));
        layers.extend(for_it.map(|(_, values)| values.clone()));
        let rendered = chart
            .render(&layers, &render_options(options))
            .context(|| format!("cannot render the chart {place}"))
            .map_err(|error| {
                error.hint(format!(
                    "put the values that it needs in charts/{name}{VALUES} or in a file passed \
                     with --values"
                ))
            })?;
        for template in rendered {
            let file = format!("{place}: {}", template.path);
            manifest::scan(&template.text, &file, found);
        }
    }
    for file in unused {
        let place = Place { file: file.clone(), line: 0, how: How::Line };
        found.skip(&file, "no chart of the context has this name", place);
    }
    Ok(())
}

/// Path of each chart and, if it is a directory, its files.
type Charts<'a> = BTreeMap<String, Option<Vec<&'a str>>>;

/// Returns the charts, and the values files next to them.
fn sorted_out(files: &[String]) -> (Charts<'_>, BTreeSet<String>) {
    let mut charts = Charts::new();
    let mut values = BTreeSet::new();
    for file in files {
        let inside = file.strip_prefix("charts/").unwrap_or(file);
        match inside.split_once('/') {
            Some((directory, _)) => charts
                .entry(format!("charts/{directory}"))
                .or_insert_with(|| Some(Vec::new()))
                .get_or_insert_default()
                .push(file),
            None if inside.ends_with(".tgz") => {
                charts.insert(file.clone(), None);
            }
            None if inside.ends_with(VALUES) => {
                values.insert(file.clone());
            }
            None => {}
        }
    }
    // A directory that is not a chart is ignored.
    charts.retain(|place, members| {
        let head = format!("{place}/Chart.yaml");
        members.as_ref().is_none_or(|members| members.contains(&&*head))
    });
    (charts, values)
}

fn load_directory(
    files: &dyn ContextFiles,
    place: &str,
    members: &[&str],
    found: &mut Collector,
) -> Result<Chart> {
    let mut contents = BTreeMap::new();
    let mut total = 0;
    for member in members {
        let name = member.strip_prefix(place).unwrap_or(member);
        let bytes = match files.read(member, MAX_MEMBER) {
            Err(error) if error.kind() == Kind::BadContent => {
                let place = Place { file: (*member).to_owned(), line: 0, how: How::Line };
                found.skip(member, "it is too large to belong to a chart", place);
                continue;
            }
            read => read?,
        };
        total += bytes.len() as u64;
        if total > MAX_CHART {
            let limit = MAX_CHART >> 20;
            return Err(Error::bad_content(format!(
                "the files of the chart {place} exceed {limit} MiB in total"
            )));
        }
        contents.insert(name.trim_start_matches('/').to_owned(), bytes);
    }
    Chart::load(contents)
}

fn values_of(files: &dyn ContextFiles, file: &str) -> Result<Value> {
    let values = chart::values_of(&text(files, file)?);
    values.map(Value::Object).context(|| format!("cannot use the values in {file}"))
}

/// sealos renders charts with the release name `dryrun`.
fn render_options(options: &SearchOptions) -> RenderOptions {
    RenderOptions {
        release: "dryrun".to_owned(),
        namespace: "default".to_owned(),
        kubernetes: options.kubernetes.clone(),
        api_versions: Vec::new(),
    }
}
