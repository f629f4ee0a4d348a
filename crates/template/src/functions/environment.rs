//! `env` and `expandenv` over given variables, never over the process environment.

use std::collections::BTreeMap;

use super::call::{Body, Group, text};
use crate::value::Value;

const GROUP: Group = &[
    ("env", "s", |a| {
        let found = a.environment.and_then(|variables| variables.get(text(a, 0).as_ref()));
        Ok(Value::text(found.map_or("", String::as_str)))
    }),
    ("expandenv", "s", |a| {
        let text = text(a, 0);
        Ok(a.environment.map_or_else(|| Value::text(&text), |all| Value::text(expand(&text, all))))
    }),
];

/// Returns types and body of a function.
pub(super) fn find(name: &str) -> Option<(&'static str, Body)> {
    GROUP.iter().find(|(known, ..)| *known == name).map(|(_, types, body)| (*types, *body))
}

/// Expands `$NAME` and `${NAME}` like Go's `os.ExpandEnv`: unknown variables become empty.
fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
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
        expanded.push_str(variables.get(name).map_or("", String::as_str));
        rest = behind;
    }
    expanded + rest
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
            assert_eq!(expand(text, &variables), expected, "{text}");
        }
    }
}
