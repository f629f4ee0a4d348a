//! Lists and maps. List functions return a new list that shares its items; map functions modify maps in
//! place.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::call::{Answer, Call, Group, int, key, list, map, text, value};
use super::growth::Growth::{Flat, Fresh, Pairs, Shares};
use super::growth::{self, dict, full, items, member, sources};
use crate::dialect::MOST_NUMBERS;
use crate::print::{MAX_NESTING, to_text};
use crate::value::{List, Map, Value, equal};

pub(super) const GROUP: Group = &[
    ("list", "*+", Shares(items), |a| Ok(Value::list(a.iter().cloned()))),
    ("tuple", "*+", Shares(items), |a| Ok(Value::list(a.iter().cloned()))),
    ("first", "l", Flat, |a| Ok(list(a, 0)?.items().first().cloned().unwrap_or(Value::Nil))),
    ("last", "l", Flat, |a| Ok(list(a, 0)?.items().last().cloned().unwrap_or(Value::Nil))),
    ("rest", "l", Shares(items), |a| Ok(Value::list(list(a, 0)?.items().iter().skip(1).cloned()))),
    ("initial", "l", Shares(items), |a| {
        let items = list(a, 0)?;
        let count = items.items().len().saturating_sub(1);
        Ok(Value::list(items.items().iter().take(count).cloned()))
    }),
    ("append", "l*", Shares(items), |a| with(a, &[], &[value(a, 1)])),
    ("push", "l*", Shares(items), |a| with(a, &[], &[value(a, 1)])),
    ("prepend", "l*", Shares(items), |a| with(a, &[value(a, 1)], &[])),
    ("concat", "l+", Shares(items), |a| {
        let mut all = Vec::new();
        for index in 0..a.len() {
            all.extend_from_slice(list(a, index)?.items());
        }
        Ok(Value::list(all))
    }),
    ("reverse", "l", Shares(items), |a| Ok(Value::list(list(a, 0)?.items().iter().rev().cloned()))),
    ("uniq", "l", Pairs(items), |a| {
        let mut kept: Vec<Value> = Vec::new();
        for item in list(a, 0)?.items() {
            if !kept.iter().any(|other| equal(other, item, MAX_NESTING)) {
                kept.push(item.clone());
            }
        }
        Ok(Value::list(kept))
    }),
    ("without", "l*+", Pairs(items), |a| {
        let unwanted = |item: &Value| a[1..].iter().any(|other| equal(other, item, MAX_NESTING));
        let items = list(a, 0)?;
        Ok(Value::list(items.items().iter().filter(|item| !unwanted(item)).cloned()))
    }),
    ("has", "*l", Pairs(items), |a| match &a[1] {
        Value::Nil => Ok(Value::Bool(false)),
        _ => {
            let items = list(a, 1)?;
            Ok(Value::Bool(items.items().iter().any(|item| equal(item, &a[0], MAX_NESTING))))
        }
    }),
    ("compact", "l", Shares(items), |a| {
        let items = list(a, 0)?;
        Ok(Value::list(items.items().iter().filter(|item| item.is_true()).cloned()))
    }),
    ("chunk", "*l", Shares(|a| items(a).saturating_mul(8)), |a| {
        let size = usize::try_from(int(a, 0)).unwrap_or(0).max(1);
        let items = list(a, 1)?;
        Ok(Value::list(items.items().chunks(size).map(|chunk| Value::list(chunk.to_vec()))))
    }),
    ("sortAlpha", "*", Fresh(full::<64, 4>), |a| {
        let mut texts = texts(&a[0]);
        texts.sort_unstable();
        Ok(Value::list(texts.iter().map(Value::text)))
    }),
    ("join", "s*", Fresh(growth::joined::<0, 1>), |a| Ok(joined(&a[1], &text(a, 0)))),
    ("toStrings", "*", Fresh(full::<64, 4>), |a| {
        Ok(Value::list(texts(&a[0]).iter().map(Value::text)))
    }),
    (
        "seq",
        "i+",
        Fresh(|a| match a.len() {
            1 => growth::numbers(1, int(a, 0), 1),
            2 => growth::numbers(int(a, 0), int(a, 1), 1),
            _ => growth::numbers(int(a, 0), int(a, 2), int(a, 1)),
        }),
        |a| {
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
            let (mut numbers, mut count) = (String::new(), 0);
            let mut number = from;
            while (step > 0 && number <= to) || (step < 0 && number >= to) {
                let space = if count > 0 { " " } else { "" };
                let _ = write!(numbers, "{space}{number}");
                count += 1;
                if count > MOST_NUMBERS {
                    return Err("more than a million numbers".to_owned());
                }
                match number.checked_add(step) {
                    Some(next) => number = next,
                    None => break,
                }
            }
            Ok(Value::text(numbers))
        },
    ),
    ("dict", "*+", Shares(dict), |a| {
        let dict = Map::new(BTreeMap::new());
        for index in (0..a.len()).step_by(2) {
            let value = a.get(index + 1).cloned();
            dict.set(text(a, index), value.unwrap_or_else(|| Value::text("")));
        }
        Ok(Value::Map(dict))
    }),
    ("get", "ms", Flat, |a| {
        let member = map(a, 0)?.get(&text(a, 1));
        Ok(member.unwrap_or_else(|| Value::text("")))
    }),
    ("set", "ms*", Shares(member), |a| {
        map(a, 0)?.set(text(a, 1), value(a, 2));
        Ok(value(a, 0))
    }),
    ("unset", "ms", Flat, |a| {
        map(a, 0)?.unset(&text(a, 1));
        Ok(value(a, 0))
    }),
    ("hasKey", "ms", Flat, |a| Ok(Value::Bool(map(a, 0)?.get(&text(a, 1)).is_some()))),
    ("keys", "m+", Shares(items), |a| {
        let mut keys = Vec::new();
        for index in 0..a.len() {
            let members = map(a, index)?.members();
            keys.extend(members.into_iter().map(|(key, _)| Value::Text(key)));
        }
        Ok(Value::list(keys))
    }),
    ("values", "m", Shares(items), |a| {
        let members = map(a, 0)?.members();
        Ok(Value::list(members.into_iter().map(|(_, value)| value)))
    }),
    ("pluck", "sm+", Shares(items), |a| {
        let key = text(a, 0);
        let mut found = Vec::new();
        for index in 1..a.len() {
            found.extend(map(a, index)?.get(&key));
        }
        Ok(Value::list(found))
    }),
    ("pick", "ms+", Shares(items), |a| choose(a, true)),
    ("omit", "ms+", Shares(items), |a| choose(a, false)),
    ("merge", "mm+", Shares(sources), |a| merge(a, false)),
    ("mergeOverwrite", "mm+", Shares(sources), |a| merge(a, true)),
    ("dig", "s*+", Flat, dig),
    ("deepCopy", "*", Fresh(full::<64, 4>), |a| copy(&a[0], MAX_NESTING)),
];

/// Returns the list with items before and behind it.
fn with(a: &[Value], before: &[Value], behind: &[Value]) -> Answer {
    Ok(Value::list([before, list(a, 0)?.items(), behind].concat()))
}

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

/// Joins the texts of a list.
pub(super) fn joined(list: &Value, separator: &str) -> Value {
    Value::text(texts(list).join(separator))
}

fn choose(a: &[Value], named: bool) -> Answer {
    let names: BTreeSet<_> = (1..a.len()).map(|index| text(a, index)).collect();
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
            _ => target.set(key, theirs),
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
        match inner.get(&key(keys, index)?) {
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
