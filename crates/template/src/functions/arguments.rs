//! Access to a function's arguments, with errors that name the function.

use std::collections::BTreeMap;
use std::sync::Arc;

use gotmpl::{TemplateError, Value};

use super::refuse;

/// The arguments of one call.
pub(super) struct Arguments<'a> {
    name: &'static str,
    values: &'a [Value],
}

/// The members of a map.
pub(super) type Members = BTreeMap<Arc<str>, Value>;

impl<'a> Arguments<'a> {
    /// Creates the arguments of a call to the function `name`.
    pub(super) fn new(name: &'static str, values: &'a [Value]) -> Self {
        Self { name, values }
    }

    /// Returns all arguments.
    pub(super) fn all(&self) -> &'a [Value] {
        self.values
    }

    /// Returns the number of arguments.
    pub(super) fn count(&self) -> usize {
        self.values.len()
    }

    /// Returns the argument at `index`.
    pub(super) fn value(&self, index: usize) -> Result<&'a Value, TemplateError> {
        self.values.get(index).ok_or_else(|| {
            refuse(format!(
                "wrong number of args for {}: want at least {}, got {}",
                self.name,
                index + 1,
                self.values.len()
            ))
        })
    }

    /// Returns the last argument, which a pipe supplies.
    pub(super) fn last(&self) -> Result<&'a Value, TemplateError> {
        self.value(self.values.len().saturating_sub(1))
    }

    /// Returns an argument as text. Go would reject other types here; sprig's functions convert
    /// most to text.
    pub(super) fn text(&self, index: usize) -> Result<String, TemplateError> {
        Ok(text_of(self.value(index)?))
    }

    /// Returns an argument as an integer, like sprig's `int64`: from numbers, booleans and decimal
    /// text, otherwise 0.
    pub(super) fn int(&self, index: usize) -> Result<i64, TemplateError> {
        Ok(int_of(self.value(index)?))
    }

    /// Returns a length or count of at most `limit`, so that a template cannot exhaust memory.
    pub(super) fn size(&self, index: usize, limit: usize) -> Result<usize, TemplateError> {
        let int = self.int(index)?;
        match usize::try_from(int) {
            Ok(size) if size <= limit => Ok(size),
            _ => Err(refuse(format!("{}: {int} is not between 0 and {limit}", self.name))),
        }
    }

    /// Returns an argument that is a list; nil is an empty list.
    pub(super) fn list(&self, index: usize) -> Result<&'a [Value], TemplateError> {
        match self.value(index)? {
            Value::List(items) => Ok(items),
            Value::Nil => Ok(&[]),
            other => Err(self.wrong("a list", other)),
        }
    }

    /// Returns an argument that is a map.
    pub(super) fn map(&self, index: usize) -> Result<&'a Members, TemplateError> {
        match self.value(index)? {
            Value::Map(members) => Ok(members),
            other => Err(self.wrong("a map", other)),
        }
    }

    /// Returns an error that begins with the function's name.
    pub(super) fn refuse(&self, why: impl std::fmt::Display) -> TemplateError {
        refuse(format!("{}: {why}", self.name))
    }

    fn wrong(&self, wanted: &str, got: &Value) -> TemplateError {
        self.refuse(format!("wants {wanted}, not a {}", got.type_name()))
    }
}

/// Formats a value like Go's `%v`.
pub(super) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.as_ref().to_owned(),
        other => other.to_string(),
    }
}

/// Converts a value to an integer; returns 0 if that is impossible (sprig casts with spf13/cast).
pub(super) fn int_of(value: &Value) -> i64 {
    #[allow(clippy::cast_possible_truncation, reason = "the cast saturates, as wanted")]
    match value {
        Value::Int(int) => *int,
        Value::Uint(uint) => i64::try_from(*uint).unwrap_or(i64::MAX),
        Value::Float(float) => *float as i64,
        Value::Bool(bool) => i64::from(*bool),
        Value::String(text) => {
            let text = text.trim();
            text.parse().or_else(|_| text.parse::<f64>().map(|float| float as i64)).unwrap_or(0)
        }
        _ => 0,
    }
}

/// Converts a value to a float; returns 0 if that is impossible.
pub(super) fn float_of(value: &Value) -> f64 {
    match value {
        Value::Float(float) => *float,
        Value::String(text) => text.trim().parse().unwrap_or(0.0),
        #[allow(clippy::cast_precision_loss, reason = "what float64(x) does in Go too")]
        other => int_of(other) as f64,
    }
}

/// Creates a text value.
pub(super) fn string(text: impl AsRef<str>) -> Value {
    Value::String(Arc::from(text.as_ref()))
}

/// Creates a list value.
pub(super) fn list(items: impl IntoIterator<Item = Value>) -> Value {
    Value::List(items.into_iter().collect())
}
