//! Values and dependencies by Helm's rules: the user's values override a chart's, a parent chart's
//! override its dependencies', `global` is passed down to all, `null` removes a default; values
//! enable and disable dependencies, which may export values to their parents.
//!
//! Must not depend on the source of the values.

use serde_json::{Map, Value};

use super::{Chart, Dependency};
use imgctl_base::error::{Error, Result};
use imgctl_base::semver::{self, Version};

type Table = Map<String, Value>;

/// Whether a `null` stays after it has removed a default.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Nulls {
    Drop,
    Keep,
}

/// Returns the values of `chart` and its dependencies, overridden by `values`.
pub(super) fn chart_values(chart: &Chart, values: &Table, nulls: Nulls) -> Result<Table> {
    let mut values = values.clone();
    coalesce(chart, &mut values, nulls)?;
    Ok(values)
}

/// Recursive: charts nest at most [`super::MOST_NESTED`] deep.
fn coalesce(chart: &Chart, values: &mut Table, nulls: Nulls) -> Result<()> {
    add_defaults(chart, values, nulls);
    for dependency in &chart.dependencies {
        let name = dependency.metadata.name.clone();
        let globals = values.get("global").cloned();
        let below = values.entry(&*name).or_insert_with(|| Value::Object(Table::new()));
        let Value::Object(below) = below else {
            return Err(Error::usage(format!(
                "the values of the chart's dependency {name} are not a table"
            )));
        };
        add_globals(below, globals);
        coalesce(dependency, below, nulls)?;
    }
    Ok(())
}

fn add_globals(below: &mut Table, above: Option<Value>) {
    let mut mine = match below.get("global") {
        None => Table::new(),
        Some(Value::Object(table)) => table.clone(),
        Some(_) => return,
    };
    let above = match above {
        None => Table::new(),
        Some(Value::Object(table)) => table,
        Some(_) => return,
    };
    for (key, value) in above {
        match (value, mine.get(&key)) {
            (Value::Object(table), Some(Value::Object(old))) => {
                let mut table = table;
                merge(&mut table, old.clone(), Nulls::Keep);
                mine.insert(key, Value::Object(table));
            }
            (Value::Object(table), None) => {
                mine.insert(key, Value::Object(table));
            }
            // A table cannot be merged with a non-table: the existing value stays.
            (Value::Object(_), Some(_)) | (_, Some(Value::Object(_))) => {}
            (value, _) => {
                mine.insert(key, value);
            }
        }
    }
    below.insert("global".to_owned(), Value::Object(mine));
}

fn add_defaults(chart: &Chart, values: &mut Table, nulls: Nulls) {
    for (key, default) in &chart.values {
        match (values.get_mut(key), default) {
            (None, default) => {
                values.insert(key.clone(), default.clone());
            }
            (Some(Value::Null), _) if nulls == Nulls::Drop => {
                values.shift_remove(key);
            }
            (Some(Value::Object(mine)), Value::Object(default)) => {
                // A dependency still needs the nulls that are meant for it.
                let of_dependency = chart.dependencies.iter().any(|d| d.metadata.name == *key);
                let nulls = if of_dependency { Nulls::Keep } else { nulls };
                merge(mine, default.clone(), nulls);
            }
            _ => {}
        }
    }
}

/// Merges `upper` over `lower`: tables are merged, all other values are replaced. A `null` removes what `lower`
/// has; where it has nothing, the `null` stays.
pub(super) fn merge(upper: &mut Table, lower: Table, nulls: Nulls) {
    for (key, value) in lower {
        match (upper.get_mut(&key), value) {
            (None, value) => {
                upper.insert(key, value);
            }
            (Some(Value::Null), _) if nulls == Nulls::Drop => {
                upper.shift_remove(&key);
            }
            (Some(Value::Object(mine)), Value::Object(theirs)) => merge(mine, theirs, nulls),
            _ => {}
        }
    }
}

/// Merges the files given with `--values`: later files win, including their `null` values.
pub(super) fn overlay(lower: &mut Table, upper: &Table) {
    for (key, value) in upper {
        match (lower.get_mut(key), value) {
            (Some(Value::Object(mine)), Value::Object(theirs)) => overlay(mine, theirs),
            _ => {
                lower.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Returns the value at a path like `a.b.c`, which must not be a table.
pub(super) fn at<'v>(values: &'v Table, path: &str) -> Option<&'v Value> {
    let (table, name) = match path.rsplit_once('.') {
        Some((parents, name)) => (table_at(values, parents)?, name),
        None => (values, path),
    };
    table.get(name).filter(|value| !value.is_object())
}

/// Returns the table at a path like `a.b.c`.
pub(super) fn table_at<'v>(values: &'v Table, path: &str) -> Option<&'v Table> {
    path.split('.').try_fold(values, |table, name| table.get(name)?.as_object())
}

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
pub(super) fn process(chart: &mut Chart, values: &Table) -> Result<()> {
    enable(chart, values, "")?;
    import(chart, values)
}

fn enable(chart: &mut Chart, values: &Table, path: &str) -> Result<()> {
    let Some(mut wanted) = chart.metadata.dependencies.take() else {
        return Ok(());
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
    let all = chart_values(chart, values, Nulls::Drop)?;
    for wanted in &mut wanted {
        by_tags(wanted, &all);
        by_condition(wanted, &all, path);
    }
    let off = |name: &str| wanted.iter().any(|w| !w.enabled && w.name == name);
    chart.dependencies.retain(|chart| !off(&chart.metadata.name));
    wanted.retain(|wanted| wanted.enabled);
    for dependency in &mut chart.dependencies {
        let path = format!("{path}{}.", dependency.metadata.name);
        enable(dependency, &all, &path)?;
    }
    chart.metadata.dependencies = (!wanted.is_empty()).then_some(wanted);
    Ok(())
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
        let value = at(values, &format!("{path}{condition}"));
        if let Some(enabled) = value.and_then(Value::as_bool) {
            wanted.enabled = enabled;
            return;
        }
    }
}

fn import(chart: &mut Chart, values: &Table) -> Result<()> {
    for dependency in &mut chart.dependencies {
        import(dependency, values)?;
    }
    let Some(wanted) = chart.metadata.dependencies.clone() else {
        return Ok(());
    };
    let all = chart_values(chart, values, Nulls::Keep)?;
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
            let Some(table) = table_at(&all, &path) else {
                continue;
            };
            merge(&mut imported, below(parent, table.clone()), Nulls::Keep);
        }
    }
    let mut merged = all;
    merge(&mut merged, imported, Nulls::Keep);
    chart.values = merged;
    Ok(())
}

/// Returns `table` nested at `path`; `.` is the top level.
fn below(path: &str, table: Table) -> Table {
    if path == "." {
        return table;
    }
    path.rsplit('.')
        .fold(table, |table, name| Table::from_iter([(name.to_owned(), Value::Object(table))]))
}
