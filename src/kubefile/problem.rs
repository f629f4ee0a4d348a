//! A mistake in one instruction, before its place in the file is known.

use std::fmt;

use super::diagnostic::Diagnostic;
use super::expand::ExpandError;
use super::span::LineMap;

/// What is wrong with an instruction or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) message: String,
    /// The piece of the instruction's text at which the caret belongs.
    pub(crate) part: Option<String>,
    /// Where in the text that piece begins, if it occurs more than once.
    pub(super) offset: Option<usize>,
    pub(crate) hint: Option<String>,
}

impl Problem {
    /// A mistake of the whole instruction.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            part: None,
            offset: None,
            hint: None,
        }
    }

    /// Says which piece of the text is meant.
    pub(crate) fn at(mut self, part: &str) -> Self {
        self.part = Some(part.to_owned());
        self
    }

    /// Says what to do instead.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Gives the mistake its place in the folded line `text`. Without a better one the caret
    /// stands under the instruction's name.
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
