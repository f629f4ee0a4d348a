//! Here-documents: which words open one, how their bodies end, and how a `RUN` uses them.

use super::ast::{CommandForm, Heredoc, Run, RunCommand};
use super::words::{self, Json};

/// The opening of a here-document (`<<EOF`), before its body is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Opening {
    /// The delimiter without quotes.
    pub(super) name: String,
    /// `<<-`: removes leading tabs.
    pub(super) strip_tabs: bool,
    /// Whether the delimiter is unquoted.
    pub(super) expand: bool,
    /// As written, from the first digit or `<` on.
    pub(super) written: String,
}

/// Returns the here-documents that a folded `RUN`, `COPY` or `ADD` line opens. `arguments` is the
/// text after the flags.
pub(super) fn openings(instruction: &str, arguments: &str) -> Vec<Opening> {
    if !arguments.contains("<<") || matches!(words::json_form(arguments), Json::Strings(_)) {
        return Vec::new();
    }
    if instruction.eq_ignore_ascii_case("RUN") {
        return in_shell_line(arguments);
    }
    words::split_blanks(arguments).into_iter().filter_map(whole_word).collect()
}

/// Parses a word that consists only of the opening of a here-document.
pub(super) fn whole_word(word: &str) -> Option<Opening> {
    let (opening, length) = opening_at(word, false)?;
    (length == word.len()).then_some(opening)
}

/// Finds here-documents among the words of a shell command, outside quotes and `$((1 << 2))`.
fn in_shell_line(line: &str) -> Vec<Opening> {
    let mut found = Vec::new();
    let mut at = 0;
    let mut quote = None;
    let mut word_starts = true;
    // Look for the end only once: otherwise `$(($((…` would cost the square of its length.
    let mut arithmetic_ends = true;
    while let Some(c) = line[at..].chars().next() {
        let rest = &line[at..];
        let mut length = c.len_utf8();
        if quote == Some(c) {
            quote = None;
        } else if c == '\\' && quote != Some('\'') {
            length += rest[length..].chars().next().map_or(0, char::len_utf8);
        } else if quote.is_some() {
            // No here-document opens inside quotes.
        } else if c == '"' || c == '\'' {
            quote = Some(c);
        } else if arithmetic_ends && rest.starts_with("$((") {
            let end = rest.find("))");
            arithmetic_ends = end.is_some();
            length = end.map_or(3, |end| end + 2);
        } else if rest.starts_with("<<<") {
            length = 3;
        } else if word_starts && let Some((opening, used)) = opening_at(rest, true) {
            found.push(opening);
            length = used;
        }
        word_starts = quote.is_none() && c.is_whitespace();
        at += length;
    }
    found
}

/// Parses `[digits]<<[-][blanks]delimiter` at the start of `text` and also returns its length. In a
/// shell line, an operator such as `;` or `>` also ends the delimiter.
fn opening_at(text: &str, shell: bool) -> Option<(Opening, usize)> {
    let after_digits = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let mut rest = after_digits.strip_prefix("<<")?;
    let strip_tabs = rest.starts_with('-');
    if strip_tabs {
        rest = &rest[1..];
    }
    if shell {
        rest = rest.trim_start_matches(words::is_blank);
    }
    let mut name = String::new();
    let mut expand = true;
    let mut quote = None;
    let mut chars = rest.char_indices();
    let mut end = rest.len();
    while let Some((at, c)) = chars.next() {
        if quote == Some(c) {
            quote = None;
        } else if quote.is_none() && (c == '"' || c == '\'') {
            quote = Some(c);
            expand = false;
        } else if c == '\\' && quote != Some('\'') {
            expand = false;
            name.extend(chars.next().map(|(_, escaped)| escaped));
        } else if quote.is_none() && (c.is_whitespace() || (shell && ";&|<>()".contains(c))) {
            end = at;
            break;
        } else if c == '<' {
            return None;
        } else {
            name.push(c);
        }
    }
    if name.is_empty() || quote.is_some() {
        return None;
    }
    let length = text.len() - rest.len() + end;
    let opening = Opening { name, strip_tabs, expand, written: text[..length].to_owned() };
    Some((opening, length))
}

impl Opening {
    /// Returns whether a line (without its newline) ends the body.
    pub(super) fn ends_at(&self, line: &str) -> bool {
        let line = if self.strip_tabs { line.trim_start_matches('\t') } else { line };
        line == self.name
    }

    /// Returns the here-document with its body as written.
    pub(super) fn with_body(self, raw_body: String) -> Heredoc {
        let body = if self.strip_tabs {
            raw_body.split_inclusive('\n').map(|line| line.trim_start_matches('\t')).collect()
        } else {
            raw_body.clone()
        };
        Heredoc { name: self.name, body, raw_body, expand: self.expand }
    }
}

/// Returns the text of an instruction with the bodies of its here-documents, as written.
pub(super) fn with_bodies(text: &str, heredocs: &[Heredoc]) -> String {
    let mut whole = text.to_owned();
    for heredoc in heredocs {
        whole.push('\n');
        whole.push_str(&heredoc.raw_body);
        whole.push_str(&heredoc.name);
    }
    whole
}

impl Run {
    /// Returns the command to execute: a lone here-document is the script itself, any other is
    /// passed to the shell together with the command (BuildKit's rule).
    pub fn command(&self) -> RunCommand {
        let text = match &self.form {
            CommandForm::Exec(arguments) => return RunCommand::Exec(arguments.clone()),
            CommandForm::Shell(text) => text,
        };
        let Some(first) = self.heredocs.first() else {
            return RunCommand::Shell(text.clone());
        };
        let lone = opening_at(text, true).is_some_and(|(_, length)| length == text.len());
        if !lone {
            return RunCommand::Shell(with_bodies(text, &self.heredocs));
        }
        if first.body.starts_with("#!") {
            return RunCommand::Script { name: first.name.clone(), body: first.body.clone() };
        }
        RunCommand::Shell(first.body.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(instruction: &str, line: &str) -> Vec<String> {
        openings(instruction, line).into_iter().map(|opening| opening.name).collect()
    }

    #[test]
    fn openings_of_a_run_line() {
        for (line, expected) in [
            ("<<EOF", &["EOF"][..]),
            ("cat <<EOF > /x", &["EOF"]),
            ("cat << EOF", &["EOF"]),
            ("cat <<-'A B' <<\"C\"", &["A B", "C"]),
            ("3<<EOF cat <&3", &["EOF"]),
            ("cat <<EOF>/x; cat <<X;", &["EOF", "X"]),
            ("echo \"<<EOF\" '<<X'", &[]),
            ("echo $(( 1 << 2 ))", &[]),
            ("cat <<<here", &[]),
            ("cat <<< here", &[]),
            ("cat<<EOF", &[]),
            ("echo \\<<EOF", &[]),
            (r#"["cat", "<<EOF"]"#, &[]),
            ("<<", &[]),
            ("<<'EOF", &[]),
            ("<<$EOF", &["$EOF"]),
        ] {
            assert_eq!(names("run", line), expected, "{line}");
        }
    }

    #[test]
    fn openings_of_a_copy_line_are_whole_words() {
        assert_eq!(names("COPY", "<<a <<-\"b\" c /d/"), ["a", "b"]);
        assert_eq!(names("COPY", "x<<a << a /d/"), [""; 0]);
        assert!(!whole_word("<<'a'").unwrap().expand);
        assert!(whole_word("<<-a").unwrap().strip_tabs);
    }
}
