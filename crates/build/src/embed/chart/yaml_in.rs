//! Reads YAML as Helm does (sigs.k8s.io/yaml): YAML 1.1 words and octal numbers; the last of two
//! equal keys wins, keys are strings, and only the first document counts.

use serde_json::Value;

use imgctl_base::error::{Error, Result};

/// Parses the first document as JSON data; empty input is `null`.
pub(super) fn parse(text: &str) -> Result<Value> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| Error::usage("the YAML is malformed").caused_by(error))
}
