//! Go's comparisons, and functions that choose among values, inspect their types, fail or print.

use std::cmp::Ordering;

use super::call::{Answer, Call, Group, int, list, map, text, value};
use super::growth::Growth::{Flat, Fresh, Shares};
use super::growth::{formatted, full, shallow};
use crate::print::{MAX_NESTING, brief, show, sprint, sprintf, to_text};
use crate::value::{Value, equal};

pub(super) const GROUP: Group = &[
    ("default", "**+", Flat, |a| {
        let given = a.get(1).filter(|value| value.is_true());
        Ok(given.unwrap_or(&a[0]).clone())
    }),
    ("empty", "*", Flat, |a| Ok(Value::Bool(!a[0].is_true()))),
    ("coalesce", "*+", Flat, |a| {
        let first = a.iter().find(|value| value.is_true());
        Ok(first.cloned().unwrap_or(Value::Nil))
    }),
    ("all", "*+", Flat, |a| Ok(Value::Bool(a.iter().all(Value::is_true)))),
    ("any", "*+", Flat, |a| Ok(Value::Bool(a.iter().any(Value::is_true)))),
    ("ternary", "**b", Flat, |a| Ok(value(a, usize::from(!a[2].is_true())))),
    ("fail", "s", Flat, |a| Err(message(&text(a, 0)))),
    ("required", "s*", Flat, |a| match &a[1] {
        Value::Nil => Err(message(&text(a, 0))),
        Value::Text(given) if given.is_empty() => Err(message(&text(a, 0))),
        given => Ok(given.clone()),
    }),
    ("kindOf", "*", Flat, |a| Ok(Value::text(a[0].kind()))),
    ("kindIs", "s*", Flat, |a| Ok(Value::Bool(text(a, 0).as_ref() == a[1].kind()))),
    ("typeOf", "*", Flat, |a| Ok(Value::text(a[0].type_name()))),
    ("typeIs", "s*", Flat, |a| Ok(Value::Bool(text(a, 0).as_ref() == a[1].type_name()))),
    ("typeIsLike", "s*", Flat, |a| {
        let name = a[1].type_name();
        let wanted = text(a, 0);
        let pointed = name.strip_prefix('*').unwrap_or(name);
        Ok(Value::Bool(wanted.as_ref() == name || wanted.as_ref() == pointed))
    }),
    ("deepEqual", "**", Fresh(full::<1, 1>), |a| Ok(Value::Bool(equal(&a[0], &a[1], MAX_NESTING)))),
    ("hello", "", Flat, |_| Ok(Value::text("Hello!"))),
    ("toString", "*", Fresh(full::<48, 3>), |a| Ok(Value::text(to_text(&a[0])))),
];

/// Returns what a template wants to say, up to a length that an error can have.
fn message(text: &str) -> String {
    const LONGEST: usize = 64 << 10;
    text.get(..text.floor_char_boundary(LONGEST)).unwrap_or(text).to_owned()
}

/// The functions of Go itself.
pub(super) const GO: Group = &[
    ("print", "*+", Fresh(full::<48, 8>), |a| Ok(Value::text(sprint(a)))),
    ("println", "*+", Fresh(full::<48, 8>), |a| {
        let shown: Vec<String> = a.iter().map(show).collect();
        Ok(Value::text(shown.join(" ") + "\n"))
    }),
    ("printf", "s*+", Fresh(formatted), |a| Ok(Value::text(sprintf(&text(a, 0), &a[1..])))),
    ("html", "*+", Fresh(full::<48, 24>), |a| Ok(Value::text(gotmpl::html_escape(&printed(a))))),
    ("js", "*+", Fresh(full::<48, 24>), |a| Ok(Value::text(gotmpl::js_escape(&printed(a))))),
    ("urlquery", "*+", Fresh(full::<48, 24>), |a| Ok(Value::text(gotmpl::url_encode(&printed(a))))),
    ("len", "*", Flat, |a| {
        let length = match &a[0] {
            Value::Text(text) => text.len(),
            Value::Bytes(bytes) => bytes.len(),
            Value::List(list) => list.items().len(),
            Value::Map(map) => map.len(),
            Value::Object(object) if object.items().is_some() => object.items().unwrap_or(0),
            Value::Nil => return Err("len of nil pointer".to_owned()),
            other => return Err(format!("len of type {}", other.type_name())),
        };
        Ok(Value::Int(i64::try_from(length).unwrap_or(i64::MAX)))
    }),
    ("index", "**+", Flat, index),
    (
        "slice",
        "**+",
        Shares(|a| match a {
            [Value::Text(text), ..] => text.len(),
            _ => a.first().map_or(0, shallow),
        }),
        |a| {
            if let Value::Text(text) = &a[0] {
                if a.dialect.is_typed() {
                    return Err("list should be type of slice or array but string".to_owned());
                }
                let (from, to) = bounds(a, text.len())?;
                let cut = text.get(from..to).ok_or("slice bounds out of range")?;
                return Ok(Value::text(cut));
            }
            let items = list(a, 0)?;
            let items = items.items();
            let (from, to) = bounds(a, items.len())?;
            let cut = items.get(from..to).ok_or("slice bounds out of range")?;
            Ok(Value::list(cut.to_vec()))
        },
    ),
    ("eq", "***+", Flat, |a| {
        for other in &a[1..] {
            if same(&a[0], other)? {
                return Ok(Value::Bool(true));
            }
        }
        Ok(Value::Bool(false))
    }),
    ("ne", "**", Flat, |a| Ok(Value::Bool(!same(&a[0], &a[1])?))),
    ("lt", "**", Flat, |a| ordered(a, Ordering::is_lt)),
    ("le", "**", Flat, |a| ordered(a, Ordering::is_le)),
    ("gt", "**", Flat, |a| ordered(a, Ordering::is_gt)),
    ("ge", "**", Flat, |a| ordered(a, Ordering::is_ge)),
    ("not", "*", Flat, |a| Ok(Value::Bool(!value(a, 0).is_true()))),
];

/// Prints what is to be escaped: nil as `<no value>`.
fn printed(a: &[Value]) -> String {
    let shown = a.iter().map(|value| match value {
        Value::Nil => Value::text("<no value>"),
        other => other.clone(),
    });
    sprint(&shown.collect::<Vec<_>>())
}

/// `index MAP KEY…`, `index LIST NUMBER…`.
fn index(a: &Call<'_>) -> Answer {
    a[1..].iter().try_fold(value(a, 0), |found, key| item(&found, key))
}

/// Returns one item of a map, list or string.
pub(super) fn item(of: &Value, key: &Value) -> Answer {
    Ok(match (of, key) {
        (Value::Map(_) | Value::Object(_), Value::Text(key)) => {
            map(std::slice::from_ref(of), 0)?.get(key).unwrap_or(Value::Nil)
        }
        (Value::List(_) | Value::Bytes(_) | Value::Object(_), Value::Int(number)) => {
            let items = list(std::slice::from_ref(of), 0)?;
            let item = usize::try_from(*number).ok().and_then(|n| items.items().get(n));
            item.cloned().ok_or_else(|| format!("error indexing: index out of range: {number}"))?
        }
        (Value::Text(text), Value::Int(number)) => {
            let byte = usize::try_from(*number).ok().and_then(|n| text.as_bytes().get(n));
            let byte = byte.ok_or_else(|| format!("index out of range: {number}"))?;
            Value::Int((*byte).into())
        }
        (Value::Nil, _) => return Err("index of untyped nil".to_owned()),
        (Value::Map(_) | Value::List(_), key) => {
            return Err(format!("cannot index {} with {}", of.type_name(), key.type_name()));
        }
        (other, _) => return Err(format!("can't index item of type {}", other.type_name())),
    })
}

fn bounds(a: &[Value], length: usize) -> Result<(usize, usize), String> {
    let bound = |index: usize, otherwise: usize| match a.get(index) {
        None => Ok(otherwise),
        Some(_) => usize::try_from(int(a, index)).map_err(|_| "a negative bound".to_owned()),
    };
    Ok((bound(1, 0)?, bound(2, length)?))
}

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
            return Err(format!("non-comparable type {}: {}", brief(a), a.type_name()));
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
