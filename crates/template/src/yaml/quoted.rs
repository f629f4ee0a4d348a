//! Quoted scalars over several lines. libyaml accepts continuation lines without indentation; YAML 1.2 and its parsers do
//! not. Must not know what the scalars mean.

/// A column beyond which no line is indented.
const WIDEST: usize = 512;

/// What the end of a line lies in.
enum Within {
    Nothing,
    /// A block scalar, whose lines are indented more than its parent.
    Block(usize),
    /// A quoted scalar, with the column where it begins.
    Quoted(char, usize),
}

/// Returns the text with the continuation lines of quoted scalars indented, which does not change their values; `None` if
/// no line needs it, or if the text would grow too much.
pub(super) fn indented(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len() + 64);
    let mut within = Within::Nothing;
    let mut flow = 0_usize;
    let mut is_changed = false;
    for line in text.split_inclusive('\n') {
        let start = line.len() - line.trim_start_matches([' ', '\t']).len();
        let is_blank = line.trim().is_empty();
        let is_marker = line.starts_with("---") || line.starts_with("...");
        match within {
            Within::Quoted(quote, column) if !is_marker => {
                if !is_blank && start <= column && column < WIDEST {
                    out.push_str(&" ".repeat(column + 1 - start));
                    is_changed = true;
                }
                let rest = after(line, quote);
                within = match rest {
                    None => Within::Quoted(quote, column),
                    Some(rest) => tokens(line, line.len() - rest.len(), false, &mut flow),
                };
            }
            Within::Block(indent) if is_blank || start > indent => {}
            _ => within = tokens(line, start, true, &mut flow),
        }
        out.push_str(line);
        if out.len() > text.len().saturating_mul(2).saturating_add(1 << 20) {
            return None;
        }
    }
    is_changed.then_some(out)
}

/// Returns what follows the end of a quoted scalar, from within it.
fn after(line: &str, quote: char) -> Option<&str> {
    let mut characters = line.char_indices().peekable();
    while let Some((at, c)) = characters.next() {
        if c == '\\' && quote == '"' {
            characters.next();
        } else if c == quote {
            let is_doubled = quote == '\'' && characters.peek().is_some_and(|(_, c)| *c == '\'');
            if !is_doubled {
                return line.get(at + 1..);
            }
            characters.next();
        }
    }
    None
}

/// Reads the tokens of a line from a byte on; `begins`: whether a node may begin there.
fn tokens(line: &str, from: usize, mut begins: bool, flow: &mut usize) -> Within {
    let column = |at: usize| line.get(..at).map_or(0, |before| before.chars().count());
    let mut at = from;
    let mut parent = column(from);
    let mut after_quote = !begins;
    while let Some(c) = line.get(at..).and_then(|rest| rest.chars().next()) {
        let rest = line.get(at + c.len_utf8()..).unwrap_or_default();
        let is_followed = rest.is_empty() || rest.starts_with([' ', '\t', '\n', '\r']);
        let after_space = line.get(..at).is_none_or(|b| b.is_empty() || b.ends_with([' ', '\t']));
        let was_quote = std::mem::take(&mut after_quote);
        match c {
            '#' if after_space => return Within::Nothing,
            '\n' | '\r' => {}
            ' ' | '\t' => after_quote = was_quote,
            '"' | '\'' if begins => match after(rest, c) {
                None => return Within::Quoted(c, column(at)),
                Some(left) => {
                    at = line.len() - left.len();
                    (begins, after_quote) = (false, true);
                    continue;
                }
            },
            '|' | '>' if begins && *flow == 0 => {
                let rest =
                    rest.trim_start_matches(|c: char| c.is_ascii_digit() || "+-".contains(c));
                let rest = rest.trim();
                if rest.is_empty() || rest.starts_with('#') {
                    return Within::Block(parent);
                }
                begins = false;
            }
            '&' | '!' if begins => {
                at += c.len_utf8() + rest.find([' ', '\t', '\n']).unwrap_or(rest.len());
                continue;
            }
            '-' | '?' if begins && is_followed && *flow == 0 => {
                let next = rest.trim_start_matches([' ', '\t']);
                // A block scalar alone is indented more than its dash.
                if !next.trim().is_empty() && !next.starts_with(['|', '>']) {
                    parent = column(line.len() - next.len());
                }
            }
            '[' | '{' if begins || *flow > 0 => {
                *flow += 1;
                begins = true;
            }
            ']' | '}' if *flow > 0 => {
                *flow -= 1;
                (begins, after_quote) = (false, true);
            }
            ',' if *flow > 0 => begins = true,
            ':' if is_followed || (was_quote && *flow > 0) => begins = true,
            _ => begins = false,
        }
        at += c.len_utf8();
    }
    Within::Nothing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_quoted_texts_are_indented_and_nothing_else() {
        for (text, expected) in [
            ("a: \"b\nc\"\nd: 1\n", Some("a: \"b\n    c\"\nd: 1\n")),
            ("- a: 'b\n\n it''s\nc'\n", Some("- a: 'b\n\n      it''s\n      c'\n")),
            ("a: \"b\\\"\nc\" # it's\n", Some("a: \"b\\\"\n    c\" # it's\n")),
            ("a: {\"b\":\"c\nd\"}\n", Some("a: {\"b\":\"c\n         d\"}\n")),
            ("a: it's\nb: 1\n", None),
            ("a: |\n  \"x\nb: 1\n", None),
            ("- |\n  \"x\n- k: >-\n    'y\n  l: 1\n", None),
            ("# it's \"\na: &x !!str 'b'\n", None),
            ("a: 'b\n---\nc: 1\n", None),
            ("", None),
        ] {
            assert_eq!(indented(text).as_deref(), expected, "{text}");
        }
        let wide = format!("{}\"\n{}", " ".repeat(10_000), "x\n".repeat(1000));
        assert_eq!(indented(&wide), None);
    }

    #[test]
    fn no_text_makes_it_panic_or_grow() {
        bolero::check!().with_type::<String>().for_each(|text: &String| {
            let made = indented(text).map_or(0, |made| made.len());
            assert!(made <= text.len() * 2 + (1 << 20) + 2 * WIDEST);
        });
    }
}
