//! Reads typed members from nodes and collects problems: all mistakes in a file are reported at
//! once, each with its line.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::clusterfile::documents::{Content, Member, Node};
use imgctl_base::error::{Error, Result};
use imgctl_base::suggest::closest;

/// Maximum number of reported mistakes.
const TOLD: usize = 20;

pub(super) struct Problems<'a> {
    file: &'a str,
    found: Vec<(u64, String)>,
    hints: Vec<String>,
    notes: Vec<String>,
    lenient: bool,
}

impl<'a> Problems<'a> {
    /// `lenient`: unknown members are not mistakes.
    pub(super) fn new(file: &'a str, lenient: bool) -> Self {
        Self { file, lenient, found: Vec::new(), hints: Vec::new(), notes: Vec::new() }
    }

    pub(super) fn is_lenient(&self) -> bool {
        self.lenient
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub(super) fn add(&mut self, line: u64, message: impl Into<String>) {
        self.found.push((line, message.into()));
    }

    /// Adds a hint against a mistake; the same sentence is added once.
    pub(super) fn hint(&mut self, hint: impl Into<String>) {
        let hint = hint.into();
        if !self.hints.contains(&hint) {
            self.hints.push(hint);
        }
    }

    /// Adds a note that is not a mistake.
    pub(super) fn note(&mut self, line: u64, message: impl std::fmt::Display) {
        self.notes.push(format!("{}:{line}: {message}", self.file));
    }

    /// Returns the notes, or an error if there was a mistake.
    pub(super) fn finish(mut self) -> Result<Vec<String>> {
        self.found.sort_by_key(|(line, _)| *line);
        let mut lines: Vec<String> = self
            .found
            .iter()
            .take(TOLD)
            .map(|(line, message)| format!("{}:{line}: {message}", self.file))
            .collect();
        if self.found.len() > TOLD {
            lines.push(format!("and {} more", self.found.len() - TOLD));
        }
        let mut error = match lines.len() {
            0 => return Ok(self.notes),
            1 => Error::usage(lines.remove(0)),
            _ => Error::usage(format!("{} has errors", self.file)).lines(lines),
        };
        for hint in self.hints {
            error = error.hint(hint);
        }
        Err(error)
    }
}

/// Members of one mapping, and the names requested so far.
pub(super) struct Fields<'n> {
    /// Path such as `spec.ssh`, for messages; empty at the top level.
    path: String,
    members: &'n [Member],
    asked: Vec<&'static str>,
}

impl<'n> Fields<'n> {
    /// Returns the members of `node`, which must be a mapping; other nodes have none.
    pub(super) fn of(node: &'n Node, path: &str, problems: &mut Problems<'_>) -> Self {
        let members: &[Member] = match &node.content {
            Content::Map(members) => members,
            Content::Null => &[],
            _ => {
                wrong(node, path, "a mapping", problems);
                &[]
            }
        };
        Self { path: path.to_owned(), members, asked: Vec::new() }
    }

    /// Returns `path.name`.
    pub(super) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Returns the member `name`; `null` counts as missing.
    pub(super) fn get(&mut self, name: &'static str) -> Option<&'n Node> {
        self.asked.push(name);
        self.members
            .iter()
            .find(|member| member.key == name)
            .map(|member| &member.value)
            .filter(|node| !matches!(node.content, Content::Null))
    }

    pub(super) fn text(&mut self, name: &'static str, p: &mut Problems<'_>) -> Option<String> {
        let path = self.path_of(name);
        text(self.get(name)?, &path, p)
    }

    pub(super) fn texts(&mut self, name: &'static str, p: &mut Problems<'_>) -> Vec<String> {
        let path = self.path_of(name);
        self.get(name).map_or_else(Vec::new, |node| texts(node, &path, p))
    }

    /// Reads a mapping of texts to texts.
    pub(super) fn table(
        &mut self,
        name: &'static str,
        p: &mut Problems<'_>,
    ) -> BTreeMap<String, String> {
        let path = self.path_of(name);
        let Some(node) = self.get(name) else {
            return BTreeMap::new();
        };
        Fields::of(node, &path, p)
            .members
            .iter()
            .filter_map(|member| {
                let path = format!("{path}.{}", member.key);
                Some((member.key.clone(), text(&member.value, &path, p)?))
            })
            .collect()
    }

    /// Reads the elements of a list.
    pub(super) fn list(&mut self, name: &'static str, p: &mut Problems<'_>) -> &'n [Node] {
        let path = self.path_of(name);
        self.get(name).map_or(&[], |node| list(node, &path, p))
    }

    pub(super) fn port(&mut self, name: &'static str, p: &mut Problems<'_>) -> Option<u16> {
        let path = self.path_of(name);
        let node = self.get(name)?;
        let number = match &node.content {
            Content::Scalar(Value::Number(number)) => number.as_u64(),
            Content::Text(text) => text.parse().ok(),
            _ => None,
        };
        match number {
            // sealos writes 0 for "not set".
            Some(0) => None,
            Some(number) if number <= u64::from(u16::MAX) => u16::try_from(number).ok(),
            _ => {
                wrong(node, &path, "a port (1 to 65535)", p);
                None
            }
        }
    }

    /// Reports members that were not requested, with the nearest valid name.
    pub(super) fn finish(self, problems: &mut Problems<'_>) {
        for member in self.unknown() {
            let path = self.path_of(&member.key);
            let meant = match closest(&member.key, self.asked.iter().copied()) {
                Some(name) => format!("; did you mean `{name}`?"),
                None => format!("; known here: {}", self.asked.join(", ")),
            };
            if problems.lenient {
                let near = closest(&member.key, self.asked.iter().copied());
                let near =
                    near.map_or_else(String::new, |name| format!("; did you mean `{name}`?"));
                problems.note(member.line, format!("unknown field `{path}` is ignored{near}"));
            } else {
                problems.add(member.line, format!("unknown field `{path}`{meant}"));
            }
        }
    }

    /// Returns the members that were not requested, to be kept.
    pub(super) fn rest(self) -> Map<String, Value> {
        self.unknown().map(|member| (member.key.clone(), member.value.to_value())).collect()
    }

    fn unknown(&self) -> impl Iterator<Item = &'n Member> {
        let is_unknown = |member: &&Member| !self.asked.contains(&member.key.as_str());
        self.members.iter().filter(is_unknown)
    }
}

/// Reads `node` as text. Rejects numbers and booleans: `0123` would become `83`.
pub(super) fn text(node: &Node, path: &str, problems: &mut Problems<'_>) -> Option<String> {
    match &node.content {
        Content::Text(text) => Some(text.clone()),
        Content::Scalar(_) => {
            wrong(node, path, "a text", problems);
            problems.hint(
                "YAML does not read bare numbers, `yes` and `on` as text: put quotes around them",
            );
            None
        }
        _ => {
            wrong(node, path, "a text", problems);
            None
        }
    }
}

pub(super) fn texts(node: &Node, path: &str, problems: &mut Problems<'_>) -> Vec<String> {
    list(node, path, problems)
        .iter()
        .enumerate()
        .filter_map(|(at, item)| text(item, &format!("{path}[{at}]"), problems))
        .collect()
}

fn list<'n>(node: &'n Node, path: &str, problems: &mut Problems<'_>) -> &'n [Node] {
    match &node.content {
        Content::List(items) => items,
        Content::Null => &[],
        _ => {
            wrong(node, path, "a list", problems);
            &[]
        }
    }
}

/// Reports a node of the wrong type.
pub(super) fn wrong(node: &Node, path: &str, expected: &str, problems: &mut Problems<'_>) {
    let what = match &node.content {
        Content::Scalar(value) if !is_secret(path) => format!("{} (`{value}`)", node.what()),
        _ => node.what().to_owned(),
    };
    let path = if path.is_empty() { "the document".to_owned() } else { format!("`{path}`") };
    problems.add(node.line, format!("{path} must be {expected}, not {what}"));
}

/// Whether the value must not be shown.
fn is_secret(path: &str) -> bool {
    let name = path.rsplit('.').next().unwrap_or_default();
    name.to_ascii_lowercase().contains("passw") || name.starts_with("pkData")
}

/// Reads a list of `NAME=VALUE`; the last of several entries with the same name counts.
pub(super) fn environment(
    fields: &mut Fields<'_>,
    name: &'static str,
    problems: &mut Problems<'_>,
) -> BTreeMap<String, String> {
    let path = fields.path_of(name);
    let mut read: BTreeMap<String, String> = BTreeMap::new();
    for (at, node) in fields.list(name, problems).iter().enumerate() {
        let path = format!("{path}[{at}]");
        let Some(entry) = text(node, &path, problems) else {
            continue;
        };
        match crate::variable::parse(&entry) {
            Ok((name, value)) => {
                if read.get(&name).is_some_and(|earlier| *earlier != value) {
                    problems
                        .note(node.line, format!("`{name}` is set twice; the last value applies"));
                }
                read.insert(name, value);
            }
            Err(error) if problems.is_lenient() => {
                problems.note(node.line, format!("`{path}` is ignored: {}", error.message()));
            }
            Err(error) => {
                problems.add(node.line, format!("`{path}`: {}", error.message()));
                error.hints().iter().for_each(|hint| problems.hint(*hint));
            }
        }
    }
    read
}
