//! Strings: trimming, case, splitting, names, paths.

use super::call::{Answer, Call, Group, int, size, text};
use crate::value::Value;

/// Maximum length of a text that a function creates, in bytes.
const LIMIT: usize = 16 << 20;

/// Functions in this file.
pub(super) const GROUP: Group = &[
    ("trim", "s", |a| Ok(Value::text(text(a, 0).trim()))),
    ("trimAll", "ss", |a| {
        let set: Vec<char> = text(a, 0).chars().collect();
        Ok(Value::text(text(a, 1).trim_matches(|c| set.contains(&c))))
    }),
    ("trimPrefix", "ss", |a| {
        let (prefix, text) = (text(a, 0), text(a, 1));
        Ok(Value::text(text.strip_prefix(prefix.as_ref()).unwrap_or(&text)))
    }),
    ("trimSuffix", "ss", |a| {
        let (suffix, text) = (text(a, 0), text(a, 1));
        Ok(Value::text(text.strip_suffix(suffix.as_ref()).unwrap_or(&text)))
    }),
    ("upper", "s", |a| Ok(Value::text(text(a, 0).to_uppercase()))),
    ("lower", "s", |a| Ok(Value::text(text(a, 0).to_lowercase()))),
    ("title", "s", |a| Ok(Value::text(initials(&text(a, 0), |c| c.to_uppercase().collect())))),
    ("untitle", "s", |a| Ok(Value::text(initials(&text(a, 0), |c| c.to_lowercase().collect())))),
    ("repeat", "is", repeat),
    ("substr", "iis", substr),
    ("trunc", "is", trunc),
    ("nospace", "s", |a| Ok(Value::text(text(a, 0).replace(char::is_whitespace, "")))),
    ("contains", "ss", |a| Ok(Value::Bool(text(a, 1).contains(&*text(a, 0))))),
    ("hasPrefix", "ss", |a| Ok(Value::Bool(text(a, 1).starts_with(&*text(a, 0))))),
    ("hasSuffix", "ss", |a| Ok(Value::Bool(text(a, 1).ends_with(&*text(a, 0))))),
    ("replace", "sss", |a| Ok(Value::text(text(a, 2).replace(&*text(a, 0), &text(a, 1))))),
    ("splitList", "ss", |a| {
        let separator = text(a, 0);
        Ok(Value::list(split(&text(a, 1), &separator).iter().map(Value::text)))
    }),
    ("split", "ss", |a| {
        let parts = split(&text(a, 1), &text(a, 0));
        Ok(numbered(&parts))
    }),
    ("splitn", "sis", |a| {
        let (separator, count, text) = (text(a, 0), size(a, 1, 1 << 20)?, text(a, 2));
        let parts: Vec<String> = text.splitn(count, &*separator).map(str::to_owned).collect();
        Ok(numbered(&parts))
    }),
    ("snakecase", "s", |a| Ok(Value::text(separated(&text(a, 0), '_')))),
    ("kebabcase", "s", |a| Ok(Value::text(separated(&text(a, 0), '-')))),
    ("camelcase", "s", camelcase),
    ("plural", "ssi", |a| {
        let index = usize::from(int(a, 2) != 1);
        Ok(Value::text(text(a, index)))
    }),
    ("base", "s", base),
    ("dir", "s", dir),
    ("ext", "s", ext),
    ("isAbs", "s", is_absolute),
    ("clean", "s", clean),
    ("osBase", "s", base),
    ("osDir", "s", dir),
    ("osExt", "s", ext),
    ("osIsAbs", "s", is_absolute),
    ("osClean", "s", clean),
];

fn last_part(path: &str) -> &str {
    match path.trim_end_matches('/') {
        "" if path.is_empty() => ".",
        "" => "/",
        path => path.rsplit('/').next().unwrap_or(path),
    }
}

fn base(a: &Call<'_>) -> Answer {
    Ok(Value::text(last_part(&text(a, 0))))
}

fn dir(a: &Call<'_>) -> Answer {
    let text = text(a, 0);
    Ok(Value::text(match text.rfind('/') {
        None => ".",
        Some(0) => "/",
        Some(end) => &text[..end],
    }))
}

fn ext(a: &Call<'_>) -> Answer {
    let text = text(a, 0);
    let name = last_part(&text);
    Ok(Value::text(name.rfind('.').map_or("", |dot| &name[dot..])))
}

fn is_absolute(a: &Call<'_>) -> Answer {
    Ok(Value::Bool(text(a, 0).starts_with('/')))
}

/// Go's `path.Clean`.
fn clean(a: &Call<'_>) -> Answer {
    let path = text(a, 0);
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => match parts.last() {
                Some(&last) if last != ".." => {
                    parts.pop();
                }
                _ if rooted => {}
                _ => parts.push(part),
            },
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    Ok(Value::text(match (rooted, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }))
}

fn repeat(a: &Call<'_>) -> Answer {
    let (count, text) = (size(a, 0, LIMIT)?, text(a, 1));
    if text.len().saturating_mul(count) > LIMIT {
        return Err("the text would be too long".to_owned());
    }
    Ok(Value::text(text.repeat(count)))
}

/// Implements `substr START END TEXT`, in bytes as in Go; a negative start or end means the start
/// or end of the text.
fn substr(a: &Call<'_>) -> Answer {
    let (start, end, text) = (int(a, 0), int(a, 1), text(a, 2));
    let start = usize::try_from(start).unwrap_or(0);
    let end = usize::try_from(end).unwrap_or(text.len()).min(text.len());
    text.get(start..end)
        .map(Value::text)
        .ok_or_else(|| format!("there is no {start} to {end} in {text:?}"))
}

/// Implements `trunc N TEXT`: the first N bytes, or the last -N if N is negative.
fn trunc(a: &Call<'_>) -> Answer {
    let (count, text) = (int(a, 0), text(a, 1));
    let length = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if length >= text.len() {
        return Ok(Value::text(text));
    }
    let cut = if count >= 0 { text.get(..length) } else { text.get(text.len() - length..) };
    cut.map(Value::text).ok_or_else(|| format!("{count} lies inside a character of {text:?}"))
}

/// Applies `change` to the first letter of each word.
fn initials(text: &str, change: impl Fn(char) -> String) -> String {
    let mut after_space = true;
    let mut changed = String::with_capacity(text.len());
    for c in text.chars() {
        if after_space {
            changed.push_str(&change(c));
        } else {
            changed.push(c);
        }
        after_space = c.is_whitespace();
    }
    changed
}

/// Splits text like Go's `strings.Split`: an empty separator splits into characters.
pub(super) fn split(text: &str, separator: &str) -> Vec<String> {
    if separator.is_empty() {
        return text.chars().map(String::from).collect();
    }
    text.split(separator).map(str::to_owned).collect()
}

/// Returns the map with keys `_0`, `_1`… that sprig's `split` returns.
fn numbered(parts: &[String]) -> Value {
    let members = parts.iter().zip(0..);
    Value::map(members.map(|(part, index)| (format!("_{index}"), Value::text(part))))
}

/// Converts `FirstName` and `first name` to `first_name`.
fn separated(text: &str, separator: char) -> String {
    let mut out = String::with_capacity(text.len() + 4);
    let mut before = None;
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        if c.is_whitespace() || c == '_' || c == '-' {
            if !out.is_empty() && !out.ends_with(separator) {
                out.push(separator);
            }
        } else {
            let starts_word = c.is_uppercase()
                && before.is_some_and(|b: char| {
                    b.is_lowercase()
                        || b.is_numeric()
                        || (b.is_uppercase() && characters.peek().is_some_and(|n| n.is_lowercase()))
                });
            if starts_word && !out.ends_with(separator) {
                out.push(separator);
            }
            out.extend(c.to_lowercase());
        }
        before = Some(c);
    }
    out.trim_end_matches(separator).to_owned()
}

/// Converts `http_server` to `HttpServer`.
fn camelcase(a: &Call<'_>) -> Answer {
    let text = text(a, 0);
    let words = text.split(|c: char| c == '_' || c == '-' || c.is_whitespace());
    let camel: String = words.map(|word| initials(word, |c| c.to_uppercase().collect())).collect();
    Ok(Value::text(camel))
}
