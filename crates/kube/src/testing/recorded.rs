//! Tests only: compares the recorded answers of a real kube-apiserver with the stand-in and, if
//! `KUBEBUILDER_ASSETS` is set, with a real one again.
//!
//! A recording is a list of exchanges. `look` names the parts of an answer that are compared;
//! `$(PATH POINTER)` in a body stands for the current value of a part of an object. To record
//! again: `IMGCTL_RECORD=1 KUBEBUILDER_ASSETS=… cargo test --lib kube::recorded`.

use serde_json::{Value, json};

use crate::api::{Answer, Api, PatchKind};
use crate::testing::real::{Real, is_recording, recorded};
use crate::testing::stand_in::StandIn;

const FILES: [&str; 3] = ["eviction", "changes", "nodes"];

/// Runs one recording and returns the exchanges with their answers, in the format of the file.
fn run(api: &dyn Api, exchanges: &[Value]) -> Vec<Value> {
    exchanges
        .iter()
        .map(|exchange| {
            let path = exchange["path"].as_str().unwrap();
            let body = filled(api, &exchange["body"]);
            let answer = ask(api, exchange["verb"].as_str().unwrap(), path, &body);
            let mut done = exchange.clone();
            done["answer"] = told(answer, &exchange["look"]);
            done
        })
        .collect()
}

fn ask(api: &dyn Api, verb: &str, path: &str, body: &Value) -> Answer<Value> {
    match verb {
        "get" => api.get(path),
        "list" => api.list(path).map(Value::Array),
        "create" => api.create(path, body),
        "replace" => api.replace(path, body),
        "delete" => api.delete(path, body),
        "json" => api.patch(path, PatchKind::Json, body),
        "merge" => api.patch(path, PatchKind::Merge, body),
        "strategic" => api.patch(path, PatchKind::Strategic, body),
        _ => panic!("{verb}"),
    }
}

fn filled(api: &dyn Api, value: &Value) -> Value {
    match value {
        Value::String(text) => match text.strip_prefix("$(").and_then(|x| x.strip_suffix(')')) {
            None => value.clone(),
            Some(inner) => {
                let (path, pointer) = inner.split_once(' ').unwrap_or((inner, ""));
                api.get(path).unwrap().pointer(pointer).unwrap().clone()
            }
        },
        Value::Array(all) => all.iter().map(|one| filled(api, one)).collect(),
        Value::Object(all) => {
            let mut new = serde_json::Map::new();
            let mut patched = None;
            for (name, one) in all {
                match name.as_str() {
                    // `{"$": "$(PATH)", …}`: the object at that path with these members merged in.
                    "$" => patched = Some(filled(api, one)),
                    _ => {
                        new.insert(name.clone(), filled(api, one));
                    }
                }
            }
            match patched {
                None => Value::Object(new),
                Some(mut object) => {
                    merge(&mut object, &Value::Object(new));
                    object
                }
            }
        }
        other => other.clone(),
    }
}

fn merge(object: &mut Value, patch: &Value) {
    match patch {
        Value::Object(members) => {
            for (name, value) in members {
                merge(&mut object[name.as_str()], value);
            }
        }
        other => *object = other.clone(),
    }
}

/// Returns an answer without the parts that vary between runs.
fn told(answer: Answer<Value>, look: &Value) -> Value {
    match answer {
        Ok(object) => {
            let looks = look.as_array().into_iter().flatten();
            let looks = looks.map(|pointer| {
                let pointer = pointer.as_str().unwrap();
                let found = object.pointer(pointer).cloned().unwrap_or_default();
                (pointer.to_owned(), found)
            });
            json!({"ok": looks.collect::<serde_json::Map<_, _>>()})
        }
        Err(error) => {
            let causes = error.causes.iter();
            let causes = causes.map(|(reason, message)| json!([reason, plain(message)]));
            json!({
                "code": error.code,
                "reason": error.reason,
                "message": plain(&error.message),
                "causes": causes.collect::<Vec<_>>(),
                "retryAfter": error.retry_after,
            })
        }
    }
}

/// Returns a message without uids, versions and the diff that some messages end with.
fn plain(message: &str) -> String {
    let replaced = |text: &str, pattern: &str, by: &str| {
        let pattern = regex::Regex::new(pattern).unwrap();
        pattern.replace_all(text, by).into_owned()
    };
    let message = message.split("\n@@").next().unwrap_or_default();
    let uid = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
    let message = replaced(message, uid, "UID");
    replaced(&message, r"record \(\d+\)", "record (VERSION)")
}

fn exchanges(name: &str) -> Vec<Value> {
    let bytes = std::fs::read(recorded().join(format!("{name}.json"))).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn compare(what: &str, name: &str, expected: &[Value], found: &[Value]) {
    let mut wrong = Vec::new();
    for (expected, found) in expected.iter().zip(found) {
        if expected["answer"] != found["answer"] {
            wrong.push(format!(
                "{name}: {} {} {}\n  recorded {}\n  {what} {}",
                expected["verb"],
                expected["path"],
                expected["body"],
                expected["answer"],
                found["answer"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_stand_in_answers_as_the_real_one_did() {
    for name in FILES {
        let api = StandIn::new();
        api.freeze_budgets().without_kubelets();
        let expected = exchanges(name);
        compare("stand-in", name, &expected, &run(&api, &expected));
    }
}

#[test]
fn the_real_one_answers_as_it_did() {
    let Some(real) = Real::start() else {
        return;
    };
    let api = real.api("kubeconfig");
    for name in FILES {
        let expected = exchanges(name);
        let found = run(&*api, &expected);
        if is_recording() {
            let lines: Vec<String> = found.iter().map(Value::to_string).collect();
            let text = format!("[\n{}\n]\n", lines.join(",\n"));
            std::fs::write(recorded().join(format!("{name}.json")), text).unwrap();
            continue;
        }
        compare("real", name, &expected, &found);
    }
}
