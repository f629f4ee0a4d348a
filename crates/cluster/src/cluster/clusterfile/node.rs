//! YAML and JSON data with the line of each value.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

/// A value and its line, counted from 1 within its document; 0 if unknown.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) line: u64,
    pub(super) content: Content,
}

/// Content of a node.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Null,
    /// A boolean or a number.
    Scalar(Value),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Member>),
}

/// One member of a mapping.
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
