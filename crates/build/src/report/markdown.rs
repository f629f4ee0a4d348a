//! Foreign text in Markdown: names and messages must not become markup.

use imgctl_base::text::is_unsafe;

/// Returns text as code that may stand in a table.
pub(super) fn code(text: &str) -> String {
    let text = one_line(text);
    if text.trim().is_empty() {
        return "-".to_owned();
    }
    if !text.contains(['`', '|']) {
        return format!("`{text}`");
    }
    // A span has no escape for its own mark, and of `\\|` in a table each renderer makes another cell.
    let mut code = "<code>".to_owned();
    for c in text.chars() {
        match c {
            c if c.is_ascii_punctuation() => code.push_str(&format!("&#{};", u32::from(c))),
            c => code.push(c),
        }
    }
    code + "</code>"
}

/// Returns text with its markup escaped, for a table cell or a paragraph.
pub(super) fn plain(text: &str) -> String {
    let mut escaped = String::new();
    for c in one_line(text).chars() {
        match c {
            // An item of a list, or the line below a heading.
            '-' | '+' | '=' if escaped.trim().is_empty() => {
                escaped.push('\\');
                escaped.push(c);
            }
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
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_control() => line.push(' '),
            c if is_unsafe(c) => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
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
