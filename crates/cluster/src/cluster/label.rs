//! Variables in the labels `vip` and `image`: `$(NAME)`, `${NAME}` and `$NAME`.

use std::collections::BTreeMap;

/// Substitutes the variables of `environment` in `text`. The longest matching name counts
/// (`$registryPort` is not `$registry` and `Port`); unknown names stay unchanged.
pub(super) fn render(text: &str, environment: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        match variable(&rest[1..], environment) {
            Some((value, length)) => {
                out.push_str(value);
                rest = &rest[1 + length..];
            }
            None => {
                out.push('$');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// Returns the value of the variable at the start of `text`, and the length of its name as written.
fn variable<'a>(text: &str, environment: &'a BTreeMap<String, String>) -> Option<(&'a str, usize)> {
    for (open, close) in [('(', ')'), ('{', '}')] {
        if let Some(inside) = text.strip_prefix(open) {
            let (name, _) = inside.split_once(close)?;
            return Some((environment.get(name)?, name.len() + 2));
        }
    }
    environment
        .iter()
        .filter(|(name, _)| !name.is_empty() && text.starts_with(name.as_str()))
        .max_by_key(|(name, _)| name.len())
        .map(|(name, value)| (value.as_str(), name.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_counts_and_values_are_not_rendered_again() {
        let environment: BTreeMap<String, String> = [
            ("registry", "R"),
            ("registryPort", "5000"),
            ("defaultVIP", "10.103.97.2"),
            ("x", "$registry"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        for (text, expected) in [
            ("$defaultVIP", "10.103.97.2"),
            ("$registry:$registryPort", "R:5000"),
            ("${registry}/$(registryPort)/x", "R/5000/x"),
            ("$registryPorts", "5000s"),
            ("$x $no ${no} $(no) $ ${registry", "$registry $no ${no} $(no) $ ${registry"),
            ("literal", "literal"),
        ] {
            assert_eq!(render(text, &environment), expected, "{text}");
        }
    }
}
