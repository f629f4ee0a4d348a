//! Checks of values against a JSON Schema that somebody else has written. A schema that refers to documents
//! elsewhere cannot be checked: nothing is loaded. Must not know what the values are for.

use boon::{CompileError, Compiler, ErrorKind, Schemas, UrlLoader, ValidationError};
use serde_json::{Number, Value};

use crate::re2;

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

/// Returns how `value` violates `schema`, whose patterns are Go's.
pub fn violations(mut schema: Value, value: &Value) -> Result<Vec<Violation>, Unusable> {
    translate(&mut schema);
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
    // The validator divides binary numbers, of which 0.3 is no multiple of 0.1.
    if let ErrorKind::MultipleOf { got, want } = &error.kind
        && is_multiple(got, want)
    {
        return;
    }
    if error.causes.is_empty() {
        let place = error.instance_location.to_string();
        violations.push(Violation { place, text: error.kind.to_string() });
    }
    error.causes.iter().for_each(|cause| flatten(cause, violations));
}

/// Whether a number is a multiple of another as decimals.
fn is_multiple(number: &Number, of: &Number) -> bool {
    let (Some((a, at)), Some((b, bt))) = (decimal(number), decimal(of)) else { return false };
    let least = at.min(bt);
    let scaled = |digits: i128, exponent: i32| {
        let zeros = u32::try_from(exponent - least).ok()?;
        digits.checked_mul(10_i128.checked_pow(zeros)?)
    };
    match (scaled(a, at), scaled(b, bt)) {
        (Some(a), Some(b)) => a.checked_rem(b) == Some(0),
        _ => false,
    }
}

/// Returns the digits and the exponent of a number as it is written.
fn decimal(number: &Number) -> Option<(i128, i32)> {
    let text = number.to_string();
    let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let exponent: i32 = exponent.parse().ok()?;
    let digits = format!("{whole}{fraction}").parse().ok()?;
    Some((digits, exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?))
}

/// Translates the patterns of a schema; one that Go refuses stays. Recursion: the parser of the schema bounds it.
fn translate(schema: &mut Value) {
    let own = |pattern: &str| re2::translated(pattern).unwrap_or_else(|_| pattern.to_owned());
    match schema {
        Value::Array(items) => items.iter_mut().for_each(translate),
        Value::Object(members) => {
            for (key, value) in members.iter_mut() {
                match (&**key, value) {
                    ("const" | "enum" | "default" | "examples", _) => {}
                    ("pattern", Value::String(pattern)) => *pattern = own(pattern),
                    ("patternProperties", Value::Object(members)) => {
                        *members = std::mem::take(members)
                            .into_iter()
                            .map(|(pattern, mut value)| {
                                translate(&mut value);
                                (own(&pattern), value)
                            })
                            .collect();
                    }
                    (_, value) => translate(value),
                }
            }
        }
        _ => {}
    }
}

/// Loads no schema.
struct Nowhere;

impl UrlLoader for Nowhere {
    fn load(&self, _url: &str) -> Result<Value, Box<dyn std::error::Error>> {
        Err("only the schema itself is read".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patterns_are_those_of_go_and_multiples_are_decimal() {
        let schema = json!({
            "properties": {
                "a": {"pattern": "^[\\w-.]+$"},
                "b": {"pattern": "{x"},
                "c": {"multipleOf": 0.1},
                "default": {"type": "object", "default": {"pattern": "{x"}},
            },
            "patternProperties": {"^\\d{,2}$": {"type": "integer"}},
        });
        let wrong = |value: Value| violations(schema.clone(), &value).unwrap().len();
        assert_eq!(wrong(json!({"a": "a-b.c", "b": "{x", "c": 0.3, "1{,2}": 1})), 0);
        assert_eq!(wrong(json!({"a": "é"})), 1);
        assert_eq!(wrong(json!({"b": "x"})), 1);
        assert_eq!(wrong(json!({"c": 0.35})), 1);
        assert_eq!(wrong(json!({"1{,2}": "x"})), 1);
    }
}
