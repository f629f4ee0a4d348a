//! Template values, converted to and from JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

pub use gotmpl::Value;

use imgctl_base::error::{Error, Result};

/// Converts any serialisable value to template data.
pub fn from<T: serde::Serialize + ?Sized>(value: &T) -> Result<Value> {
    let json = serde_json::to_value(value)
        .map_err(|error| Error::failed("cannot prepare the template's data").caused_by(error))?;
    Ok(from_json(&json))
}

/// Converts JSON to template data. Whole numbers stay integers, so `printf "%d"` works. The
/// parser's nesting limit (128) bounds the recursion depth.
pub fn from_json(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Nil,
        serde_json::Value::Bool(bool) => Value::Bool(*bool),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) => Value::Int(int),
            (None, Some(uint)) => Value::Uint(uint),
            (None, None) => Value::Float(number.as_f64().unwrap_or(0.0)),
        },
        serde_json::Value::String(text) => Value::String(text.as_str().into()),
        serde_json::Value::Array(items) => Value::List(items.iter().map(from_json).collect()),
        serde_json::Value::Object(members) => Value::Map(Arc::new(
            members
                .iter()
                .map(|(key, value)| (Arc::from(key.as_str()), from_json(value)))
                .collect::<BTreeMap<_, _>>(),
        )),
    }
}

/// Converts the value to JSON. Keys are sorted, as in Go's encoding of maps; functions become
/// `null`.
pub fn to_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Nil | Value::Function(_) => serde_json::Value::Null,
        Value::Bool(bool) => (*bool).into(),
        Value::Int(int) => (*int).into(),
        Value::Uint(uint) => (*uint).into(),
        // Go writes a float without a fraction as an integer.
        #[allow(clippy::cast_possible_truncation, reason = "checked to be whole and in range")]
        Value::Float(float) if float.fract() == 0.0 && float.abs() < 9e15 => (*float as i64).into(),
        Value::Float(float) => (*float).into(),
        Value::String(text) => text.as_ref().into(),
        Value::List(items) => items.iter().map(to_json).collect(),
        Value::Map(members) => serde_json::Value::Object(
            members.iter().map(|(key, value)| (key.as_ref().to_owned(), to_json(value))).collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_survives_the_round_trip() {
        let json = json!({"a": [1, -2, 1.5, true, null, "x"], "b": {"c": u64::MAX}});
        assert_eq!(to_json(&from_json(&json)), json);
    }
}
