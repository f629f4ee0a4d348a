//! Regular expressions. Rust's syntax matches Go's (RE2) except in corner cases.

use regex::{Regex, RegexBuilder};

use super::call::{Group, int, text};
use crate::value::Value;

pub(super) const GROUP: Group = &[
    ("regexMatch", "ss", |a| Ok(Value::Bool(compiled(&text(a, 0))?.is_match(&text(a, 1))))),
    ("regexFind", "ss", |a| {
        let text = text(a, 1);
        let found = compiled(&super::call::text(a, 0))?.find(&text).map(|m| m.as_str());
        Ok(Value::text(found.unwrap_or("")))
    }),
    ("regexFindAll", "ssi", |a| {
        let (regex, text) = (compiled(&text(a, 0))?, text(a, 1));
        let most = usize::try_from(int(a, 2)).unwrap_or(usize::MAX);
        let found = regex.find_iter(&text).take(most);
        Ok(Value::list(found.map(|m| Value::text(m.as_str()))))
    }),
    ("regexReplaceAll", "sss", |a| {
        let (regex, text) = (compiled(&text(a, 0))?, text(a, 1));
        let by = super::call::text(a, 2);
        Ok(Value::text(regex.replace_all(&text, by.as_ref())))
    }),
    ("regexReplaceAllLiteral", "sss", |a| {
        let (regex, text) = (compiled(&text(a, 0))?, text(a, 1));
        let by = super::call::text(a, 2);
        Ok(Value::text(regex.replace_all(&text, regex::NoExpand(&by))))
    }),
    ("regexSplit", "ssi", |a| {
        let (regex, text) = (compiled(&text(a, 0))?, text(a, 1));
        let parts: Vec<Value> = match usize::try_from(int(a, 2)) {
            Ok(most) => regex.splitn(&text, most).map(Value::text).collect(),
            Err(_) => regex.split(&text).map(Value::text).collect(),
        };
        Ok(Value::list(parts))
    }),
    ("regexQuoteMeta", "s", |a| Ok(Value::text(regex::escape(&text(a, 0))))),
];

fn compiled(pattern: &str) -> Result<Regex, String> {
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
