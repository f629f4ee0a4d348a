//! A line that is being parsed: its flags, its arguments, and what is wrong with them.

use super::ast::{CommandForm, Heredoc};
use super::expand::{self, ExpandError};
use super::flags::Flags;
use super::problem::Problem;
use super::words::{self, Json};

/// A line being parsed: its arguments and the problems found so far.
pub(super) struct Reader<'a> {
    pub(super) name: &'static str,
    pub(super) escape: char,
    /// The whole instruction.
    pub(super) text: &'a str,
    /// Its arguments, without the flags.
    pub(super) rest: &'a str,
    pub(super) flags: Flags,
    pub(super) heredocs: &'a [Heredoc],
    pub(super) problems: Vec<Problem>,
}

impl Reader<'_> {
    /// Reports unknown flags.
    pub(super) fn finish_flags(&mut self, known: &[&str]) {
        std::mem::take(&mut self.flags).finish(self.name, known, &mut self.problems);
    }

    pub(super) fn problem(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Returns a problem at `part`; if `part` is a slice of the instruction, at exactly that place.
    pub(super) fn at(&self, part: &str, message: impl Into<String>) -> Problem {
        let mut problem = Problem::new(message).at(part);
        problem.offset = words::offset_in(self.text, part);
        problem
    }

    /// Returns the arguments; reports a problem if they are empty.
    pub(super) fn arguments(&mut self) -> Option<String> {
        if self.rest.is_empty() {
            let name = self.name;
            self.problem(Problem::new(format!("{name} needs an argument")));
            return None;
        }
        Some(self.rest.to_owned())
    }

    /// Checks that a raw word can be expanded.
    pub(super) fn check_word(&mut self, raw: &str) -> bool {
        if let Err(error) = expand::variables(raw, self.escape) {
            let mut problem = self.at(raw, error.to_string());
            if matches!(error, ExpandError::Unclosed(_)) && matches!(self.name, "COPY" | "ADD") {
                problem = problem.hint(format!(
                    "write names that contain spaces in the JSON form: {} [\"a b\", \"/dest/\"]",
                    self.name
                ));
            }
            self.problem(problem);
            return false;
        }
        true
    }

    pub(super) fn text(&mut self) -> Option<String> {
        self.finish_flags(&[]);
        self.arguments()
    }

    pub(super) fn word(&mut self) -> Option<String> {
        let word = self.text()?;
        self.check_word(&word);
        Some(word)
    }

    /// Parses the exec form or the shell form.
    pub(super) fn form(&mut self, text: &str) -> Option<CommandForm> {
        match words::json_form(text) {
            Json::Strings(strings) => Some(CommandForm::Exec(strings)),
            Json::No => Some(CommandForm::Shell(text.to_owned())),
            Json::OtherArray => {
                let name = self.name;
                self.problem(
                    Problem::new(format!("the JSON form of {name} may contain only strings"))
                        .at(text)
                        .hint("put every element in double quotes"),
                );
                None
            }
        }
    }

    /// Parses words in JSON form or separated by blanks.
    pub(super) fn list(&mut self) -> Option<Vec<String>> {
        let words = match self.form(self.rest)? {
            CommandForm::Exec(words) => words,
            CommandForm::Shell(text) => {
                words::split_blanks(&text).into_iter().map(str::to_owned).collect()
            }
        };
        if words.is_empty() {
            let name = self.name;
            self.problem(Problem::new(format!("{name} needs an argument")));
            return None;
        }
        Some(words)
    }
}
