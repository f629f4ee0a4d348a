//! Values of expressions: conversions, members, equality. Must not know expressions.

use hcl::{Number, Value};

pub(crate) type Outcome<T> = Result<T, String>;

pub(crate) fn member(value: &Value, name: &str) -> Outcome<Value> {
    match value {
        Value::Object(map) => {
            map.get(name).cloned().ok_or_else(|| format!("there is no member `{name}`"))
        }
        other => Err(format!("{} has no members", shown(other))),
    }
}

pub(crate) fn indexed(value: &Value, index: &Value) -> Outcome<Value> {
    match value {
        Value::Array(items) => {
            let at = number(index)?;
            let item = (at >= 0.0 && at.fract() == 0.0).then(|| items.get(at as usize)).flatten();
            item.cloned().ok_or_else(|| format!("a list of {} has no item {at}", items.len()))
        }
        other => member(other, &text(index)?),
    }
}

/// Returns whether two values are equal; a number equals the same number in another form.
pub(crate) fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left.as_f64() == right.as_f64(),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|(left, right)| equal(left, right))
        }
        _ => left == right,
    }
}

pub(crate) fn truth(value: &Value) -> Outcome<bool> {
    match value {
        Value::Bool(value) => Ok(*value),
        Value::String(text) if text == "true" || text == "1" => Ok(true),
        Value::String(text) if text == "false" || text == "0" => Ok(false),
        Value::String(text) => Err(format!("`{text}` is neither true nor false")),
        other => Err(format!("{} is neither true nor false", shown(other))),
    }
}

pub(crate) fn number(value: &Value) -> Outcome<f64> {
    match value {
        Value::Number(number) => number.as_f64().ok_or_else(|| format!("{number} is too large")),
        Value::String(text) => text.trim().parse().map_err(|_| format!("`{text}` is not a number")),
        other => Err(format!("{} is not a number", shown(other))),
    }
}

/// Largest integer that a float holds exactly.
const EXACT: f64 = 9_007_199_254_740_992.0;

pub(crate) fn numeric(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() <= EXACT {
        return Value::from(number as i64);
    }
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

/// Returns a value as text, as an interpolation does.
pub(crate) fn text(value: &Value) -> Outcome<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Number(number) => Ok(match number.as_f64().map(numeric) {
            Some(Value::Number(number)) => number.to_string(),
            _ => number.to_string(),
        }),
        other => Err(format!("{} is not a text", shown(other))),
    }
}

pub(crate) fn shown(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}
