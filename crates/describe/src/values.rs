//! YAML documents as values, and the members in which two values differ. Must not know what documents mean.

use imgctl_base::error::{Error, Result};
use serde_json::Value;

/// Maximum nesting of what is compared; deeper values are compared as one.
const DEEPEST: usize = 32;

/// A member that differs: its path, and what it is in each of the two values.
pub(super) struct Difference<'a> {
    pub(super) path: String,
    pub(super) before: Option<&'a Value>,
    pub(super) after: Option<&'a Value>,
}

/// Reads a document as Kubernetes does.
pub(super) fn parse(text: &str) -> Result<Value> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| Error::bad_content("the YAML is malformed").caused_by(error))
}

/// Returns the documents of a file that can be read; others, such as templates, are left out.
pub(super) fn documents(text: &str) -> Vec<Value> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut found = Vec::new();
    let mut start = 0;
    let ends = text.match_indices("\n---").map(|(at, _)| at + 1);
    for end in ends.chain([text.len()]) {
        if let Some(document) = text.get(start..end) {
            found.extend(parse(document).ok());
        }
        start = end;
    }
    found
}

/// Returns at most `most` members that differ, in the order of their paths.
pub(super) fn differences<'a>(
    before: &'a Value,
    after: &'a Value,
    most: usize,
) -> Vec<Difference<'a>> {
    let mut found = Vec::new();
    walk(String::new(), Some(before), Some(after), 0, most, &mut found);
    found
}

fn walk<'a>(
    path: String,
    before: Option<&'a Value>,
    after: Option<&'a Value>,
    depth: usize,
    most: usize,
    found: &mut Vec<Difference<'a>>,
) {
    if found.len() >= most || before == after {
        return;
    }
    match (before, after) {
        (Some(Value::Object(old)), Some(Value::Object(new))) if depth < DEEPEST => {
            let names: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            for name in names {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                walk(path, old.get(name), new.get(name), depth + 1, most, found);
            }
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) if depth < DEEPEST => {
            for at in 0..old.len().max(new.len()) {
                walk(format!("{path}[{at}]"), old.get(at), new.get(at), depth + 1, most, found);
            }
        }
        _ => found.push(Difference { path, before, after }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn members_that_differ_have_paths() {
        let old = json!({"spec": {"replicas": 1, "list": [{"image": "a:1"}, 2]}, "same": [1]});
        let new = json!({"spec": {"replicas": 2, "list": [{"image": "a:2"}]}, "same": [1], "b": 1});
        let paths: Vec<String> =
            differences(&old, &new, 10).into_iter().map(|one| one.path).collect();
        assert_eq!(paths, ["b", "spec.list[0].image", "spec.list[1]", "spec.replicas"]);
        assert_eq!(differences(&old, &new, 2).len(), 2);
        assert!(differences(&old, &old, 2).is_empty());
    }

    #[test]
    fn what_is_no_yaml_is_left_out() {
        let text = "a: 1\n---\n{{ if }}: [\n---\nb: 2\n";
        assert_eq!(documents(text), [json!({"a": 1}), json!({"b": 2})]);
    }
}
