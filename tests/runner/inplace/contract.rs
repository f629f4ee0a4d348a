//! What programs read: members of all documents and lines, by name.

use serde_json::{Value, json};

use crate::inplace::cluster::{Cluster, WEB, set};

/// A document with words instead of what differs from run to run.
fn shaped(value: &Value) -> Value {
    let replace = |text: &str| {
        let mut text = text.to_owned();
        for (pattern, word) in [
            (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
            (r"sha256:[0-9a-f]{64}", "DIGEST"),
            (r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "TIME"),
            (r"web-[0-9a-f]{8}-", "web-HASH-"),
            (r"v1\.\d+\.\d+", "VERSION"),
            (r"/\S*/\.sealos/", "RUNS/"),
        ] {
            let pattern = regex::Regex::new(pattern).unwrap();
            text = pattern.replace_all(&text, word).into_owned();
        }
        text
    };
    match value {
        Value::String(text) => json!(replace(text)),
        Value::Array(all) => all.iter().map(shaped).collect(),
        Value::Object(all) => {
            let members = all.iter();
            members.map(|(key, one)| (replace(key), shaped(one))).collect()
        }
        // It depends on the machine.
        Value::Number(_) => value.clone(),
        other => other.clone(),
    }
}

fn text(all: &[Value]) -> String {
    let all = all.iter().map(shaped);
    let all = all.map(|one| serde_json::to_string_pretty(&one).unwrap());
    all.collect::<Vec<_>>().join("\n")
}

#[test]
fn documents_have_these_members() {
    let cluster = Cluster::start();
    cluster.workload("Deployment", 2);
    let words = [WEB[0], WEB[1], "--set", &set("2")];
    let plan = [&["plan", "--json"], &words[..]].concat();
    let mut refused = cluster.inplace(&plan).fails(10).json();
    let more = ["--template", "keep", "--id", "one", "--pre-pull", "none"];
    let apply = [&words[..], &more].concat();
    let mut lines = crate::inplace::cluster::events(&cluster.apply(&apply).ok());
    // In which order two Pods become ready is theirs.
    lines.sort_by_key(|line| (line["pod"].to_string(), line["event"] == "end"));
    let status = cluster.inplace(&["status", "--json"]).fails(10).json();
    let back = ["rollback", "--id", "one", "--dry-run", "--json"];
    let back = cluster.inplace(&back).ok().json();
    for plan in [&mut refused] {
        for pod in plan["pods"].as_array_mut().unwrap() {
            // What it took to start is a matter of the machine.
            let _ = pod.as_object_mut().unwrap().shift_remove("startSeconds");
        }
    }
    let back_pod: Vec<&String> = back["pods"][0].as_object().unwrap().keys().collect();
    assert!(back_pod.iter().any(|key| *key == "stopSeconds"), "{back_pod:?}");
    assert_eq!(back["rollback"], true);
    let mut all = vec![refused];
    all.extend(lines);
    all.push(status);
    insta::assert_snapshot!("documents", text(&all));
}
