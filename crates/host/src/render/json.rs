//! Deep merge of values and of JSON texts.

use serde::Serialize;
use serde_json::Value;

use imgctl_base::error::{Error, Result};

/// Merges `data` into `old`. Maps are merged member by member; everything else is replaced. A map,
/// a list and a scalar cannot replace one another; anything can replace null.
pub(super) fn merge(old: &Value, data: &Value) -> Result<Value, Mismatch> {
    match (old, data) {
        (Value::Object(old), Value::Object(data)) => {
            let mut merged = old.clone();
            for (key, value) in data {
                let member = match old.get(key) {
                    None => value.clone(),
                    Some(old) => merge(old, value).map_err(|mismatch| mismatch.below(key))?,
                };
                merged.insert(key.clone(), member);
            }
            Ok(Value::Object(merged))
        }
        (Value::Null, data) => Ok(data.clone()),
        (_, Value::Null) => Ok(Value::Null),
        (old, data) if sort(old) == sort(data) => Ok(data.clone()),
        (old, data) => Err(Mismatch { path: String::new(), old: sort(old), data: sort(data) }),
    }
}

/// Two values where one cannot replace the other.
#[derive(Debug, PartialEq)]
pub(super) struct Mismatch {
    /// Path such as `spec.replicas`; empty for the document itself.
    path: String,
    old: &'static str,
    data: &'static str,
}

impl Mismatch {
    fn below(mut self, key: &str) -> Self {
        self.path = match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{key}.{path}"),
        };
        self
    }
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = match self.path.as_str() {
            "" => "the document",
            path => path,
        };
        write!(f, "{path} is {} in the file, and {} in the data", self.old, self.data)
    }
}

fn sort(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "a map",
        Value::Array(_) => "a list",
        _ => "a simple value",
    }
}

/// Merges one JSON text into another. Preserves key order and indentation.
pub(super) fn merge_text(name: &str, text: &str, data: &str) -> Result<String> {
    let parse = |what: &str, text: &str| {
        serde_json::from_str::<Value>(text)
            .map_err(|error| Error::usage(format!("{what} is not JSON")).caused_by(error))
    };
    let old = parse(name, text)?;
    let data = parse(&format!("the data for {name}"), data)?;
    let merged = merge(&old, &data)
        .map_err(|mismatch| Error::usage(format!("cannot merge into {name}: {mismatch}")))?;
    let mut bytes = Vec::new();
    let indent: String = text
        .lines()
        .nth(1)
        .map(|line| line.chars().take_while(|c| c.is_whitespace()).collect())
        .unwrap_or_default();
    let failed = |error| Error::failed(format!("cannot write {name}")).caused_by(error);
    if text.trim_end().contains('\n') {
        let indent = if indent.is_empty() { "  " } else { &indent };
        let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
        let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
        merged.serialize(&mut serializer).map_err(failed)?;
    } else {
        serde_json::to_writer(&mut bytes, &merged).map_err(failed)?;
    }
    let mut result = String::from_utf8_lossy(&bytes).into_owned();
    if text.ends_with('\n') {
        result.push('\n');
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn maps_merge_and_the_rest_is_replaced() {
        let old = json!({"a": {"x": 1, "y": [1, 2]}, "n": null, "s": "t"});
        let data = json!({"a": {"y": [3]}, "n": {"k": 1}, "s": 5, "new": ""});
        let merged = merge(&old, &data).unwrap();
        let expected = json!({"a": {"x": 1, "y": [3]}, "n": {"k": 1}, "s": 5, "new": ""});
        assert_eq!(merged, expected);
        let error = merge(&old, &json!({"a": {"y": {"z": 1}}})).unwrap_err();
        assert_eq!(error.to_string(), "a.y is a list in the file, and a map in the data");
    }

    #[test]
    fn json_keeps_order_and_indentation() {
        let text = "{\n    \"z\": 1,\n    \"a\": {}\n}\n";
        let merged = merge_text("x.json", text, "{\"a\": {\"b\": 2}}").unwrap();
        assert_eq!(merged, "{\n    \"z\": 1,\n    \"a\": {\n        \"b\": 2\n    }\n}\n");
        assert_eq!(merge_text("x", "{\"b\":1}", "{\"a\":2}").unwrap(), "{\"b\":1,\"a\":2}");
        assert!(merge_text("x", "{", "{}").is_err());
    }
}
