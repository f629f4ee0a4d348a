//! Comparison as in Go templates: kinds must match, so `eq 1 1.0` is an error.

use std::cmp::Ordering;

use super::call::{Answer, Group, value};
use crate::print::show;
use crate::value::Value;

pub(super) const GROUP: Group = &[
    ("eq", "***+", |a| {
        for other in &a[1..] {
            if same(&a[0], other)? {
                return Ok(Value::Bool(true));
            }
        }
        Ok(Value::Bool(false))
    }),
    ("ne", "**", |a| Ok(Value::Bool(!same(&a[0], &a[1])?))),
    ("lt", "**", |a| ordered(a, Ordering::is_lt)),
    ("le", "**", |a| ordered(a, Ordering::is_le)),
    ("gt", "**", |a| ordered(a, Ordering::is_gt)),
    ("ge", "**", |a| ordered(a, Ordering::is_ge)),
    ("not", "*", |a| Ok(Value::Bool(!value(a, 0).is_true()))),
];

const INCOMPATIBLE: &str = "incompatible types for comparison";

fn same(a: &Value, b: &Value) -> Result<bool, String> {
    Ok(match (a, b) {
        (Value::Nil, Value::Nil) => true,
        (Value::Nil, _) | (_, Value::Nil) => false,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Float(a), Value::Float(b)) => a == b,
        (Value::Text(a), Value::Text(b)) => a == b,
        (Value::Map(_) | Value::List(_), Value::Map(_) | Value::List(_)) => {
            return Err(format!("non-comparable type {}: {}", show(a), a.type_name()));
        }
        (Value::Object(a), Value::Object(b)) => std::rc::Rc::ptr_eq(a, b),
        _ => return Err(INCOMPATIBLE.to_owned()),
    })
}

fn ordered(a: &[Value], wanted: fn(Ordering) -> bool) -> Answer {
    let order = match (&a[0], &a[1]) {
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::Float(a), Value::Float(b)) => match a.partial_cmp(b) {
            Some(order) => order,
            None => return Ok(Value::Bool(false)),
        },
        (Value::Text(a), Value::Text(b)) => a.cmp(b),
        (Value::Int(_) | Value::Float(_) | Value::Text(_), _) => {
            return Err(INCOMPATIBLE.to_owned());
        }
        _ => return Err("invalid type for comparison".to_owned()),
    };
    Ok(Value::Bool(wanted(order)))
}
