//! What it takes to check a value against a schema: a bound, computed before anything is checked. The checker has
//! no limit of its own, and a schema of a few kilobytes can apply itself to one value a billion times. Each pair of
//! a schema and a value is counted once, however often it is checked. Must not know what the values are for.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::re2_size;

/// Maximum number of steps: a step keeps at most one violation.
const MOST_STEPS: u64 = 1_000_000;
/// Maximum number of different pairs.
const MOST_PAIRS: usize = 500_000;
/// How deep schemas and values may nest together: the checker's stack.
const DEEPEST: usize = 256;
/// Maximum size of all patterns of a schema, in states of their programs.
const MOST_STATES: usize = 200_000;
/// Maximum length of the paths to all parts of a schema, in bytes: the checker keeps them.
const LONGEST_PATHS: usize = 64 << 20;
/// Maximum number of objects in a schema: the time to compile it grows with the square of it.
const MOST_PARTS: usize = 50_000;
/// Steps of a part of a value that is checked against the schema of schemas.
const OF_SCHEMAS: u64 = 200;
/// Addresses of the schemas of schemas.
const SCHEMAS: [&str; 2] = ["http://json-schema.org/", "https://json-schema.org/"];

/// Stands for the names of properties.
static NAME: Value = Value::String(String::new());

/// What the parts of a schema are in all.
#[derive(Default)]
struct Measure {
    parts: usize,
    states: usize,
    paths: usize,
}

/// Fails if it takes too much time or memory to compile a schema.
pub(super) fn check_size(schema: &Value) -> Result<(), String> {
    let mut sum = Measure::default();
    sum.add(schema, 0);
    if sum.parts > MOST_PARTS {
        return Err(format!("it has more than {MOST_PARTS} parts"));
    }
    if sum.states > MOST_STATES {
        return Err("its patterns are too large".to_owned());
    }
    if sum.paths > LONGEST_PATHS {
        return Err("the names in it are too long".to_owned());
    }
    Ok(())
}

impl Measure {
    /// Adds a part with a path of this length. The parser of the schema bounds the recursion.
    fn add(&mut self, schema: &Value, path: usize) {
        self.paths = self.paths.saturating_add(path);
        match schema {
            Value::Array(items) => items.iter().for_each(|item| self.add(item, path + 8)),
            Value::Object(members) => {
                self.parts += 1;
                for (name, below) in members {
                    match (&**name, below) {
                        ("pattern", Value::String(pattern)) => self.pattern(pattern),
                        ("patternProperties", Value::Object(patterns)) => {
                            patterns.keys().for_each(|pattern| self.pattern(pattern));
                        }
                        _ => {}
                    }
                    self.add(below, path + name.len() + 1);
                }
            }
            _ => {}
        }
    }

    fn pattern(&mut self, pattern: &str) {
        self.states = self.states.saturating_add(re2_size::states(pattern));
    }
}

/// Fails if checking `value` against `schema` takes too much time or memory.
pub(super) fn check(schema: &Value, value: &Value) -> Result<(), String> {
    let mut cost = Cost {
        resources: vec![schema],
        anchors: HashMap::new(),
        has_dynamic: false,
        longest_name: 0,
        nodes: HashMap::new(),
        known: HashMap::new(),
    };
    cost.collect(schema, true);
    cost.nodes(value);
    cost.of(schema, value, 0, 0).map(drop)
}

struct Cost<'a> {
    /// The schema, and those in it that have an address of their own.
    resources: Vec<&'a Value>,
    anchors: HashMap<&'a str, Vec<&'a Value>>,
    /// What a reference leads to may depend on the way there, or a schema of schemas may be another one.
    has_dynamic: bool,
    /// Length of the longest name of a property.
    longest_name: usize,
    /// Number of all parts of a value, by its place in memory.
    nodes: HashMap<usize, u64>,
    /// Steps of a pair; `None` while it is counted.
    known: HashMap<(usize, usize), Option<u64>>,
}

fn place(value: &Value) -> usize {
    std::ptr::from_ref(value).addr()
}

/// An estimate for a pattern that is searched for in a text.
fn searched(pattern: &str, length: usize) -> u64 {
    let blocks = re2_size::states(pattern) / 64;
    let steps = length.saturating_mul(blocks.saturating_mul(blocks).saturating_add(1)) / 16;
    u64::try_from(steps).unwrap_or(u64::MAX)
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

impl<'a> Cost<'a> {
    /// Finds what references may lead to. The parser of the schema bounds the recursion.
    fn collect(&mut self, schema: &'a Value, is_root: bool) {
        match schema {
            Value::Array(items) => items.iter().for_each(|item| self.collect(item, false)),
            Value::Object(members) => {
                for (name, below) in members {
                    match (&**name, below) {
                        ("$id" | "id", Value::String(id)) => {
                            // It may stand in for such a schema.
                            self.has_dynamic |= is_of_schemas(id);
                            match id.strip_prefix('#') {
                                Some(anchor) => {
                                    self.anchors.entry(anchor).or_default().push(schema);
                                }
                                None if !is_root => self.resources.push(schema),
                                None => {}
                            }
                        }
                        ("$anchor" | "$dynamicAnchor", Value::String(anchor)) => {
                            self.anchors.entry(anchor).or_default().push(schema);
                            self.has_dynamic |= name == "$dynamicAnchor";
                        }
                        ("$recursiveAnchor", _) => self.has_dynamic = true,
                        _ => {}
                    }
                    self.collect(below, false);
                }
            }
            _ => {}
        }
    }

    /// Counts the parts of a value. The parser of values bounds the recursion.
    fn nodes(&mut self, value: &Value) -> u64 {
        let mut sum = 1_u64;
        match value {
            Value::Array(items) => {
                for item in items {
                    sum = sum.saturating_add(self.nodes(item));
                }
            }
            Value::Object(members) => {
                for (name, below) in members {
                    self.longest_name = self.longest_name.max(name.len());
                    sum = sum.saturating_add(self.nodes(below));
                }
            }
            Value::String(text) => sum += count(text.len() / 64),
            _ => {}
        }
        self.nodes.insert(place(value), sum);
        sum
    }

    /// Returns the steps of a pair. `at`: how deep the value is; `depth`: how deep the checker is.
    fn of(
        &mut self,
        schema: &'a Value,
        value: &'a Value,
        at: u64,
        depth: usize,
    ) -> Result<u64, String> {
        let Value::Object(members) = schema else { return Ok(1 + at) };
        if !members.contains_key("$ref") && !has_type(members, value) {
            return Ok(1 + at);
        }
        let pair = (place(schema), place(value));
        match self.known.get(&pair) {
            Some(Some(steps)) => return Ok(*steps),
            Some(None) => return Err("a part of it refers to itself without end".to_owned()),
            None => {}
        }
        if depth > DEEPEST {
            return Err(format!("its parts refer to others more than {DEEPEST} deep"));
        }
        if self.known.len() > MOST_PAIRS {
            return Err(too_much());
        }
        self.known.insert(pair, None);
        let mut sum = self.own(members, value, at);
        for (name, below) in members {
            sum = sum.saturating_add(self.below(name, below, value, at, depth + 1)?);
            if sum > MOST_STEPS {
                return Err(too_much());
            }
        }
        self.known.insert(pair, Some(sum));
        Ok(sum)
    }

    /// Returns the steps of a schema without its subschemas.
    fn own(&self, members: &Map<String, Value>, value: &Value, at: u64) -> u64 {
        let nodes = self.nodes.get(&place(value)).copied().unwrap_or(1);
        let mut sum = 1_u64.saturating_add(at);
        sum = sum.saturating_add(match value {
            Value::Array(items) => count(items.len()),
            Value::Object(members) => count(members.len()),
            _ => 0,
        });
        let length = match value {
            Value::String(text) if text.is_empty() => self.longest_name,
            Value::String(text) => text.len(),
            _ => 0,
        };
        for (name, below) in members {
            let more = match (&**name, below) {
                ("enum", Value::Array(values)) => count(values.len()).saturating_mul(nodes),
                ("const", _) => nodes,
                ("uniqueItems", Value::Bool(true)) => nodes.saturating_mul(20),
                ("format", _) => count(length).saturating_mul(8),
                ("pattern", Value::String(pattern)) => searched(pattern, length),
                ("patternProperties", Value::Object(patterns)) => {
                    let names: usize = match value {
                        Value::Object(members) => members.keys().map(String::len).sum(),
                        _ => 0,
                    };
                    patterns.keys().map(|pattern| searched(pattern, names)).sum()
                }
                ("required", Value::Array(names)) => count(names.len()),
                ("dependencies" | "dependentRequired", Value::Object(names)) => count(names.len()),
                _ => 0,
            };
            sum = sum.saturating_add(more);
        }
        sum.saturating_add(count(length / 64))
    }

    /// Returns the steps of what a member of a schema applies to a value and what is in it.
    fn below(
        &mut self,
        name: &str,
        below: &'a Value,
        value: &'a Value,
        at: u64,
        depth: usize,
    ) -> Result<u64, String> {
        let mut sum = 0_u64;
        let mut add = |steps: u64| sum = sum.saturating_add(steps);
        match (name, below, value) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(address), _) => {
                add(self.referred(address, value, at, depth)?);
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas), _) => {
                for schema in schemas {
                    add(self.of(schema, value, at, depth)?);
                }
            }
            ("not" | "if" | "then" | "else", schema, _) => add(self.of(schema, value, at, depth)?),
            ("dependencies" | "dependentSchemas", Value::Object(schemas), Value::Object(_)) => {
                for schema in schemas.values() {
                    add(self.of(schema, value, at, depth)?);
                }
            }
            ("properties", Value::Object(schemas), Value::Object(members)) => {
                for (name, member) in members {
                    if let Some(schema) = schemas.get(name) {
                        add(self.of(schema, member, at + 1, depth)?);
                    }
                }
            }
            ("patternProperties", Value::Object(schemas), Value::Object(members)) => {
                for schema in schemas.values() {
                    for member in members.values() {
                        add(self.of(schema, member, at + 1, depth)?);
                    }
                }
            }
            ("additionalProperties" | "unevaluatedProperties", schema, Value::Object(members)) => {
                for member in members.values() {
                    add(self.of(schema, member, at + 1, depth)?);
                }
            }
            ("propertyNames", schema, Value::Object(members)) => {
                add(self.of(schema, &NAME, at + 1, depth)?.saturating_mul(count(members.len())));
            }
            ("items" | "prefixItems", Value::Array(schemas), Value::Array(items)) => {
                for (schema, item) in schemas.iter().zip(items) {
                    add(self.of(schema, item, at + 1, depth)?);
                }
            }
            (
                "items" | "additionalItems" | "contains" | "unevaluatedItems",
                schema,
                Value::Array(items),
            ) => {
                for item in items {
                    add(self.of(schema, item, at + 1, depth)?);
                }
            }
            _ => {}
        }
        Ok(sum)
    }

    /// Returns the steps of the most expensive schema that a reference may lead to.
    fn referred(
        &mut self,
        address: &str,
        value: &'a Value,
        at: u64,
        depth: usize,
    ) -> Result<u64, String> {
        if is_of_schemas(address) {
            if self.has_dynamic {
                return Err(format!("it extends {address}"));
            }
            let nodes = self.nodes.get(&place(value)).copied().unwrap_or(1);
            return Ok(nodes.saturating_add(at).saturating_mul(OF_SCHEMAS));
        }
        let (base, fragment) = address.split_once('#').unwrap_or((address, ""));
        let mut resources = self.resources.clone();
        let is_named = |resource: &&Value| {
            resource["$id"].as_str().is_some_and(|id| id.trim_end_matches('#').ends_with(base))
        };
        if !base.is_empty() && resources.iter().any(is_named) {
            resources.retain(is_named);
        }
        let fragment = decoded(fragment);
        let targets: Vec<&'a Value> = match &*fragment {
            "" => resources,
            pointer if pointer.starts_with('/') => {
                resources.iter().filter_map(|resource| resource.pointer(pointer)).collect()
            }
            anchor => self.anchors.get(anchor).cloned().unwrap_or_default(),
        };
        if targets.is_empty() {
            return Err(format!("it refers to {address}, which is not found"));
        }
        let mut most = 0;
        for target in targets {
            most = most.max(self.of(target, value, at, depth)?);
        }
        Ok(most)
    }
}

fn is_of_schemas(address: &str) -> bool {
    SCHEMAS.iter().any(|start| address.starts_with(start))
}

fn too_much() -> String {
    format!("checking the values would take more than {MOST_STEPS} steps")
}

/// Whether a value has the type that a schema demands; the checker looks at nothing else before.
fn has_type(members: &Map<String, Value>, value: &Value) -> bool {
    let is = |kind: &Value| {
        matches!(
            (kind.as_str().unwrap_or_default(), value),
            ("null", Value::Null)
                | ("boolean", Value::Bool(_))
                | ("number" | "integer", Value::Number(_))
                | ("string", Value::String(_))
                | ("array", Value::Array(_))
                | ("object", Value::Object(_))
        )
    };
    match members.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(is),
        Some(kind @ Value::String(_)) => is(kind),
        _ => true,
    }
}

/// Returns a fragment without percent signs.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| *first == b'%');
        let code = code.and_then(|code| str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
