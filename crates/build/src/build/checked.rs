//! The result of checking a Kubefile. Must not know how a Kubefile is checked.

use std::path::PathBuf;

use imgctl_kubefile::check::rules::RULES;
use imgctl_kubefile::diagnostic::{self, Diagnostic, Severity};

/// A Kubefile that was checked.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Its name, for messages.
    pub name: String,
    /// Its path, unless it came from standard input.
    pub path: Option<PathBuf>,
    pub text: Vec<u8>,
    /// In the order of the file.
    pub findings: Vec<Diagnostic>,
    /// Mistakes in the language always fail the check, other findings only if the file contains
    /// `# check=error=true`.
    pub fails: bool,
}

impl Checked {
    /// Whether the file has mistakes in the language.
    pub fn has_mistakes(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Error)
    }

    /// Returns what the rule `name` finds, in one line.
    pub fn meaning_of(name: &str) -> Option<&'static str> {
        RULES.iter().find(|rule| rule.name == name).map(|rule| rule.finds)
    }

    /// Returns the findings as lines of text, with the lines of the file that they concern.
    pub fn render(&self, colour: bool) -> String {
        let mut lines = diagnostic::render(&self.findings, &self.name, &self.text, colour);
        if !lines.is_empty() {
            lines.push('\n');
        }
        lines
    }
}
