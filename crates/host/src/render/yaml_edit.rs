//! Edits a YAML document as text, so that comments, order and style of all other content are
//! preserved.
//!
//! Supports only block maps, by their indentation. The caller parses the result and compares it
//! with the expected value; it rewrites documents that this module does not understand.

use serde_json::{Map, Value};

use crate::render::json;
use imgctl_template::yaml;

/// Merges `data`, written as `data_text`, into a document whose value is `current`. Returns `None`
/// if the document uses unsupported syntax.
pub(super) fn merge(
    text: &str,
    current: &Map<String, Value>,
    data: &Map<String, Value>,
    data_text: &str,
) -> Option<String> {
    if text.contains(['\t', '\r']) {
        return None;
    }
    let mut lines: Vec<String> = lines(text);
    let indentation = indent(lines.iter().find(|line| is_content(line))?);
    let mut end = lines.len();
    let data_lines = self::lines(data_text);
    let source = Source::new(&data_lines);
    merge_block(&mut lines, (0, &mut end), indentation, current, data, source)?;
    Some(lines.join("\n") + "\n")
}

fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
    if lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

/// One `key: value` of a block map.
struct Entry {
    key: String,
    /// Line of the key, and the first line after the value.
    start: usize,
    end: usize,
    /// Offset on the first line where the value begins, after the colon.
    value: usize,
}

impl Entry {
    /// Reports whether the value begins on the next line.
    fn is_block(&self, lines: &[String]) -> Option<bool> {
        let inline = lines.get(self.start)?.get(self.value..)?.trim();
        Some(inline.is_empty() || inline.starts_with('#'))
    }

    /// Returns the lines and indentation of the map below the key.
    fn inner<'a>(&self, lines: &'a [String]) -> Option<(&'a [String], usize)> {
        let inner = lines.get(self.start + 1..self.end)?;
        let indentation = indent(inner.iter().find(|line| is_content(line))?);
        Some((inner, indentation))
    }
}

/// Lines of a map in the data, if it is a block map. They are copied verbatim, because parsing and
/// writing a value can change its form.
#[derive(Clone, Copy)]
struct Source<'a> {
    lines: Option<(&'a [String], usize)>,
}

impl<'a> Source<'a> {
    fn new(lines: &'a [String]) -> Self {
        let first = lines.iter().find(|line| is_content(line));
        let is_simple = !lines.iter().any(|line| line.contains(['\t', '\r']));
        Self { lines: first.filter(|_| is_simple).map(|line| (lines, indent(line))) }
    }

    fn entry(&self, key: &str) -> Option<Entry> {
        let (lines, indentation) = self.lines?;
        let entries = entries(lines, 0, lines.len(), indentation)?;
        entries.into_iter().find(|entry| entry.key == key)
    }

    /// Returns the map that is a member of this one.
    fn member(&self, key: &str) -> Self {
        let inner = self.entry(key).and_then(|entry| {
            let lines = self.lines?.0;
            entry.is_block(lines)?.then(|| entry.inner(lines))?
        });
        Self { lines: inner }
    }

    /// Returns the lines of a member at another indentation.
    fn copy(&self, key: &str, indentation: usize) -> Option<Vec<String>> {
        let entry = self.entry(key)?;
        let (lines, own) = self.lines?;
        let lines = lines.get(entry.start..entry.end)?.iter().map(|line| {
            let rest = line.trim_start_matches(' ');
            let at = (line.len() - rest.len()).saturating_sub(own) + indentation;
            match rest {
                "" => String::new(),
                rest => format!("{}{rest}", " ".repeat(at)),
            }
        });
        Some(lines.collect())
    }
}

/// Merges into the block map at `indentation` between two lines, and moves `end` by the number of
/// lines added.
fn merge_block(
    lines: &mut Vec<String>,
    (start, end): (usize, &mut usize),
    indentation: usize,
    current: &Map<String, Value>,
    data: &Map<String, Value>,
    source: Source<'_>,
) -> Option<()> {
    for (key, new) in data {
        let copied = || source.copy(key, indentation).or_else(|| emit(key, new, indentation));
        let entries = entries(lines, start, *end, indentation)?;
        let Some(entry) = entries.iter().find(|entry| entry.key == *key) else {
            let at = entries.last().map_or(start, |last| last.end);
            let added = copied()?;
            *end += added.len();
            lines.splice(at..at, added);
            continue;
        };
        let old = current.get(key)?;
        if old == new {
            continue;
        }
        if let (Value::Object(old), Value::Object(new), true) = (old, new, entry.is_block(lines)?)
            && !old.is_empty()
        {
            let (_, inner) = entry.inner(lines)?;
            if inner <= indentation {
                return None;
            }
            let mut inner_end = entry.end;
            let range = (entry.start + 1, &mut inner_end);
            merge_block(lines, range, inner, old, new, source.member(key))?;
            *end += inner_end - entry.end;
            continue;
        }
        let merged = json::merge(old, new).ok()?;
        let mut replaced =
            if merged == *new { copied()? } else { emit(key, &merged, indentation)? };
        if let ([only], 1) = (replaced.as_mut_slice(), entry.end - entry.start) {
            let value = self::key(only.trim_start()).map_or(0, |(_, at)| at + indentation);
            if comment(only.get(value..)?).is_empty() {
                only.push_str(comment(lines.get(entry.start)?.get(entry.value..)?));
            }
        }
        *end = *end - (entry.end - entry.start) + replaced.len();
        lines.splice(entry.start..entry.end, replaced);
    }
    Some(())
}

/// Returns the members of a block map; `None` if the lines are not a block map.
fn entries(lines: &[String], start: usize, end: usize, indentation: usize) -> Option<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    for (number, line) in lines.iter().enumerate().take(end).skip(start) {
        let text = line.trim_start();
        let at = indent(line);
        if !is_content(line) {
            // Deeper lines belong to the value, whether comments or text of a block scalar.
            if let (Some(last), true) = (entries.last_mut(), !text.is_empty() && at > indentation) {
                last.end = number + 1;
            }
            continue;
        }
        // A list can start at the indentation of its key; brackets close an earlier opening
        // bracket.
        let goes_on = at > indentation
            || at == indentation
                && (text == "-" || text.starts_with("- ") || text.starts_with(['}', ']']));
        match (at < indentation, goes_on) {
            (true, _) => return None,
            (false, true) => entries.last_mut()?.end = number + 1,
            (false, false) => {
                let (key, length) = key(text)?;
                entries.push(Entry { key, start: number, end: number + 1, value: at + length });
            }
        }
    }
    Some(entries)
}

/// Returns the key at the beginning of a line, and the length up to and including its colon.
fn key(text: &str) -> Option<(String, usize)> {
    let (written, rest) = match text.chars().next()? {
        '"' => {
            let mut escaped = false;
            let end = text.char_indices().skip(1).find(|(_, c)| {
                let ends = *c == '"' && !escaped;
                escaped = *c == '\\' && !escaped;
                ends
            })?;
            text.split_at(end.0 + 1)
        }
        '\'' => {
            let end = text.get(1..)?.find('\'')? + 2;
            text.split_at(end)
        }
        '{' | '[' | '&' | '*' | '!' | '|' | '>' | '%' | '@' | '`' | '?' | '#' | ',' => return None,
        _ => {
            let end = text
                .match_indices(':')
                .map(|(at, _)| at)
                .find(|at| matches!(text.as_bytes().get(at + 1), None | Some(b' ')))?;
            text.split_at(end)
        }
    };
    let spaces = rest.len() - rest.trim_start().len();
    let behind = rest.trim_start().strip_prefix(':')?;
    if !behind.is_empty() && !behind.starts_with(' ') {
        return None;
    }
    let key = if written.starts_with(['"', '\'']) {
        yaml::parse(written).ok()?.as_str()?.to_owned()
    } else {
        written.trim_end().to_owned()
    };
    Some((key, written.len() + spaces + 1))
}

/// Returns the comment after a value on the same line, with the preceding spaces.
fn comment(value: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in value.char_indices() {
        match (quote, c) {
            (None, '"' | '\'') if before == ' ' => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None, '#') if before == ' ' => {
                let start = value.get(..at).map_or(at, |text| text.trim_end().len());
                return value.get(start..).unwrap_or_default();
            }
            _ => {}
        }
        before = c;
    }
    ""
}

/// Writes `key: value` as lines.
fn emit(key: &str, value: &Value, indentation: usize) -> Option<Vec<String>> {
    let text =
        yaml::write(&Value::Object(Map::from_iter([(key.to_owned(), value.clone())]))).ok()?;
    let lines = text.lines().map(|line| match line {
        "" => String::new(),
        line => format!("{}{line}", " ".repeat(indentation)),
    });
    Some(lines.collect())
}

fn is_content(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with('#')
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}
