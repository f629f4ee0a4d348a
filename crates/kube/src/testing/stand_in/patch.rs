//! JSON patches, merge patches, and the subset of strategic merge patches that lists keyed by name
//! need.

use serde_json::{Map, Value};

use crate::api::{ApiError, PatchKind};
use crate::testing::stand_in::status;

const NO_LIST: &str = "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp";

/// Reason why a patch was not applied.
pub(super) enum Failure {
    /// A `test` failed, or a path does not exist.
    Unprocessable,
    Malformed(String),
}

impl Failure {
    pub(super) fn told(self) -> ApiError {
        match self {
            Self::Unprocessable => status::unprocessable(),
            Self::Malformed(why) => status::bad_request(&why),
        }
    }
}

/// Returns the object after the patch.
pub(super) fn apply(kind: PatchKind, old: &Value, patch: &Value) -> Result<Value, Failure> {
    let mut new = old.clone();
    match kind {
        PatchKind::Json => {
            let steps = patch.as_array();
            let steps = steps.ok_or_else(|| Failure::Malformed(NO_LIST.into()))?;
            for one in steps {
                step(&mut new, one)?;
            }
        }
        PatchKind::Merge => merge(&mut new, patch, false),
        PatchKind::Strategic => merge(&mut new, patch, true),
    }
    Ok(new)
}

fn step(object: &mut Value, step: &Value) -> Result<(), Failure> {
    let missing = || Failure::Malformed("the patch lacks a member".to_owned());
    let path = step["path"].as_str().ok_or_else(missing)?;
    let value = || step.get("value").cloned().ok_or_else(missing);
    match step["op"].as_str() {
        Some("test") => {
            let found = object.pointer(path).unwrap_or(&Value::Null);
            if *found == *step.get("value").unwrap_or(&Value::Null) {
                Ok(())
            } else {
                Err(Failure::Unprocessable)
            }
        }
        // A missing member is added, as the real server does.
        Some("replace") => {
            let is_there = object.pointer(path).is_some();
            if !is_there && !parent(object, path)?.0.is_object() {
                return Err(Failure::Unprocessable);
            }
            match object.pointer_mut(path) {
                Some(found) => *found = value()?,
                None => add(object, path, value()?)?,
            }
            Ok(())
        }
        Some("add") => add(object, path, value()?),
        Some("remove") => take(object, path).map(|_| ()),
        Some("copy" | "move") => {
            let from = step["from"].as_str().ok_or_else(missing)?;
            let value = if step["op"] == "move" {
                take(object, from)?
            } else {
                object.pointer(from).cloned().ok_or(Failure::Unprocessable)?
            };
            add(object, path, value)
        }
        _ => Err(Failure::Malformed("unknown operation".to_owned())),
    }
}

/// Returns the parent of what `path` names, and the last component of the path.
fn parent<'a>(object: &'a mut Value, path: &str) -> Result<(&'a mut Value, String), Failure> {
    let (parent, last) = path.rsplit_once('/').ok_or(Failure::Unprocessable)?;
    let last = last.replace("~1", "/").replace("~0", "~");
    let parent = object.pointer_mut(parent).ok_or(Failure::Unprocessable)?;
    Ok((parent, last))
}

fn add(object: &mut Value, path: &str, value: Value) -> Result<(), Failure> {
    if path.is_empty() {
        *object = value;
        return Ok(());
    }
    let (parent, last) = parent(object, path)?;
    match parent {
        Value::Object(members) => {
            members.insert(last, value);
        }
        Value::Array(items) => {
            let at = match last.as_str() {
                "-" => items.len(),
                last => last.parse().map_err(|_| Failure::Unprocessable)?,
            };
            if at > items.len() {
                return Err(Failure::Unprocessable);
            }
            items.insert(at, value);
        }
        _ => return Err(Failure::Unprocessable),
    }
    Ok(())
}

fn take(object: &mut Value, path: &str) -> Result<Value, Failure> {
    let (parent, last) = parent(object, path)?;
    match parent {
        Value::Object(members) => members.shift_remove(&last).ok_or(Failure::Unprocessable),
        Value::Array(items) => match last.parse::<usize>() {
            Ok(at) if at < items.len() => Ok(items.remove(at)),
            _ => Err(Failure::Unprocessable),
        },
        _ => Err(Failure::Unprocessable),
    }
}

fn merge(target: &mut Value, patch: &Value, is_strategic: bool) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(object) = target else {
        return;
    };
    for (name, value) in members {
        if value.is_null() {
            object.shift_remove(name);
            continue;
        }
        let slot = object.entry(name.clone()).or_insert(Value::Null);
        match (is_strategic, merge_key(name), &mut *slot, value) {
            (true, Some(key), Value::Array(items), Value::Array(patches)) => {
                for one in patches {
                    let same = items.iter_mut().find(|item| item[key] == one[key]);
                    match same {
                        Some(item) => merge(item, one, true),
                        None => items.push(one.clone()),
                    }
                }
            }
            _ => merge(slot, value, is_strategic),
        }
    }
}

/// Returns the member that identifies the items of a list.
fn merge_key(list: &str) -> Option<&'static str> {
    match list {
        "containers" | "initContainers" | "ephemeralContainers" | "env" | "volumes" => Some("name"),
        "conditions" => Some("type"),
        "volumeMounts" => Some("mountPath"),
        "ports" => Some("containerPort"),
        "ownerReferences" => Some("uid"),
        _ => None,
    }
}
