//! Lists, and functions that select values.

use gotmpl::{TemplateError, Value};

use super::arguments::{Arguments, list, text_of};
use super::{Answer, Group};

/// Functions in this file.
pub(super) const GROUP: Group = &[
    ("list", |a| Ok(list(a.all().iter().cloned()))),
    ("tuple", |a| Ok(list(a.all().iter().cloned()))),
    ("first", |a| Ok(a.list(0)?.first().cloned().unwrap_or(Value::Nil))),
    ("last", |a| Ok(a.list(0)?.last().cloned().unwrap_or(Value::Nil))),
    ("rest", |a| Ok(list(a.list(0)?.iter().skip(1).cloned()))),
    ("initial", |a| {
        let items = a.list(0)?;
        Ok(list(items.iter().take(items.len().saturating_sub(1)).cloned()))
    }),
    ("append", |a| Ok(list(a.list(0)?.iter().chain([a.value(1)?]).cloned()))),
    ("prepend", |a| Ok(list([a.value(1)?].into_iter().chain(a.list(0)?).cloned()))),
    ("concat", concat),
    ("reverse", |a| Ok(list(a.list(0)?.iter().rev().cloned()))),
    ("uniq", |a| Ok(list(unique(a.list(0)?)))),
    ("without", |a| {
        let unwanted = a.all().get(1..).unwrap_or_default();
        Ok(list(a.list(0)?.iter().filter(|item| !unwanted.contains(item)).cloned()))
    }),
    ("has", |a| Ok(Value::Bool(a.list(1)?.contains(a.value(0)?)))),
    ("compact", |a| Ok(list(a.list(0)?.iter().filter(|item| item.is_truthy()).cloned()))),
    ("sortAlpha", |a| {
        let mut texts = super::strings::texts(a.value(0)?);
        texts.sort_unstable();
        Ok(list(texts.iter().map(super::arguments::string)))
    }),
    ("default", |a| {
        // `default "x"` without a second value (a nil pipe) also returns the default.
        let given = a.all().get(1);
        Ok(given.filter(|value| value.is_truthy()).unwrap_or(a.value(0)?).clone())
    }),
    ("empty", |a| Ok(Value::Bool(!a.value(0)?.is_truthy()))),
    ("coalesce", |a| {
        let first = a.all().iter().find(|value| value.is_truthy());
        Ok(first.cloned().unwrap_or(Value::Nil))
    }),
    ("all", |a| Ok(Value::Bool(a.all().iter().all(Value::is_truthy)))),
    ("any", |a| Ok(Value::Bool(a.all().iter().any(Value::is_truthy)))),
    ("ternary", ternary),
    ("fail", |a| Err(super::refuse(a.text(0)?))),
    ("required", |a| match a.value(1)? {
        Value::Nil => Err(super::refuse(a.text(0)?)),
        Value::String(text) if text.is_empty() => Err(super::refuse(a.text(0)?)),
        value => Ok(value.clone()),
    }),
    ("kindOf", |a| Ok(super::arguments::string(kind(a.value(0)?)))),
    ("kindIs", |a| Ok(Value::Bool(a.text(0)? == kind(a.value(1)?)))),
    ("typeOf", |a| Ok(super::arguments::string(type_of(a.value(0)?)))),
    ("typeIs", |a| Ok(Value::Bool(a.text(0)? == type_of(a.value(1)?)))),
    ("deepEqual", |a| Ok(Value::Bool(a.value(0)? == a.value(1)?))),
];

fn concat(a: &Arguments<'_>) -> Answer {
    let mut all = Vec::new();
    for index in 0..a.count() {
        all.extend(a.list(index)?.iter().cloned());
    }
    Ok(list(all))
}

fn unique(items: &[Value]) -> Vec<Value> {
    let mut seen = std::collections::BTreeSet::new();
    items.iter().filter(|item| seen.insert((item.type_name(), text_of(item)))).cloned().collect()
}

/// Implements `ternary YES NO CONDITION`.
fn ternary(a: &Arguments<'_>) -> Result<Value, TemplateError> {
    let index = usize::from(!a.value(2)?.is_truthy());
    Ok(a.value(index)?.clone())
}

/// Returns Go's `reflect.Kind` name.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Nil => "invalid",
        Value::Bool(_) => "bool",
        Value::Int(_) => "int",
        Value::Uint(_) => "uint",
        Value::Float(_) => "float64",
        Value::String(_) => "string",
        Value::List(_) => "slice",
        Value::Map(_) => "map",
        Value::Function(_) => "func",
    }
}

/// Returns the type name that `%T` prints in Go.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Nil => "<nil>",
        Value::List(_) => "[]interface {}",
        Value::Map(_) => "map[string]interface {}",
        other => kind(other),
    }
}
