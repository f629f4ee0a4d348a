//! Expectations that are written down (`expect.tree`, `expect.json`) and the comparison of image
//! configurations.

use std::collections::BTreeSet;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::common::tree::{Entry, Tree, hex, line};

/// The fields of an image's `config` that are compared.
const FIELDS: [&str; 13] = [
    "Cmd",
    "Entrypoint",
    "Env",
    "ExposedPorts",
    "Healthcheck",
    "Labels",
    "OnBuild",
    "Shell",
    "StopSignal",
    "User",
    "Volumes",
    "WorkingDir",
    "ArgsEscaped",
];

/// Compares a tree with lines `KIND MODE UID:GID PATH[ xattrs NAME…][ -> TARGET][ = CONTENT]`. A file
/// without ` = ` may hold anything, ` sha256 HEX` names a content that is too long to write. A file has
/// the extended attributes that its line names, and no others. A first line `only PATH PATH…` restricts
/// the comparison to what lies there.
pub(crate) fn tree_differences(text: &str, tree: &Tree) -> Vec<String> {
    let mut lines: Vec<&str> = text.lines().collect();
    let only: Option<Vec<&str>> = lines
        .first()
        .and_then(|line| line.strip_prefix("only "))
        .map(|paths| paths.split(' ').collect());
    if only.is_some() {
        lines.remove(0);
    }
    let mut found = Vec::new();
    let mut named = BTreeSet::new();
    for written in lines {
        let (head, content) = match written.split_once(" = ") {
            Some((head, content)) => (head, Some(unescape(content))),
            None => match written.strip_suffix(" =") {
                Some(head) => (head, Some(Vec::new())),
                None => (written, None),
            },
        };
        let mut words = head.splitn(4, ' ');
        let (kind, mode) = (words.next().unwrap(), words.next().unwrap());
        let (owner, place) = (words.next().unwrap(), words.next().unwrap());
        let (place, digest) = match place.split_once(" sha256 ") {
            Some((path, digest)) => (path, Some(digest.to_owned())),
            None => (place, content.map(|content| hex(&Sha256::digest(content)))),
        };
        let (path, target) = match place.split_once(" -> ") {
            Some((path, target)) => (path, Some(target)),
            None => (place, None),
        };
        let (path, xattrs) = path.split_once(" xattrs ").unwrap_or((path, ""));
        named.insert(path.to_owned());
        let Some(entry) = tree.get(path) else {
            found.push(format!("- {written}"));
            continue;
        };
        let same = format!("{} {:04o} {}:{}", entry.kind, entry.mode, entry.uid, entry.gid)
            == format!("{kind} {mode} {owner}")
            && entry.xattrs.iter().map(|(name, _)| name.as_str()).eq(xattrs.split_terminator(' '))
            && target.is_none_or(|target| target == entry.content)
            && digest.is_none_or(|digest| digest == entry.content);
        if !same {
            found.push(format!("- {written}"));
            found.push(format!("+ {}", line(path, entry)));
        }
    }
    let inside = |path: &str| {
        let below = |only: &&str| {
            path.strip_prefix(*only).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        only.as_ref().is_none_or(|only| only.iter().any(below))
    };
    let unexpected = |(path, _): &(&String, &Entry)| inside(path) && !named.contains(*path);
    found.extend(
        tree.iter().filter(unexpected).map(|(path, entry)| format!("+ {}", line(path, entry))),
    );
    found
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        let character = match character {
            '\\' => match rest.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                other => other.expect("an escape at the end of a line"),
            },
            other => other,
        };
        bytes.extend(character.to_string().bytes());
    }
    bytes
}

/// Compares our configuration with the referee's, or with the fields that are written down.
pub(crate) fn config_differences(
    referee: Option<&Value>,
    written: Option<&Value>,
    ours: &Value,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |field: &str, theirs: &Value, ours: &Value| {
        let (theirs, ours) = (normal(field, theirs), normal(field, ours));
        if theirs != ours {
            found.push(format!("- config {field} {theirs}"));
            found.push(format!("+ config {field} {ours}"));
        }
    };
    for field in FIELDS {
        let expected = written.and_then(|written| written.get(field));
        if let Some(theirs) = expected.or_else(|| referee.map(|referee| &referee["config"][field]))
        {
            compare(field, theirs, &ours["config"][field]);
        }
    }
    if let Some(referee) = referee {
        for field in ["author", "architecture", "os", "variant"] {
            compare(field, &referee[field], &ours[field]);
        }
    }
    found
}

/// What is absent, null or empty is the same; buildah signs its images with a label.
fn normal(field: &str, value: &Value) -> Value {
    let mut value = value.clone();
    if let (true, Some(labels)) = (field == "Labels", value.as_object_mut()) {
        labels.remove("io.buildah.version");
    }
    let empty = match &value {
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        Value::String(text) => text.is_empty() || (field == "WorkingDir" && text == "/"),
        Value::Bool(truth) => !truth,
        _ => false,
    };
    if empty { Value::Null } else { value }
}
