//! As much Markdown as these tests need: lines outside code, links, and the anchors of headings.

use std::collections::BTreeMap;

/// The lines outside fenced code, with their numbers from 1.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            return None;
        }
        (!in_code).then_some((at + 1, line))
    })
}

/// A line without its code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// The destinations of the links of a page, with their lines.
pub(crate) fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text).filter(|(_, line)| !line.starts_with("    ")) {
        let line = without_code(line);
        for (at, _) in line.match_indices("](") {
            let destination = line[at + 2..].split([')', ' ']).next().unwrap_or_default();
            found.push((number, destination.to_owned()));
        }
    }
    found
}

/// The anchors that GitHub and mdBook give to headings.
pub(crate) fn anchors(text: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    headings
        .map(|(_, line)| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            let slug: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
            let count = seen.entry(slug.clone()).or_default();
            *count += 1;
            if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
        })
        .collect()
}

/// The lines of fenced and indented code with their numbers; lines that end in a backslash are joined.
pub(crate) fn code(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let (mut in_fence, mut goes_on) = (false, false);
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
            goes_on = false;
        } else if !in_fence && !line.starts_with("    ") {
            goes_on = false;
        } else {
            let whole = line.trim().trim_end_matches('\\').trim_end();
            match lines.last_mut().filter(|_| goes_on) {
                Some((_, before)) => {
                    before.push(' ');
                    before.push_str(whole);
                }
                None => lines.push((at + 1, whole.to_owned())),
            }
            goes_on = line.ends_with('\\');
        }
    }
    lines
}

/// Escapes what Markdown would take for markup, except in code; bars also there, for cells of tables.
pub(crate) fn escaped(text: &str) -> String {
    let is_paired = text.matches('`').count().is_multiple_of(2);
    let mut escaped = String::new();
    let mut in_code = false;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let in_word = escaped.ends_with(char::is_alphanumeric)
            && characters.peek().is_some_and(|next| next.is_alphanumeric());
        let escape = match character {
            '`' if is_paired => {
                in_code = !in_code;
                false
            }
            '|' => true,
            '_' => !in_code && !in_word,
            '`' | '<' | '>' | '*' | '[' | ']' | '\\' => !in_code,
            _ => false,
        };
        if escape {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[test]
fn links_and_anchors_are_found_outside_code() {
    let text = "# A `b` c: d\n[x](a.md#b) `[y](z)` [w](v)\n```\n[in](code)\n```\n## A b c d\n";
    assert_eq!(links(text), [(2, "a.md#b".to_owned()), (2, "v".to_owned())]);
    assert_eq!(anchors(text), ["a-b-c-d", "a-b-c-d-1"]);
}

#[test]
fn code_is_fenced_or_indented_and_goes_on_after_a_backslash() {
    let text = "prose\n    a \\\n      b\n```\nc\n```\nmore \\\nprose\n";
    assert_eq!(code(text), [(2, "a b".to_owned()), (5, "c".to_owned())]);
    assert_eq!(escaped("`a_b|` _x_ a_b <c>"), "`a_b\\|` \\_x\\_ a_b \\<c\\>");
}
