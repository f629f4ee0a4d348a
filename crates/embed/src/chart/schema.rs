//! Checks values against `values.schema.json`, as Helm does before it renders.
//!
//! A schema that refers to documents elsewhere is not checked: finding images needs no network. Must not
//! know templates.

use serde_json::{Map, Value};

use super::Chart;
use imgctl_base::error::{Error, Result};
use imgctl_base::schema::{self, Unusable};

/// Maximum number of violations in an error.
const MOST_SHOWN: usize = 10;

/// Rejects values that violate the schema of `chart` or of one of its dependencies.
pub(super) fn check(chart: &Chart, values: &Map<String, Value>) -> Result<()> {
    let mut wrong = Vec::new();
    collect(chart, values, &mut wrong);
    if wrong.is_empty() {
        return Ok(());
    }
    let more = wrong.len().saturating_sub(MOST_SHOWN);
    wrong.truncate(MOST_SHOWN);
    if more > 0 {
        wrong.push(format!("{more} more"));
    }
    Err(Error::usage(format!("the values violate values.schema.json: {}", wrong.join("; "))))
}

/// Recursion: charts nest at most [`super::MOST_NESTED`] deep.
fn collect(chart: &Chart, values: &Map<String, Value>, wrong: &mut Vec<String>) {
    let found = chart.schema.as_ref().map_or(Ok(()), |schema| check_one(schema, values));
    for violation in found.err().into_iter().flatten() {
        wrong.push(format!("chart {}: {violation}", chart.name()));
    }
    for dependency in &chart.dependencies {
        if let Some(below) = values.get(dependency.name()).and_then(Value::as_object) {
            collect(dependency, below, wrong);
        }
    }
}

fn check_one(schema: &[u8], values: &Map<String, Value>) -> Result<(), Vec<String>> {
    let unusable = |error: String| vec![format!("the schema cannot be used: {error}")];
    let schema = schema.strip_prefix(b"\xef\xbb\xbf").unwrap_or(schema);
    let schema = serde_json::from_slice(schema).map_err(|error| unusable(error.to_string()))?;
    match schema::violations(schema, &Value::Object(values.clone())) {
        Ok(found) if found.is_empty() => Ok(()),
        Ok(found) => Err(found.iter().map(ToString::to_string).collect()),
        Err(Unusable::Elsewhere(url)) => {
            tracing::info!("values.schema.json refers to {url}: the values are not checked");
            Ok(())
        }
        Err(Unusable::Wrong(why)) => Err(unusable(why)),
    }
}
