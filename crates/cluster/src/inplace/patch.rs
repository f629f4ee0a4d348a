//! JSON patches for Pods: each tests what it relies on, so that no concurrent change is
//! overwritten. Pure.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::inplace::marks::{self, PodState, escaped};
use crate::inplace::object::Pod;
use imgctl_base::error::{Error, Result};

/// Returns a patch that sets the images of `wanted`, the annotation with the previous state
/// (`None`: the annotation is removed), and labels, in one request.
pub(super) fn images(
    pod: &Pod,
    wanted: &BTreeMap<String, String>,
    state: Option<&PodState>,
    labels: &BTreeMap<String, String>,
) -> Result<Value> {
    let mut operations = vec![test("/metadata/uid", &pod.metadata.uid)];
    for (name, to) in wanted {
        let place = place(pod, name)?;
        let at = format!("/spec/{}/{}", place.list, place.index);
        operations.push(test(&format!("{at}/name"), name));
        operations.push(test(&format!("{at}/image"), &place.spec.image));
        if place.spec.image != *to {
            operations.push(json!({"op": "replace", "path": format!("{at}/image"), "value": to}));
        }
    }
    let state = match state {
        Some(state) => Some(serde_json::to_string(state).map_err(|error| {
            Error::failed("cannot write the Pod's state as JSON").caused_by(error)
        })?),
        None => None,
    };
    match state {
        Some(text) => {
            if pod.metadata.annotations.is_empty() {
                // Otherwise, a first annotation added concurrently would be lost.
                operations.push(test("/metadata/resourceVersion", &pod.metadata.resource_version));
                operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
            }
            operations.push(json!({"op": "add", "path": annotation(marks::STATE), "value": text}));
        }
        None if pod.metadata.annotations.contains_key(marks::STATE) => {
            operations.push(json!({"op": "remove", "path": annotation(marks::STATE)}));
        }
        None => {}
    }
    for (name, value) in labels {
        let path = format!("/metadata/labels/{}", escaped(name));
        operations.push(json!({"op": "add", "path": path, "value": value}));
    }
    Ok(Value::Array(operations))
}

/// Returns a patch of resources, for the `resize` subresource.
pub(super) fn resources(
    pod: &Pod,
    wanted: &BTreeMap<String, crate::inplace::object::Resources>,
) -> Result<Value> {
    let mut operations = vec![test("/metadata/uid", &pod.metadata.uid)];
    for (name, to) in wanted {
        let place = place(pod, name)?;
        let at = format!("/spec/{}/{}", place.list, place.index);
        operations.push(test(&format!("{at}/name"), name));
        let from = &place.spec.resources;
        for (what, from, to) in
            [("requests", &from.requests, &to.requests), ("limits", &from.limits, &to.limits)]
        {
            for (resource, amount) in to {
                if from.get(resource) != Some(amount) {
                    let path = format!("{at}/resources/{what}/{}", escaped(resource));
                    operations.push(json!({"op": "replace", "path": path, "value": amount}));
                }
            }
        }
    }
    Ok(Value::Array(operations))
}

pub(super) fn test(path: &str, value: &str) -> Value {
    json!({"op": "test", "path": path, "value": value})
}

/// Returns the JSON pointer to an annotation of an object.
pub(super) fn annotation(name: &str) -> String {
    format!("/metadata/annotations/{}", escaped(name))
}

fn place<'a>(pod: &'a Pod, name: &str) -> Result<crate::inplace::object::Place<'a>> {
    pod.spec
        .container(name)
        .ok_or_else(|| Error::failed(format!("Pod {} has no container `{name}`", pod.full_name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_found_by_name_and_everything_is_tested() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u", "annotations": {"a": "b"}},
            "spec": {"containers": [{"name": "side", "image": "s:1"}, {"name": "app", "image": "a:1"}]},
        }))
        .unwrap();
        let wanted = BTreeMap::from([("app".to_owned(), "a:2".to_owned())]);
        let labels = BTreeMap::from([("controller-revision-hash".to_owned(), "x".to_owned())]);
        let patch = images(&pod, &wanted, None, &labels).unwrap();
        assert_eq!(
            patch,
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u"},
                {"op": "test", "path": "/spec/containers/1/name", "value": "app"},
                {"op": "test", "path": "/spec/containers/1/image", "value": "a:1"},
                {"op": "replace", "path": "/spec/containers/1/image", "value": "a:2"},
                {"op": "add", "path": "/metadata/labels/controller-revision-hash", "value": "x"},
            ])
        );
        assert!(images(&pod, &BTreeMap::from([("no".into(), "x".into())]), None, &labels).is_err());
    }
}
