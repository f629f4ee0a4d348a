//! Reads and writes YAML with the settings that Kubernetes uses.

mod merged;
mod quoted;

use imgctl_base::error::{Error, Result};
use merged::Merged;

/// Parses one document as JSON data: `yes` and `on` are booleans, `0644` is octal, merge keys are
/// applied, duplicate keys are refused and aliases are limited.
pub fn parse(text: &str) -> Result<serde_json::Value> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
    };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| Error::usage("the YAML is malformed").caused_by(error))
}

/// Maximum number of values that the aliases of a document repeat.
pub(crate) const MOST_REPEATED: usize = 100_000;

/// Parses the first document as Helm does (sigs.k8s.io/yaml): the last of two equal keys wins, a merge key
/// overrides the keys before it; empty text is `null`.
pub fn parse_first(text: &str) -> Result<serde_json::Value> {
    let text = first_document(text.strip_prefix('\u{feff}').unwrap_or(text));
    let parse = |text: &str| {
        let options = serde_saphyr::options! {
            legacy_octal_numbers: true,
            duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
            merge_keys: serde_saphyr::MergeKeyPolicy::AsOrdinary,
            alias_limits: serde_saphyr::alias_limits! {
                max_total_replayed_events: MOST_REPEATED,
            },
        };
        serde_saphyr::from_str_with_options(text, options)
    };
    let Merged(value) = as_libyaml(text, parse)
        .map_err(|error| Error::usage("the YAML is malformed").caused_by(error))?;
    Ok(value)
}

/// Parses YAML as libyaml does: continuation lines of quoted scalars need no indentation.
pub fn as_libyaml<T, E>(text: &str, parse: impl Fn(&str) -> Result<T, E>) -> Result<T, E> {
    parse(text).or_else(|error| match quoted::indented(text) {
        Some(indented) => parse(&indented).map_err(|_| error),
        None => Err(error),
    })
}

/// Cuts a text at the end of its first document.
fn first_document(text: &str) -> &str {
    let mut begun = false;
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        let is_marker = |marker| {
            line.strip_prefix(marker)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
        };
        if is_marker("...") || (begun && is_marker("---")) {
            return text.get(..end).unwrap_or(text);
        }
        let is_directive = !begun && line.starts_with('%');
        let content = line.trim_start();
        begun |= !(is_directive || content.is_empty() || content.starts_with('#'));
        end += line.len();
    }
    text
}

/// Writes block style, with sorted keys if the data is sorted. Lists are not indented below their
/// key, as in Go's Kubernetes encoder. Writes no final newline.
pub fn write(value: &serde_json::Value) -> Result<String> {
    let options = serde_saphyr::ser_options! {
        compact_list_indent: true,
        prefer_block_scalars: true,
    };
    let mut text = serde_saphyr::to_string_with_options(value, options)
        .map_err(|error| Error::failed("cannot write YAML").caused_by(error))?;
    text.truncate(text.trim_end_matches('\n').len());
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lists_lie_below_their_key_and_tricky_strings_are_quoted() {
        let text =
            write(&json!({"a": ["x", {"b": 1, "c": "yes"}], "d": {}, "e": "1.0", "f": null}));
        assert_eq!(text.unwrap(), "a:\n- x\n- b: 1\n  c: \"yes\"\nd: {}\ne: \"1.0\"\nf: null");
    }

    #[test]
    fn kubernetes_reading_of_scalars() {
        let value = parse("mode: 0644\nenabled: on\nversion: \"1\"\n").unwrap();
        assert_eq!(value, json!({"mode": 420, "enabled": true, "version": "1"}));
        assert!(parse("a: 1\na: 2\n").is_err());
    }

    #[test]
    fn the_first_document_is_read_as_libyaml_reads_it() {
        for (text, expected) in [
            ("a: 1\n...\n# end\nb: 2\n", json!({"a": 1})),
            ("# head\n%YAML 1.1\n---\na: 1\n---\nb: 2\n", json!({"a": 1})),
            ("--- {a: 1}\n--- x\n", json!({"a": 1})),
            ("a: '...\n\n  b'\n", json!({"a": "...\nb"})),
            ("a: \"b,\nc\"\nd: 'e\n  f'\n", json!({"a": "b, c", "d": "e f"})),
            ("...\na: 1\n", json!(null)),
            ("", json!(null)),
        ] {
            assert_eq!(parse_first(text).unwrap(), expected, "{text}");
        }
        assert!(parse_first("a: [\nb: 'x\ny'\n").is_err());
    }

    #[test]
    fn merge_keys_are_applied_in_the_order_of_the_keys() {
        for (text, expected) in [
            ("{<<: {a: 1, b: 1}, a: 2}", json!({"a": 2, "b": 1})),
            ("{a: 2, <<: {a: 1}}", json!({"a": 1})),
            ("{a: 2, <<: {a: 1}, a: 3}", json!({"a": 3})),
            ("{<<: {a: 1}, <<: {b: 2}}", json!({"a": 1, "b": 2})),
            ("{<<: [{a: 1}, {a: 2, b: 2}]}", json!({"a": 1, "b": 2})),
            ("{\"<<\": x}", json!({"<<": "x"})),
        ] {
            assert_eq!(parse_first(text).unwrap(), expected, "{text}");
        }
        assert!(parse_first("{<<: null}").is_err());
        assert!(parse_first("{<<: [1]}").is_err());
    }
}
