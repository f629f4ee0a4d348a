//! Checks of values against a JSON Schema that somebody else has written. A schema that refers to documents
//! elsewhere cannot be checked: nothing is loaded. Must not know what the values are for.

use boon::{CompileError, Compiler, Schemas, UrlLoader, ValidationError};
use serde_json::Value;

/// Location of the schema, to which its own references are relative.
const HERE: &str = "file:///schema.json";

/// A violation: the place as a JSON pointer, empty for the whole value, and what is wrong there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub place: String,
    pub text: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = if self.place.is_empty() { "the values" } else { &self.place };
        write!(f, "{place}: {}", self.text)
    }
}

/// Why a schema cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It refers to this document elsewhere.
    Elsewhere(String),
    Wrong(String),
}

/// Returns how `value` violates `schema`.
pub fn violations(schema: Value, value: &Value) -> Result<Vec<Violation>, Unusable> {
    let wrong = |error: CompileError| Unusable::Wrong(format!("{error:#}"));
    let mut compiler = Compiler::new();
    compiler.use_loader(Box::new(Nowhere));
    compiler.add_resource(HERE, schema).map_err(wrong)?;
    let mut schemas = Schemas::new();
    let compiled = match compiler.compile(HERE, &mut schemas) {
        Ok(compiled) => compiled,
        Err(CompileError::LoadUrlError { url, .. }) if !url.starts_with("file:") => {
            return Err(Unusable::Elsewhere(url));
        }
        Err(error) => return Err(wrong(error)),
    };
    let mut violations = Vec::new();
    if let Err(error) = schemas.validate(value, compiled) {
        flatten(&error, &mut violations);
    }
    Ok(violations)
}

/// Adds the innermost errors. Recursion: the validator nests as deeply as the schema.
fn flatten(error: &ValidationError<'_, '_>, violations: &mut Vec<Violation>) {
    if error.causes.is_empty() {
        let place = error.instance_location.to_string();
        violations.push(Violation { place, text: error.kind.to_string() });
    }
    error.causes.iter().for_each(|cause| flatten(cause, violations));
}

/// Loads no schema.
struct Nowhere;

impl UrlLoader for Nowhere {
    fn load(&self, _url: &str) -> Result<Value, Box<dyn std::error::Error>> {
        Err("only the schema itself is read".into())
    }
}
