//! Maps.

use gotmpl::Value;

use super::arguments::{Arguments, Members, list, string};
use super::{Answer, Group};

/// Functions in this file.
pub(super) const GROUP: Group = &[
    ("dict", dict),
    ("get", |a| {
        let member = a.map(0)?.get(a.text(1)?.as_str());
        Ok(member.cloned().unwrap_or_else(|| string("")))
    }),
    ("hasKey", |a| Ok(Value::Bool(a.map(0)?.contains_key(a.text(1)?.as_str())))),
    ("keys", |a| {
        let mut keys = Vec::new();
        for index in 0..a.count() {
            keys.extend(a.map(index)?.keys().map(string));
        }
        Ok(list(keys))
    }),
    ("values", |a| Ok(list(a.map(0)?.values().cloned()))),
    ("pluck", |a| {
        let key = a.text(0)?;
        let mut found = Vec::new();
        for index in 1..a.count() {
            found.extend(a.map(index)?.get(key.as_str()).cloned());
        }
        Ok(list(found))
    }),
    ("pick", |a| choose(a, true)),
    ("omit", |a| choose(a, false)),
    ("merge", |a| merge(a, false)),
    ("mergeOverwrite", |a| merge(a, true)),
    ("dig", dig),
];

/// Implements `dict K V K V…`; a key without a value gets the empty text.
fn dict(a: &Arguments<'_>) -> Answer {
    let mut members = Members::new();
    for index in (0..a.count()).step_by(2) {
        let value = a.all().get(index + 1).cloned().unwrap_or_else(|| string(""));
        members.insert(a.text(index)?.into(), value);
    }
    Ok(Value::from(members))
}

fn choose(a: &Arguments<'_>, named: bool) -> Answer {
    let mut keys = Vec::new();
    for index in 1..a.count() {
        keys.push(a.text(index)?);
    }
    let chosen: Members = a
        .map(0)?
        .iter()
        .filter(|(key, _)| keys.iter().any(|name| name == key.as_ref()) == named)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    Ok(Value::from(chosen))
}

/// Merges maps recursively. In `merge`, the first value wins; in `mergeOverwrite`, the last.
fn merge(a: &Arguments<'_>, last_wins: bool) -> Answer {
    let mut merged = a.map(0)?.clone();
    for index in 1..a.count() {
        merge_into(&mut merged, a.map(index)?, last_wins, 0);
    }
    Ok(Value::from(merged))
}

fn merge_into(target: &mut Members, source: &Members, last_wins: bool, depth: usize) {
    for (key, value) in source {
        match (target.get(key), value) {
            (Some(Value::Map(mine)), Value::Map(theirs)) if depth < 128 => {
                let mut inner = mine.as_ref().clone();
                merge_into(&mut inner, theirs, last_wins, depth + 1);
                target.insert(key.clone(), Value::from(inner));
            }
            // mergo, which sprig uses, treats an empty value as missing.
            (Some(mine), theirs) if mine.is_truthy() && !(last_wins && theirs.is_truthy()) => {}
            _ => {
                target.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Implements `dig "a" "b" DEFAULT MAP`.
fn dig(a: &Arguments<'_>) -> Answer {
    let count = a.count();
    let (fallback, mut members) = match count.checked_sub(2) {
        Some(index) if index > 0 => (a.value(index)?, a.map(index + 1)?),
        _ => return Err(a.refuse("wants at least a key, a default and a map")),
    };
    for index in 0..count - 2 {
        match members.get(a.text(index)?.as_str()) {
            None => return Ok(fallback.clone()),
            Some(value) if index + 3 == count => return Ok(value.clone()),
            Some(Value::Map(inner)) => members = inner,
            Some(_) => return Err(a.refuse(format!("`{}` is not a map", a.text(index)?))),
        }
    }
    Ok(fallback.clone())
}
