//! Functions of docker's `--format`, with arguments in the order of Go's `strings` package.

use gotmpl::Value;

use super::arguments::{Arguments, list, string};
use super::encoding::go_json;
use super::strings::{split, texts};
use super::{Answer, Group};

/// Functions in this file.
pub(super) const GROUP: Group = &[
    ("json", |a| Ok(string(go_json(a.value(0)?)))),
    ("join", |a| Ok(string(texts(a.value(0)?).join(&a.text(1)?)))),
    ("split", |a| Ok(list(split(&a.text(0)?, &a.text(1)?).iter().map(string)))),
    ("lower", |a| Ok(string(a.text(0)?.to_lowercase()))),
    ("upper", |a| Ok(string(a.text(0)?.to_uppercase()))),
    ("title", |a| {
        let text = a.text(0)?;
        let mut characters = text.chars();
        let first = characters.next().map(|c| c.to_uppercase().to_string());
        Ok(string(first.unwrap_or_default() + characters.as_str()))
    }),
    ("pad", |a| {
        let (before, after) = (a.size(1, 1024)?, a.size(2, 1024)?);
        Ok(string(format!("{}{}{}", " ".repeat(before), a.text(0)?, " ".repeat(after))))
    }),
    ("truncate", |a| {
        let length = a.size(1, usize::MAX)?;
        Ok(string(a.text(0)?.chars().take(length).collect::<String>()))
    }),
    ("default", |a| {
        let value = a.last()?;
        Ok(if value.is_truthy() { value.clone() } else { a.value(0)?.clone() })
    }),
    ("index", index),
    ("contains", |a| Ok(Value::Bool(a.text(0)?.contains(&a.text(1)?)))),
];

/// Implements Go's `index`, which returns the zero value for a missing key: the empty text for a
/// map of texts (labels).
fn index(a: &Arguments<'_>) -> Answer {
    let mut value = a.value(0)?.clone();
    for key in a.all().get(1..).unwrap_or_default() {
        value = match &value {
            Value::Map(members) => {
                let of_texts = members.values().all(|member| matches!(member, Value::String(_)));
                let zero = if of_texts { string("") } else { Value::Nil };
                let key = super::arguments::text_of(key);
                members.get(key.as_str()).cloned().unwrap_or(zero)
            }
            other => other.index(key)?,
        };
    }
    Ok(value)
}
