//! A line that is being parsed: its flags (the `--name=value` words between an instruction's name and its
//! arguments), its arguments, and what is wrong with them.
//!
//! Quotes and escapes of flags are removed once here, as in BuildKit; variables in values remain.

use super::ast::{CommandForm, Heredoc};
use super::diagnostic::Problem;
use super::expand::{self, ExpandError};
use super::words::{self, Json};
use imgctl_base::suggest::closest;

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

/// Maximum number of unknown flags reported per instruction.
const MAX_REPORTED: usize = 10;

/// The flags of one instruction as written. Callers take out the flags they know; those left at the
/// end are unknown.
#[derive(Debug, Default)]
pub(super) struct Flags {
    found: Vec<Flag>,
}

#[derive(Debug)]
struct Flag {
    name: String,
    value: Option<String>,
    /// The word as written, for placing the caret.
    written: String,
}

impl Flags {
    /// Splits the flags off the front of `text` and also returns the arguments.
    pub(super) fn split(text: &str, escape: char) -> (Flags, &str) {
        let mut flags = Flags::default();
        let mut rest = text.trim_start();
        while rest.starts_with("--") {
            let (word, length) = unquote_word(rest, escape);
            let written = &rest[..length];
            rest = rest[length..].trim_start();
            if word == "--" {
                break;
            }
            let body = word.strip_prefix("--").unwrap_or(&word);
            let (name, value) = match body.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (body, None),
            };
            flags.found.push(Flag { name: name.to_owned(), value, written: written.to_owned() });
        }
        (flags, rest.trim_end())
    }

    /// Returns the values of a repeatable flag.
    pub(super) fn many(&mut self, name: &str, problems: &mut Vec<Problem>) -> Vec<String> {
        let mut values = Vec::new();
        self.found.retain(|flag| {
            if flag.name != name {
                return true;
            }
            match &flag.value {
                Some(value) => values.push(value.clone()),
                None => problems.push(
                    Problem::new(format!("--{name} needs a value"))
                        .at(&flag.written)
                        .hint(format!("write --{name}=VALUE")),
                ),
            }
            false
        });
        values
    }

    /// Returns the value of a flag that may appear once.
    pub(super) fn one(&mut self, name: &str, problems: &mut Vec<Problem>) -> Option<String> {
        self.refuse_repeated(name, problems);
        self.many(name, problems).pop()
    }

    /// Returns the state of a flag that is on when given, or set with `=true` or `=false`.
    pub(super) fn switch(&mut self, name: &str, problems: &mut Vec<Problem>) -> Option<bool> {
        self.refuse_repeated(name, problems);
        let mut state = None;
        self.found.retain(|flag| {
            if flag.name != name {
                return true;
            }
            match flag.value.as_deref().map(str::to_ascii_lowercase).as_deref() {
                None | Some("true") => state = Some(true),
                Some("false") => state = Some(false),
                Some(_) => problems.push(
                    Problem::new(format!("--{name} is either true or false")).at(&flag.written),
                ),
            }
            false
        });
        state
    }

    /// Reports the flags that were not taken out.
    pub(super) fn finish(self, instruction: &str, known: &[&str], problems: &mut Vec<Problem>) {
        for flag in self.found.into_iter().take(MAX_REPORTED) {
            let problem = Problem::new(format!("{instruction} has no flag --{}", flag.name))
                .at(&flag.written);
            problems.push(match closest(&flag.name, known.iter().copied()) {
                Some(name) => problem.hint(format!("did you mean --{name}?")),
                None if known.is_empty() => problem.hint(format!("{instruction} takes no flags")),
                None => problem.hint(format!("its flags are --{}", known.join(", --"))),
            });
        }
    }

    fn refuse_repeated(&self, name: &str, problems: &mut Vec<Problem>) {
        let mut same = self.found.iter().filter(|flag| flag.name == name);
        if let (Some(_), Some(second)) = (same.next(), same.next()) {
            problems.push(Problem::new(format!("--{name} is given twice")).at(&second.written));
        }
    }
}

/// Returns the first word of `text` without its quotes and escapes, and its length as written.
fn unquote_word(text: &str, escape: char) -> (String, usize) {
    let mut word = String::new();
    let mut quote = None;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        if c == escape {
            if let Some((_, escaped)) = chars.next() {
                word.push(escaped);
            }
        } else if quote == Some(c) {
            quote = None;
        } else if quote.is_none() && (c == '"' || c == '\'') {
            quote = Some(c);
        } else if quote.is_none() && c.is_whitespace() {
            return (word, at);
        } else {
            word.push(c);
        }
    }
    (word, text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_end_where_the_arguments_begin() {
        let (mut flags, rest) = Flags::split(r#" --from=a --chown="b c" --link x --y "#, '\\');
        let mut problems = Vec::new();
        assert_eq!(flags.one("from", &mut problems).as_deref(), Some("a"));
        assert_eq!(flags.one("chown", &mut problems).as_deref(), Some("b c"));
        assert_eq!(flags.switch("link", &mut problems), Some(true));
        flags.finish("COPY", &[], &mut problems);
        assert!(problems.is_empty());
        assert_eq!(rest, "x --y");

        let (mut flags, _) = Flags::split("---from=a b", '\\');
        assert_eq!(flags.one("from", &mut problems), None);

        let (flags, rest) = Flags::split("-- --x", '\\');
        assert!(flags.found.is_empty());
        assert_eq!(rest, "--x");
    }

    #[test]
    fn mistakes_are_named() {
        let (mut flags, _) = Flags::split("--from --link=x --link --chwon=a b", '\\');
        let mut problems = Vec::new();
        flags.one("from", &mut problems);
        flags.switch("link", &mut problems);
        flags.finish("COPY", &["from", "chown"], &mut problems);
        let said: Vec<&str> = problems.iter().map(|p| p.message.as_str()).collect();
        assert_eq!(
            said,
            [
                "--from needs a value",
                "--link is given twice",
                "--link is either true or false",
                "COPY has no flag --chwon",
            ]
        );
        assert_eq!(problems[3].hint.as_deref(), Some("did you mean --chown?"));
    }
}
