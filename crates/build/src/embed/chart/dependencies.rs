//! Selects the active dependencies of a chart (`condition`, `tags`), their names (`alias`), and the
//! values that they export to their parent (`import-values`), as Helm does.

use serde_json::{Map, Value};

use super::Chart;
use super::coalesce::{self, Nulls};
use super::metadata::Dependency;
use imgctl_base::error::{Error, Result};
use imgctl_base::semver::{self, Version};

type Table = Map<String, Value>;

/// Rejects a chart that names a dependency it does not contain.
pub(super) fn check(chart: &Chart) -> Result<()> {
    let wanted = chart.metadata.dependencies.iter().flatten();
    let missing: Vec<&str> = wanted
        .map(|wanted| wanted.name.as_str())
        .filter(|name| !chart.dependencies.iter().any(|d| d.metadata.name == **name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::usage(format!(
        "the chart {} names dependencies that are not in its charts/ directory: {}",
        chart.metadata.name,
        missing.join(", ")
    ))
    .hint("run `helm dependency build` on the chart, or unpack them there"))
}

/// Keeps the dependencies that `values` enable, and imports their values.
pub(super) fn process(chart: &mut Chart, values: &Table) {
    enable(chart, values, "");
    import(chart, values);
}

fn enable(chart: &mut Chart, values: &Table, path: &str) {
    let Some(mut wanted) = chart.metadata.dependencies.take() else {
        return;
    };
    let mut present: Vec<Chart> = chart
        .dependencies
        .iter()
        .filter(|chart| !wanted.iter().any(|wanted| fits(wanted, chart)))
        .cloned()
        .collect();
    for wanted in &mut wanted {
        let found = chart.dependencies.iter().find(|chart| fits(wanted, chart));
        let alias = wanted.alias.clone().filter(|alias| !alias.is_empty());
        if let Some(found) = found {
            let mut found = found.clone();
            if let Some(alias) = &alias {
                found.metadata.name.clone_from(alias);
            }
            present.push(found);
        }
        if let Some(alias) = alias {
            wanted.name = alias;
        }
        wanted.enabled = true;
    }
    chart.dependencies = present;
    let all = coalesce::chart_values(chart, values, Nulls::Drop);
    for wanted in &mut wanted {
        by_tags(wanted, &all);
        by_condition(wanted, &all, path);
    }
    let off = |name: &str| wanted.iter().any(|w| !w.enabled && w.name == name);
    chart.dependencies.retain(|chart| !off(&chart.metadata.name));
    wanted.retain(|wanted| wanted.enabled);
    for dependency in &mut chart.dependencies {
        let path = format!("{path}{}.", dependency.metadata.name);
        enable(dependency, &all, &path);
    }
    chart.metadata.dependencies = (!wanted.is_empty()).then_some(wanted);
}

/// Whether `chart` is the wanted dependency: the name must match, and the version must satisfy the
/// constraint.
fn fits(wanted: &Dependency, chart: &Chart) -> bool {
    let version = Version::parse(&chart.metadata.version);
    chart.metadata.name == wanted.name
        && version.is_some_and(|version| {
            // A missing version cannot be satisfied as a constraint; Helm writes `*` instead.
            let constraint = Some(wanted.version.as_str()).filter(|text| !text.is_empty());
            semver::satisfies(constraint.unwrap_or("*"), &version).unwrap_or(false)
        })
}

fn by_tags(wanted: &mut Dependency, values: &Table) {
    let Some(tags) = values.get("tags").and_then(Value::as_object) else {
        return;
    };
    let named = wanted.tags.iter().flatten();
    let said: Vec<bool> = named.filter_map(|tag| tags.get(tag).and_then(Value::as_bool)).collect();
    wanted.enabled = said.is_empty() || said.contains(&true);
}

fn by_condition(wanted: &mut Dependency, values: &Table, path: &str) {
    let conditions = wanted.condition.as_deref().unwrap_or("").trim();
    for condition in conditions.split(',').filter(|c| !c.is_empty()) {
        let value = coalesce::at(values, &format!("{path}{condition}"));
        if let Some(enabled) = value.and_then(Value::as_bool) {
            wanted.enabled = enabled;
            return;
        }
    }
}

fn import(chart: &mut Chart, values: &Table) {
    for dependency in &mut chart.dependencies {
        import(dependency, values);
    }
    let Some(wanted) = chart.metadata.dependencies.clone() else {
        return;
    };
    let all = coalesce::chart_values(chart, values, Nulls::Keep);
    let mut imported = Table::new();
    for wanted in &wanted {
        for import in wanted.import_values.iter().flatten() {
            let text = |name: &str| import.get(name).and_then(Value::as_str);
            let (child, parent) = match (import.as_str(), text("child"), text("parent")) {
                (Some(name), _, _) => (format!("exports.{name}"), "."),
                (None, Some(child), Some(parent)) => (child.to_owned(), parent),
                _ => continue,
            };
            let path = format!("{}.{child}", wanted.name);
            let Some(table) = coalesce::table_at(&all, &path) else {
                continue;
            };
            coalesce::merge(&mut imported, below(parent, table.clone()), Nulls::Keep);
        }
    }
    let mut merged = all;
    coalesce::merge(&mut merged, imported, Nulls::Keep);
    chart.values = merged;
}

/// Returns `table` nested at `path`; `.` is the top level.
fn below(path: &str, table: Table) -> Table {
    if path == "." {
        return table;
    }
    path.rsplit('.')
        .fold(table, |table, name| Table::from_iter([(name.to_owned(), Value::Object(table))]))
}
