//! YAML and JSON text as trees that record line numbers.
//!
//! Nothing is interpreted: every scalar is a string. Nodes are stored in one list and aliases refer
//! to it, so that memory use is at most a small multiple of the length of the document, and
//! traversal needs no recursion. Must not depend on what the search looks for.

use imgctl_template::yaml::as_libyaml;
use serde_saphyr::granit_parser::{Event, Options, Parser, ScalarStyle, ScanError};

/// Maximum number of nodes in one text (the reader limits its length).
const MAX_NODES: usize = 4_000_000;
/// Maximum nesting depth of collections.
const MAX_DEPTH: usize = 200;

/// Number of a node in its [`Tree`].
pub(super) type NodeId = usize;

/// Content of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Scalar {
        text: String,
        /// Written without quotes, so that `true`, `1` and `~` are not strings.
        plain: bool,
        /// A literal block (`|`), whose lines match those of the file.
        literal: bool,
    },
    Sequence(Vec<NodeId>),
    /// Key-value pairs in document order.
    Mapping(Vec<(NodeId, NodeId)>),
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Line on which the node starts, counted from 1.
    pub(super) line: usize,
    pub(super) value: Value,
}

/// All documents of a text.
#[derive(Debug, Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// The root of each document that is not empty.
    pub(super) documents: Vec<NodeId>,
}

impl Tree {
    /// Parses all documents; an error names the line and column.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        as_libyaml(text, Self::parse_strictly)
    }

    fn parse_strictly(text: &str) -> Result<Self, String> {
        let mut options = Options::default();
        options.set_emit_comments(false);
        let mut reading = Reading::default();
        for event in Parser::new_from_str_with_options(text, options) {
            let (event, span) = event.map_err(|error: ScanError| error.to_string())?;
            reading.take(event, span.start.line())?;
        }
        Ok(reading.tree)
    }

    /// Returns whether any document is more than a text.
    pub(super) fn has_collections(&self) -> bool {
        let is_collection = |id: &NodeId| !matches!(self.nodes[*id].value, Value::Scalar { .. });
        self.documents.iter().any(is_collection)
    }

    /// Returns the node with the given number.
    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// Returns the text of a scalar that is a string: not null, a boolean or a number.
    pub(super) fn text(&self, id: NodeId) -> Option<&str> {
        match &self.node(id).value {
            Value::Scalar { text, plain, .. } if !plain || is_text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the text of any scalar, as written.
    pub(super) fn scalar(&self, id: NodeId) -> Option<&str> {
        match &self.node(id).value {
            Value::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Returns the value of `key` in a mapping.
    pub(super) fn get(&self, mapping: NodeId, key: &str) -> Option<NodeId> {
        match &self.node(mapping).value {
            Value::Mapping(pairs) => pairs
                .iter()
                .find(|(name, _)| self.scalar(*name) == Some(key))
                .map(|(_, value)| *value),
            _ => None,
        }
    }

    /// Returns the items of a sequence; none for other nodes.
    pub(super) fn items(&self, id: NodeId) -> &[NodeId] {
        match &self.node(id).value {
            Value::Sequence(items) => items,
            _ => &[],
        }
    }
}

/// Returns whether YAML reads an unquoted scalar as a string.
fn is_text(text: &str) -> bool {
    let word = text.to_ascii_lowercase();
    let is_word =
        matches!(&*word, "" | "~" | "null" | "true" | "false" | "yes" | "no" | "on" | "off");
    !is_word && text.parse::<f64>().is_err()
}

/// A collection that is still open.
enum Open {
    Sequence(NodeId),
    Mapping(NodeId, Option<NodeId>),
}

#[derive(Default)]
struct Reading {
    tree: Tree,
    open: Vec<Open>,
    /// Nodes of the current document by anchor number.
    anchors: std::collections::HashMap<usize, NodeId>,
}

impl Reading {
    fn take(&mut self, event: Event<'_>, line: usize) -> Result<(), String> {
        match event {
            Event::DocumentStart(..) => self.anchors.clear(),
            Event::Scalar(text, style, anchor, _) => {
                let value = Value::Scalar {
                    text: text.into_owned(),
                    plain: style == ScalarStyle::Plain,
                    literal: style == ScalarStyle::Literal,
                };
                let id = self.add(line, value, anchor)?;
                self.attach(id);
            }
            Event::SequenceStart(_, anchor, _) => {
                let id = self.add(line, Value::Sequence(Vec::new()), anchor)?;
                self.attach(id);
                self.open(Open::Sequence(id), line)?;
            }
            Event::MappingStart(_, anchor, _) => {
                let id = self.add(line, Value::Mapping(Vec::new()), anchor)?;
                self.attach(id);
                self.open(Open::Mapping(id, None), line)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.open.pop();
            }
            Event::Alias(anchor) => {
                let known = self.anchors.get(&anchor).copied();
                let id = known.ok_or_else(|| format!("line {line}: an alias without an anchor"))?;
                self.attach(id);
            }
            _ => {}
        }
        Ok(())
    }

    fn add(&mut self, line: usize, value: Value, anchor: usize) -> Result<NodeId, String> {
        if self.tree.nodes.len() >= MAX_NODES {
            return Err(format!("line {line}: more than {MAX_NODES} values"));
        }
        let id = self.tree.nodes.len();
        self.tree.nodes.push(Node { line, value });
        if anchor > 0 {
            self.anchors.insert(anchor, id);
        }
        Ok(id)
    }

    fn open(&mut self, collection: Open, line: usize) -> Result<(), String> {
        if self.open.len() >= MAX_DEPTH {
            return Err(format!("line {line}: nested more than {MAX_DEPTH} deep"));
        }
        self.open.push(collection);
        Ok(())
    }

    /// Adds a node to the innermost open collection.
    fn attach(&mut self, id: NodeId) {
        match self.open.last_mut() {
            None => self.tree.documents.push(id),
            Some(Open::Sequence(parent)) => {
                if let Value::Sequence(items) = &mut self.tree.nodes[*parent].value {
                    items.push(id);
                }
            }
            Some(Open::Mapping(parent, key)) => match key.take() {
                None => *key = Some(id),
                Some(key) => {
                    if let Value::Mapping(pairs) = &mut self.tree.nodes[*parent].value {
                        pairs.push((key, id));
                    }
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_documents_and_aliases_are_kept() {
        let text = "# head\na: &x\n  b: \"1\"\n---\nc:\n- d\n- {e: f}\n";
        let tree = Tree::parse(text).unwrap();
        let [first, second] = tree.documents[..] else {
            panic!("{tree:?}");
        };
        let a = tree.get(first, "a").unwrap();
        let b = tree.get(a, "b").unwrap();
        assert_eq!((tree.text(b), tree.node(b).line), (Some("1"), 3));
        let c = tree.get(second, "c").unwrap();
        let e = tree.get(tree.items(c)[1], "e").unwrap();
        assert_eq!((tree.text(e), tree.node(e).line), (Some("f"), 7));
        let tree = Tree::parse("a: &x [1]\nb: *x\n").unwrap();
        let root = tree.documents[0];
        assert_eq!(tree.get(root, "a"), tree.get(root, "b"));
    }

    #[test]
    fn plain_scalars_that_are_no_texts_are_not_taken_for_texts() {
        let tree = Tree::parse("[~, true, 1.5, '1', nginx, '']").unwrap();
        let texts: Vec<_> = tree.items(tree.documents[0]).iter().map(|id| tree.text(*id)).collect();
        assert_eq!(texts, [None, None, None, Some("1"), Some("nginx"), Some("")]);
    }

    #[test]
    fn bombs_stay_small_and_depth_is_limited() {
        let mut bomb = String::from("a0: &a0 [x, x]\n");
        for level in 1..60 {
            let below = level - 1;
            bomb.push_str(&format!("a{level}: &a{level} [*a{below}, *a{below}]\n"));
        }
        assert!(Tree::parse(&bomb).unwrap().nodes.len() < 300);
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        assert!(Tree::parse(&deep).is_err());
        assert!(Tree::parse("a: b: c").is_err());
        let quoted = Tree::parse("a: \"b\nc\"\nd: e\n").unwrap();
        let [a, d] = ["a", "d"].map(|key| quoted.get(quoted.documents[0], key).unwrap());
        assert_eq!((quoted.text(a), quoted.node(d).line), (Some("b c"), 3));
        assert!(Tree::parse("*nothing").is_err());
    }
}
