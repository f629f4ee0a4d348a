//! Strings: trimming, case, splitting, names, paths, quoting, indenting, wrapping, regular expressions
//! (Rust's syntax matches Go's RE2 except in corner cases), addresses of the web.

use std::collections::BTreeSet;

use regex::{Regex, RegexBuilder};

use super::call::{Answer, Call, Group, int, map, size, text};
use super::growth::Growth::{Flat, Fresh};
use super::growth::{self, divided, full, lines, replaced, searched, substituted};
use crate::print::{cut, quoted, to_text};
use crate::value::Value;

/// Maximum length of a regular expression, in bytes: its syntax tree takes hundreds of times as much.
const LONGEST_PATTERN: usize = 16 << 10;

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
    ("upper", "s", Fresh(full::<48, 8>), |a| Ok(Value::text(text(a, 0).to_uppercase()))),
    ("lower", "s", Fresh(full::<48, 8>), |a| Ok(Value::text(text(a, 0).to_lowercase()))),
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
        let (separator, count, text) = (text(a, 0), size(a, 1, 1 << 20)?, text(a, 2));
        Ok(numbered(text.splitn(count, &*separator).map(Value::text).collect()))
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
        Ok(Value::text(wrapped(int(a, 0), &text(a, 1), "\n")))
    }),
    ("wrapWith", "iss", Fresh(growth::wrapped), |a| {
        Ok(Value::text(wrapped(int(a, 0), &text(a, 2), &text(a, 1))))
    }),
    ("urlParse", "s", Fresh(full::<48, 3>), |a| Ok(url_parts(&text(a, 0)))),
    ("urlJoin", "m", Fresh(full::<48, 8>), |a| {
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
    ("mustRegexMatch", "ss", Fresh(searched::<1>), |a| {
        Ok(Value::Bool(compiled(&text(a, 0))?.is_match(&text(a, 1))))
    }),
    ("regexMatch", "ss", Fresh(searched::<1>), |a| {
        let matches = compiled(&text(a, 0)).is_ok_and(|regex| regex.is_match(&text(a, 1)));
        Ok(Value::Bool(matches))
    }),
    ("regexFind", "ss", Fresh(searched::<2>), |a| {
        let text = text(a, 1);
        let found = compiled(&super::call::text(a, 0))?.find(&text).map(|m| m.as_str());
        Ok(Value::text(found.unwrap_or("")))
    }),
    ("regexFindAll", "ssi", Fresh(searched::<160>), |a| {
        let (regex, text) = (compiled(&text(a, 0))?, text(a, 1));
        let most = usize::try_from(int(a, 2)).unwrap_or(usize::MAX);
        let found = regex.find_iter(&text).take(most);
        Ok(Value::list(found.map(|m| Value::text(m.as_str()))))
    }),
    ("regexReplaceAll", "sss", Fresh(substituted), |a| {
        let (regex, text) = (compiled(&text(a, 0))?, text(a, 1));
        let by = super::call::text(a, 2);
        Ok(Value::text(regex.replace_all(&text, &*by)))
    }),
    ("regexReplaceAllLiteral", "sss", Fresh(substituted), |a| {
        let (regex, text) = (compiled(&text(a, 0))?, text(a, 1));
        let by = super::call::text(a, 2);
        Ok(Value::text(regex.replace_all(&text, regex::NoExpand(&by))))
    }),
    ("regexSplit", "ssi", Fresh(searched::<160>), |a| {
        let (regex, text) = (compiled(&text(a, 0))?, text(a, 1));
        let parts: Vec<Value> = match usize::try_from(int(a, 2)) {
            Ok(most) => regex.splitn(&text, most).map(Value::text).collect(),
            Err(_) => regex.split(&text).map(Value::text).collect(),
        };
        Ok(Value::list(parts))
    }),
    ("regexQuoteMeta", "s", Fresh(full::<48, 8>), |a| Ok(Value::text(regex::escape(&text(a, 0))))),
];

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

/// Converts `http_server` to `HttpServer`.
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

fn camelcase(a: &Call<'_>) -> Answer {
    let text = text(a, 0);
    let words = text.split(|c: char| c == '_' || c == '-' || c.is_whitespace());
    let camel: String = words.map(|word| initials(word, |c| c.to_uppercase().collect())).collect();
    Ok(Value::text(camel))
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

fn compiled(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > LONGEST_PATTERN {
        let most = LONGEST_PATTERN;
        return Err(format!(
            "the regular expression is longer than {most} bytes: {}",
            cut(pattern)
        ));
    }
    RegexBuilder::new(&adapted(pattern))
        .size_limit(1 << 20)
        .build()
        .map_err(|error| error.to_string())
}

/// Escapes a dash that follows a class within brackets (`[\w-.]`), because Go treats it as a
/// literal.
fn adapted(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut inside = false;
    let mut after_class = false;
    let mut characters = pattern.chars();
    while let Some(c) = characters.next() {
        let class = after_class;
        after_class = false;
        match c {
            '\\' => {
                out.push(c);
                if let Some(escaped) = characters.next() {
                    out.push(escaped);
                    after_class = inside && "wWdDsS".contains(escaped);
                }
                continue;
            }
            '[' => inside = true,
            ']' => inside = false,
            '-' if class => out.push('\\'),
            _ => {}
        }
        out.push(c);
    }
    out
}
