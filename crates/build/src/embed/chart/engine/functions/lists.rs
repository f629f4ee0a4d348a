//! List functions. Each returns a new list that shares its items.

use super::{Group, int, list, text, value};
use crate::embed::chart::engine::print::{MAX_NESTING, to_text};
use crate::embed::chart::engine::value::{Value, equal};

pub(super) const GROUP: Group = &[
    ("list", "*+", |a| Ok(Value::list(a.iter().cloned()))),
    ("tuple", "*+", |a| Ok(Value::list(a.iter().cloned()))),
    ("first", "*", |a| Ok(list(a, 0)?.first().cloned().unwrap_or(Value::Nil))),
    ("last", "*", |a| Ok(list(a, 0)?.last().cloned().unwrap_or(Value::Nil))),
    ("rest", "*", |a| Ok(Value::list(list(a, 0)?.into_iter().skip(1)))),
    ("initial", "*", |a| {
        let items = list(a, 0)?;
        let count = items.len().saturating_sub(1);
        Ok(Value::list(items.into_iter().take(count)))
    }),
    ("append", "**", |a| Ok(Value::list(list(a, 0)?.into_iter().chain([value(a, 1)])))),
    ("push", "**", |a| Ok(Value::list(list(a, 0)?.into_iter().chain([value(a, 1)])))),
    ("prepend", "**", |a| Ok(Value::list([value(a, 1)].into_iter().chain(list(a, 0)?)))),
    ("concat", "*+", |a| {
        let mut all = Vec::new();
        for index in 0..a.len() {
            all.extend(list(a, index)?);
        }
        Ok(Value::list(all))
    }),
    ("reverse", "*", |a| Ok(Value::list(list(a, 0)?.into_iter().rev()))),
    ("uniq", "*", |a| {
        let mut kept: Vec<Value> = Vec::new();
        for item in list(a, 0)? {
            if !kept.iter().any(|other| equal(other, &item, MAX_NESTING)) {
                kept.push(item);
            }
        }
        Ok(Value::list(kept))
    }),
    ("without", "**+", |a| {
        let items = list(a, 0)?.into_iter();
        Ok(Value::list(
            items.filter(|item| !a[1..].iter().any(|unwanted| equal(unwanted, item, MAX_NESTING))),
        ))
    }),
    ("has", "**", |a| match &a[1] {
        Value::Nil => Ok(Value::Bool(false)),
        _ => {
            let items = list(a, 1)?;
            Ok(Value::Bool(items.iter().any(|item| equal(item, &a[0], MAX_NESTING))))
        }
    }),
    ("compact", "*", |a| Ok(Value::list(list(a, 0)?.into_iter().filter(Value::is_true)))),
    ("slice", "**+", |a| {
        if let Value::Text(text) = &a[0] {
            let (from, to) = bounds(a, text.len())?;
            let cut = text.get(from..to).ok_or("slice bounds out of range")?;
            return Ok(Value::text(cut));
        }
        let items = list(a, 0)?;
        let (from, to) = bounds(a, items.len())?;
        let cut = items.get(from..to).ok_or("slice bounds out of range")?;
        Ok(Value::list(cut.to_vec()))
    }),
    ("chunk", "**", |a| {
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
            if numbers.len() > 1 << 20 {
                return Err("more than a million numbers".to_owned());
            }
            number = number.saturating_add(step);
        }
        Ok(Value::text(numbers.join(" ")))
    }),
];

fn bounds(a: &[Value], length: usize) -> Result<(usize, usize), String> {
    let bound = |index: usize, otherwise: usize| match a.get(index) {
        None => Ok(otherwise),
        Some(_) => usize::try_from(int(a, index)).map_err(|_| "a negative bound".to_owned()),
    };
    Ok((bound(1, 0)?, bound(2, length)?))
}

/// Returns the items as strings without nil; any other value is a list of one.
fn texts(value: &Value) -> Vec<String> {
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
