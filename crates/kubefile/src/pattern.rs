//! The patterns of `${v#p}`, `${v%p}` and `${v/p/r}`: `*` and `?`, without bracket classes
//! (BuildKit's rule).
//!
//! Matching follows all possibilities at once, so its cost is always pattern × text.

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct ShellPattern {
    tokens: Vec<Token>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Char(char),
    /// `?`: one character.
    Any,
    /// `*`: any number of characters.
    Star,
}

impl Token {
    /// Returns whether the token matches `c`. As in BuildKit, wildcards do not match newlines.
    fn takes(self, c: char) -> bool {
        match self {
            Token::Char(expected) => expected == c,
            Token::Any | Token::Star => c != '\n',
        }
    }
}

impl ShellPattern {
    /// Compiles a pattern; `Err` holds a character that must not be escaped. `\*`, `\?` and `\\`
    /// stand for the characters themselves; `\}` and `\/` are escaped because of the surrounding
    /// `${}`.
    pub(super) fn compile(pattern: &str) -> Result<Self, char> {
        let mut tokens = Vec::new();
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            tokens.push(match c {
                // Consecutive stars are one star.
                '*' if tokens.last() == Some(&Token::Star) => continue,
                '*' => Token::Star,
                '?' => Token::Any,
                '\\' => match chars.next() {
                    Some(c @ ('*' | '?' | '\\' | '}' | '/')) => Token::Char(c),
                    other => return Err(other.unwrap_or('\\')),
                },
                c => Token::Char(c),
            });
        }
        Ok(Self { tokens })
    }

    /// Implements `${v#p}` and `${v##p}`.
    pub(super) fn trim_prefix<'a>(&self, value: &'a str, longest: bool) -> &'a str {
        let ends = value.char_indices().map(|(at, c)| (at + c.len_utf8(), c));
        match anchored(&self.tokens, ends, longest) {
            Some(length) => &value[length..],
            None => value,
        }
    }

    /// Implements `${v%p}` and `${v%%p}`.
    pub(super) fn trim_suffix<'a>(&self, value: &'a str, longest: bool) -> &'a str {
        let reversed: Vec<Token> = self.tokens.iter().rev().copied().collect();
        let starts = value.char_indices().rev();
        let ends = starts.map(|(at, c)| (value.len() - at, c));
        match anchored(&reversed, ends, longest) {
            Some(length) => &value[..value.len() - length],
            None => value,
        }
    }

    /// Implements `${v/p/r}` and, with `all`, `${v//p/r}`. Returns `None` if the result is longer
    /// than `limit` bytes.
    pub(super) fn replace(
        &self,
        value: &str,
        replacement: &str,
        all: bool,
        limit: usize,
    ) -> Option<String> {
        let mut result = String::new();
        let mut at = 0;
        // No empty match directly after another match (as in Go).
        let mut blocked = None;
        while let Some((start, end)) = self.find(value, at) {
            result.push_str(&value[at..start]);
            if start < end || blocked != Some(start) {
                result.push_str(replacement);
            }
            at = end;
            blocked = Some(end);
            if start == end {
                match value[end..].chars().next() {
                    Some(c) if all => {
                        result.push(c);
                        at += c.len_utf8();
                    }
                    _ => break,
                }
            }
            if result.len() > limit {
                return None;
            }
            if !all {
                break;
            }
        }
        result.push_str(value.get(at..).unwrap_or_default());
        (result.len() <= limit).then_some(result)
    }

    /// Returns the leftmost, then longest match at or after `from`.
    fn find(&self, value: &str, from: usize) -> Option<(usize, usize)> {
        let goal = self.tokens.len();
        // For each state, the earliest start that leads to it.
        let mut states: Vec<Option<usize>> = vec![None; goal + 1];
        let mut following = states.clone();
        let mut best: Option<(usize, usize)> = None;
        let mut chars = value[from..].char_indices();
        loop {
            let next = chars.next();
            let at = next.map_or(value.len(), |(offset, _)| from + offset);
            if best.is_none() {
                states[0] = earlier(states[0], Some(at));
            }
            for i in 0..goal {
                if self.tokens[i] == Token::Star {
                    states[i + 1] = earlier(states[i + 1], states[i]);
                }
            }
            if let Some(start) = states[goal]
                && best.is_none_or(|(known, _)| start <= known)
            {
                best = Some((start, at));
            }
            let Some((_, c)) = next else { return best };
            let mut alive = best.is_none();
            for (i, (token, state)) in self.tokens.iter().zip(&states).enumerate() {
                let state = state
                    .filter(|&start| best.is_none_or(|(known, _)| start <= known))
                    .filter(|_| token.takes(c));
                let to = if *token == Token::Star { i } else { i + 1 };
                following[to] = earlier(following[to], state);
                alive |= state.is_some();
            }
            if !alive {
                return best;
            }
            std::mem::swap(&mut states, &mut following);
            following.fill(None);
        }
    }
}

fn earlier(a: Option<usize>, b: Option<usize>) -> Option<usize> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Returns the length of the shortest or longest match from the first of `steps` on; each step is a
/// character and the length of the text up to its end.
fn anchored(
    tokens: &[Token],
    mut steps: impl Iterator<Item = (usize, char)>,
    longest: bool,
) -> Option<usize> {
    let goal = tokens.len();
    let mut states = vec![false; goal + 1];
    let mut following = states.clone();
    states[0] = true;
    let mut best = None;
    let mut length = 0;
    loop {
        for i in 0..goal {
            if states[i] && tokens[i] == Token::Star {
                states[i + 1] = true;
            }
        }
        if states[goal] {
            best = Some(length);
            if !longest {
                return best;
            }
        }
        let Some((end, c)) = steps.next() else {
            return best;
        };
        for i in 0..goal {
            if states[i] && tokens[i].takes(c) {
                let to = if tokens[i] == Token::Star { i } else { i + 1 };
                following[to] = true;
            }
        }
        if !following.contains(&true) {
            return best;
        }
        std::mem::swap(&mut states, &mut following);
        following.fill(false);
        length = end;
    }
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
            assert_eq!(compiled.trim_prefix(value, false), sp, "{p} # {value}");
            assert_eq!(compiled.trim_prefix(value, true), lp, "{p} ## {value}");
            assert_eq!(compiled.trim_suffix(value, false), ss, "{p} % {value}");
            assert_eq!(compiled.trim_suffix(value, true), ls, "{p} %% {value}");
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
        assert_eq!(pattern("a").replace("aaa", "XXXX", true, 10), None);
    }

    #[test]
    fn only_wildcards_and_delimiters_are_escaped() {
        assert_eq!(ShellPattern::compile("\\a").unwrap_err(), 'a');
        assert!(ShellPattern::compile("\\").is_err());
        assert_eq!(pattern("\\/").trim_prefix("/a", true), "a");
    }
}
