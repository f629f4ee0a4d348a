//! A mistake in one instruction whose place in the file is not known yet.

use std::fmt;

use super::diagnostic::Diagnostic;
use super::expand::ExpandError;
use super::span::LineMap;

/// A problem with an instruction or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub message: String,
    /// The piece of the instruction's text to place the caret at.
    pub part: Option<String>,
    /// Offset of that piece in the text, if it occurs more than once.
    pub(super) offset: Option<usize>,
    pub hint: Option<String>,
}

impl Problem {
    /// Returns a problem with the whole instruction.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), part: None, offset: None, hint: None }
    }

    /// Sets the affected piece of the text.
    pub fn at(mut self, part: &str) -> Self {
        self.part = Some(part.to_owned());
        self
    }

    /// Adds a suggested fix.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Converts the problem into a diagnostic for the folded line `text`. If no part is set, the
    /// caret is placed under the instruction's name.
    pub(super) fn into_diagnostic(self, text: &str, map: &LineMap) -> Diagnostic {
        let part = self.part.as_deref().filter(|part| !part.is_empty());
        let start = self.offset.or_else(|| text.find(part?));
        let (start, length) = match (start, part) {
            (Some(start), Some(part)) => (start, part.len()),
            _ => (0, text.find(char::is_whitespace).unwrap_or(text.len())),
        };
        let span = map.locate(text, start, start + length);
        let mut diagnostic = Diagnostic::error(self.message, span);
        diagnostic.hint = self.hint;
        diagnostic
    }
}

impl From<ExpandError> for Problem {
    fn from(error: ExpandError) -> Self {
        Self::new(error.to_string())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}
