//! Changes a YAML document in its text, so that comments, order and style of everything else stay.
//!
//! It knows block maps only, by their indentation. Whoever calls reads the result again and
//! compares it with what it should be: what is written in a way that this does not understand is
//! then written anew.

use serde_json::{Map, Value};

use crate::render::json;
use crate::template::yaml;

/// `data` merged into a document whose value is `current`; `None` where the document is written in
/// a way that is not known here.
pub(super) fn merge(
    text: &str,
    current: &Map<String, Value>,
    data: &Map<String, Value>,
) -> Option<String> {
    if text.contains(['\t', '\r']) {
        return None;
    }
    let mut lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
    let ends = lines.last().is_some_and(String::is_empty);
    if ends {
        lines.pop();
    }
    let indentation = indent(lines.iter().find(|line| is_content(line))?);
    let mut end = lines.len();
    merge_block(&mut lines, 0, &mut end, indentation, current, data)?;
    let mut text = lines.join("\n");
    text.push('\n');
    Some(text)
}

/// One `key: value` of a block map.
struct Entry {
    key: String,
    /// The line of the key, and the first line behind the value.
    start: usize,
    end: usize,
    /// Where on the first line the value begins, behind the colon.
    value: usize,
}

/// Merges into the block map at `indent` between two lines; `end` follows what is added.
fn merge_block(
    lines: &mut Vec<String>,
    start: usize,
    end: &mut usize,
    indentation: usize,
    current: &Map<String, Value>,
    data: &Map<String, Value>,
) -> Option<()> {
    for (key, new) in data {
        let entries = entries(lines, start, *end, indentation)?;
        let Some(entry) = entries.iter().find(|entry| entry.key == *key) else {
            let at = entries.last().map_or(start, |last| last.end);
            let added = emit(key, new, indentation)?;
            *end += added.len();
            lines.splice(at..at, added);
            continue;
        };
        let old = current.get(key)?;
        if old == new {
            continue;
        }
        let inline = lines.get(entry.start)?.get(entry.value..)?.trim();
        let is_block = inline.is_empty() || inline.starts_with('#');
        if let (Value::Object(old), Value::Object(new), true) = (old, new, is_block)
            && !old.is_empty()
        {
            let inner = lines.get(entry.start + 1..entry.end)?;
            let inner = indent(inner.iter().find(|line| is_content(line))?);
            if inner <= indentation {
                return None;
            }
            let mut inner_end = entry.end;
            merge_block(lines, entry.start + 1, &mut inner_end, inner, old, new)?;
            *end += inner_end - entry.end;
            continue;
        }
        let merged = json::merge(old, new).ok()?;
        let mut replaced = emit(key, &merged, indentation)?;
        if let ([only], 1) = (replaced.as_mut_slice(), entry.end - entry.start) {
            only.push_str(comment(lines.get(entry.start)?.get(entry.value..)?));
        }
        *end = *end - (entry.end - entry.start) + replaced.len();
        lines.splice(entry.start..entry.end, replaced);
    }
    Some(())
}

/// The members of a block map; `None` if it is none.
fn entries(lines: &[String], start: usize, end: usize, indentation: usize) -> Option<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    for (number, line) in lines.iter().enumerate().take(end).skip(start) {
        if !is_content(line) {
            continue;
        }
        let text = line.trim_start();
        let at = indent(line);
        // Lists may lie directly below their key; brackets close what was opened above.
        let goes_on = at > indentation
            || at == indentation
                && (text == "-" || text.starts_with("- ") || text.starts_with(['}', ']']));
        match (at < indentation, goes_on) {
            (true, _) => return None,
            (false, true) => entries.last_mut()?.end = number + 1,
            (false, false) => {
                let (key, length) = key(text)?;
                entries.push(Entry {
                    key,
                    start: number,
                    end: number + 1,
                    value: at + length,
                });
            }
        }
    }
    Some(entries)
}

/// The key at the beginning of a line, and the length up to behind its colon.
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
    let key = match written.starts_with(['"', '\'']) {
        true => yaml::parse(written).ok()?.as_str()?.to_owned(),
        false => written.trim_end().to_owned(),
    };
    Some((key, written.len() + spaces + 1))
}

/// The comment behind a value on one line, with the blanks before it.
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

/// `key: value` as lines.
fn emit(key: &str, value: &Value, indentation: usize) -> Option<Vec<String>> {
    let text = yaml::write(&Value::Object(Map::from_iter([(
        key.to_owned(),
        value.clone(),
    )])))
    .ok()?;
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
