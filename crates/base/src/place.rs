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
}
