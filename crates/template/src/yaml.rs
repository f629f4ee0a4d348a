//! Reads and writes YAML with the settings that Kubernetes uses.

use imgctl_base::error::{Error, Result};

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

/// Parses the first document as Helm does (sigs.k8s.io/yaml): the last of two equal keys wins; empty
/// text is `null`.
pub fn parse_first(text: &str) -> Result<serde_json::Value> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MOST_REPEATED,
        },
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| Error::usage("the YAML is malformed").caused_by(error))
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
}
