//! Label selectors: matching, and encoding in a query.

use std::collections::BTreeMap;

use serde::Deserialize;

/// `metav1.LabelSelector`. An empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Selector {
    pub(crate) match_labels: BTreeMap<String, String>,
    pub(crate) match_expressions: Vec<Expression>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Expression {
    pub key: String,
    pub(crate) operator: String,
    pub values: Vec<String>,
}

impl Selector {
    /// Returns whether the selector matches an object with `labels`.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let equal = self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
        equal
            && self.match_expressions.iter().all(|one| {
                let value = labels.get(&one.key);
                let listed = value.is_some_and(|value| one.values.contains(value));
                match one.operator.as_str() {
                    "In" => listed,
                    "NotIn" => !listed,
                    "Exists" => value.is_some(),
                    "DoesNotExist" => value.is_none(),
                    // An operator unknown to this version: considering one budget too many is safer
                    // than one too few.
                    _ => true,
                }
            })
    }
}

/// Encodes a value for the query of a URL.
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn selector(value: serde_json::Value) -> Selector {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn selectors_match_as_the_api_has_it() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        let yes = [
            json!({}),
            json!({"matchLabels": {"app": "web"}}),
            json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "web"]}]}),
            json!({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["a"]}]}),
            json!({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}),
            json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}),
        ];
        let no = [
            json!({"matchLabels": {"app": "web", "x": "y"}}),
            json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}),
            json!({"matchExpressions": [{"key": "x", "operator": "Exists"}]}),
        ];
        for one in yes {
            assert!(selector(one.clone()).matches(&labels), "{one}");
        }
        for one in no {
            assert!(!selector(one.clone()).matches(&labels), "{one}");
        }
    }
}
