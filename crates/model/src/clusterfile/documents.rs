//! Splits a text into its YAML or JSON documents, with the line of each value.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

use imgctl_base::error::{Error, Result};

/// Maximum length of a text, in bytes.
pub const MAX_LENGTH: usize = 8 << 20;
/// Maximum number of documents in one text.
const MAX_DOCUMENTS: usize = 1000;

/// Parses every non-empty document, with line numbers relative to the whole text. `file` is used in
/// messages.
pub(super) fn parse(text: &str, file: &str) -> Result<Vec<Node>> {
    if text.len() > MAX_LENGTH {
        return Err(Error::usage(format!("{file} is longer than {} MiB", MAX_LENGTH >> 20)));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let pieces = split(text);
    if pieces.len() > MAX_DOCUMENTS {
        return Err(Error::usage(format!("{file} has more than {MAX_DOCUMENTS} documents")));
    }
    let mut documents = Vec::new();
    for (lines_before, piece) in pieces {
        let mut node = parse_one(piece).map_err(|(line, why)| {
            Error::usage(format!("{file}:{}: {why}", lines_before + line.max(1)))
        })?;
        if !matches!(node.content, Content::Null) {
            node.shift(lines_before);
            documents.push(node);
        }
    }
    Ok(documents)
}

/// Parses one document; an error has its line and message.
fn parse_one(text: &str) -> std::result::Result<Node, (u64, String)> {
    if is_blank(text) {
        return Ok(Node { line: 0, content: Content::Null });
    }
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map_or(0, |location| location.line());
        let told = error.to_string();
        // The first line has the message; the rest draws the location.
        let first = told.lines().next().unwrap_or_default();
        let first = first.strip_prefix("error: ").unwrap_or(first);
        (line, format!("the YAML is malformed: {first}"))
    })
}

/// Whether the text contains only comments and directives.
fn is_blank(text: &str) -> bool {
    text.lines().all(|line| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#') || line.starts_with('%') || line == "---"
    })
}

/// Returns the pieces between lines `---` and `...`, each with the number of lines before it. JSON
/// documents may also follow each other directly.
fn split(text: &str) -> Vec<(u64, &str)> {
    let mut pieces = Vec::new();
    let (mut start, mut lines_before, mut offset, mut line) = (0, 0, 0, 0);
    for whole in text.split_inclusive('\n') {
        let content = whole.trim_end_matches(['\n', '\r']);
        let begins =
            content == "---" || content.starts_with("--- ") || content.starts_with("---\t");
        let ends = content == "..." || content.starts_with("... ");
        if begins || ends {
            push(&mut pieces, lines_before, &text[start..offset]);
            let marker = if ends { whole.len() } else { 0 };
            start = offset + marker;
            lines_before = line + u64::from(ends);
        }
        offset += whole.len();
        line += 1;
    }
    push(&mut pieces, lines_before, &text[start..]);
    pieces
}

fn push<'a>(pieces: &mut Vec<(u64, &'a str)>, lines_before: u64, piece: &'a str) {
    if !piece.trim_start().starts_with('{') {
        pieces.push((lines_before, piece));
        return;
    }
    let mut stream = serde_json::Deserializer::from_str(piece).into_iter::<serde::de::IgnoredAny>();
    let mut start = 0;
    while let Some(Ok(_)) = stream.next() {
        let end = stream.byte_offset();
        pieces.push((lines_before + newlines(&piece[..start]), &piece[start..end]));
        start = end;
    }
    // Text that is not JSON goes to the YAML parser: a flow mapping, or a mistake.
    pieces.push((lines_before + newlines(&piece[..start]), &piece[start..]));
}

fn newlines(text: &str) -> u64 {
    text.bytes().filter(|byte| *byte == b'\n').count() as u64
}

/// A value and its line, counted from 1 within its document; 0 if unknown.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) line: u64,
    pub(super) content: Content,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Null,
    /// A boolean or a number.
    Scalar(Value),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Member>),
}

#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) key: String,
    /// Line of the key.
    pub(super) line: u64,
    pub(super) value: Node,
}

impl Node {
    /// Converts to JSON, in the same order.
    pub(super) fn to_value(&self) -> Value {
        match &self.content {
            Content::Null => Value::Null,
            Content::Scalar(value) => value.clone(),
            Content::Text(text) => Value::String(text.clone()),
            Content::List(items) => items.iter().map(Self::to_value).collect(),
            Content::Map(members) => Value::Object(
                members
                    .iter()
                    .map(|member| (member.key.clone(), member.value.to_value()))
                    .collect(),
            ),
        }
    }

    /// Returns the text of member `name` if this is a mapping with a text of that name.
    pub(super) fn text_of(&self, name: &str) -> Option<&str> {
        match &self.member(name)?.content {
            Content::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn member(&self, name: &str) -> Option<&Self> {
        match &self.content {
            Content::Map(members) => {
                members.iter().find(|member| member.key == name).map(|member| &member.value)
            }
            _ => None,
        }
    }

    /// Adds to all line numbers, for a document that does not begin its file.
    pub(super) fn shift(&mut self, lines: u64) {
        if self.line > 0 {
            self.line += lines;
        }
        match &mut self.content {
            Content::List(items) => items.iter_mut().for_each(|item| item.shift(lines)),
            Content::Map(members) => {
                for member in members {
                    member.line += lines;
                    member.value.shift(lines);
                }
            }
            Content::Null | Content::Scalar(_) | Content::Text(_) => {}
        }
    }

    /// Names the type of the content, for messages.
    pub(super) fn what(&self) -> &'static str {
        match &self.content {
            Content::Null => "nothing",
            Content::Scalar(Value::Bool(_)) => "a boolean",
            Content::Scalar(_) => "a number",
            Content::Text(_) => "a text",
            Content::List(_) => "a list",
            Content::Map(_) => "a mapping",
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Content>::deserialize(deserializer)?;
        Ok(Self { line: spanned.referenced.line(), content: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("YAML or JSON data")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Content, E> {
        Ok(Content::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Content, E> {
        Ok(Content::Text(value))
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::Null)
    }

    fn visit_none<E>(self) -> Result<Content, E> {
        Ok(Content::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Content, D::Error> {
        Content::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Content, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Content::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Content, A::Error> {
        let mut members = Vec::new();
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            members.push(Member {
                line: key.referenced.line(),
                key: key.value,
                value: entries.next_value()?,
            });
        }
        Ok(Content::Map(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(u64, String)> {
        parse(text, "f")
            .unwrap()
            .iter()
            .map(|node| (node.line, node.text_of("kind").unwrap_or("-").to_owned()))
            .collect()
    }

    #[test]
    fn documents_are_found_with_their_lines() {
        for (text, expected) in [
            ("", &[][..]),
            ("# only a comment\n---\n---\n", &[]),
            ("kind: A\n---\nkind: B\n", &[(1, "A"), (3, "B")]),
            ("%YAML 1.2\n---\nkind: A\n...\n---\nkind: B", &[(3, "A"), (6, "B")]),
            ("--- {kind: A}\n---   # two\nkind: B\n", &[(1, "A"), (3, "B")]),
            ("{\"kind\": \"A\"}\n{\"kind\":\n \"B\"}\n", &[(1, "A"), (2, "B")]),
            ("a: |\n  ---\n  x\nkind: A\n", &[(1, "A")]),
            ("kind: A\r\n---\r\nkind: B\r\n", &[(1, "A"), (3, "B")]),
        ] {
            let found = kinds(text);
            let found: Vec<(u64, &str)> = found.iter().map(|(l, k)| (*l, &**k)).collect();
            assert_eq!(found, expected, "{text:?}");
        }
    }

    #[test]
    fn mistakes_are_told_with_their_line_in_the_file() {
        for (text, expected) in [("kind: A\n---\na: b\n c: [d\n", "f:"), ("a: 1\na: 2\n", "f:2: ")]
        {
            let error = parse(text, "f").unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let long = " ".repeat(MAX_LENGTH + 1);
        assert!(parse(&long, "f").is_err());
    }
}
