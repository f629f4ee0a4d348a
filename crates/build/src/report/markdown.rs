//! Foreign text in Markdown: names and messages must not become markup.

/// Returns text as a code span that may stand in a table.
pub(super) fn code(text: &str) -> String {
    let text: String = one_line(text)
        .chars()
        .flat_map(|c| match c {
            '`' => vec!['\''],
            '|' => vec!['\\', '|'],
            c => vec![c],
        })
        .collect();
    if text.trim().is_empty() { "-".to_owned() } else { format!("`{text}`") }
}

/// Returns text with its markup escaped, for a table cell or a paragraph.
pub(super) fn plain(text: &str) -> String {
    let mut escaped = String::new();
    for c in one_line(text).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            // An autolink or a mention needs these between word characters.
            '@' => escaped.push_str("&#64;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '!' | '~' => {
                escaped.push('\\');
                escaped.push(c);
            }
            c => escaped.push(c),
        }
    }
    escaped
}

/// Returns at most `width` characters of a text.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A table of cells that are Markdown already.
pub(super) fn table(headings: &[&str], right: &[usize], rows: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|", headings.join(" | "));
    for index in 0..headings.len() {
        text.push_str(if right.contains(&index) { "---:|" } else { "---|" });
    }
    text.push('\n');
    for row in rows {
        text.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    text
}
