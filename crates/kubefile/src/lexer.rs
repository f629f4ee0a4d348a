//! Splits text into folded lines: byte-order mark, directives (`# key=value` lines at the very top),
//! comments, continuations and here-document bodies. Knows which instructions may have a here-document, and
//! nothing else about them.

use super::ast::{CheckDirective, Directives, Heredoc};
use super::diagnostic::Diagnostic;
use super::diagnostic::{LineMap, Span};
use super::reader::Flags;
use super::{heredoc, words};

/// One instruction on one line, with its here-documents.
#[derive(Debug)]
pub(super) struct Folded {
    /// The trimmed text; never empty.
    pub(super) text: String,
    pub(super) map: LineMap,
    /// From the first character to the end of the last line, here-documents included.
    pub(super) span: Span,
    pub(super) heredocs: Vec<Heredoc>,
    /// The text of the comment lines above, back to an instruction or an empty comment. An empty text
    /// stands for blank lines.
    pub(super) comments: Vec<String>,
}

/// The result of lexing a file.
#[derive(Debug, Default)]
pub(super) struct Lexed {
    pub(super) directives: Directives,
    pub(super) lines: Vec<Folded>,
    /// The first blank line of each continued instruction that has any.
    pub(super) empty_continuations: Vec<Span>,
}

/// Folds a whole file. Adds errors to `found` and returns the lines that could be read.
pub(super) fn lex(text: &str, found: &mut Vec<Diagnostic>) -> Lexed {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lexer = Lexer {
        lines: text.split_inclusive('\n').collect(),
        next: 0,
        comments: Vec::new(),
        lexed: Lexed::default(),
        found,
    };
    lexer.directives();
    while lexer.next < lexer.lines.len() {
        lexer.instruction();
    }
    lexer.lexed
}

/// Folds text without directives: the trigger of an `ONBUILD`.
pub(super) fn lex_plain(text: &str, escape: char, found: &mut Vec<Diagnostic>) -> Vec<Folded> {
    let mut lexer = Lexer {
        lines: text.split_inclusive('\n').collect(),
        next: 0,
        comments: Vec::new(),
        lexed: Lexed::default(),
        found,
    };
    lexer.lexed.directives.escape = escape;
    while lexer.next < lexer.lines.len() {
        lexer.instruction();
    }
    lexer.lexed.lines
}

struct Lexer<'a> {
    lines: Vec<&'a str>,
    /// Index of the next line to read; its line number is one higher.
    next: usize,
    /// The comment lines before the next line.
    comments: Vec<String>,
    lexed: Lexed,
    found: &'a mut Vec<Diagnostic>,
}

impl<'a> Lexer<'a> {
    fn directives(&mut self) {
        if self.lines.first().is_some_and(|line| line.starts_with("#!")) {
            self.next = 1;
        }
        let mut seen = Seen::default();
        while let Some(line) = self.lines.get(self.next) {
            match directive(line, &mut self.lexed.directives, &mut seen) {
                Line::Directive => {}
                Line::Other => return,
                Line::Wrong(message) => {
                    let span = whole_line(self.next + 1, line);
                    self.found.push(Diagnostic::error(message, span));
                }
            }
            self.next += 1;
        }
    }

    /// Reads one instruction, or one line that contains none.
    fn instruction(&mut self) {
        let Some(folded) = self.fold() else { return };
        let mut folded = folded;
        self.heredocs(&mut folded);
        self.lexed.lines.push(folded);
    }

    fn take_line(&mut self) -> Option<(usize, &'a str)> {
        let line = self.lines.get(self.next)?;
        self.next += 1;
        Some((self.next, line))
    }

    /// Joins a line with its continuation lines; `None` if nothing remains.
    fn fold(&mut self) -> Option<Folded> {
        let mut text = String::new();
        let mut map = LineMap::default();
        let mut span = Span::default();
        let (mut continues, mut has_blank_line) = (false, false);
        while let Some((number, line)) = self.take_line() {
            let line = line.trim_end_matches(['\n', '\r']);
            let visible = line.trim_start();
            if visible.starts_with('#') || visible.is_empty() {
                if !continues {
                    self.comment(visible);
                    return None;
                }
                if visible.is_empty() && !has_blank_line {
                    has_blank_line = true;
                    self.lexed.empty_continuations.push(whole_line(number, line));
                }
                continue;
            }
            let (piece, more) = strip_continuation(line, self.lexed.directives.escape);
            // Whitespace before the first word is dropped.
            let piece = if text.is_empty() { piece.trim_start() } else { piece };
            if !piece.is_empty() {
                let indent = words::offset_in(line, piece).unwrap_or_default();
                let column = line.get(..indent).map_or(0, |s| s.chars().count()) + 1;
                if text.is_empty() {
                    (span.line, span.column) = (number, column);
                }
                map.push(text.len(), number, column);
                text.push_str(piece);
            }
            (span.end_line, span.end_column) = (number, line.chars().count() + 1);
            continues = more;
            if !more {
                break;
            }
        }
        text.truncate(text.trim_end().len());
        let comments = std::mem::take(&mut self.comments);
        (!text.is_empty()).then_some(Folded { text, map, span, heredocs: Vec::new(), comments })
    }

    /// Keeps a comment or a blank line for the instruction below. An empty comment ends the comments
    /// above it (BuildKit).
    fn comment(&mut self, visible: &str) {
        match visible.strip_prefix('#').map(str::trim) {
            Some("") => self.comments.clear(),
            Some(comment) => self.comments.push(comment.to_owned()),
            None if self.comments.last().is_some_and(|last| !last.is_empty()) => {
                self.comments.push(String::new());
            }
            None => {}
        }
    }

    /// Reads the bodies of the here-documents that the line opens.
    fn heredocs(&mut self, folded: &mut Folded) {
        let (mut name, mut rest) = words::split_first(&folded.text);
        if name.eq_ignore_ascii_case("ONBUILD") {
            (name, rest) = words::split_first(rest);
        }
        if !["RUN", "COPY", "ADD"].iter().any(|n| n.eq_ignore_ascii_case(name)) {
            return;
        }
        let (_, arguments) = Flags::split(rest, self.lexed.directives.escape);
        for opening in heredoc::openings(name, arguments) {
            let mut body = String::new();
            let mut ended = false;
            while let Some((number, line)) = self.take_line() {
                let bare = line.trim_end_matches(['\n', '\r']);
                (folded.span.end_line, folded.span.end_column) = (number, bare.chars().count() + 1);
                if opening.ends_at(bare) {
                    ended = true;
                    break;
                }
                body.push_str(line);
            }
            if !ended {
                let at = folded.text.find(&opening.written).unwrap_or(0);
                let span = folded.map.locate(&folded.text, at, at + opening.written.len());
                self.found.push(
                    Diagnostic::error(
                        format!("the here-document {} is not terminated", opening.written),
                        span,
                    )
                    .hint(format!("end it with a line that contains only {}", opening.name)),
                );
            }
            folded.heredocs.push(opening.with_body(body));
        }
    }
}

/// Returns the line without its continuation character, and whether it had one: a single escape
/// character at the end, optionally followed by blanks (`\\` is an escaped backslash and ends the
/// line).
fn strip_continuation(line: &str, escape: char) -> (&str, bool) {
    let trimmed = line.trim_end_matches([' ', '\t']);
    match trimmed.strip_suffix(escape) {
        Some(rest) if !rest.ends_with(escape) => (rest, true),
        _ => (line, false),
    }
}

fn whole_line(number: usize, line: &str) -> Span {
    Span {
        line: number,
        column: 1,
        end_line: number,
        end_column: line.trim_end_matches(['\n', '\r']).chars().count() + 1,
    }
}

/// Type of a line at the top of the file.
enum Line {
    /// A directive that was accepted.
    Directive,
    /// Another line: no directive may follow it.
    Other,
    /// An invalid directive, and the reason.
    Wrong(String),
}

/// The directives seen so far.
#[derive(Default)]
struct Seen {
    syntax: bool,
    escape: bool,
    check: bool,
}

/// Reads one line as a directive.
fn directive(line: &str, directives: &mut Directives, seen: &mut Seen) -> Line {
    let Some((key, value)) = key_value(line) else {
        return Line::Other;
    };
    let key = key.to_ascii_lowercase();
    let before = match key.as_str() {
        "syntax" => &mut seen.syntax,
        "escape" => &mut seen.escape,
        "check" => &mut seen.check,
        _ => return Line::Other,
    };
    if std::mem::replace(before, true) {
        return Line::Wrong(format!("the directive `{key}` is given twice"));
    }
    match key.as_str() {
        "syntax" => directives.syntax = Some(value.to_owned()),
        "escape" => match value {
            "\\" => directives.escape = '\\',
            "`" => directives.escape = '`',
            _ => return Line::Wrong(format!("the escape character is \\ or `, not {value}")),
        },
        // The rest is for readers (BuildKit).
        _ => match check_directive(value.split(' ').next().unwrap_or_default()) {
            Ok(check) => directives.check = check,
            Err(message) => return Line::Wrong(message),
        },
    }
    Line::Directive
}

/// Parses `# key = value`; the key consists of letters and digits, the value is not empty.
fn key_value(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.trim().strip_prefix('#')?.split_once('=')?;
    let (key, value) = (key.trim(), value.trim());
    let word = key.starts_with(|c: char| c.is_ascii_alphabetic())
        && key.chars().all(|c| c.is_ascii_alphanumeric());
    (word && !value.is_empty()).then_some((key, value))
}

/// Returns what the first `check=` among the comments above an instruction says, unless it is invalid.
pub(super) fn check_comment(comments: &[String]) -> Option<CheckDirective> {
    let values = comments.iter().filter_map(|comment| {
        let (key, value) = comment.split_once('=')?;
        key.trim().eq_ignore_ascii_case("check").then(|| value.trim())
    });
    let value = values.into_iter().next()?;
    check_directive(value.split(' ').next().unwrap_or_default()).ok()
}

impl CheckDirective {
    /// Parses the value of the directive; the error says what is wrong.
    pub fn parse(value: &str) -> Result<Self, String> {
        check_directive(value)
    }
}

/// Parses `skip=A,B;error=true;experimental=C`.
fn check_directive(value: &str) -> Result<CheckDirective, String> {
    let mut check = CheckDirective::default();
    if value.trim().is_empty() {
        return Ok(check);
    }
    for setting in value.split(';').map(str::trim) {
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| format!("`{setting}` in the directive `check` is not KEY=VALUE"))?;
        let value = value.trim();
        let rules = || value.split(',').map(|rule| rule.trim().to_owned()).collect();
        match key.trim() {
            "skip" if value == "all" => check.skip_all = true,
            "skip" => check.skip = rules(),
            "experimental" if value == "all" => check.experimental_all = true,
            "experimental" => check.experimental = rules(),
            "error" => {
                check.error = match value {
                    "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                    "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                    _ => return Err(format!("`error` must be true or false, not `{value}`")),
                }
            }
            other => {
                return Err(format!(
                    "the directive `check` knows skip, error and experimental, not `{other}`"
                ));
            }
        }
    }
    Ok(check)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<String> {
        let mut found = Vec::new();
        let lexed = lex(source, &mut found);
        assert!(found.is_empty(), "{found:?}");
        lexed.lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn lines_are_folded() {
        for (source, expected) in [
            ("A b\nC d", &["A b", "C d"][..]),
            ("\u{feff}A b\r\n\r\n  C d  \r\n", &["A b", "C d"]),
            ("A \\\n  b\n", &["A   b"]),
            ("A \\  \t \n b\n", &["A  b"]),
            ("A \\\n# note\n  # note\n b # no note\n", &["A  b # no note"]),
            ("A \\\n\n\n b\n", &["A  b"]),
            ("A b \\\n", &["A b"]),
            ("A b \\", &["A b"]),
            ("A b\\\\\nC\n", &["A b\\\\", "C"]),
            ("\\\n  A b\n", &["A b"]),
            ("\\\n", &[]),
            ("# A\n\n", &[]),
            ("#!/usr/bin/env imgctl\n# escape=`\nA `\nb\nC \\\n", &["A b", "C \\"]),
            ("# escape=`\n\nA `\nb", &["A b"]),
            ("\n# escape=`\nA `\nb", &["A `", "b"]),
            ("# note\n# escape=`\nA `\nb", &["A `", "b"]),
        ] {
            assert_eq!(texts(source), expected, "{source:?}");
        }
    }

    #[test]
    fn directives_are_read_once_at_the_top() {
        let mut found = Vec::new();
        let source = "#  Syntax = x/y:1 \n#check=skip=A,B;error=true // why;\n# escape=`\nA";
        let lexed = lex(source, &mut found);
        assert!(found.is_empty());
        assert_eq!(lexed.directives.syntax.as_deref(), Some("x/y:1"));
        assert_eq!(lexed.directives.escape, '`');
        assert_eq!(lexed.directives.check.skip, ["A", "B"]);
        assert!(lexed.directives.check.error);
        for wrong in [
            "# escape=`\n# escape=`\n",
            "# escape=x\n",
            "# syntax=a\n# SYNTAX=a\n",
            "# check=skip\n",
            "# check=hop=a\n",
            "# check=error=maybe\n",
            "# check=skip=A;\n",
            "# check=Skip=A\n",
        ] {
            let mut found = Vec::new();
            lex(wrong, &mut found);
            assert_eq!(found.len(), 1, "{wrong}");
        }
    }

    #[test]
    fn places_survive_folding() {
        let mut found = Vec::new();
        let lexed = lex("\n  ENV é=1 \\\n# c\n    bb=2\n", &mut found);
        let line = &lexed.lines[0];
        let at = line.text.find("bb").unwrap();
        let place = line.map.locate(&line.text, at, at + 2);
        assert_eq!((place.line, place.column), (4, 5));
        assert_eq!((place.end_line, place.end_column), (4, 7));
        assert_eq!((line.span.line, line.span.column), (2, 3));
        assert_eq!((line.span.end_line, line.span.end_column), (4, 9));
    }

    #[test]
    fn heredoc_bodies_belong_to_their_line() {
        let mut found = Vec::new();
        let source = "RUN <<A cat <<-B\na\nA\n\tb\n\tB\nENV <<X\nONBUILD COPY <<C /\n# c\nC\nD";
        let lexed = lex(source, &mut found);
        assert!(found.is_empty());
        let bodies = |i: usize| -> Vec<&str> {
            let heredocs: &Vec<Heredoc> = &lexed.lines[i].heredocs;
            heredocs.iter().map(|h| h.body.as_str()).collect()
        };
        assert_eq!(bodies(0), ["a\n", "b\n"]);
        assert_eq!(lexed.lines[0].heredocs[1].raw_body, "\tb\n");
        assert_eq!(lexed.lines[0].span.end_line, 5);
        assert!(bodies(1).is_empty());
        assert_eq!(bodies(2), ["# c\n"]);
        assert_eq!(lexed.lines[3].text, "D");

        lex("RUN <<EOF\na\n EOF\n", &mut found);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].span.line, found[0].span.column), (1, 5));
    }
}
