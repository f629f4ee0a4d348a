//! A place in a file of the user's where something is wrong, for those who show it beside the file: CI
//! systems, editors. Must not know what shows it.

use std::path::PathBuf;

/// A range of a text file, and what is wrong there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub file: PathBuf,
    /// Lines and columns count from 1, columns in characters; the end is exclusive.
    pub line: usize,
    pub column: usize,
    pub end_line: usize,
    pub end_column: usize,
    pub message: String,
    /// Suggested fix.
    pub hint: Option<String>,
    /// The rule that reports it, where a rule does.
    pub rule: Option<&'static str>,
    /// Whether it is a finding beside the error rather than its reason.
    pub is_warning: bool,
    /// The text of the line, by which a finding is known again when the line moves.
    pub text: String,
}
