//! Strings: trimming, case, splitting, names, paths, quoting, indenting, wrapping, addresses of the web.

use std::collections::BTreeSet;

use super::call::{Answer, Call, Group, int, map, size, text};
use super::growth::Growth::{Flat, Fresh};
use super::growth::{self, divided, full, lines, replaced};
use super::urls::Url;
use crate::print::{cut, quoted, to_text};
use crate::value::Value;

pub(super) const GROUP: Group = &[
    ("trim", "s", Fresh(full::<48, 3>), |a| Ok(Value::text(text(a, 0).trim()))),
    ("trimAll", "ss", Fresh(full::<48, 8>), trim_all),
    ("trimPrefix", "ss", Fresh(full::<48, 3>), |a| {
        let (prefix, text) = (text(a, 0), text(a, 1));
        Ok(Value::text(text.strip_prefix(prefix.as_ref()).unwrap_or(&text)))
    }),
    ("trimSuffix", "ss", Fresh(full::<48, 3>), |a| {
        let (suffix, text) = (text(a, 0), text(a, 1));
        Ok(Value::text(text.strip_suffix(suffix.as_ref()).unwrap_or(&text)))
    }),
    ("upper", "s", Fresh(full::<48, 8>), |a| {
        Ok(Value::text(text(a, 0).chars().map(|c| single(c, c.to_uppercase())).collect::<String>()))
    }),
    ("lower", "s", Fresh(full::<48, 8>), |a| {
        Ok(Value::text(text(a, 0).chars().map(|c| single(c, c.to_lowercase())).collect::<String>()))
    }),
    ("title", "s", Fresh(full::<48, 8>), |a| Ok(Value::text(title(&text(a, 0))))),
    ("untitle", "s", Fresh(full::<48, 8>), |a| {
        Ok(Value::text(initials(&text(a, 0), |c| c.to_lowercase().collect())))
    }),
    ("repeat", "is", Fresh(growth::repeated), repeat),
    ("substr", "iis", Fresh(full::<48, 3>), substr),
    ("trunc", "is", Fresh(full::<48, 3>), trunc),
    ("nospace", "s", Fresh(full::<48, 3>), |a| {
        Ok(Value::text(text(a, 0).replace(char::is_whitespace, "")))
    }),
    ("contains", "ss", Flat, |a| Ok(Value::Bool(text(a, 1).contains(&*text(a, 0))))),
    ("hasPrefix", "ss", Flat, |a| Ok(Value::Bool(text(a, 1).starts_with(&*text(a, 0))))),
    ("hasSuffix", "ss", Flat, |a| Ok(Value::Bool(text(a, 1).ends_with(&*text(a, 0))))),
    ("replace", "sss", Fresh(replaced), |a| {
        let (old, by, text) = (text(a, 0), text(a, 1), text(a, 2));
        Ok(Value::text(text.replace(&*old, &by)))
    }),
    ("splitList", "ss", Fresh(divided::<0, 1, 192>), |a| {
        let separator = text(a, 0);
        Ok(Value::list(split(&text(a, 1), &separator)))
    }),
    ("split", "ss", Fresh(divided::<0, 1, 512>), |a| Ok(numbered(split(&text(a, 1), &text(a, 0))))),
    ("splitn", "sis", Fresh(divided::<0, 2, 512>), |a| {
        let (separator, text) = (text(a, 0), text(a, 2));
        Ok(numbered(match usize::try_from(int(a, 1)) {
            Ok(count) => split_most(&text, &separator, count),
            Err(_) => split(&text, &separator),
        }))
    }),
    ("snakecase", "s", Fresh(full::<48, 8>), |a| Ok(Value::text(separated(&text(a, 0), '_')))),
    ("kebabcase", "s", Fresh(full::<48, 8>), |a| Ok(Value::text(separated(&text(a, 0), '-')))),
    ("camelcase", "s", Fresh(full::<48, 8>), camelcase),
    ("plural", "ssi", Fresh(full::<48, 3>), |a| {
        let index = usize::from(int(a, 2) != 1);
        Ok(Value::text(text(a, index)))
    }),
    ("base", "s", Fresh(full::<48, 3>), base),
    ("dir", "s", Fresh(full::<48, 3>), dir),
    ("ext", "s", Fresh(full::<48, 3>), ext),
    ("isAbs", "s", Flat, is_absolute),
    ("clean", "s", Fresh(full::<48, 24>), clean),
    ("osBase", "s", Fresh(full::<48, 3>), base),
    ("osDir", "s", Fresh(full::<48, 3>), dir),
    ("osExt", "s", Fresh(full::<48, 3>), ext),
    ("osIsAbs", "s", Flat, is_absolute),
    ("osClean", "s", Fresh(full::<48, 24>), clean),
    ("quote", "*+", Fresh(full::<48, 24>), |a| Ok(words(a, quoted))),
    ("squote", "*+", Fresh(full::<48, 24>), |a| Ok(words(a, |text| format!("'{text}'")))),
    ("cat", "*+", Fresh(full::<48, 24>), |a| Ok(words(a, str::to_owned))),
    ("indent", "is", Fresh(lines), |a| indented(a, "")),
    ("nindent", "is", Fresh(lines), |a| indented(a, "\n")),
    ("trimall", "ss", Fresh(full::<48, 8>), trim_all),
    ("abbrev", "is", Fresh(full::<48, 3>), |a| Ok(Value::text(abbreviated(a, 0, 1)?))),
    ("abbrevboth", "iis", Fresh(full::<48, 3>), |a| Ok(Value::text(abbreviated(a, 1, 2)?))),
    ("initials", "s", Fresh(full::<48, 8>), |a| {
        let all = text(a, 0);
        let firsts = all.split_whitespace().filter_map(|word| word.chars().next());
        Ok(Value::text(firsts.collect::<String>()))
    }),
    ("swapcase", "s", Fresh(full::<48, 8>), |a| {
        let swap = |c: char| -> String {
            if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
        };
        Ok(Value::text(text(a, 0).chars().map(swap).collect::<String>()))
    }),
    ("wrap", "is", Fresh(growth::wrapped), |a| {
        Ok(Value::text(wrapped(int(a, 0), &text(a, 1), "\n", false)))
    }),
    ("wrapWith", "iss", Fresh(growth::wrapped), |a| {
        Ok(Value::text(wrapped(int(a, 0), &text(a, 2), &text(a, 1), true)))
    }),
    ("urlParse", "s", Fresh(full::<2048, 6>), |a| {
        let url = Url::parse(&text(a, 0))?;
        Ok(Value::map([
            ("scheme", Value::text(&url.scheme)),
            ("host", Value::text(&url.host)),
            ("hostname", Value::text(url.hostname())),
            ("path", Value::text(&url.path)),
            ("query", Value::text(&url.query)),
            ("opaque", Value::text(&url.opaque)),
            ("fragment", Value::text(&url.fragment)),
            ("userinfo", Value::text(&url.userinfo)),
        ]))
    }),
    ("urlJoin", "m", Fresh(full::<48, 16>), |a| {
        let parts = map(a, 0)?;
        let part = |name: &str| parts.get(name).map_or_else(String::new, |v| to_text(&v));
        let url = Url {
            scheme: part("scheme"),
            opaque: part("opaque"),
            userinfo: part("userinfo"),
            host: part("host"),
            path: part("path"),
            query: part("query"),
            fragment: part("fragment"),
        };
        Ok(Value::text(url.joined()))
    }),
];

/// Returns a character in another case, unless that is several (Go's `upper "ß"` is `ß`).
fn single(c: char, mut cased: impl Iterator<Item = char>) -> char {
    match (cased.next(), cased.next()) {
        (Some(only), None) => only,
        _ => c,
    }
}

fn trim_all(a: &Call<'_>) -> Answer {
    let set: BTreeSet<char> = text(a, 0).chars().collect();
    Ok(Value::text(text(a, 1).trim_matches(|c| set.contains(&c))))
}

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
    Ok(Value::text(cleaned(text.rfind('/').map_or("", |end| &text[..=end]))))
}

fn ext(a: &Call<'_>) -> Answer {
    let text = text(a, 0);
    let name = last_part(&text);
    Ok(Value::text(name.rfind('.').map_or("", |dot| &name[dot..])))
}

fn is_absolute(a: &Call<'_>) -> Answer {
    Ok(Value::Bool(text(a, 0).starts_with('/')))
}

fn clean(a: &Call<'_>) -> Answer {
    Ok(Value::text(cleaned(&text(a, 0))))
}

/// Go's `path.Clean`.
fn cleaned(path: &str) -> String {
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
    match (rooted, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }
}

fn repeat(a: &Call<'_>) -> Answer {
    let count = size(a, 0, usize::MAX)?;
    Ok(Value::text(text(a, 1).repeat(count)))
}

/// Implements `substr START END TEXT`, in bytes as in Go; a negative start or end means the start
/// or end of the text.
fn substr(a: &Call<'_>) -> Answer {
    let (start, end, text) = (int(a, 0), int(a, 1), text(a, 2));
    let start = usize::try_from(start).unwrap_or(0);
    let end = usize::try_from(end).unwrap_or(text.len()).min(text.len());
    text.get(start..end)
        .map(Value::text)
        .ok_or_else(|| format!("there is no {start} to {end} in {:?}", cut(&text)))
}

/// Implements `trunc N TEXT`: the first N bytes, or the last -N if N is negative.
fn trunc(a: &Call<'_>) -> Answer {
    let (count, text) = (int(a, 0), text(a, 1));
    let length = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if length >= text.len() {
        return Ok(Value::text(text));
    }
    let part = if count >= 0 { text.get(..length) } else { text.get(text.len() - length..) };
    part.map(Value::text)
        .ok_or_else(|| format!("{count} lies inside a character of {:?}", cut(&text)))
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
pub(super) fn split(text: &str, separator: &str) -> Vec<Value> {
    if separator.is_empty() {
        let mut buffer = [0; 4];
        return text.chars().map(|c| Value::text(c.encode_utf8(&mut buffer))).collect();
    }
    text.split(separator).map(Value::text).collect()
}

/// As [`split`], into at most `count` parts.
fn split_most(text: &str, separator: &str, count: usize) -> Vec<Value> {
    if !separator.is_empty() || count == 0 {
        return text.splitn(count, separator).map(Value::text).collect();
    }
    let single = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    let ends: Vec<usize> = single.skip(1).take(count).collect();
    let mut start = 0;
    let mut parts = Vec::new();
    for (index, end) in ends.iter().enumerate() {
        let end = if index + 1 == count { text.len() } else { *end };
        parts.push(Value::text(&text[start..end]));
        start = end;
    }
    parts
}

/// Returns the map with keys `_0`, `_1`… that sprig's `split` returns.
fn numbered(parts: Vec<Value>) -> Value {
    let members = parts.into_iter().zip(0..);
    Value::map(members.map(|(part, index)| (format!("_{index}"), part)))
}

/// Converts `FirstName` and `first name` to `first_name`.
fn separated(text: &str, separator: char) -> String {
    let mut out = String::with_capacity(text.len() + 4);
    let mut before = None;
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        if c.is_whitespace() || c == '_' || c == '-' {
            out.push(separator);
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
    out
}

/// Go's `strings.Title`: a word begins after what is neither a letter, a digit nor `_`.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut begins = true;
    for c in text.chars() {
        if begins {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
        begins =
            if c.is_ascii() { !c.is_ascii_alphanumeric() && c != '_' } else { c.is_whitespace() };
    }
    out
}

/// Converts `http_server` and `HTTP_SERVER` to `HttpServer`; leading connectors and all but one of several stay.
fn camelcase(a: &Call<'_>) -> Answer {
    let text = text(a, 0);
    let is_connector = |c: char| c == '_' || c == '-' || c.is_whitespace();
    let upper = |c: char| c.to_uppercase().next().unwrap_or(c);
    let lower = |c: char| c.to_lowercase().next().unwrap_or(c);
    let mut out = String::with_capacity(text.len());
    let start = text.find(|c| !is_connector(c)).unwrap_or(text.len());
    out.push_str(&text[..start]);
    let mut rest = text[start..].chars();
    let Some(first) = rest.next() else {
        // The last of nothing but connectors is there twice.
        out.extend(text.chars().last());
        return Ok(Value::text(out));
    };
    // Whether the word has had upper-case letters alone.
    let mut is_upper = first.is_uppercase();
    let mut before = upper(first);
    for c in rest {
        let mut c = c;
        if is_connector(c) && is_connector(before) {
            out.push(before);
            continue;
        }
        if is_connector(before) {
            is_upper = c.is_uppercase();
            c = upper(c);
        } else {
            if is_upper && c.is_uppercase() {
                c = lower(c);
            } else {
                is_upper = false;
            }
            out.push(before);
        }
        before = c;
    }
    out.push(before);
    Ok(Value::text(out))
}

/// Applies `show` to all arguments except nil and joins the results with spaces.
fn words(a: &[Value], show: impl Fn(&str) -> String) -> Value {
    let given = a.iter().filter(|value| !matches!(value, Value::Nil));
    let mut shown = String::new();
    for (index, value) in given.enumerate() {
        if index > 0 {
            shown.push(' ');
        }
        shown.push_str(&show(&to_text(value)));
    }
    Value::text(shown)
}

fn indented(a: &[Value], before: &str) -> Answer {
    let width = usize::try_from(int(a, 0)).map_err(|_| "a negative width".to_owned())?;
    let text = text(a, 1);
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

/// Breaks lines at spaces, `width` in bytes as in Go; words that are longer are divided at the width or, without
/// `divides`, at their end.
fn wrapped(width: i64, text: &str, newline: &str, divides: bool) -> String {
    let newline = if newline.is_empty() { "\n" } else { newline }.as_bytes();
    let width = usize::try_from(width).unwrap_or(1).max(1);
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while bytes.len() - at > width {
        if bytes[at] == b' ' {
            at += 1;
            continue;
        }
        let space = |from: &[u8]| from.iter().position(|byte| *byte == b' ');
        let last = bytes[at..=at + width].iter().rposition(|byte| *byte == b' ');
        let (end, next) = match last {
            Some(space) => (at + space, at + space + 1),
            None if divides => (at + width, at + width),
            None => match space(&bytes[at + width..]) {
                Some(space) => (at + width + space, at + width + space + 1),
                None => break,
            },
        };
        out.extend_from_slice(&bytes[at..end]);
        out.extend_from_slice(newline);
        at = next;
    }
    out.extend_from_slice(&bytes[at..]);
    String::from_utf8(out)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
