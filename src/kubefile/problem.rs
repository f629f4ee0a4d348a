//! A mistake in one instruction, before its place in the file is known.

use std::fmt;

use super::diagnostic::Diagnostic;
use super::expand::ExpandError;
use super::span::Span;

/// What is wrong with an instruction or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) message: String,
    /// The piece of the instruction's text at which the caret belongs.
    pub(crate) part: Option<String>,
    pub(crate) hint: Option<String>,
}

impl Problem {
    /// A mistake of the whole instruction.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            part: None,
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

    /// Gives the mistake its place: `locate` finds the span of a piece of the text.
    pub(super) fn into_diagnostic(self, locate: impl Fn(Option<&str>) -> Span) -> Diagnostic {
        let mut diagnostic = Diagnostic::error(self.message, locate(self.part.as_deref()));
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
