//! Differences between the Go structs of two releases, for one container.

use serde_json::{Map, Value};

use crate::hash::Minor;
use crate::hash::schema::{CONTAINER, Field, Shape, Struct};

/// Returns the fields (`securityContext.seccompProfile`) that kubelets support since a release
/// after `older`, up to `newer`, and that `container` uses.
pub(crate) fn fields_added(
    container: &Map<String, Value>,
    older: Minor,
    newer: Minor,
) -> Vec<String> {
    let mut found = Vec::new();
    walk(&CONTAINER, container, newer, "", &mut |object, field, path| {
        let is_used = object.get(field.key).is_some_and(|value| !value.is_null());
        if field.since > older.0 && is_used {
            found.push(path.to_owned());
        }
    });
    found.sort();
    found.dedup();
    found
}

/// Calls `visit` for every field, used or not, of every struct that is present.
fn walk(
    of: &'static Struct,
    object: &Map<String, Value>,
    minor: Minor,
    path: &str,
    visit: &mut impl FnMut(&Map<String, Value>, &'static Field, &str),
) {
    for field in of.fields(minor) {
        if let Shape::Embedded(inner) = field.shape {
            walk(inner, object, minor, path, visit);
            continue;
        }
        let path = match path {
            "" => field.key.to_owned(),
            path => format!("{path}.{}", field.key),
        };
        visit(object, field, &path);
        let mut shape = field.shape;
        while let Shape::Pointer(inner) | Shape::List(inner) = shape {
            shape = *inner;
        }
        let (Shape::Struct(inner), Some(value)) = (shape, object.get(field.key)) else {
            continue;
        };
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for object in values.iter().filter_map(Value::as_object) {
            walk(inner, object, minor, &path, visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn fields_are_named_by_their_paths() {
        let container = object(
            r#"{"name":"c","startupProbe":{"grpc":{"port":1}},"lifecycle":{"preStop":{"sleep":{}}},
                "securityContext":{"seccompProfile":{"type":"x"},"appArmorProfile":null},
                "volumeMounts":[{"name":"a"},{"name":"b","recursiveReadOnly":"Enabled"}]}"#,
        );
        assert_eq!(
            fields_added(&container, Minor(16), Minor(30)),
            [
                "lifecycle.preStop.sleep",
                "securityContext.seccompProfile",
                "startupProbe.grpc",
                "volumeMounts.recursiveReadOnly"
            ]
        );
        assert_eq!(fields_added(&container, Minor(22), Minor(28)), ["startupProbe.grpc"]);
        assert!(fields_added(&container, Minor(30), Minor(36)).is_empty());
    }
}
