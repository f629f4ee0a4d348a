//! List functions. Each returns a new list that shares its items.

use super::call::{Group, int, list, text, value};
use crate::limits::MOST_NUMBERS;
use crate::print::{MAX_NESTING, to_text};
use crate::value::{Value, equal};

pub(super) const GROUP: Group = &[
    ("list", "*+", |a| Ok(Value::list(a.iter().cloned()))),
    ("tuple", "*+", |a| Ok(Value::list(a.iter().cloned()))),
    ("first", "l", |a| Ok(list(a, 0)?.first().cloned().unwrap_or(Value::Nil))),
    ("last", "l", |a| Ok(list(a, 0)?.last().cloned().unwrap_or(Value::Nil))),
    ("rest", "l", |a| Ok(Value::list(list(a, 0)?.into_iter().skip(1)))),
    ("initial", "l", |a| {
        let items = list(a, 0)?;
        let count = items.len().saturating_sub(1);
        Ok(Value::list(items.into_iter().take(count)))
    }),
    ("append", "l*", |a| Ok(Value::list(list(a, 0)?.into_iter().chain([value(a, 1)])))),
    ("push", "l*", |a| Ok(Value::list(list(a, 0)?.into_iter().chain([value(a, 1)])))),
    ("prepend", "l*", |a| Ok(Value::list([value(a, 1)].into_iter().chain(list(a, 0)?)))),
    ("concat", "l+", |a| {
        let mut all = Vec::new();
        for index in 0..a.len() {
            all.extend(list(a, index)?);
        }
        Ok(Value::list(all))
    }),
    ("reverse", "l", |a| Ok(Value::list(list(a, 0)?.into_iter().rev()))),
    ("uniq", "l", |a| {
        let mut kept: Vec<Value> = Vec::new();
        for item in list(a, 0)? {
            if !kept.iter().any(|other| equal(other, &item, MAX_NESTING)) {
                kept.push(item);
            }
        }
        Ok(Value::list(kept))
    }),
    ("without", "l*+", |a| {
        let items = list(a, 0)?.into_iter();
        Ok(Value::list(
            items.filter(|item| !a[1..].iter().any(|unwanted| equal(unwanted, item, MAX_NESTING))),
        ))
    }),
    ("has", "*l", |a| match &a[1] {
        Value::Nil => Ok(Value::Bool(false)),
        _ => {
            let items = list(a, 1)?;
            Ok(Value::Bool(items.iter().any(|item| equal(item, &a[0], MAX_NESTING))))
        }
    }),
    ("compact", "l", |a| Ok(Value::list(list(a, 0)?.into_iter().filter(Value::is_true)))),
    ("chunk", "*l", |a| {
        let size = usize::try_from(int(a, 0)).unwrap_or(0).max(1);
        let items = list(a, 1)?;
        Ok(Value::list(items.chunks(size).map(|chunk| Value::list(chunk.to_vec()))))
    }),
    ("sortAlpha", "*", |a| {
        let mut texts = texts(&a[0]);
        texts.sort_unstable();
        Ok(Value::list(texts.iter().map(Value::text)))
    }),
    ("join", "s*", |a| Ok(Value::text(texts(&a[1]).join(&text(a, 0))))),
    ("toStrings", "*", |a| Ok(Value::list(texts(&a[0]).iter().map(Value::text)))),
    ("seq", "i+", |a| {
        let (from, step, to) = match a.len() {
            1 => (1, 0, int(a, 0)),
            2 => (int(a, 0), 0, int(a, 1)),
            3 => (int(a, 0), int(a, 1), int(a, 2)),
            _ => return Ok(Value::text("")),
        };
        let step = match step {
            0 if from > to => -1,
            0 => 1,
            step => step,
        };
        let mut numbers = Vec::new();
        let mut number = from;
        while (step > 0 && number <= to) || (step < 0 && number >= to) {
            numbers.push(number.to_string());
            if numbers.len() > MOST_NUMBERS {
                return Err("more than a million numbers".to_owned());
            }
            number = number.saturating_add(step);
        }
        Ok(Value::text(numbers.join(" ")))
    }),
];

/// Returns the items as strings without nil; any other value is a list of one.
pub(super) fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::List(list) => {
            list.items().iter().filter(|item| !matches!(item, Value::Nil)).map(to_text).collect()
        }
        Value::Nil => Vec::new(),
        Value::Object(object) => match object.data() {
            Value::List(list) => list.items().iter().map(to_text).collect(),
            other => vec![to_text(&other)],
        },
        other => vec![to_text(other)],
    }
}
