//! Text: trimming, case, quoting, splitting, indenting.

use gotmpl::Value;

use super::arguments::{Arguments, list, string, text_of};
use super::{Answer, Group};

/// Maximum length of a text that a function creates, in bytes.
const LIMIT: usize = 16 << 20;

/// Functions in this file.
pub(super) const GROUP: Group = &[
    ("trim", |a| Ok(string(a.text(0)?.trim()))),
    ("trimAll", |a| {
        let set: Vec<char> = a.text(0)?.chars().collect();
        Ok(string(a.text(1)?.trim_matches(|c| set.contains(&c))))
    }),
    ("trimPrefix", |a| {
        let (prefix, text) = (a.text(0)?, a.text(1)?);
        Ok(string(text.strip_prefix(prefix.as_str()).unwrap_or(&text)))
    }),
    ("trimSuffix", |a| {
        let (suffix, text) = (a.text(0)?, a.text(1)?);
        Ok(string(text.strip_suffix(suffix.as_str()).unwrap_or(&text)))
    }),
    ("upper", |a| Ok(string(a.text(0)?.to_uppercase()))),
    ("lower", |a| Ok(string(a.text(0)?.to_lowercase()))),
    ("title", |a| Ok(string(initials(&a.text(0)?, |c| c.to_uppercase().collect())))),
    ("untitle", |a| Ok(string(initials(&a.text(0)?, |c| c.to_lowercase().collect())))),
    ("repeat", repeat),
    ("substr", substr),
    ("trunc", trunc),
    ("nospace", |a| Ok(string(a.text(0)?.replace(char::is_whitespace, "")))),
    ("contains", |a| Ok(Value::Bool(a.text(1)?.contains(&a.text(0)?)))),
    ("hasPrefix", |a| Ok(Value::Bool(a.text(1)?.starts_with(&a.text(0)?)))),
    ("hasSuffix", |a| Ok(Value::Bool(a.text(1)?.ends_with(&a.text(0)?)))),
    ("quote", |a| Ok(words(a, go_quoted))),
    ("squote", |a| Ok(words(a, |text| format!("'{text}'")))),
    ("cat", |a| Ok(words(a, str::to_owned))),
    ("indent", |a| Ok(string(indented(a)?))),
    ("nindent", |a| Ok(string(format!("\n{}", indented(a)?)))),
    ("replace", |a| Ok(string(a.text(2)?.replace(&a.text(0)?, &a.text(1)?)))),
    ("join", |a| {
        let separator = a.text(0)?;
        Ok(string(texts(a.value(1)?).join(&separator)))
    }),
    ("splitList", |a| {
        let separator = a.text(0)?;
        Ok(list(split(&a.text(1)?, &separator).iter().map(string)))
    }),
    ("split", |a| {
        let parts = split(&a.text(1)?, &a.text(0)?);
        Ok(numbered(&parts))
    }),
    ("splitn", |a| {
        let (separator, count, text) = (a.text(0)?, a.size(1, 1 << 20)?, a.text(2)?);
        let parts: Vec<String> = text.splitn(count, &separator).map(str::to_owned).collect();
        Ok(numbered(&parts))
    }),
    ("toString", |a| Ok(string(a.text(0)?))),
    ("toStrings", |a| Ok(list(texts(a.value(0)?).iter().map(string)))),
    ("snakecase", |a| Ok(string(separated(&a.text(0)?, '_')))),
    ("kebabcase", |a| Ok(string(separated(&a.text(0)?, '-')))),
    ("camelcase", camelcase),
    ("plural", |a| {
        let index = usize::from(a.int(2)? != 1);
        Ok(string(a.text(index)?))
    }),
    ("base", |a| Ok(string(base(&a.text(0)?)))),
    ("dir", |a| {
        let text = a.text(0)?;
        Ok(string(match text.rfind('/') {
            None => ".",
            Some(0) => "/",
            Some(end) => &text[..end],
        }))
    }),
    ("ext", |a| {
        let text = a.text(0)?;
        let name = base(&text);
        Ok(string(name.rfind('.').map_or("", |dot| &name[dot..])))
    }),
    ("isAbs", |a| Ok(Value::Bool(a.text(0)?.starts_with('/')))),
];

fn base(path: &str) -> &str {
    match path.trim_end_matches('/') {
        "" if path.is_empty() => ".",
        "" => "/",
        path => path.rsplit('/').next().unwrap_or(path),
    }
}

fn repeat(a: &Arguments<'_>) -> Answer {
    let (count, text) = (a.size(0, LIMIT)?, a.text(1)?);
    if text.len().saturating_mul(count) > LIMIT {
        return Err(a.refuse("the text would be too long"));
    }
    Ok(string(text.repeat(count)))
}

/// Implements `substr START END TEXT`, in bytes as in Go; a negative start or end means the start
/// or end of the text.
fn substr(a: &Arguments<'_>) -> Answer {
    let (start, end, text) = (a.int(0)?, a.int(1)?, a.text(2)?);
    let start = usize::try_from(start).unwrap_or(0);
    let end = usize::try_from(end).unwrap_or(text.len()).min(text.len());
    text.get(start..end)
        .map(string)
        .ok_or_else(|| a.refuse(format!("there is no {start} to {end} in {text:?}")))
}

/// Implements `trunc N TEXT`: the first N bytes, or the last -N if N is negative.
fn trunc(a: &Arguments<'_>) -> Answer {
    let (count, text) = (a.int(0)?, a.text(1)?);
    let length = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if length >= text.len() {
        return Ok(string(text));
    }
    let cut = match count >= 0 {
        true => text.get(..length),
        false => text.get(text.len() - length..),
    };
    cut.map(string).ok_or_else(|| a.refuse(format!("{count} lies inside a character of {text:?}")))
}

/// Applies `change` to the first letter of each word.
fn initials(text: &str, change: impl Fn(char) -> String) -> String {
    let mut after_space = true;
    let mut changed = String::with_capacity(text.len());
    for c in text.chars() {
        match after_space {
            true => changed.push_str(&change(c)),
            false => changed.push(c),
        }
        after_space = c.is_whitespace();
    }
    changed
}

/// Applies `show` to all arguments except nil and joins the results with spaces.
fn words(a: &Arguments<'_>, show: impl Fn(&str) -> String) -> Value {
    let shown: Vec<String> = a
        .all()
        .iter()
        .filter(|value| !matches!(value, Value::Nil))
        .map(|value| show(&text_of(value)))
        .collect();
    string(shown.join(" "))
}

/// Quotes text like Go's `%q`, for the escapes that occur.
pub(super) fn go_quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            c if u32::from(c) < 0x20 || u32::from(c) == 0x7f => {
                quoted.push_str(&format!("\\x{:02x}", u32::from(c)));
            }
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn indented(a: &Arguments<'_>) -> Result<String, gotmpl::TemplateError> {
    let pad = " ".repeat(a.size(0, 1024)?);
    let text = a.text(1)?;
    let lines = text.split('\n').count();
    if lines.saturating_mul(pad.len()).saturating_add(text.len()) > LIMIT {
        return Err(a.refuse("the text would be too long"));
    }
    Ok(format!("{pad}{}", text.replace('\n', &format!("\n{pad}"))))
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
    let members: super::arguments::Members = parts
        .iter()
        .enumerate()
        .map(|(index, part)| (format!("_{index}").into(), string(part)))
        .collect();
    Value::from(members)
}

/// Returns the items of a list as texts, without nil; any other value becomes a list of one item.
pub(super) fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::List(items) => {
            items.iter().filter(|item| !matches!(item, Value::Nil)).map(text_of).collect()
        }
        Value::Nil => Vec::new(),
        other => vec![text_of(other)],
    }
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
fn camelcase(a: &Arguments<'_>) -> Answer {
    let text = a.text(0)?;
    let words = text.split(|c: char| c == '_' || c == '-' || c.is_whitespace());
    let camel: String = words.map(|word| initials(word, |c| c.to_uppercase().collect())).collect();
    Ok(string(camel))
}
