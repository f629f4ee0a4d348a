//! Label selectors of PodDisruptionBudgets and workloads.

use serde_json::Value;

/// Returns whether a `LabelSelector` selects these labels. An empty selector selects everything, a
/// missing one nothing.
pub(crate) fn selects(selector: &Value, labels: &Value) -> bool {
    let Some(selector) = selector.as_object() else {
        return false;
    };
    let exact = selector.get("matchLabels").and_then(Value::as_object);
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    exact.is_none_or(|all| all.iter().all(|(name, value)| labels[name] == *value))
        && expressions.is_none_or(|all| all.iter().all(|one| holds(one, labels)))
}

fn holds(expression: &Value, labels: &Value) -> bool {
    let label = expression["key"].as_str().map(|name| &labels[name]);
    let label = label.filter(|label| label.is_string());
    let is_among = || {
        let values = expression["values"].as_array();
        values.is_some_and(|values| values.iter().any(|value| Some(value) == label))
    };
    match expression["operator"].as_str() {
        Some("In") => is_among(),
        Some("NotIn") => !is_among(),
        Some("Exists") => label.is_some(),
        Some("DoesNotExist") => label.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_are_conjunctions() {
        let labels = json!({"app": "a", "tier": "x"});
        let cases = [
            (json!({}), true),
            (Value::Null, false),
            (json!({"matchLabels": {"app": "a"}}), true),
            (json!({"matchLabels": {"app": "a", "no": "x"}}), false),
            (
                json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["b", "a"]}]}),
                true,
            ),
            (
                json!({"matchExpressions": [{"key": "no", "operator": "In", "values": ["b"]}]}),
                false,
            ),
            (
                json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}),
                false,
            ),
            (
                json!({"matchExpressions": [{"key": "no", "operator": "NotIn", "values": ["a"]}]}),
                true,
            ),
            (json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), true),
            (json!({"matchExpressions": [{"key": "no", "operator": "DoesNotExist"}]}), true),
            (json!({"matchExpressions": [{"key": "no", "operator": "Gt"}]}), false),
        ];
        for (selector, expected) in cases {
            assert_eq!(selects(&selector, &labels), expected, "{selector}");
        }
    }
}
