//! Lists and maps. List functions return a new list that shares its items; map functions modify maps in
//! place.

use std::collections::BTreeMap;

use super::call::{Answer, Call, Group, int, list, map, text, value};
use super::strings::at_most;
use crate::dialect::MOST_NUMBERS;
use crate::encode::fits;
use crate::print::{MAX_NESTING, to_text};
use crate::value::{List, Map, Value, equal};

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
    ("join", "s*", |a| joined(&a[1], &text(a, 0))),
    ("toStrings", "*", |a| {
        fits(&a[0])?;
        Ok(Value::list(texts(&a[0]).iter().map(Value::text)))
    }),
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
    ("dict", "*+", |a| {
        let dict = Map::new(BTreeMap::new());
        for index in (0..a.len()).step_by(2) {
            let value = a.get(index + 1).cloned();
            dict.set(&text(a, index), value.unwrap_or_else(|| Value::text("")));
        }
        Ok(Value::Map(dict))
    }),
    ("get", "ms", |a| {
        let member = map(a, 0)?.get(&text(a, 1));
        Ok(member.unwrap_or_else(|| Value::text("")))
    }),
    ("set", "ms*", |a| {
        map(a, 0)?.set(&text(a, 1), value(a, 2));
        Ok(value(a, 0))
    }),
    ("unset", "ms", |a| {
        map(a, 0)?.unset(&text(a, 1));
        Ok(value(a, 0))
    }),
    ("hasKey", "ms", |a| Ok(Value::Bool(map(a, 0)?.get(&text(a, 1)).is_some()))),
    ("keys", "m+", |a| {
        let mut keys = Vec::new();
        for index in 0..a.len() {
            let members = map(a, index)?.members();
            keys.extend(members.into_iter().map(|(key, _)| Value::Text(key)));
        }
        Ok(Value::list(keys))
    }),
    ("values", "m", |a| {
        let members = map(a, 0)?.members();
        Ok(Value::list(members.into_iter().map(|(_, value)| value)))
    }),
    ("pluck", "sm+", |a| {
        let key = text(a, 0);
        let mut found = Vec::new();
        for index in 1..a.len() {
            found.extend(map(a, index)?.get(&key));
        }
        Ok(Value::list(found))
    }),
    ("pick", "ms+", |a| choose(a, true)),
    ("omit", "ms+", |a| choose(a, false)),
    ("merge", "mm+", |a| merge(a, false)),
    ("mergeOverwrite", "mm+", |a| merge(a, true)),
    ("dig", "s*+", dig),
    ("deepCopy", "*", |a| copy(&a[0], MAX_NESTING)),
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

/// Joins the texts of a list; its size is known before it is made.
pub(super) fn joined(list: &Value, separator: &str) -> Answer {
    fits(list)?;
    let texts = texts(list);
    let between = separator.len().saturating_mul(texts.len().saturating_sub(1));
    at_most(texts.iter().map(String::len).sum::<usize>().saturating_add(between))?;
    Ok(Value::text(texts.join(separator)))
}

fn choose(a: &[Value], named: bool) -> Answer {
    let names: Vec<_> = (1..a.len()).map(|index| text(a, index)).collect();
    let members = map(a, 0)?.members();
    let chosen = members.into_iter().filter(|(key, _)| names.contains(key) == named);
    Ok(Value::map(chosen))
}

/// Merges the other maps into the first, in place. `merge` keeps existing values; with
/// `mergeOverwrite`, the last value wins.
fn merge(a: &[Value], overwrite: bool) -> Answer {
    let target = map(a, 0)?;
    for index in 1..a.len() {
        merge_into(&target, &map(a, index)?, overwrite, MAX_NESTING)?;
    }
    Ok(match &a[0] {
        Value::Map(_) => value(a, 0),
        _ => Value::Map(target),
    })
}

fn merge_into(target: &Map, source: &Map, overwrite: bool, depth: usize) -> Result<(), String> {
    if depth == 0 {
        return Err("the maps are nested too deeply".to_owned());
    }
    if target.is(source) {
        return Ok(());
    }
    for (key, theirs) in source.members() {
        match (target.get(&key), &theirs) {
            // As in mergo, nil overwrites a value with `mergeOverwrite` but does not fill in a
            // missing one with `merge`.
            (_, Value::Nil) if !overwrite => {}
            (Some(Value::Map(mine)), Value::Map(inner)) => {
                merge_into(&mine, inner, overwrite, depth - 1)?;
            }
            // An empty value counts as missing.
            (Some(mine), _) if mine.is_true() && !overwrite => {}
            _ => target.set(&key, theirs),
        }
    }
    Ok(())
}

/// `dig "a" "b" DEFAULT MAP`.
fn dig(a: &Call<'_>) -> Answer {
    if a.len() < 3 {
        return Err("wants at least a key, a default and a map".to_owned());
    }
    let (keys, rest) = a.split_at(a.len() - 2);
    let mut found = value(rest, 1);
    for index in 0..keys.len() {
        let inner = match &found {
            // sprig accepts no other type; `.Values.AsMap` is one.
            Value::Map(map) if map.is_values() => {
                return Err(format!(
                    "wants a map[string]interface {{}}, not {}",
                    found.type_name()
                ));
            }
            Value::Map(_) | Value::Object(_) => map(std::slice::from_ref(&found), 0)?,
            other => return Err(format!("wants a map, not {}", other.type_name())),
        };
        match inner.get(&text(keys, index)) {
            Some(value) => found = value,
            None => return Ok(value(rest, 0)),
        }
    }
    Ok(found)
}

fn copy(value: &Value, depth: usize) -> Answer {
    if depth == 0 {
        return Err("the value is nested too deeply".to_owned());
    }
    Ok(match value {
        Value::Map(map) => {
            let mut copied = BTreeMap::new();
            for (key, value) in map.members() {
                copied.insert(key, copy(&value, depth - 1)?);
            }
            Value::Map(Map::new(copied).typed(map.is_values()))
        }
        Value::List(list) => Value::list(copy_all(list, depth)?),
        other => other.clone(),
    })
}

fn copy_all(list: &List, depth: usize) -> Result<Vec<Value>, String> {
    let items = list.items().iter();
    items.map(|item| copy(item, depth - 1)).collect()
}
