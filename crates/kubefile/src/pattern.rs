//! The patterns of `${v#p}`, `${v%p}` and `${v/p/r}`: `*` and `?`, without bracket classes
//! (BuildKit's rule). As in BuildKit, wildcards do not match newlines.

use regex::Regex;

use super::expand::ExpandError;

/// The elements of a pattern, each as a regular expression.
#[derive(Debug)]
pub(super) struct ShellPattern(Vec<String>);

impl ShellPattern {
    /// Reads a pattern. `\*`, `\?` and `\\` stand for the characters themselves; `\}` and `\/` are
    /// escaped because of the surrounding `${}`. No other character can be escaped.
    pub(super) fn compile(pattern: &str) -> Result<Self, ExpandError> {
        let mut elements = Vec::new();
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            elements.push(match c {
                '*' => ".*".to_owned(),
                '?' => ".".to_owned(),
                '\\' => match chars.next() {
                    Some(c @ ('*' | '?' | '\\' | '}' | '/')) => regex::escape(&c.to_string()),
                    other => return Err(ExpandError::BadPattern(other.unwrap_or('\\'))),
                },
                c => regex::escape(&c.to_string()),
            });
        }
        Ok(Self(elements))
    }

    /// Implements `${v#p}` and `${v##p}`.
    pub(super) fn trim_prefix<'a>(
        &self,
        value: &'a str,
        longest: bool,
    ) -> Result<&'a str, ExpandError> {
        let length = anchored(&self.0.concat(), value, longest)?;
        Ok(&value[length..])
    }

    /// Implements `${v%p}` and `${v%%p}`.
    pub(super) fn trim_suffix<'a>(
        &self,
        value: &'a str,
        longest: bool,
    ) -> Result<&'a str, ExpandError> {
        let reversed: String = self.0.iter().rev().map(String::as_str).collect();
        let length = anchored(&reversed, &value.chars().rev().collect::<String>(), longest)?;
        Ok(&value[..value.len() - length])
    }

    /// Implements `${v/p/r}` and, with `all`, `${v//p/r}`: the leftmost, then longest matches. The
    /// result has at most `limit` bytes.
    pub(super) fn replace(
        &self,
        value: &str,
        replacement: &str,
        all: bool,
        limit: usize,
    ) -> Result<String, ExpandError> {
        let regex = regex(&self.0.concat())?;
        let mut result = String::new();
        let mut at = 0;
        for found in regex.find_iter(value).take(if all { usize::MAX } else { 1 }) {
            result.push_str(&value[at..found.start()]);
            result.push_str(replacement);
            at = found.end();
            if result.len() > limit {
                return Err(ExpandError::TooLarge);
            }
        }
        result.push_str(&value[at..]);
        if result.len() > limit { Err(ExpandError::TooLarge) } else { Ok(result) }
    }
}

/// Returns the length of the shortest or longest match at the start of `text`, 0 if there is none.
fn anchored(pattern: &str, text: &str, longest: bool) -> Result<usize, ExpandError> {
    let flags = if longest { "" } else { "(?U)" };
    let regex = regex(&format!("{flags}^{pattern}"))?;
    Ok(regex.find(text).map_or(0, |found| found.end()))
}

/// Matching costs at most pattern × text.
fn regex(pattern: &str) -> Result<Regex, ExpandError> {
    Regex::new(pattern).map_err(|_| ExpandError::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> ShellPattern {
        ShellPattern::compile(text).unwrap()
    }

    #[test]
    fn prefixes_and_suffixes() {
        // pattern, value, shortest prefix, longest prefix, shortest suffix, longest suffix
        for (p, value, sp, lp, ss, ls) in [
            ("a", "abca", "bca", "bca", "abc", "abc"),
            ("*b", "abcbd", "cbd", "d", "abcbd", "abcbd"),
            ("b*", "abcbd", "abcbd", "abcbd", "abc", "a"),
            ("?", "äbc", "bc", "bc", "äb", "äb"),
            ("*", "abc", "abc", "", "abc", ""),
            ("", "abc", "abc", "abc", "abc", "abc"),
            (r"\*", "*a*", "a*", "a*", "*a", "*a"),
            ("x", "abc", "abc", "abc", "abc", "abc"),
            ("a*c", "abcbc", "bc", "", "", ""),
            ("*/", "a/b/c", "b/c", "c", "a/b/c", "a/b/c"),
            ("/*", "a/b/c", "a/b/c", "a/b/c", "a/b", "a"),
            ("*b", "a\nb", "a\nb", "a\nb", "a\n", "a\n"),
        ] {
            let compiled = pattern(p);
            assert_eq!(compiled.trim_prefix(value, false).unwrap(), sp, "{p} # {value}");
            assert_eq!(compiled.trim_prefix(value, true).unwrap(), lp, "{p} ## {value}");
            assert_eq!(compiled.trim_suffix(value, false).unwrap(), ss, "{p} % {value}");
            assert_eq!(compiled.trim_suffix(value, true).unwrap(), ls, "{p} %% {value}");
        }
    }

    #[test]
    fn replacements() {
        for (p, value, first, all) in [
            ("b", "abcb", "aXcb", "aXcX"),
            ("a*c", "zabcbcz", "zXz", "zXz"),
            ("?", "abc", "Xbc", "XXX"),
            ("*", "abc", "X", "X"),
            ("", "ab", "Xab", "XaXbX"),
            ("q", "abc", "abc", "abc"),
            ("aa", "aaaaa", "Xaaa", "XXa"),
            ("ab*d", "ababcab", "ababcab", "ababcab"),
            ("a*", "xaya\naz", "xX\naz", "xX\nX"),
        ] {
            let replace = |all| pattern(p).replace(value, "X", all, 1000).unwrap();
            assert_eq!(replace(false), first, "{p} / {value}");
            assert_eq!(replace(true), all, "{p} // {value}");
        }
        assert_eq!(pattern("a").replace("aaa", "XXXX", true, 10), Err(ExpandError::TooLarge));
    }

    #[test]
    fn only_wildcards_and_delimiters_are_escaped() {
        assert_eq!(ShellPattern::compile("\\a").unwrap_err(), ExpandError::BadPattern('a'));
        assert!(ShellPattern::compile("\\").is_err());
        assert_eq!(pattern("\\/").trim_prefix("/a", true).unwrap(), "a");
    }
}
