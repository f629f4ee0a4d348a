//! What one rendering may take: memory of the texts and values that it makes, and steps. A rendering is all
//! templates of a chart, or one file of an image. Must not know functions or what they do.
//!
//! Memory that is freed again is not given back, so the sum bounds what can be alive at any time, without a
//! count in every value. What a single call needs while it runs comes on top and has a limit of its own. Both are
//! known before anything is made: the process never asks for memory that the limits do not allow.

use crate::dialect::Limits;
use crate::patterns::Patterns;
use crate::print::MAX_NESTING;
use crate::source::Fault;
use crate::value::Value;

const HINT: &str = "make fewer or shorter texts, lists and maps, or divide the template";

/// What is left for a rendering.
pub(crate) struct Budget {
    limits: &'static Limits,
    made: usize,
    steps: u64,
    /// The regular expressions of the rendering.
    pub(crate) patterns: Patterns,
}

impl Budget {
    pub(crate) fn new(limits: &'static Limits) -> Self {
        Self { limits, made: 0, steps: 0, patterns: Patterns::default() }
    }

    /// Checks what a call may need while it runs, and counts the work.
    pub(crate) fn once(&mut self, bytes: usize) -> Result<(), Fault> {
        let most = self.limits.once;
        if bytes > most {
            return Err(refused(format!("it would take more than {} of memory", mebibytes(most))));
        }
        self.work(bytes)
    }

    /// Counts memory that a rendering keeps.
    pub(crate) fn made(&mut self, bytes: usize) -> Result<(), Fault> {
        self.made = self.made.saturating_add(bytes);
        let most = self.limits.made;
        if self.made > most {
            let message = format!("the texts and values take more than {} in all", mebibytes(most));
            return Err(refused(message));
        }
        Ok(())
    }

    /// Counts the bytes that a call reads or writes as steps.
    pub(crate) fn work(&mut self, bytes: usize) -> Result<(), Fault> {
        self.steps(u64::try_from(bytes >> 10).unwrap_or(u64::MAX))
    }

    /// Returns the bytes and the steps that are counted so far.
    pub(crate) fn spent(&self) -> (usize, u64) {
        (self.made, self.steps)
    }

    /// Counts steps.
    pub(crate) fn steps(&mut self, steps: u64) -> Result<(), Fault> {
        self.steps = self.steps.saturating_add(steps);
        let most = self.limits.steps;
        if self.steps > most {
            return Err(refused(format!("the template takes more than {most} steps")));
        }
        Ok(())
    }
}

fn refused(message: String) -> Fault {
    Fault::from(message).hint(HINT.to_owned())
}

fn mebibytes(bytes: usize) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Size of values with everything in them. A value that several places share counts once for each of them,
/// because it is written once for each.
#[derive(Clone, Copy, Default)]
pub(crate) struct Size {
    /// Values and keys; a map counts as [`MAP`] more.
    pub(crate) nodes: usize,
    /// Bytes of texts and keys.
    pub(crate) text: usize,
    /// Bytes that indentation adds if each value, and each line of a text, begins one.
    pub(crate) indent: usize,
}

/// A map's own memory, in nodes.
const MAP: usize = 8;
/// Memory of a node, in bytes: its place in a list or map, and the header of its text.
const NODE: usize = 64;
/// A value of more nodes or bytes is beyond all limits: it is not counted to its end.
const LARGEST: usize = 128 << 20;
const MOST_NODES: usize = LARGEST / NODE;

impl Size {
    pub(crate) fn of(values: &[Value]) -> Self {
        let mut size = Self::default();
        for value in values {
            size.add(value, 0);
        }
        size
    }

    /// Returns the memory of the values.
    pub(crate) fn bytes(self) -> usize {
        self.times(NODE, 1)
    }

    /// Returns an upper bound for a function that needs so much for each node and each byte of text.
    pub(crate) fn times(self, node: usize, byte: usize) -> usize {
        if self.is_beyond() {
            return usize::MAX;
        }
        self.nodes.saturating_mul(node).saturating_add(self.text.saturating_mul(byte))
    }

    fn is_beyond(self) -> bool {
        self.nodes > MOST_NODES || self.text > LARGEST || self.indent > LARGEST
    }

    /// Writers stop at [`MAX_NESTING`], so a map that contains itself has a size.
    fn add(&mut self, value: &Value, depth: usize) {
        self.nodes += 1;
        self.indent += 2 * depth;
        if depth > MAX_NESTING || self.is_beyond() {
            return;
        }
        match value {
            Value::Text(text) => {
                self.text += text.len();
                if depth > 0 {
                    let breaks = text.bytes().filter(|byte| matches!(byte, b' ' | b'\n')).count();
                    self.indent += breaks.saturating_mul(2 * depth);
                }
            }
            // As numbers in brackets.
            Value::Bytes(bytes) => self.text += bytes.len().saturating_mul(4),
            Value::List(list) => {
                for item in list.items() {
                    self.add(item, depth + 1);
                }
            }
            Value::Map(map) => {
                self.nodes += MAP;
                map.for_each(|key, item| {
                    self.nodes += 1;
                    self.text += key.len();
                    self.add(item, depth + 1);
                });
            }
            Value::Object(object) => self.add(&object.data(), depth + 1),
            Value::Nil | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {}
        }
    }
}
