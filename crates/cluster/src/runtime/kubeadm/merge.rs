//! Merges one configuration over another.
//!
//! Maps are merged key by key; arguments, volumes and variables by name; certificate names and
//! excluded networks are combined; everything else, including lists, is replaced. `null` removes.

use serde_json::Value;

/// Lists whose entries have a `name`.
const BY_NAME: [&str; 4] = ["extraArgs", "kubeletExtraArgs", "extraVolumes", "extraEnvs"];
/// Lists that are sets.
const SETS: [&str; 4] = ["certSANs", "serverCertSANs", "peerCertSANs", "excludeCIDRs"];

/// Merges `over` into `base`.
pub(super) fn merge(base: &mut Value, over: Value) {
    merge_field("", base, over);
}

fn merge_field(name: &str, base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (name, value) in over {
                if value.is_null() {
                    base.shift_remove(&name);
                } else if let Some(below) = base.get_mut(&name) {
                    merge_field(&name, below, value);
                } else {
                    base.insert(name, value);
                }
            }
        }
        (Value::Array(base), Value::Array(over)) if BY_NAME.contains(&name) => {
            // A flag can be repeated on purpose, so all of its previous values are replaced.
            let named = |entry: &Value, list: &[Value]| {
                list.iter().any(|other| other["name"] == entry["name"])
            };
            base.retain(|entry| !named(entry, &over));
            base.extend(over);
        }
        (Value::Array(base), Value::Array(over)) if SETS.contains(&name) => {
            for entry in over {
                if !base.contains(&entry) {
                    base.push(entry);
                }
            }
        }
        (base, over) => *base = over,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn by_kind_of_field() {
        let mut base = json!({
            "a": {"b": 1, "c": [1, 2]},
            "extraArgs": [{"name": "x", "value": "1"}, {"name": "y", "value": "1"}],
            "certSANs": ["a", "b"],
            "gone": {"x": 1},
        });
        merge(
            &mut base,
            json!({
                "a": {"c": [3], "d": 4},
                "extraArgs": [{"name": "x", "value": "2"}, {"name": "x", "value": "3"}],
                "certSANs": ["b", "c"],
                "gone": null,
            }),
        );
        assert_eq!(
            base,
            json!({
                "a": {"b": 1, "c": [3], "d": 4},
                "extraArgs": [
                    {"name": "y", "value": "1"},
                    {"name": "x", "value": "2"},
                    {"name": "x", "value": "3"},
                ],
                "certSANs": ["a", "b", "c"],
            })
        );
    }
}
