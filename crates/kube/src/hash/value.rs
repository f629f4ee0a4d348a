//! JSON values as Go decodes them into typed fields: null becomes the zero value of the type.

use serde_json::{Map, Value};

use super::quantity::Quantity;
use imgctl_base::error::{Error, Result};

/// A port, by number or by name.
pub(super) enum IntOrString<'a> {
    Int(i64),
    Text(&'a str),
}

/// Returns the error for a value that is not `wanted`.
pub(super) fn wrong(wanted: &str) -> Error {
    Error::bad_content(format!("is not {wanted}"))
}

pub(super) fn text(value: &Value) -> Result<&str> {
    match value {
        Value::Null => Ok(""),
        Value::String(text) => Ok(text),
        _ => Err(wrong("a text")),
    }
}

pub(super) fn number(value: &Value) -> Result<i64> {
    match value {
        Value::Null => Ok(0),
        value => value.as_i64().ok_or_else(|| wrong("a whole number")),
    }
}

pub(super) fn boolean(value: &Value) -> Result<bool> {
    match value {
        Value::Null => Ok(false),
        value => value.as_bool().ok_or_else(|| wrong("true or false")),
    }
}

pub(super) fn int_or_string(value: &Value) -> Result<IntOrString<'_>> {
    match value {
        Value::String(text) => Ok(IntOrString::Text(text)),
        value => number(value).map(IntOrString::Int),
    }
}

pub(super) fn list(value: &Value) -> Result<Option<&Vec<Value>>> {
    match value {
        Value::Null => Ok(None),
        Value::Array(list) => Ok(Some(list)),
        _ => Err(wrong("a list")),
    }
}

pub(super) fn map(value: &Value) -> Result<Option<&Map<String, Value>>> {
    match value {
        Value::Null => Ok(None),
        Value::Object(map) => Ok(Some(map)),
        _ => Err(wrong("an object")),
    }
}

/// Reads the quantity, if there is one. Numbers are read from their text, as Go does. Fails on a
/// float whose text may differ from the text that was originally written.
pub(super) fn quantity(value: &Value) -> Result<Option<Quantity>> {
    let text = match value {
        Value::Null => return Ok(None),
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return Err(wrong("a quantity")),
    };
    let settled = value.is_string() || !(text.ends_with(".0") || text.contains(['e', 'E']));
    match Quantity::parse(&text).filter(|_| settled) {
        Some(quantity) => Ok(Some(quantity)),
        None => Err(wrong("a quantity")),
    }
}
