//! `env` and `expandenv` over given variables, never over the process environment.

use std::collections::BTreeMap;

use super::call::{Group, text};
use super::growth::Growth::{Flat, Fresh};
use super::growth::length;
use crate::print::cut;
use crate::value::Value;

pub(super) const GROUP: Group = &[
    ("env", "s", Flat, |a| {
        let found = a.environment.and_then(|variables| variables.get(text(a, 0).as_ref()));
        Ok(Value::text(found.map_or("", String::as_str)))
    }),
    (
        "expandenv",
        "s",
        Fresh(|a| length(a, 0).saturating_add(MOST_EXPANDED).saturating_mul(3)),
        |a| {
            let (text, none) = (text(a, 0), BTreeMap::new());
            expand(&text, a.environment.unwrap_or(&none)).map(Value::text)
        },
    ),
];

/// Maximum length of a text with the values of its variables: the values are not among the arguments, so it is
/// checked while the text is made.
const MOST_EXPANDED: usize = 4 << 20;

/// Expands `$NAME` and `${NAME}` like Go's `os.ExpandEnv`: unknown variables become empty.
fn expand(text: &str, variables: &BTreeMap<String, String>) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let (name, behind) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((name, behind)) => (name, behind),
            None => {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let end = after.find(|c| !is_name(c)).unwrap_or(after.len());
                after.split_at(end)
            }
        };
        if name.is_empty() {
            expanded.push('$');
        }
        let value = variables.get(name).map_or("", String::as_str);
        if expanded.len().saturating_add(value.len()).saturating_add(behind.len()) > MOST_EXPANDED {
            return Err(format!(
                "the text would be longer than {MOST_EXPANDED} bytes: {}",
                cut(text)
            ));
        }
        expanded.push_str(value);
        rest = behind;
    }
    Ok(expanded + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_given_variables_are_known() {
        let variables = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        for (text, expected) in
            [("$A-${A}", "1-1"), ("$HOME${PATH}x", "x"), ("cost: 5$", "cost: 5$"), ("$AB.", ".")]
        {
            assert_eq!(expand(text, &variables).unwrap(), expected, "{text}");
        }
    }
}
