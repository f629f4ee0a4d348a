//! Merging of values by Helm's rules: the user's values override a chart's, a parent chart's
//! override its dependencies', `global` is passed down to all, and `null` removes a default.
//!
//! Must not depend on the source of the values.

use serde_json::{Map, Value};

use super::Chart;

type Table = Map<String, Value>;

/// Whether a `null` stays after it has removed a default.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Nulls {
    Drop,
    Keep,
}

/// Returns the values of `chart` and its dependencies, overridden by `values`.
pub(super) fn chart_values(chart: &Chart, values: &Table, nulls: Nulls) -> Table {
    let mut values = values.clone();
    coalesce(chart, &mut values, nulls);
    values
}

/// Recursive: charts nest at most [`super::MOST_NESTED`] deep.
fn coalesce(chart: &Chart, values: &mut Table, nulls: Nulls) {
    add_defaults(chart, values, nulls);
    for dependency in &chart.dependencies {
        let name = dependency.metadata.name.clone();
        let globals = values.get("global").cloned();
        let below = values.entry(name).or_insert_with(|| Value::Object(Table::new()));
        let Value::Object(below) = below else {
            // Helm rejects this; here the dependency uses its own values.
            *below = Value::Null;
            continue;
        };
        add_globals(below, globals);
        coalesce(dependency, below, nulls);
    }
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

/// Merges `upper` over `lower`: tables are merged, all other values are replaced.
pub(super) fn merge(upper: &mut Table, mut lower: Table, nulls: Nulls) {
    for (key, value) in upper.iter() {
        if value.is_null() {
            lower.insert(key.clone(), Value::Null);
        }
    }
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
