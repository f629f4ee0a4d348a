//! Plain functions on strings and numbers that every Go template dialect shares.

use std::sync::{Arc, LazyLock};

use gotmpl::{FuncMap, TemplateError};

use super::{Answer, typed};
use crate::embed::chart::engine::print::to_text;
use crate::embed::chart::engine::value::Value;
use imgctl_template::{self as template, Dialect};

static FUNCTIONS: LazyLock<FuncMap> = LazyLock::new(|| template::functions(Dialect::ClusterImage));

/// Names and types of the shared functions.
const TYPES: [(&str, &str); 47] = [
    ("trim", "s"),
    ("trimAll", "ss"),
    ("trimPrefix", "ss"),
    ("trimSuffix", "ss"),
    ("upper", "s"),
    ("lower", "s"),
    ("title", "s"),
    ("untitle", "s"),
    ("repeat", "is"),
    ("substr", "iis"),
    ("trunc", "is"),
    ("nospace", "s"),
    ("contains", "ss"),
    ("hasPrefix", "ss"),
    ("hasSuffix", "ss"),
    ("replace", "sss"),
    ("splitList", "ss"),
    ("split", "ss"),
    ("splitn", "sis"),
    ("snakecase", "s"),
    ("kebabcase", "s"),
    ("camelcase", "s"),
    ("plural", "ssi"),
    ("base", "s"),
    ("dir", "s"),
    ("ext", "s"),
    ("isAbs", "s"),
    ("atoi", "s"),
    ("float64", "*"),
    ("toDecimal", "*"),
    ("add", "*+"),
    ("add1", "*"),
    ("mul", "*+"),
    ("sub", "**"),
    ("div", "**"),
    ("mod", "**"),
    ("max", "*+"),
    ("min", "*+"),
    ("biggest", "*+"),
    ("addf", "*+"),
    ("mulf", "*+"),
    ("subf", "**"),
    ("divf", "**"),
    ("floor", "*"),
    ("ceil", "*"),
    ("round", "**"),
    ("until", "*"),
];

/// Calls the function if it is one of the shared functions.
pub(super) fn call(name: &str, arguments: &[Value]) -> Option<Answer> {
    let untyped = match name {
        "untilStep" => Some("***"),
        _ => None,
    };
    let types =
        TYPES.iter().find(|(known, _)| *known == name).map(|(_, types)| *types).or(untyped)?;
    let function = FUNCTIONS.get(name)?;
    if let Err(message) = typed(name, types, arguments) {
        return Some(Err(message));
    }
    let arguments: Vec<gotmpl::Value> = arguments.iter().map(there).collect();
    Some(match function(&arguments) {
        Ok(value) => Ok(back(&value)),
        Err(TemplateError::Exec(message)) => Err(message),
        Err(other) => Err(other.to_string()),
    })
}

fn there(value: &Value) -> gotmpl::Value {
    match value {
        Value::Nil => gotmpl::Value::Nil,
        Value::Bool(bool) => gotmpl::Value::Bool(*bool),
        Value::Int(int) => gotmpl::Value::Int(*int),
        Value::Float(float) => gotmpl::Value::Float(*float),
        Value::Text(text) => gotmpl::Value::String(Arc::from(text.as_ref())),
        other => gotmpl::Value::String(to_text(other).into()),
    }
}

/// None of these functions returns a value nested deeper than a list or map of strings.
fn back(value: &gotmpl::Value) -> Value {
    match value {
        gotmpl::Value::Nil | gotmpl::Value::Function(_) => Value::Nil,
        gotmpl::Value::Bool(bool) => Value::Bool(*bool),
        gotmpl::Value::Int(int) => Value::Int(*int),
        gotmpl::Value::Uint(uint) => Value::Int(i64::try_from(*uint).unwrap_or(i64::MAX)),
        gotmpl::Value::Float(float) => Value::Float(*float),
        gotmpl::Value::String(text) => Value::text(text),
        gotmpl::Value::List(items) => Value::list(items.iter().map(back)),
        gotmpl::Value::Map(members) => {
            Value::map(members.iter().map(|(key, value)| (key.as_ref(), back(value))))
        }
    }
}
