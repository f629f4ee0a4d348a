//! Text: quoting, indenting, wrapping, addresses of the web.

use super::call::{Answer, Group, int, map, text};
use crate::limits::LONGEST_TEXT;
use crate::print::to_text;
use crate::printf::quoted;
use crate::value::Value;

pub(super) const GROUP: Group = &[
    ("quote", "*+", |a| Ok(words(a, quoted))),
    ("squote", "*+", |a| Ok(words(a, |text| format!("'{text}'")))),
    ("cat", "*+", |a| Ok(words(a, str::to_owned))),
    ("indent", "is", |a| indented(a, "")),
    ("nindent", "is", |a| indented(a, "\n")),
    ("trimall", "ss", |a| {
        let set: Vec<char> = text(a, 0).chars().collect();
        Ok(Value::text(text(a, 1).trim_matches(|c| set.contains(&c))))
    }),
    ("abbrev", "is", |a| Ok(Value::text(abbreviated(a, 0, 1)?))),
    ("abbrevboth", "iis", |a| Ok(Value::text(abbreviated(a, 1, 2)?))),
    ("initials", "s", |a| {
        let all = text(a, 0);
        let firsts = all.split_whitespace().filter_map(|word| word.chars().next());
        Ok(Value::text(firsts.collect::<String>()))
    }),
    ("swapcase", "s", |a| {
        let swap = |c: char| -> String {
            if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
        };
        Ok(Value::text(text(a, 0).chars().map(swap).collect::<String>()))
    }),
    ("wrap", "is", |a| Ok(Value::text(wrapped(int(a, 0), &text(a, 1), "\n")))),
    ("wrapWith", "iss", |a| Ok(Value::text(wrapped(int(a, 0), &text(a, 2), &text(a, 1))))),
    ("urlParse", "s", |a| Ok(url_parts(&text(a, 0)))),
    ("urlJoin", "m", |a| {
        let parts = map(a, 0)?;
        let part = |name: &str| parts.get(name).map_or_else(String::new, |v| to_text(&v));
        let mut url = String::new();
        if !part("scheme").is_empty() {
            url.push_str(&part("scheme"));
            url.push(':');
        }
        if !part("host").is_empty() || !part("scheme").is_empty() {
            url.push_str("//");
        }
        for (mark, name, after) in [
            ("", "userinfo", "@"),
            ("", "host", ""),
            ("", "path", ""),
            ("?", "query", ""),
            ("#", "fragment", ""),
        ] {
            if !part(name).is_empty() {
                url.push_str(mark);
                url.push_str(&part(name));
                url.push_str(after);
            }
        }
        Ok(Value::text(url))
    }),
];

/// Applies `show` to all arguments except nil and joins the results with spaces.
fn words(a: &[Value], show: impl Fn(&str) -> String) -> Value {
    let given = a.iter().filter(|value| !matches!(value, Value::Nil));
    let shown: Vec<String> = given.map(|value| show(&to_text(value))).collect();
    Value::text(shown.join(" "))
}

fn indented(a: &[Value], before: &str) -> Answer {
    let width = usize::try_from(int(a, 0)).map_err(|_| "a negative width".to_owned())?;
    let text = text(a, 1);
    let lines = text.bytes().filter(|b| *b == b'\n').count() + 1;
    if lines.saturating_mul(width).saturating_add(text.len()) > LONGEST_TEXT {
        return Err("the text would be too long".to_owned());
    }
    let pad = " ".repeat(width);
    let inner = text.replace('\n', &format!("\n{pad}"));
    Ok(Value::text(format!("{before}{pad}{inner}")))
}

fn abbreviated(a: &[Value], width: usize, of: usize) -> Result<String, String> {
    let text = text(a, of);
    let width = usize::try_from(int(a, width)).unwrap_or(0);
    if width < 4 || text.chars().count() <= width {
        return Ok(text.as_ref().to_owned());
    }
    Ok(text.chars().take(width - 3).collect::<String>() + "...")
}

/// Breaks lines at spaces; a word longer than the width is not split.
fn wrapped(width: i64, text: &str, newline: &str) -> String {
    let width = usize::try_from(width).unwrap_or(1).max(1);
    let mut out = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            out.push_str(newline);
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out
}

fn url_parts(url: &str) -> Value {
    let (rest, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (scheme, rest) = match rest.split_once("://") {
        Some((scheme, rest)) => (scheme, Some(rest)),
        None => match rest.strip_prefix("//") {
            Some(rest) => ("", Some(rest)),
            None => ("", None),
        },
    };
    let (authority, path) = match rest {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", url.split(['?', '#']).next().unwrap_or("")),
    };
    let (userinfo, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    Value::map([
        ("scheme", Value::text(scheme)),
        ("host", Value::text(host)),
        ("hostname", Value::text(name.trim_matches(['[', ']']))),
        ("path", Value::text(path)),
        ("query", Value::text(query)),
        ("opaque", Value::text("")),
        ("fragment", Value::text(fragment)),
        ("userinfo", Value::text(userinfo)),
    ])
}
