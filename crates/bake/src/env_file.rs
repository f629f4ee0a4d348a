//! The file of variables beside a compose file, in the grammar of compose's own reader (compose-go, dotenv). Must
//! not know what the variables are for.

use std::collections::BTreeMap;

use crate::budget::Budget;
use crate::compose::replaced;

/// Reads `NAME=VALUE` and `NAME: VALUE`. A value in single quotes is literal; one in double quotes has escapes, and
/// both may go over several lines. A value without quotes ends at a comment or the end of its line. Variables in the
/// last two kinds have the values of `environment`, or of the lines above.
pub fn dotenv(
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    // All values share one budget, because each may repeat those above.
    let budget = Budget::default();
    let mut rest = text.trim_start_matches('\u{feff}');
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return found;
        }
        if let Some(comment) = rest.strip_prefix('#') {
            rest = behind_line(comment);
            continue;
        }
        rest = rest.strip_prefix("export ").map_or(rest, str::trim_start);
        let end = rest.find(['=', ':', '\n']).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        let name = name.trim().to_owned();
        if !behind.starts_with(['=', ':']) {
            // A name alone has the value of the environment.
            found.extend(environment(&name).map(|value| (name, value)));
            rest = behind;
            continue;
        }
        let value = behind[1..].trim_start_matches([' ', '\t']);
        let expanded = |text: &str| {
            let lookup = |name: &str| environment(name).or_else(|| found.get(name).cloned());
            replaced(text, &lookup, &budget, 0).unwrap_or_else(|_| text.to_owned())
        };
        let (value, after) = if let Some(quoted) = value.strip_prefix('\'') {
            let (inside, after) = quoted.split_once('\'').unwrap_or((quoted, ""));
            (inside.to_owned(), behind_line(after))
        } else if let Some(quoted) = value.strip_prefix('"') {
            let end = closing_quote(quoted);
            let after = quoted.get(end + 1..).unwrap_or_default();
            (expanded(&unescaped(&quoted[..end])), behind_line(after))
        } else {
            let end = value.find('\n').unwrap_or(value.len());
            let (line, after) = value.split_at(end);
            (expanded(without_comment(line).trim()), after)
        };
        found.insert(name, value);
        rest = after;
    }
}

fn behind_line(text: &str) -> &str {
    text.split_once('\n').map_or("", |(_, rest)| rest)
}

/// Returns the offset of the quote that ends a value, or the length.
fn closing_quote(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at,
            _ => {}
        }
    }
    text.len()
}

/// Removes a comment, which a blank precedes.
fn without_comment(line: &str) -> &str {
    let is_comment = |at: &usize| *at == 0 || line[..*at].ends_with([' ', '\t']);
    let at = line.match_indices('#').map(|(at, _)| at).find(is_comment);
    at.map_or(line, |at| &line[..at])
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (c, c == '\\') {
            (_, true) => match rest.next() {
                Some('n') => out.push('\n'),
                Some('r') => out.push('\r'),
                Some('t') => out.push('\t'),
                // Interpolation reads two as one.
                Some('$') => out.push_str("$$"),
                Some(other) => out.push(other),
                None => out.push('\\'),
            },
            (c, false) => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_compose() {
        let outside = |name: &str| (name == "OUTSIDE").then(|| "out".to_owned());
        for (text, expected) in [
            ("V=v1 # the tag\n", "v1"),
            ("V=v1#tag\n", "v1#tag"),
            ("V=\n", ""),
            ("V=# all\n", ""),
            ("V=\"a#b\" # q\n", "a#b"),
            ("A=1\nV=${A}-b\n", "1-b"),
            ("V=${UNSET:-dflt}\n", "dflt"),
            ("V='${A}' # literal", "${A}"),
            ("V=\"a\\nb\"\n", "a\nb"),
            ("V=\"a\\\"b\\$c\"\n", "a\"b$c"),
            ("V=\"l1\nl2\"\nW=x", "l1\nl2"),
            ("V: yaml\n", "yaml"),
            ("\u{feff}# x\n\n  export V = spaced  \r\n", "spaced"),
            ("OUTSIDE\nV=$OUTSIDE", "out"),
            ("V=1\nV=2", "2"),
            ("V=a$", "a$"),
            ("V=\"open", "open"),
        ] {
            assert_eq!(dotenv(text, &outside)["V"], expected, "{text:?}");
        }
        assert_eq!(
            dotenv("OUTSIDE\nNONE\n", &outside),
            BTreeMap::from([("OUTSIDE".into(), "out".into())])
        );
    }
}
