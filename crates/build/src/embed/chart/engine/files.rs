//! `.Files`: the other files of the chart, and the glob patterns that select them.

use std::collections::BTreeMap;
use std::rc::Rc;

use base64::Engine as _;

use super::objects::{Object, text_argument};
use super::value::Value;
use super::yaml;

type All = BTreeMap<String, Rc<[u8]>>;

/// Calls a method of `.Files`. A name that is not a method is a path, as in Go's map.
pub(super) fn method(
    files: &Rc<All>,
    name: &str,
    arguments: &[Value],
) -> Option<Result<Value, String>> {
    let text = || text_argument(name, arguments);
    let content = |path: &str| files.get(path).cloned();
    Some(match name {
        "Get" => text().map(|path| {
            let bytes = content(&path).unwrap_or_default();
            Value::text(String::from_utf8_lossy(&bytes))
        }),
        "GetBytes" => text().map(|path| Value::Bytes(content(&path).unwrap_or_default())),
        "Lines" => text().map(|path| lines(&content(&path).unwrap_or_default())),
        "Glob" => text().map(|pattern| glob(files, &pattern)),
        "AsConfig" => as_map(files, |bytes| String::from_utf8_lossy(bytes).into_owned()),
        "AsSecrets" => {
            as_map(files, |bytes| base64::engine::general_purpose::STANDARD.encode(bytes))
        }
        path => Ok(content(path).map_or(Value::Nil, Value::Bytes)),
    })
}

fn lines(bytes: &[u8]) -> Value {
    let text = String::from_utf8_lossy(bytes);
    if text.is_empty() {
        return Value::list([]);
    }
    Value::list(text.strip_suffix('\n').unwrap_or(&text).split('\n').map(Value::text))
}

fn glob(files: &All, pattern: &str) -> Value {
    let chosen: All = files
        .iter()
        .filter(|(path, _)| matches(pattern, path))
        .map(|(path, content)| (path.clone(), content.clone()))
        .collect();
    Value::Object(Rc::new(Object::Files(Rc::new(chosen))))
}

/// Entries of a ConfigMap or Secret: base names and contents. No files produce an empty string.
fn as_map(files: &All, show: impl Fn(&[u8]) -> String) -> Result<Value, String> {
    if files.is_empty() {
        return Ok(Value::text(""));
    }
    let members = files.iter().map(|(path, content)| {
        let base = path.rsplit('/').next().unwrap_or(path);
        (base, Value::text(show(content)))
    });
    yaml::to_yaml(&Value::map(members)).map(Value::text)
}

/// Returns whether the glob `pattern` matches the whole of `path`. `*` and `?` stop at a slash,
/// `**` does not; `[a-z]`, `[!a]`, `{a,b}` and `\x` are supported.
pub(in super::super) fn matches(pattern: &str, path: &str) -> bool {
    // Each `{a,b}` multiplies the number of alternatives; the budget stops a pattern from a hostile
    // chart.
    let mut budget = 100_000;
    let pattern: Vec<char> = pattern.chars().collect();
    let path: Vec<char> = path.chars().collect();
    alternatives(&pattern).iter().any(|pattern| covers(pattern, &path, &mut budget))
}

/// Expands each `{a,b}` in the pattern.
fn alternatives(pattern: &[char]) -> Vec<Vec<char>> {
    let mut done = Vec::new();
    let mut pending = vec![pattern.to_vec()];
    while let Some(pattern) = pending.pop() {
        let open = pattern.iter().position(|c| *c == '{');
        let end = open.and_then(|open| {
            let close = pattern.iter().skip(open).position(|c| *c == '}')?;
            Some((open, open + close))
        });
        match end {
            Some((open, close)) if done.len() + pending.len() < 256 => {
                for choice in pattern[open + 1..close].split(|c| *c == ',') {
                    let mut chosen = pattern[..open].to_vec();
                    chosen.extend_from_slice(choice);
                    chosen.extend_from_slice(&pattern[close + 1..]);
                    pending.push(chosen);
                }
            }
            _ => done.push(pattern),
        }
    }
    done
}

/// Recursion: one level for each star; a pattern may have at most 64.
fn covers(pattern: &[char], path: &[char], budget: &mut u32) -> bool {
    if pattern.iter().filter(|c| **c == '*').count() > 64 {
        return false;
    }
    let (mut pattern, mut path) = (pattern, path);
    loop {
        match (pattern, path) {
            ([], []) => return true,
            (['*', '*', rest @ ..], _) => {
                return (0..=path.len()).any(|skip| try_rest(rest, &path[skip..], budget));
            }
            (['*', rest @ ..], _) => {
                let end = path.iter().position(|c| *c == '/').unwrap_or(path.len());
                return (0..=end).any(|skip| try_rest(rest, &path[skip..], budget));
            }
            (['?', rest @ ..], [c, tail @ ..]) if *c != '/' => (pattern, path) = (rest, tail),
            (['[', ..], [c, tail @ ..]) => match class(&pattern[1..], *c) {
                Some((true, rest)) => (pattern, path) = (rest, tail),
                _ => return false,
            },
            (['\\', wanted, rest @ ..], [c, tail @ ..]) if wanted == c => {
                (pattern, path) = (rest, tail);
            }
            ([wanted, rest @ ..], [c, tail @ ..]) if wanted == c => (pattern, path) = (rest, tail),
            _ => return false,
        }
    }
}

fn try_rest(pattern: &[char], path: &[char], budget: &mut u32) -> bool {
    if *budget == 0 {
        return false;
    }
    *budget -= 1;
    covers(pattern, path, budget)
}

/// Returns whether `c` is in the class that begins after `[`, and the pattern after the class.
fn class(pattern: &[char], c: char) -> Option<(bool, &[char])> {
    let close = pattern.iter().position(|c| *c == ']')?;
    let (members, rest) = (&pattern[..close], &pattern[close + 1..]);
    let (negated, members) = match members {
        ['!' | '^', rest @ ..] => (true, rest),
        members => (false, members),
    };
    let mut found = false;
    let mut position = 0;
    while let Some(low) = members.get(position) {
        match (members.get(position + 1), members.get(position + 2)) {
            (Some('-'), Some(high)) => {
                found |= (*low..=*high).contains(&c);
                position += 3;
            }
            _ => {
                found |= *low == c;
                position += 1;
            }
        }
    }
    Some((found != negated, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_stop_at_slashes_unless_doubled() {
        for (pattern, path, expected) in [
            ("files/*", "files/a.txt", true),
            ("files/*", "files/a/b.txt", false),
            ("files/**", "files/a/b.txt", true),
            ("**.yaml", "a/b.yaml", true),
            ("*.{json,yaml}", "b.yaml", true),
            ("*.{json,yaml}", "b.toml", false),
            ("[a-c]?.txt", "b1.txt", true),
            ("[!a-c]?.txt", "b1.txt", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
        let hostile = "*a".repeat(40);
        assert!(!matches(&hostile, &"a".repeat(39)));
    }
}
