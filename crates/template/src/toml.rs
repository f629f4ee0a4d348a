//! Writes TOML for the `toToml` function (containerd configurations).

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// Writes a map as a TOML document: plain values first, then tables, each in the order given.
/// Returns a message for any value other than a map, and for a `null` inside a list.
pub(crate) fn write(value: &Value) -> Result<String, String> {
    let Value::Object(map) = value else {
        return Err("only a map can be a TOML document".to_owned());
    };
    let mut text = String::new();
    table(&mut text, &mut Vec::new(), map)?;
    Ok(text)
}

/// The recursion depth is that of the template's data, which the parser limits.
fn table(
    text: &mut String,
    path: &mut Vec<String>,
    map: &Map<String, Value>,
) -> Result<(), String> {
    for (key, value) in map.iter().filter(|(_, value)| !is_table(value)) {
        // TOML has no null: Go's encoder omits nil members.
        if value.is_null() {
            continue;
        }
        let _ = write!(text, "{} = ", self::key(key));
        inline(text, value)?;
        text.push('\n');
    }
    for (key, value) in map.iter().filter(|(_, value)| is_table(value)) {
        path.push(self::key(key));
        match value {
            Value::Array(items) => {
                for item in items.iter().filter_map(Value::as_object) {
                    heading(text, path, true);
                    table(text, path, item)?;
                }
            }
            Value::Object(inner) => {
                heading(text, path, false);
                table(text, path, inner)?;
            }
            _ => {}
        }
        path.pop();
    }
    Ok(())
}

fn heading(text: &mut String, path: &[String], array: bool) {
    if !text.is_empty() {
        text.push('\n');
    }
    let name = path.join(".");
    let _ = if array { writeln!(text, "[[{name}]]") } else { writeln!(text, "[{name}]") };
}

fn is_table(value: &Value) -> bool {
    match value {
        Value::Object(_) => true,
        Value::Array(items) => !items.is_empty() && items.iter().all(Value::is_object),
        _ => false,
    }
}

fn inline(text: &mut String, value: &Value) -> Result<(), String> {
    match value {
        Value::Null => return Err("a list cannot contain null".to_owned()),
        Value::Bool(_) | Value::Number(_) => text.push_str(&value.to_string()),
        // JSON's escapes are valid in TOML, except `\/`, which serde_json does not write.
        Value::String(string) => text.push_str(&Value::from(string.as_str()).to_string()),
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push_str(", ");
                }
                inline(text, item)?;
            }
            text.push(']');
        }
        Value::Object(map) => {
            text.push('{');
            for (index, (key, value)) in map.iter().enumerate() {
                if index > 0 {
                    text.push_str(", ");
                }
                let _ = write!(text, "{} = ", self::key(key));
                inline(text, value)?;
            }
            text.push('}');
        }
    }
    Ok(())
}

fn key(key: &str) -> String {
    let bare = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if !key.is_empty() && key.bytes().all(bare) {
        key.to_owned()
    } else {
        Value::from(key).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_come_before_tables() {
        let value = json!({
            "plugins": {"io.containerd.grpc.v1.cri": {"sandbox_image": "pause:3.9"}},
            "version": 2,
            "roots": ["a", "b"],
            "hosts": [{"name": "x"}, {"name": "y"}],
            "gap": null,
        });
        assert_eq!(
            write(&value).unwrap(),
            "version = 2\nroots = [\"a\", \"b\"]\n\n[plugins]\n\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"pause:3.9\"\n\n[[hosts]]\nname = \"x\"\n\n[[hosts]]\nname = \"y\"\n"
        );
        assert!(write(&json!([1])).is_err());
    }
}
