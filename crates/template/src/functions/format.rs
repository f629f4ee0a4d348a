//! Functions of docker's `--format`, with arguments in the order of Go's `strings` package.

use super::call::{self, Answer, Call, Group, size, text, value};
use super::collections::joined;
use super::growth::Growth::{Flat, Fresh};
use super::growth::{self, divided, full};
use super::strings::split;
use super::values;
use crate::encode;
use crate::value::Value;

pub(super) const GROUP: Group = &[
    ("json", "*", Fresh(full::<256, 20>), |a| encode::to_json(&a[0], true, false).map(Value::text)),
    ("join", "*s", Fresh(growth::joined::<1, 0>), |a| Ok(joined(&a[0], &text(a, 1)))),
    ("split", "ss", Fresh(divided::<1, 0, 192>), |a| {
        Ok(Value::list(split(&text(a, 0), &text(a, 1))))
    }),
    ("lower", "s", Fresh(full::<48, 8>), |a| Ok(Value::text(text(a, 0).to_lowercase()))),
    ("upper", "s", Fresh(full::<48, 8>), |a| Ok(Value::text(text(a, 0).to_uppercase()))),
    ("title", "s", Fresh(full::<48, 8>), |a| {
        let text = text(a, 0);
        let mut characters = text.chars();
        let first = characters.next().map(|c| c.to_uppercase().to_string());
        Ok(Value::text(first.unwrap_or_default() + characters.as_str()))
    }),
    ("pad", "sii", Fresh(full::<4096, 4>), |a| {
        let (before, after) = (size(a, 1, 1024)?, size(a, 2, 1024)?);
        Ok(Value::text(format!("{}{}{}", " ".repeat(before), text(a, 0), " ".repeat(after))))
    }),
    ("truncate", "si", Fresh(full::<48, 3>), |a| {
        let length = size(a, 1, usize::MAX)?;
        Ok(Value::text(text(a, 0).chars().take(length).collect::<String>()))
    }),
    ("default", "**+", Flat, |a| {
        let last = a.last().filter(|value| value.is_true());
        Ok(last.unwrap_or(&a[0]).clone())
    }),
    ("index", "**+", Flat, index),
    ("contains", "ss", Flat, |a| Ok(Value::Bool(text(a, 0).contains(&*text(a, 1))))),
];

/// Go's `index`, which returns the zero value for a missing key: the empty text for a map of texts
/// (labels).
fn index(a: &Call<'_>) -> Answer {
    let mut found = value(a, 0);
    for key in 1..a.len() {
        found = match &found {
            Value::Map(map) => {
                let is_text = |member: &(_, Value)| matches!(member.1, Value::Text(_));
                let zero =
                    if map.members().iter().all(is_text) { Value::text("") } else { Value::Nil };
                map.get(&call::key(a, key)?).unwrap_or(zero)
            }
            other => values::item(other, &a[key])?,
        };
    }
    Ok(found)
}
