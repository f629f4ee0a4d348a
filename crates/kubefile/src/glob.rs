//! Patterns for one path segment with the rules of Go's `filepath.Match`, on bytes: `*`, `?`,
//! `[a-z]`, `[^a-z]` and `\`. Used by `COPY` sources and ignore rules. Must not depend on files.

/// Returns whether a raw name is a pattern (an escape makes it one as well).
pub fn has_meta(name: &[u8]) -> bool {
    name.iter().any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'))
}

/// A compiled pattern for one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentPattern {
    tokens: Vec<Token>,
}

/// The pattern is malformed: `[` without `]`, an empty class, a misplaced `-` in a class, or `\` at
/// the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPattern;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Unit(Unit),
    /// `?`: one character, not `/`.
    Any,
    /// `*`: any number of characters, not `/`.
    Star,
    /// `[…]`: one character in (or, if negated, not in) the ranges; may be `/`, as in Go.
    Class {
        negated: bool,
        ranges: Vec<(Unit, Unit)>,
    },
    /// Zero or more whole directories, each with its `/`; ignore rules only.
    Directories,
    /// Any text; ignore rules only.
    Everything,
}

/// A character, or a byte that is not part of one (numbered above all characters).
pub(super) type Unit = u32;

pub(super) const SLASH: Unit = b'/' as Unit;

const NOT_UTF8: Unit = 0x11_0000;

/// Returns the first character of `bytes` and its length; `None` at the end.
pub(super) fn first_unit(bytes: &[u8]) -> Option<(Unit, usize)> {
    let &first = bytes.first()?;
    if first.is_ascii() {
        return Some((first.into(), 1));
    }
    let length = match first {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    };
    let character = bytes
        .get(..length)
        .and_then(|bytes| std::str::from_utf8(bytes).ok())
        .and_then(|text| text.chars().next());
    match character {
        Some(c) => Some((c.into(), length)),
        None => Some((NOT_UTF8 + Unit::from(first), 1)),
    }
}

impl Token {
    /// Returns whether the token matches this character.
    pub(super) fn takes(&self, unit: Unit) -> bool {
        match self {
            Token::Unit(expected) => *expected == unit,
            Token::Any | Token::Star => unit != SLASH,
            Token::Class { negated, ranges } => {
                let inside = ranges.iter().any(|&(low, high)| (low..=high).contains(&unit));
                inside != *negated
            }
            Token::Directories | Token::Everything => true,
        }
    }
}

impl SegmentPattern {
    /// Compiles a pattern. Fails where `filepath.Match` reports "bad pattern".
    pub fn compile(pattern: &[u8]) -> Result<Self, BadPattern> {
        let mut tokens = Vec::new();
        let mut rest = pattern;
        while let Some((token, tail)) = next_token(rest)? {
            if token != Token::Star || tokens.last() != Some(&Token::Star) {
                tokens.push(token);
            }
            rest = tail;
        }
        Ok(Self { tokens })
    }

    /// Creates a pattern from existing tokens.
    pub(super) fn from_tokens(tokens: Vec<Token>) -> Self {
        Self { tokens }
    }

    /// Returns whether a file name matches. Does not allocate. The cost is usually linear, and at
    /// worst pattern × name if stars and text overlap.
    pub fn matches(&self, name: &[u8]) -> bool {
        let (mut token, mut at) = (0, 0);
        // Where to resume if the text after the last star does not match.
        let mut retry: Option<(usize, usize)> = None;
        loop {
            let unit = first_unit(&name[at..]);
            let moved = match (self.tokens.get(token), unit) {
                (None, None) => return true,
                (Some(Token::Star), _) => {
                    token += 1;
                    retry = Some((token, at));
                    continue;
                }
                (Some(pattern), Some((unit, length))) if pattern.takes(unit) => Some(length),
                _ => None,
            };
            if let Some(length) = moved {
                token += 1;
                at += length;
                continue;
            }
            let Some((after_star, from)) = retry else {
                return false;
            };
            match first_unit(&name[from..]) {
                Some((unit, length)) if unit != SLASH => {
                    retry = Some((after_star, from + length));
                    (token, at) = (after_star, from + length);
                }
                _ => return false,
            }
        }
    }
}

/// Reads one token of a `filepath.Match` pattern.
pub(super) fn next_token(pattern: &[u8]) -> Result<Option<(Token, &[u8])>, BadPattern> {
    let Some((unit, length)) = first_unit(pattern) else {
        return Ok(None);
    };
    let rest = &pattern[length..];
    Ok(Some(match u8::try_from(unit) {
        Ok(b'*') => (Token::Star, rest),
        Ok(b'?') => (Token::Any, rest),
        Ok(b'\\') => {
            let (unit, length) = first_unit(rest).ok_or(BadPattern)?;
            (Token::Unit(unit), &rest[length..])
        }
        Ok(b'[') => class(rest)?,
        _ => (Token::Unit(unit), rest),
    }))
}

/// Reads the inside of `[…]`.
fn class(mut rest: &[u8]) -> Result<(Token, &[u8]), BadPattern> {
    let negated = rest.first() == Some(&b'^');
    if negated {
        rest = &rest[1..];
    }
    let mut ranges = Vec::new();
    while rest.first() != Some(&b']') || ranges.is_empty() {
        let low;
        (low, rest) = class_unit(rest)?;
        let mut high = low;
        if rest.first() == Some(&b'-') {
            (high, rest) = class_unit(&rest[1..])?;
        }
        ranges.push((low, high));
    }
    Ok((Token::Class { negated, ranges }, &rest[1..]))
}

fn class_unit(rest: &[u8]) -> Result<(Unit, &[u8]), BadPattern> {
    let rest = match rest.first() {
        None | Some(b'-' | b']') => return Err(BadPattern),
        Some(b'\\') => &rest[1..],
        Some(_) => rest,
    };
    let (unit, length) = first_unit(rest).ok_or(BadPattern)?;
    // The closing bracket must follow.
    match &rest[length..] {
        [] => Err(BadPattern),
        tail => Ok((unit, tail)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_like_filepath_match() {
        for (pattern, name, expected) in [
            ("chart.tgz", "chart.tgz", true),
            ("chart.tgz", "chart-tgz", false),
            ("*", "chart.tgz", true),
            ("*", "", true),
            ("*.tgz", "chart.tgz", true),
            ("*.tgz", ".tgz", true),
            ("*.tgz", "chart.tgz.sig", false),
            ("kube*", "kube", true),
            ("kube*", "kube/let", false),
            ("kube*/bin", "kubelet/bin", true),
            ("*-*-*.tar", "v1-2-3-4.tar", true),
            ("*-*-*.tar", "v1-2.tar", false),
            ("*le*t", "kubelet-let", true),
            ("*le*t", "kubelet-lex", false),
            ("k?d", "kad", true),
            ("k?d", "kéd", true),
            ("k??d", "kéd", false),
            ("k?d", "k/d", false),
            ("v[0-9]", "v3", true),
            ("v[0-9]", "vx", false),
            ("v[^0-9]", "v3", false),
            ("v[^0-9]", "vé", true),
            ("v[^0-9]", "v/", true),
            ("v[0-9a-cx]", "vb", true),
            ("v[0-9a-cx]", "vx", true),
            ("[à-ü]", "é", true),
            ("[à-ü]", "e", false),
            (r"a\*", "a*", true),
            (r"a\*", "ab", false),
            (r"[\]\-]", "]", true),
            (r"[\]\-]", "-", true),
            (r"[\]\-]", r"\", false),
            ("[[]", "[", true),
            ("a**b", "axxb", true),
            ("", "", true),
            ("", "a", false),
        ] {
            let compiled = SegmentPattern::compile(pattern.as_bytes()).unwrap();
            assert_eq!(compiled.matches(name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn bad_patterns_are_refused() {
        for bad in [
            "[", "v[", "v[^", "v[0-9", "[]", "[]x]", "[^]x]", "[-]", "[-9]", "[0-]", "[0-9-]",
            "v\\", "[v\\",
        ] {
            assert_eq!(SegmentPattern::compile(bad.as_bytes()), Err(BadPattern), "{bad}");
        }
    }

    #[test]
    fn names_need_not_be_utf8() {
        let pattern = |p: &[u8]| SegmentPattern::compile(p).unwrap();
        assert!(pattern(b"a?b").matches(b"a\xffb"));
        assert!(pattern(b"a\xffb").matches(b"a\xffb"));
        assert!(!pattern(b"a\xffb").matches("aÿb".as_bytes()));
        assert!(pattern(b"*.txt").matches(b"\xff\xfe.txt"));
        assert!(has_meta(b"a[b") && !has_meta(b"a b.c"));
    }

    #[test]
    fn stars_do_not_explode() {
        let pattern = SegmentPattern::compile("a*".repeat(200).as_bytes()).unwrap();
        let mut name = "a".repeat(2000);
        assert!(pattern.matches(name.as_bytes()));
        name.insert(1000, '/');
        assert!(!pattern.matches(name.as_bytes()));
    }
}
