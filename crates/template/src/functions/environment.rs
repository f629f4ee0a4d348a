//! `env` and `expandenv` over given variables, never over the process environment.

use std::collections::BTreeMap;
use std::sync::Arc;

use gotmpl::{FuncMap, Value};

use super::arguments::Arguments;

/// Returns both functions, limited to these variables.
pub(crate) fn of(variables: &BTreeMap<String, String>) -> FuncMap {
    let variables = Arc::new(variables.clone());
    let mut map = FuncMap::new();
    let known = variables.clone();
    map.insert(
        "env".to_owned(),
        Arc::new(move |values: &[Value]| {
            let name = Arguments::new("env", values).text(0)?;
            Ok(Value::String(known.get(&*name).map_or("", String::as_str).into()))
        }),
    );
    map.insert(
        "expandenv".to_owned(),
        Arc::new(move |values: &[Value]| {
            let text = Arguments::new("expandenv", values).text(0)?;
            Ok(Value::String(expand(&text, &variables).into()))
        }),
    );
    map
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
