//! What a function sees of its call: arguments, checked against the types that the table gives or
//! converted to them, and the dialect.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

use crate::dialect::Dialect;
use crate::patterns::Patterns;
use crate::print::to_text;
use crate::value::{List, Map, Value};

use super::growth::Growth;

/// Result of a function, or an error message.
pub(super) type Answer = Result<Value, String>;
/// Body of a function; its arguments have the types of its table entry.
pub(super) type Body = fn(&Call<'_>) -> Answer;
/// Name, types, growth, body.
pub(super) type Group = &'static [(&'static str, &'static str, Growth, Body)];

/// The arguments of one call, which it dereferences to.
pub(crate) struct Call<'a> {
    values: Cow<'a, [Value]>,
    pub(super) dialect: Dialect,
    /// Variables that `env` reads.
    pub(super) environment: Option<&'a BTreeMap<String, String>>,
    /// The regular expressions of the rendering.
    pub(super) patterns: &'a Patterns,
}

impl Deref for Call<'_> {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.values
    }
}

impl<'a> Call<'a> {
    /// Checks the arguments against `types`, or converts them if the dialect does so.
    pub(super) fn new(
        dialect: Dialect,
        environment: Option<&'a BTreeMap<String, String>>,
        patterns: &'a Patterns,
        (name, types): (&str, &str),
        arguments: &'a [Value],
    ) -> Result<Self, String> {
        let values = if dialect.is_typed() {
            typed(name, types, arguments)?;
            plain(types, arguments)
        } else {
            converted(name, types, arguments)?
        };
        Ok(Self { values, dialect, environment, patterns })
    }

    /// Returns the same call with other arguments.
    pub(super) fn with<'b>(&self, arguments: &'b [Value]) -> Call<'b>
    where
        'a: 'b,
    {
        Call { values: Cow::Borrowed(arguments), ..*self }
    }
}

/// Splits types into those of fixed arguments and the one that repeats.
fn split(types: &str) -> (&str, &str) {
    match types.strip_suffix('+') {
        Some(rest) => rest.split_at(rest.len().saturating_sub(1)),
        None => (types, ""),
    }
}

/// Returns the arguments that [`converted`] makes a text of.
pub(super) fn made_texts<'a>(
    types: &'a str,
    arguments: &'a [Value],
) -> impl Iterator<Item = &'a Value> {
    let (fixed, repeated) = split(types);
    let wanted = fixed.chars().chain(repeated.chars().cycle()).zip(arguments);
    let texts = wanted.filter(|(wanted, value)| *wanted == 's' && !matches!(value, Value::Text(_)));
    texts.map(|(_, value)| value)
}

/// Checks the number and types of arguments.
pub(crate) fn typed(name: &str, types: &str, arguments: &[Value]) -> Result<(), String> {
    let (fixed, repeated) = split(types);
    let count = arguments.len();
    if count < fixed.len() || (count > fixed.len() && repeated.is_empty()) {
        let least = if repeated.is_empty() { "" } else { "at least " };
        return Err(format!(
            "wrong number of args for {name}: want {least}{} got {count}",
            fixed.len()
        ));
    }
    for (wanted, value) in fixed.chars().chain(repeated.chars().cycle()).zip(arguments) {
        let (fits, expected) = match wanted {
            's' => (matches!(value, Value::Text(_)), "string"),
            'i' => (matches!(value, Value::Int(_)), "int"),
            'b' => (matches!(value, Value::Bool(_)), "bool"),
            // A nil map counts as empty.
            'm' => (matches!(value.kind(), "map" | "invalid"), "map[string]interface {}"),
            _ => (true, ""),
        };
        if !fits {
            return Err(format!(
                "wrong type for value; expected {expected}; got {}",
                value.type_name()
            ));
        }
    }
    Ok(())
}

/// Where a function takes a map, Go passes Helm's values without their methods.
fn plain<'a>(types: &str, arguments: &'a [Value]) -> Cow<'a, [Value]> {
    let (fixed, repeated) = split(types);
    let wanted = || fixed.chars().chain(repeated.chars().cycle());
    let has_methods = |(wanted, value): (char, &Value)| {
        wanted == 'm' && matches!(value, Value::Map(map) if map.is_values())
    };
    if !wanted().zip(arguments).any(has_methods) {
        return Cow::Borrowed(arguments);
    }
    let passed = wanted().zip(arguments).map(|(wanted, value)| match value {
        Value::Map(map) if wanted == 'm' => Value::Map(map.typed(false)),
        other => other.clone(),
    });
    passed.collect()
}

/// Converts arguments to the types of a function. More arguments than it takes are ignored.
fn converted<'a>(
    name: &str,
    types: &str,
    arguments: &'a [Value],
) -> Result<Cow<'a, [Value]>, String> {
    let (fixed, repeated) = split(types);
    if arguments.len() < fixed.len() {
        return Err(format!(
            "wrong number of args for {name}: want at least {} got {}",
            fixed.len(),
            arguments.len()
        ));
    }
    let wanted = fixed.chars().chain(repeated.chars().cycle());
    Ok(wanted
        .zip(arguments)
        .enumerate()
        .map(|(index, (wanted, value))| match (wanted, value) {
            ('s', Value::Text(_)) => value.clone(),
            ('s', _) => Value::text(to_text(value)),
            ('i', _) => Value::Int(int(arguments, index)),
            ('b', _) => Value::Bool(value.is_true()),
            ('l', Value::Nil) => Value::list([]),
            _ => value.clone(),
        })
        .collect())
}

/// Returns the argument at `index`; [`Call::new`] has checked that it exists.
pub(super) fn value(a: &[Value], index: usize) -> Value {
    a.get(index).cloned().unwrap_or(Value::Nil)
}

/// Returns the argument as a string: unchanged if it is one, otherwise converted as by sprig's
/// `strval`.
pub(super) fn text(a: &[Value], index: usize) -> Rc<str> {
    match a.get(index) {
        Some(Value::Text(text)) => text.clone(),
        Some(other) => to_text(other).into(),
        None => "".into(),
    }
}

/// Returns the argument as a key. What has no short text is none.
pub(super) fn key(a: &[Value], index: usize) -> Result<Rc<str>, String> {
    match a.get(index) {
        Some(Value::List(_) | Value::Map(_) | Value::Object(_) | Value::Bytes(_)) => {
            Err(format!("wants keys that are strings, not {}", value(a, index).type_name()))
        }
        _ => Ok(text(a, index)),
    }
}

/// Returns the argument as an integer, as sprig's casts do; a value that cannot be converted is 0.
pub(super) fn int(a: &[Value], index: usize) -> i64 {
    a.get(index).map_or(0, Value::to_int)
}

/// Returns the argument as a float; a value that cannot be converted is 0.
pub(super) fn float(a: &[Value], index: usize) -> f64 {
    match a.get(index) {
        Some(Value::Float(float)) => *float,
        Some(Value::Text(text)) => text.trim().parse().unwrap_or(0.0),
        #[allow(clippy::cast_precision_loss, reason = "what float64(x) does in Go too")]
        _ => int(a, index) as f64,
    }
}

/// Returns a length or count of at most `limit`, so that a template cannot exhaust memory.
pub(super) fn size(a: &[Value], index: usize, limit: usize) -> Result<usize, String> {
    let int = int(a, index);
    usize::try_from(int)
        .ok()
        .filter(|size| *size <= limit)
        .ok_or_else(|| format!("{int} is not between 0 and {limit}"))
}

pub(super) fn map(a: &[Value], index: usize) -> Result<Map, String> {
    match a.get(index) {
        Some(Value::Map(map)) => Ok(map.clone()),
        Some(Value::Object(object)) => map(&[object.data()], 0),
        Some(Value::Nil) | None => Ok(Map::new(BTreeMap::new())),
        Some(other) => Err(format!("wants a map, not {}", other.type_name())),
    }
}

pub(super) fn list(a: &[Value], index: usize) -> Result<List, String> {
    match a.get(index) {
        Some(Value::List(list)) => Ok(list.clone()),
        Some(Value::Bytes(bytes)) => {
            Ok(List::new(bytes.iter().map(|b| Value::Int((*b).into())).collect()))
        }
        Some(Value::Object(object)) => list(&[object.data()], 0),
        Some(Value::Nil) | None => Err("wants a list, not nil".to_owned()),
        Some(other) => Err(format!("wants a list, not {}", other.type_name())),
    }
}
