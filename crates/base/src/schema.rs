//! Checks of values against a JSON Schema that somebody else has written. A schema that refers to documents
//! elsewhere cannot be checked: nothing is loaded. Must not know what the values are for.

mod cost;

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

/// Size of the checker's stack, in bytes.
const STACK: usize = 32 << 20;
/// Maximum number of violations that are kept, and of characters of one.
const MOST_VIOLATIONS: usize = 1000;
const LONGEST_VIOLATION: usize = 1000;

/// Returns how `value` violates `schema`, whose patterns are Go's. A schema whose check would take too much time or
/// memory is unusable.
pub fn violations(schema: Value, value: &Value) -> Result<Vec<Violation>, Unusable> {
    let wrong = |why: &str| Unusable::Wrong(why.to_owned());
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("schema".to_owned())
            .stack_size(STACK)
            .spawn_scoped(scope, || checked(schema, value))
            .map_err(|error| Unusable::Wrong(format!("it cannot be checked: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(wrong("the checker stopped unexpectedly")))
    })
}

fn checked(mut schema: Value, value: &Value) -> Result<Vec<Violation>, Unusable> {
    translate(&mut schema);
    cost::check_size(&schema).map_err(Unusable::Wrong)?;
    let source = schema.clone();
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
    cost::check(&source, value).map_err(Unusable::Wrong)?;
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
        if violations.len() == MOST_VIOLATIONS {
            return;
        }
        let cut = |text: String| -> String { text.chars().take(LONGEST_VIOLATION).collect() };
        let place = cut(error.instance_location.to_string());
        violations.push(Violation { place, text: cut(error.kind.to_string()) });
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

    fn refused(schema: Value, value: &Value) -> String {
        match violations(schema, value) {
            Err(Unusable::Wrong(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    /// A schema of definitions, each of which applies the next one `times` times.
    fn nested(keyword: &str, times: usize, depth: usize, last: Value) -> Value {
        let mut definitions = serde_json::Map::new();
        for number in 0..depth {
            let next = json!({"$ref": format!("#/definitions/d{}", number + 1)});
            definitions.insert(format!("d{number}"), json!({keyword: vec![next; times]}));
        }
        definitions.insert(format!("d{depth}"), last);
        json!({"$ref": "#/definitions/d0", "definitions": definitions})
    }

    #[test]
    fn a_schema_takes_no_time_and_memory_without_end() {
        let value = json!({"a": {"b": [1, 2, 3]}});
        let most = "checking the values would take more than 1000000 steps";
        assert_eq!(refused(nested("allOf", 2, 40, json!({"type": "object"})), &value), most);
        assert_eq!(refused(nested("anyOf", 8, 14, json!({"type": "string"})), &value), most);
        assert!(violations(nested("allOf", 2, 10, json!({})), &value).unwrap().is_empty());
        let few = violations(nested("anyOf", 8, 4, json!({"type": "string"})), &value).unwrap();
        assert_eq!(few.len(), MOST_VIOLATIONS);

        // A chain that overflows any stack.
        let long = refused(nested("allOf", 1, 1000, json!({})), &value);
        assert!(long.contains("256 deep"), "{long}");
        // Names that are repeated in each path below them.
        let mut many = serde_json::Map::new();
        for number in 0..10_000 {
            many.insert(format!("p{number}"), json!({}));
        }
        let name = "x".repeat(100_000);
        let names = refused(json!({"properties": {name: {"properties": many}}}), &value);
        assert!(names.contains("too long"), "{names}");
        let many: serde_json::Map<String, Value> =
            (0..60_000).map(|number| (number.to_string(), json!({}))).collect();
        let parts = refused(json!({"properties": many}), &value);
        assert!(parts.contains("50000 parts"), "{parts}");
        let patterns = vec![json!({"pattern": "((a{100}){100}){50}"}); 10];
        let large = refused(json!({"anyOf": patterns}), &value);
        assert!(large.contains("patterns are too large"), "{large}");
        let slow = json!({"additionalProperties": {"pattern": "(a{1,50}){1,19}b"}});
        let text = json!({"a": "a".repeat(100_000)});
        assert_eq!(refused(slow, &text), most);
    }

    #[test]
    fn ordinary_schemas_that_refer_to_themselves_are_checked() {
        let schema = json!({
            "$id": "https://e.example/s",
            "$ref": "#/$defs/tree",
            "$defs": {
                "tree": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": {"$ref": "#name"},
                        "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                        "a b": {"$ref": "#/$defs/a%20b"},
                    },
                    "additionalProperties": false,
                },
                "name": {"$anchor": "name", "type": "string"},
                "a b": {"$ref": "http://json-schema.org/draft-07/schema#"},
            },
        });
        let good = json!({"name": "a", "a b": {"type": "string"}, "children": [
            {"name": "b", "children": [{"name": "c"}]}, {"name": "d"},
        ]});
        assert_eq!(violations(schema.clone(), &good), Ok(Vec::new()));
        let wrong = json!({"name": 1, "children": [{"x": "b"}]});
        assert_eq!(violations(schema, &wrong).unwrap().len(), 3);
    }
}
