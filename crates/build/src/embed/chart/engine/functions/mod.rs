//! The functions of Helm templates: Go's own, sprig's and Helm's, as tables of name, types and
//! body, with one file for each group. Functions that modify a map in place or return one of its
//! members are implemented here; plain functions on strings and numbers come from
//! [`imgctl_template`].
//!
//! Types are checked as in Go: `s` is a string, `i` an integer, `m` a map, `*` any value, and `+`
//! repeats the last type.

mod compare;
mod encoding;
mod lists;
mod maps;
mod pseudo;
mod regexes;
mod shared;
mod text;
mod times;
mod values;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::LazyLock;

use super::objects::Object;
use super::print::to_text;
use super::value::{Map, Value};

/// Result of a function, or an error message.
type Answer = Result<Value, String>;
/// Body of a function; its arguments have the types of its table entry.
type Body = fn(&[Value]) -> Answer;
/// Name, types, body.
type Group = &'static [(&'static str, &'static str, Body)];

static FUNCTIONS: LazyLock<HashMap<&'static str, (&'static str, Body)>> = LazyLock::new(|| {
    let groups: [Group; 9] = [
        compare::GROUP,
        encoding::GROUP,
        lists::GROUP,
        maps::GROUP,
        pseudo::GROUP,
        regexes::GROUP,
        text::GROUP,
        times::GROUP,
        values::GROUP,
    ];
    let entries = groups.into_iter().flatten();
    entries.map(|(name, types, body)| (*name, (*types, *body))).collect()
});

/// Calls a function by name. The error message does not include the function name.
pub(super) fn call(name: &str, arguments: &[Value]) -> Answer {
    // `mustX` is the variant of `X` that fails; here every variant fails.
    let plain = name.strip_prefix("must").map(|rest| {
        let mut plain = rest.to_owned();
        if let Some(first) = plain.get_mut(..1) {
            first.make_ascii_lowercase();
        }
        plain
    });
    let plain = plain.as_deref().unwrap_or(name);
    let found = FUNCTIONS.get(name).or_else(|| FUNCTIONS.get(plain));
    if let Some((types, body)) = found {
        typed(name, types, arguments)?;
        return body(arguments);
    }
    match shared::call(plain, arguments) {
        Some(answer) => answer,
        None => Err(format!("function {name:?} not defined")),
    }
}

/// Checks the number and types of arguments.
pub(super) fn typed(name: &str, types: &str, arguments: &[Value]) -> Result<(), String> {
    let (fixed, repeated) = match types.strip_suffix('+') {
        Some(rest) => rest.split_at(rest.len().saturating_sub(1)),
        None => (types, ""),
    };
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
            'm' => (
                matches!(value, Value::Map(_) | Value::Nil) || is_data(value),
                "map[string]interface {}",
            ),
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

fn is_data(value: &Value) -> bool {
    matches!(value, Value::Object(object) if matches!(object.as_ref(), Object::Files(_)))
}

/// Returns the argument at `index`; [`typed`] has checked that it exists.
fn value(a: &[Value], index: usize) -> Value {
    a.get(index).cloned().unwrap_or(Value::Nil)
}

/// Returns the argument as a string: unchanged if it is one, otherwise converted as by sprig's
/// `strval`.
fn text(a: &[Value], index: usize) -> Rc<str> {
    match a.get(index) {
        Some(Value::Text(text)) => text.clone(),
        Some(other) => to_text(other).into(),
        None => "".into(),
    }
}

/// Returns the argument as an integer, as sprig's casts do; a value that cannot be converted is 0.
fn int(a: &[Value], index: usize) -> i64 {
    #[allow(clippy::cast_possible_truncation, reason = "the cast saturates, as wanted")]
    match a.get(index) {
        Some(Value::Int(int)) => *int,
        Some(Value::Float(float)) => *float as i64,
        Some(Value::Bool(bool)) => i64::from(*bool),
        Some(Value::Text(text)) => {
            text.parse().or_else(|_| text.parse::<f64>().map(|float| float as i64)).unwrap_or(0)
        }
        Some(Value::Object(object)) => match object.as_ref() {
            Object::Time(seconds) => *seconds,
            _ => 0,
        },
        _ => 0,
    }
}

/// Returns the argument as a map.
fn map(a: &[Value], index: usize) -> Result<Map, String> {
    match a.get(index) {
        Some(Value::Map(map)) => Ok(map.clone()),
        Some(Value::Object(object)) => match object.data() {
            Value::Map(map) => Ok(map),
            other => Err(format!("wants a map, not {}", other.type_name())),
        },
        Some(Value::Nil) | None => Ok(Map::new(Default::default())),
        Some(other) => Err(format!("wants a map, not {}", other.type_name())),
    }
}

/// Returns the argument as a list.
fn list(a: &[Value], index: usize) -> Result<Vec<Value>, String> {
    match a.get(index) {
        Some(Value::List(list)) => Ok(list.items().to_vec()),
        Some(Value::Bytes(bytes)) => Ok(bytes.iter().map(|b| Value::Int((*b).into())).collect()),
        Some(Value::Object(object)) => match object.data() {
            Value::List(list) => Ok(list.items().to_vec()),
            other => Err(format!("wants a list, not {}", other.type_name())),
        },
        Some(Value::Nil) | None => Err("wants a list, not nil".to_owned()),
        Some(other) => Err(format!("wants a list, not {}", other.type_name())),
    }
}
