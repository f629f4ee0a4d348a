//! Checks values against `values.schema.json`, as Helm does before it renders.
//!
//! A schema that refers to documents elsewhere is not checked: finding images needs no network. Must not
//! know templates.

use boon::{CompileError, Compiler, Schemas, UrlLoader, ValidationError};
use serde_json::{Map, Value};

use super::Chart;
use imgctl_base::error::{Error, Result};

/// Location of the schema, to which its own references are relative.
const HERE: &str = "file:///values.schema.json";
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
    let schema = serde_json::from_slice(schema).map_err(|error| unusable(error.to_string()))?;
    let mut compiler = Compiler::new();
    compiler.use_loader(Box::new(Nowhere));
    compiler.add_resource(HERE, schema).map_err(|error| unusable(format!("{error:#}")))?;
    let mut schemas = Schemas::new();
    let compiled = match compiler.compile(HERE, &mut schemas) {
        Ok(compiled) => compiled,
        Err(CompileError::LoadUrlError { url, .. }) if !url.starts_with("file:") => {
            tracing::info!("values.schema.json refers to {url}: the values are not checked");
            return Ok(());
        }
        Err(error) => return Err(unusable(format!("{error:#}"))),
    };
    schemas.validate(&Value::Object(values.clone()), compiled).map_err(|error| {
        let mut violations = Vec::new();
        flatten(&error, &mut violations);
        violations
    })
}

/// Adds the innermost errors. Recursion: the validator nests as deeply as the schema.
fn flatten(error: &ValidationError<'_, '_>, violations: &mut Vec<String>) {
    if error.causes.is_empty() {
        let place = error.instance_location.to_string();
        let place = if place.is_empty() { "the values" } else { &*place };
        violations.push(format!("{place}: {}", error.kind));
    }
    error.causes.iter().for_each(|cause| flatten(cause, violations));
}

/// Loads no schema.
struct Nowhere;

impl UrlLoader for Nowhere {
    fn load(&self, _url: &str) -> Result<Value, Box<dyn std::error::Error>> {
        Err("only the chart's own schema is read".into())
    }
}
