//! Source text to syntax tree, and positions in it for messages. `gotmpl` parses; two differences
//! between its parser and Go's are corrected in the text before.

use std::rc::Rc;

use gotmpl::TemplateError;
use gotmpl::parse::{ListNode, Parser, Pos};

use imgctl_base::error::Error;

/// Reason why a template did not render.
#[derive(Debug)]
pub(crate) struct Fault {
    /// `chart/templates/x.yaml:12:5`: where the error occurred, followed by the including
    /// templates, innermost first.
    pub(crate) at: Vec<String>,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl From<String> for Fault {
    fn from(message: String) -> Self {
        Self { at: Vec::new(), message, hint: None }
    }
}

impl Fault {
    pub(crate) fn new(at: String, message: impl Into<String>) -> Self {
        Self { at: vec![at], message: message.into(), hint: None }
    }

    /// Adds a sentence that tells the user what to do next.
    pub(crate) fn hint(mut self, hint: String) -> Self {
        self.hint = Some(hint);
        self
    }

    /// Adds the position of a caller; only the innermost and outermost few are kept.
    pub(crate) fn within(mut self, place: String) -> Self {
        if self.at.len() >= 12 {
            self.at.remove(6);
        }
        self.at.push(place);
        self
    }

    /// Converts to an error whose message begins with `doing` and the position.
    pub(crate) fn error(self, doing: &str) -> Error {
        let mut places = self.at.into_iter();
        let place = places.next().map_or_else(String::new, |place| place + ": ");
        let mut error = Error::usage(format!("{doing}{place}{}", self.message));
        if let Some(hint) = self.hint {
            error = error.hint(hint);
        }
        let outer: Vec<String> = places.collect();
        if outer.is_empty() {
            return error;
        }
        error.hint(format!("it was included from {}", outer.join(", from ")))
    }
}

pub(crate) struct Source {
    pub(crate) name: String,
    text: String,
}

impl Source {
    /// Returns `name:line:column`, both counted from 1.
    pub(crate) fn place(&self, pos: Pos) -> String {
        let before = self.text.get(..pos.offset).unwrap_or(&self.text);
        let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before[start..].chars().count() + 1;
        format!("{}:{line}:{column}", self.name)
    }
}

pub(crate) struct Tree {
    pub(crate) source: Rc<Source>,
    pub(crate) body: ListNode,
}

/// A parsed text and the templates that it defines, by name.
pub(crate) type Parsed = (Rc<Tree>, Vec<(String, Rc<Tree>)>);

/// Parses `text`; `name` identifies it in messages.
pub(crate) fn parse(name: &str, text: &str) -> Result<Parsed, Fault> {
    let source = Rc::new(Source { name: name.to_owned(), text: text.to_owned() });
    let (text, misplaced) = adapted(text);
    let (body, defined) =
        Parser::new(&text, "{{", "}}").and_then(Parser::parse).map_err(|error| match error {
            TemplateError::Parse { line, col, message, .. }
            | TemplateError::Lex { line, col, message, .. } => {
                Fault::new(format!("{name}:{line}:{col}"), message)
            }
            other => Fault::new(name.to_owned(), other.to_string()),
        })?;
    if let Some((offset, message)) = misplaced {
        return Err(Fault::new(source.place(Pos::new(offset, 0)), message));
    }
    let template = |body| Rc::new(Tree { source: source.clone(), body });
    let defined =
        defined.into_iter().map(|node| (node.name.to_string(), template(node.body))).collect();
    Ok((template(body), defined))
}

/// Returns an upper bound of the memory of a parsed text, from what `gotmpl` takes for each piece of an action.
pub(crate) fn tree_size(text: &str) -> usize {
    const ACTION: usize = 900;
    const STRING: usize = 200;
    let bytes = text.as_bytes();
    let mut size = bytes.len().saturating_mul(4);
    let mut position = 0;
    while let Some(open) = find(bytes, position, b"{{") {
        size = size.saturating_add(ACTION);
        position = open + 2;
        while let Some(byte) = bytes.get(position) {
            let piece = match byte {
                b'}' if bytes.get(position + 1) == Some(&b'}') => break,
                b'"' | b'\'' | b'`' => {
                    position = quoted_end(bytes, position);
                    STRING
                }
                b'(' | b'|' => 850,
                byte if byte.is_ascii_whitespace() => 160,
                _ => 48,
            };
            size = size.saturating_add(piece);
            position += 1;
        }
    }
    size
}

/// Corrects the text; no byte moves, so positions in messages stay correct. The second result is an
/// `{{ end }}` without a beginning, or a beginning without an end, which the parser accepts.
///
/// A comment whose opening trims (`{{- /* … */}}`) must not trim the text after it, and a trailing
/// pipe (`{{ x | }}`) is allowed.
fn adapted(text: &str) -> (String, Option<(usize, &'static str)>) {
    let mut misplaced = None;
    let mut begun = Vec::new();
    let mut bytes = text.as_bytes().to_vec();
    let mut position = 0;
    while let Some(open) = find(&bytes, position, b"{{") {
        let trims = bytes.get(open + 2) == Some(&b'-')
            && bytes.get(open + 3).is_some_and(u8::is_ascii_whitespace);
        let mut start = open + if trims { 3 } else { 2 };
        while bytes.get(start).is_some_and(u8::is_ascii_whitespace) {
            start += 1;
        }
        position = if bytes.get(start..start + 2) == Some(b"/*") {
            let Some(end) = find(&bytes, start + 2, b"*/") else {
                break;
            };
            if trims && !closing_trims(&bytes, end + 2) {
                blank(&mut bytes, start, end + 2);
            }
            end + 2
        } else {
            let rest = bytes.get(start..).unwrap_or_default();
            let word = rest.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
            match rest.get(..word).unwrap_or_default() {
                b"if" | b"range" | b"with" | b"define" | b"block" => begun.push(start),
                b"end" if begun.pop().is_none() => {
                    misplaced = misplaced.or(Some((start, "unexpected {{end}}")));
                }
                _ => {}
            }
            action(&mut bytes, start)
        };
    }
    let unfinished = begun.pop().map(|start| (start, "{{end}} is missing"));
    // Only ASCII bytes were written, and only whole characters were overwritten.
    (String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned()), misplaced.or(unfinished))
}

/// Returns whether ` -}}` follows.
fn closing_trims(bytes: &[u8], at: usize) -> bool {
    let rest = bytes.get(at..).unwrap_or_default();
    let spaces = rest.iter().take_while(|b| b.is_ascii_whitespace()).count();
    spaces > 0 && rest.get(spaces) == Some(&b'-')
}

/// Replaces a comment with an empty string literal, which prints nothing.
fn blank(bytes: &mut [u8], start: usize, end: usize) {
    for byte in bytes.get_mut(start..end).unwrap_or_default() {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
    for byte in bytes.get_mut(start..start + 2).unwrap_or_default() {
        *byte = b'"';
    }
}

/// Scans an action to its end and removes a pipe before that end.
fn action(bytes: &mut [u8], start: usize) -> usize {
    let mut position = start;
    let mut pipe = None;
    while let Some(&byte) = bytes.get(position) {
        match byte {
            b'}' if bytes.get(position + 1) == Some(&b'}') => {
                if let Some(slot) = pipe.and_then(|at: usize| bytes.get_mut(at)) {
                    *slot = b' ';
                }
                return position + 2;
            }
            b'"' | b'\'' | b'`' => position = quoted_end(bytes, position),
            b'|' => pipe = Some(position),
            b'-' if bytes.get(position + 1..position + 3) == Some(b"}}") => {}
            byte if byte.is_ascii_whitespace() => {}
            _ => pipe = None,
        }
        if matches!(byte, b'"' | b'\'' | b'`') {
            pipe = None;
        }
        position += 1;
    }
    position
}

/// Returns the position of the closing quote of the string that begins at `start`.
fn quoted_end(bytes: &[u8], start: usize) -> usize {
    let quote = bytes.get(start).copied().unwrap_or(b'"');
    let mut position = start + 1;
    while let Some(&byte) = bytes.get(position) {
        match byte {
            b'\\' if quote != b'`' => position += 1,
            byte if byte == quote => return position,
            _ => {}
        }
        position += 1;
    }
    position
}

fn find(bytes: &[u8], from: usize, wanted: &[u8]) -> Option<usize> {
    let rest = bytes.get(from..)?;
    let at = rest.windows(wanted.len()).position(|w| w == wanted)?;
    Some(from + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_two_corners_change() {
        for (text, expected) in [
            ("a {{- /* é */}} b", "a {{- \"\"      }} b"),
            ("a {{- /* c */ -}} b", "a {{- /* c */ -}} b"),
            ("a {{/* c */}} b", "a {{/* c */}} b"),
            ("{{ x | trunc 5 | }}", "{{ x | trunc 5   }}"),
            ("{{ x | -}}", "{{ x   -}}"),
            (r#"{{ "a | }}" | b }}|"#, r#"{{ "a | }}" | b }}|"#),
            ("{{ `\\` | x }} | }}", "{{ `\\` | x }} | }}"),
            ("{{", "{{"),
            ("{{ \"", "{{ \""),
        ] {
            assert_eq!(adapted(text).0, expected, "{text}");
        }
    }

    #[test]
    fn blocks_begin_and_end() {
        for (text, part) in [
            ("{{ range .x }}", "t:1:4: {{end}} is missing"),
            ("a\n{{ if .x }}{{ with .y }}{{ end }}", "t:2:4: {{end}} is missing"),
            ("{{ end }}", "t:1:4: unexpected {{end}}"),
            ("{{ if .x }}{{ else if .y }}{{ end }}{{- end -}}", "t:1:41: unexpected {{end}}"),
        ] {
            let fault = parse("t", text).err().unwrap();
            assert_eq!(format!("{}: {}", fault.at[0], fault.message), part, "{text}");
        }
        for text in [
            "{{ if .x }}{{ else with .y }}{{ end }}",
            "{{ define \"a\" }}{{ end }}{{ block \"b\" . }}{{ end }}",
            "{{/* if */}}{{ \"{{ if }}\" }}{{ .end }}{{ iffy }}{{ `{{ end }}` }}",
        ] {
            assert!(parse("t", text).is_ok(), "{text}");
        }
    }
}
