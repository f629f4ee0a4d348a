//! Problems in a Kubefile, their place, and how they are shown: message, line, caret, hint.
//!
//! An instruction may span several lines; the parser works on the folded line. A [`LineMap`] records the
//! source of each piece, so a caret can point at the exact word. Uses the source text only for rendering.
//! Does not decide about printing or exit codes.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet, normalize_untrusted_str};

use super::expand::ExpandError;
use imgctl_base::error::Error;
use imgctl_base::place::Place;
use imgctl_base::text::masked_logins;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Warning,
    Error,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// A sentence without a full stop.
    pub message: String,
    pub span: Span,
    /// Suggested fix.
    pub hint: Option<String>,
    pub severity: Severity,
    /// The lint rule that reported it; `None` for language errors.
    pub rule: Option<&'static str>,
}

impl Diagnostic {
    /// Returns a language error.
    pub fn error(message: impl Into<String>, span: Span) -> Self {
        Self { message: message.into(), span, hint: None, severity: Severity::Error, rule: None }
    }

    /// Returns a finding of a lint rule.
    pub fn warning(rule: &'static str, message: impl Into<String>, span: Span) -> Self {
        Self { severity: Severity::Warning, rule: Some(rule), ..Self::error(message, span) }
    }

    /// Returns an error as a mistake at its place, or at the top of the file if it has none.
    pub fn of_error(error: &Error) -> Self {
        let (message, span, hint) = match error.places().next() {
            Some(Place { message, line, column, end_line, end_column, hint, .. }) => {
                let (line, column) = (*line, *column);
                let span = Span { line, column, end_line: *end_line, end_column: *end_column };
                (message.clone(), span, hint.clone())
            }
            None => {
                let span = Span { line: 1, column: 1, end_line: 1, end_column: 1 };
                let hint = error.hints().first().map(|hint| (*hint).to_owned());
                (error.to_string(), span, hint)
            }
        };
        Self { hint, ..Self::error(message, span) }
    }

    /// Adds a suggested fix.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Returns the place of the finding in `file`.
    pub fn place(&self, file: &Path, source: &[u8]) -> Place {
        let (end_line, end_column) = self.span.end();
        let index = self.span.line.checked_sub(1);
        let line = index.and_then(|index| source.split(|byte| *byte == b'\n').nth(index));
        Place {
            file: file.to_owned(),
            line: self.span.line,
            column: self.span.column,
            end_line,
            end_column,
            message: self.message.clone(),
            hint: self.hint.clone(),
            rule: self.rule,
            is_warning: self.severity == Severity::Warning,
            text: String::from_utf8_lossy(line.unwrap_or_default()).into_owned(),
        }
    }
}

/// Renders findings with their source lines, separated by blank lines. `name` is the file's display
/// name, `source` its entire text.
pub fn render(diagnostics: &[Diagnostic], name: &str, source: &[u8], colour: bool) -> String {
    let source = String::from_utf8_lossy(source);
    let source = source.strip_prefix('\u{feff}').unwrap_or(&source);
    let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
    let shown: Vec<String> = diagnostics
        .iter()
        .map(|diagnostic| render_one(&renderer, diagnostic, name, source))
        .collect();
    shown.join("\n\n")
}

/// Combines all findings into one [`Error`] (kind Usage), rendered into its message without
/// colours.
pub fn into_error(diagnostics: &[Diagnostic], name: &str, source: &[u8]) -> Error {
    let errors = diagnostics.len();
    let count = match errors {
        1 => "an error".to_owned(),
        n => format!("{n} errors"),
    };
    Error::usage(format!("{name} has {count}"))
        .lines(render(diagnostics, name, source, false).lines())
}

fn render_one(renderer: &Renderer, diagnostic: &Diagnostic, name: &str, source: &str) -> String {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = match diagnostic.rule {
        Some(rule) => format!("{rule}: {}", diagnostic.message),
        None => diagnostic.message.clone(),
    };
    let excerpt = excerpt(source, diagnostic.span);
    let text = masked_logins(excerpt.text);
    // The renderer makes titles and source lines safe for terminals, but not the path and the help
    // text, which may quote the file as well.
    let annotation = AnnotationKind::Primary.span(excerpt.mark);
    let mut group = Group::with_title(level.primary_title(title)).element(
        Snippet::source(&*text)
            .path(normalize_untrusted_str(name))
            .line_start(excerpt.first_line)
            .annotation(annotation),
    );
    if let Some(hint) = &diagnostic.hint {
        group = group.element(Level::HELP.message(normalize_untrusted_str(hint)));
    }
    renderer.render(&[group])
}

/// The lines of a span, and the range of bytes to mark in them.
struct Excerpt<'a> {
    text: &'a str,
    first_line: usize,
    mark: Range<usize>,
}

/// Extracts the affected lines only, because the renderer's cost grows with the text.
fn excerpt(source: &str, span: Span) -> Excerpt<'_> {
    let first_line = span.line.max(1);
    let last_line = span.end_line.max(first_line);
    let mut start = None;
    let mut end = 0;
    let mut offset = 0;
    let mut mark = 0..0;
    for (index, line) in source.split_inclusive('\n').enumerate() {
        let number = index + 1;
        if number == first_line {
            start = Some(offset);
            mark.start = offset + byte_of_column(line, span.column);
        }
        if start.is_some() {
            mark.end = offset + byte_of_column(line, span.end_column);
            end = offset + line.trim_end_matches(['\n', '\r']).len();
        }
        if number == last_line {
            break;
        }
        offset += line.len();
    }
    let start = start.unwrap_or(source.len());
    let end = end.max(start);
    let mark_start = mark.start.clamp(start, end) - start;
    let mark_end = mark.end.clamp(start, end) - start;
    Excerpt {
        text: source.get(start..end).unwrap_or_default(),
        first_line,
        mark: mark_start..mark_end.max(mark_start),
    }
}

fn byte_of_column(line: &str, column: usize) -> usize {
    line.char_indices().nth(column.saturating_sub(1)).map_or(line.len(), |(at, _)| at)
}

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

/// A range of the source. Lines and columns count from 1, columns in characters; the end is
/// exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    pub line: usize,
    pub column: usize,
    pub(crate) end_line: usize,
    pub(crate) end_column: usize,
}

impl Span {
    /// Returns line and column of the end, which does not belong to the range.
    pub fn end(self) -> (usize, usize) {
        (self.end_line, self.end_column)
    }
}

/// The part of a folded line that comes from one physical line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    /// Byte offset in the folded line at which this piece starts.
    at: usize,
    line: usize,
    column: usize,
}

/// Source positions of the pieces of a folded line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineMap {
    pieces: Vec<Piece>,
}

impl LineMap {
    /// Records that the text from byte `at` of the folded line on comes from `line`, `column`.
    pub fn push(&mut self, at: usize, line: usize, column: usize) {
        self.pieces.push(Piece { at, line, column });
    }

    /// Returns the place of byte range `start..end` of the folded line `text`.
    pub(crate) fn locate(&self, text: &str, start: usize, end: usize) -> Span {
        let (line, column) = self.place(text, start);
        let (end_line, end_column) = if end > start {
            // The position after the last character, not the start of the next piece.
            let last = floor_boundary(text, end - 1);
            let (line, column) = self.place(text, last);
            (line, column + 1)
        } else {
            (line, column + 1)
        };
        Span { line, column, end_line, end_column }
    }

    /// Returns the map of the folded line's tail, starting at byte `start`.
    pub(super) fn tail(&self, text: &str, start: usize) -> LineMap {
        let (line, column) = self.place(text, start);
        let mut tail = LineMap::default();
        tail.push(0, line, column);
        for piece in self.pieces.iter().filter(|piece| piece.at > start) {
            tail.push(piece.at - start, piece.line, piece.column);
        }
        tail
    }

    fn place(&self, text: &str, at: usize) -> (usize, usize) {
        let at = floor_boundary(text, at.min(text.len()));
        let index = self.pieces.partition_point(|piece| piece.at <= at);
        match index.checked_sub(1).and_then(|i| self.pieces.get(i)) {
            Some(piece) => {
                let between = text.get(piece.at..at).unwrap_or_default();
                (piece.line, piece.column + between.chars().count())
            }
            None => (1, 1),
        }
    }
}

fn floor_boundary(text: &str, mut at: usize) -> usize {
    while at > 0 && !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(line: usize, column: usize, end_line: usize, end_column: usize) -> Span {
        Span { line, column, end_line, end_column }
    }

    #[test]
    fn shows_file_line_column_and_caret() {
        let source = "FROM scratch\nCOYP a b\n";
        let diagnostic = Diagnostic::error("unknown instruction COYP", span(2, 1, 2, 5))
            .hint("did you mean COPY?");
        let shown = render(&[diagnostic], "Kubefile", source.as_bytes(), false);
        let expected = [
            "error: unknown instruction COYP",
            " --> Kubefile:2:1",
            "  |",
            "2 | COYP a b",
            "  | ^^^^",
            "  |",
            "  = help: did you mean COPY?",
        ];
        assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn spans_outside_the_source_do_no_harm() {
        for at in [span(0, 0, 0, 0), span(9, 9, 9, 9), span(2, 5, 1, 1), span(1, 99, 1, 3)] {
            let shown = render(&[Diagnostic::error("x", at)], "K", "é\n".as_bytes(), true);
            assert!(shown.contains('x'));
        }
    }

    #[test]
    fn a_hostile_file_cannot_speak_to_the_terminal() {
        let source = "\u{1b}[31mX\u{7}";
        let diagnostic = Diagnostic::error(format!("unknown {source}"), span(1, 1, 1, 3))
            .hint(format!("not {source}"));
        let shown = render(&[diagnostic], source, source.as_bytes(), false);
        assert!(!shown.contains(['\u{1b}', '\u{7}']), "{shown:?}");
    }

    #[test]
    fn many_findings_are_one_usage_error() {
        let found = [
            Diagnostic::error("first", span(1, 1, 1, 2)),
            Diagnostic::error("second", span(1, 2, 1, 3)),
        ];
        let error = into_error(&found, "Kubefile", b"ab");
        assert_eq!(error.kind(), imgctl_base::error::Kind::Usage);
        assert!(error.message().starts_with("Kubefile has 2 errors\n"));
        assert!(error.message().contains("second"));
    }
}
