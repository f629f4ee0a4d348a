//! Ignore files (`.dockerignore`, `.sealignore`) with moby's rules, on bytes.
//!
//! Patterns are relative to the root of the build context and also cover everything below a match;
//! the last matching rule wins; `**` matches any number of directories. Must not depend on files: a
//! walker queries paths and carries a [`ParentState`] down the tree, so no path is matched twice.

use super::diagnostic::Diagnostic;
use super::diagnostic::Span;
use super::glob::{self, BadPattern, SLASH, SegmentPattern, Token};

/// Maximum size of an ignore file, in bytes.
pub(crate) const MAX_IGNORE_FILE: usize = 1 << 20;

/// Maximum number of rules per file; more would slow down a walk of a large context.
const MAX_RULES: usize = 10_000;

/// Names that only patterns for every name match.
const UNLIKELY: [&[u8]; 2] = [b"\x01.\x02", b"a\x01longer\x02name"];

/// The rules of one ignore file.
#[derive(Clone, Debug, Default)]
pub struct IgnoreRules {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    /// `!`: includes again what earlier rules exclude.
    includes: bool,
    matcher: Matcher,
}

/// The types of matchers, cheapest first.
#[derive(Clone, Debug)]
enum Matcher {
    /// A path without wildcards.
    Exact(Vec<u8>),
    /// `text/**`: paths that start with the text.
    Prefix(Vec<u8>),
    /// `**text`: paths that end with the text; `**/text` also matches the plain `text`.
    Suffix(Vec<u8>),
    /// `**/segment`: matches the last component.
    LastName(SegmentPattern),
    /// Any other pattern.
    Tokens(Vec<Token>),
}

/// The rules that match a directory or one of its parents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParentState {
    /// One bit per rule; empty at the root.
    matched: Vec<u64>,
}

impl ParentState {
    fn has(&self, rule: usize) -> bool {
        self.matched.get(rule / 64).is_some_and(|word| word >> (rule % 64) & 1 == 1)
    }
}

impl IgnoreRules {
    /// Parses an ignore file and reports all invalid lines.
    pub fn parse(text: &[u8]) -> Result<Self, Vec<Diagnostic>> {
        if text.len() > MAX_IGNORE_FILE {
            let message = format!("the ignore file is larger than {MAX_IGNORE_FILE} bytes");
            return Err(vec![Diagnostic::error(message, line_span(1, b""))]);
        }
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let mut rules = Vec::new();
        let mut found = Vec::new();
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let wrong = |message: &str| Diagnostic::error(message, line_span(index + 1, line));
            match rule(line) {
                Ok(Some(rule)) => rules.push(rule),
                Ok(None) => {}
                Err(RuleError::Bang) => {
                    found.push(wrong("a lone ! re-includes nothing").hint("add a path after it"));
                }
                Err(RuleError::Range(range, right)) => {
                    let problem =
                        wrong(&format!("the range {range} in this pattern runs backwards"));
                    found.push(problem.hint(format!(
                        "write {right}, or put a \\ before a [ that is part of a name"
                    )));
                }
                Err(RuleError::Pattern) => found.push(wrong("this is not a valid pattern").hint(
                    "close every [ with a ], and put a \\ before a [ that is part of a name",
                )),
            }
            if rules.len() > MAX_RULES {
                found.push(wrong(&format!("there are more than {MAX_RULES} rules")));
                break;
            }
        }
        if found.is_empty() { Ok(Self { rules }) } else { Err(found) }
    }

    /// Returns whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns whether a path is excluded. The path is relative to the root of the context and
    /// clean (no `.`, `..`, doubled or outer `/`). For walkers, [`Self::excludes`] is faster.
    pub fn matches(&self, path: &[u8]) -> bool {
        let mut state = ParentState::default();
        for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            state = self.enter(&state, &path[..at]);
        }
        self.excludes(&state, path)
    }

    /// Returns whether a source of `COPY` or `ADD` is certainly excluded, judging by its name alone as
    /// BuildKit's rule CopyIgnoredFile does: a rule that includes something again makes names say
    /// nothing, and the whole context is excluded only if every name is.
    pub fn hides_source(&self, source: &str) -> bool {
        if self.rules.iter().any(|rule| rule.includes) {
            return false;
        }
        let mut parts: Vec<&str> = Vec::new();
        for part in source.split('/').filter(|part| !matches!(*part, "" | ".")) {
            match part {
                ".." => drop(parts.pop()),
                _ => parts.push(part),
            }
        }
        if parts.is_empty() || source.starts_with('/') {
            return UNLIKELY.iter().all(|name| self.matches(name));
        }
        self.matches(parts.join("/").as_bytes())
    }

    /// Returns whether `path` is excluded, given the state of its directory. Does not allocate.
    pub fn excludes(&self, parent: &ParentState, path: &[u8]) -> bool {
        // The last matching rule decides, so search from the end.
        self.rules
            .iter()
            .enumerate()
            .rev()
            .find(|(index, rule)| parent.has(*index) || rule.matcher.matches(path))
            .is_some_and(|(_, rule)| !rule.includes)
    }

    /// Returns the state for the content of directory `path`; `parent` is the state of the
    /// directory that contains `path`.
    pub fn enter(&self, parent: &ParentState, path: &[u8]) -> ParentState {
        let mut matched = vec![0; self.rules.len().div_ceil(64)];
        for (index, rule) in self.rules.iter().enumerate() {
            if parent.has(index) || rule.matcher.matches(path) {
                matched[index / 64] |= 1 << (index % 64);
            }
        }
        ParentState { matched }
    }

    /// Returns whether a walker can skip directory `path` and everything in it: it is excluded, and
    /// no later rule can include anything below it. `state` is the directory's own, from
    /// [`Self::enter`].
    pub fn may_prune_dir(&self, state: &ParentState, path: &[u8]) -> bool {
        for (index, rule) in self.rules.iter().enumerate().rev() {
            if rule.includes {
                if state.has(index) || rule.matcher.can_match_below(path) {
                    return false;
                }
            } else if state.has(index) {
                return true;
            }
        }
        false
    }
}

enum RuleError {
    Bang,
    Pattern,
    /// A descending range as written, and in ascending order.
    Range(String, String),
}

/// Removes Unicode white space, as Go's `strings.TrimSpace` does: text copied from web pages often ends in it.
fn trimmed(line: &[u8]) -> &[u8] {
    match std::str::from_utf8(line) {
        Ok(text) => text.trim().as_bytes(),
        Err(_) => line.trim_ascii(),
    }
}

/// Parses one line; `None` if it contains no rule.
fn rule(line: &[u8]) -> Result<Option<Rule>, RuleError> {
    // A comment starts in the first column.
    if line.first() == Some(&b'#') {
        return Ok(None);
    }
    let line = trimmed(line);
    let (includes, pattern) = match line.strip_prefix(b"!") {
        Some(rest) => (true, trimmed(rest)),
        None => (false, line),
    };
    if pattern.is_empty() {
        return if includes { Err(RuleError::Bang) } else { Ok(None) };
    }
    let pattern = clean(pattern);
    // moby cleans `!/` again as a whole and is left with a lone `!`.
    if includes && pattern == b"/" {
        return Err(RuleError::Bang);
    }
    // Go validates the whole pattern with `filepath.Match`.
    SegmentPattern::compile(&pattern).map_err(|BadPattern| RuleError::Pattern)?;
    check_ranges(&pattern)?;
    let matcher = Matcher::compile(&pattern).map_err(|BadPattern| RuleError::Pattern)?;
    Ok(Some(Rule { includes, matcher }))
}

/// Rejects descending ranges: `filepath.Match` accepts them as matching nothing, but moby's matcher
/// uses regular expressions, where they are a syntax error.
fn check_ranges(pattern: &[u8]) -> Result<(), RuleError> {
    let mut rest = pattern;
    while let Some((token, tail)) =
        glob::next_token(rest).map_err(|BadPattern| RuleError::Pattern)?
    {
        if let Token::Class { ranges, .. } = token
            && let Some((low, high)) = ranges.into_iter().find(|(low, high)| low > high)
        {
            let shown = |unit| char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER);
            let (low, high) = (shown(low), shown(high));
            return Err(RuleError::Range(format!("{low}-{high}"), format!("{high}-{low}")));
        }
        rest = tail;
    }
    Ok(())
}

/// Applies `path.Clean` and removes a leading `/`.
pub(super) fn clean(pattern: &[u8]) -> Vec<u8> {
    let rooted = pattern.first() == Some(&b'/');
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in pattern.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => match parts.last() {
                Some(&last) if last != b".." => {
                    parts.pop();
                }
                _ if rooted => {}
                _ => parts.push(part),
            },
            part => parts.push(part),
        }
    }
    match (parts.is_empty(), rooted) {
        (true, true) => b"/".to_vec(),
        (true, false) => b".".to_vec(),
        (false, _) => parts.join(&b'/'),
    }
}

impl Matcher {
    fn compile(pattern: &[u8]) -> Result<Self, BadPattern> {
        if !glob::has_meta(pattern) {
            return Ok(Self::Exact(pattern.to_vec()));
        }
        if let Some(rest) = pattern.strip_prefix(b"**")
            && !glob::has_meta(rest)
        {
            return Ok(Self::Suffix(rest.to_vec()));
        }
        if let Some(rest) = pattern.strip_suffix(b"**")
            && !glob::has_meta(rest)
        {
            return Ok(Self::Prefix(rest.to_vec()));
        }
        let tokens = tokens(pattern)?;
        if let [Token::Directories, rest @ ..] = &tokens[..] {
            let one_name = |token: &Token| match token {
                Token::Directories | Token::Everything => false,
                Token::Any | Token::Star => true,
                token => !token.takes(SLASH),
            };
            if rest.iter().all(one_name) {
                return Ok(Self::LastName(SegmentPattern::from_tokens(rest.to_vec())));
            }
        }
        Ok(Self::Tokens(tokens))
    }

    fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Exact(text) => path == text,
            Self::Prefix(text) => path.starts_with(text),
            Self::Suffix(text) => {
                path.ends_with(text) || text.strip_prefix(b"/").is_some_and(|name| name == path)
            }
            Self::LastName(pattern) => {
                let at = path.iter().rposition(|&byte| byte == b'/');
                pattern.matches(at.map_or(path, |at| &path[at + 1..]))
            }
            Self::Tokens(tokens) => follow(tokens, &[path], |states| states.last() == Some(&true)),
        }
    }

    /// Returns whether some path below directory `path` could match.
    fn can_match_below(&self, path: &[u8]) -> bool {
        let below =
            |text: &[u8]| text.strip_prefix(path).is_some_and(|rest| rest.first() == Some(&b'/'));
        match self {
            Self::Exact(text) => below(text),
            Self::Prefix(text) => path.starts_with(text) || below(text) || text.is_empty(),
            Self::Suffix(_) | Self::LastName(_) => true,
            // A pattern that is already at its end matches nothing below.
            Self::Tokens(tokens) => follow(tokens, &[path, b"/"], |states| {
                states.split_last().is_some_and(|(_, going)| going.contains(&true))
            }),
        }
    }
}

/// Parses a whole pattern into the tokens of `filepath.Match` and `**`.
fn tokens(pattern: &[u8]) -> Result<Vec<Token>, BadPattern> {
    let mut tokens = Vec::new();
    let mut rest = pattern;
    loop {
        if let Some(tail) = rest.strip_prefix(b"**") {
            // `**/` equals `**`: the directories include their slashes.
            let tail = tail.strip_prefix(b"/").unwrap_or(tail);
            tokens.push(match tail {
                [] => Token::Everything,
                _ => Token::Directories,
            });
            rest = tail;
            continue;
        }
        match glob::next_token(rest)? {
            None => return Ok(tokens),
            Some((token, tail)) => {
                tokens.push(token);
                rest = tail;
            }
        }
    }
}

/// Number of pattern positions tracked without allocating.
const ON_STACK: usize = 128;

/// Follows the text (in pieces) through the pattern and calls `verdict` with the positions that can
/// be reached; the last one is the end of the pattern. Following all positions at once limits the
/// cost to pattern × text.
fn follow(tokens: &[Token], pieces: &[&[u8]], verdict: fn(&[bool]) -> bool) -> bool {
    let positions = tokens.len() + 1;
    let mut stack = [false; 3 * ON_STACK];
    let mut heap = Vec::new();
    let room = match stack.get_mut(..3 * positions) {
        Some(room) => room,
        None => {
            heap.resize(3 * positions, false);
            &mut heap[..]
        }
    };
    let (mut states, rest) = room.split_at_mut(positions);
    let (mut following, inside_directories) = rest.split_at_mut(positions);
    states[0] = true;
    spread(tokens, states, inside_directories, None);
    for piece in pieces {
        let mut rest = *piece;
        while let Some((unit, length)) = glob::first_unit(rest) {
            rest = &rest[length..];
            for (index, token) in tokens.iter().enumerate() {
                match token {
                    Token::Directories => {}
                    Token::Star | Token::Everything => {
                        following[index] |= states[index] && token.takes(unit);
                    }
                    token => following[index + 1] |= states[index] && token.takes(unit),
                }
            }
            std::mem::swap(&mut states, &mut following);
            following.fill(false);
            spread(tokens, states, inside_directories, Some(unit));
            if !states.contains(&true) && !inside_directories.contains(&true) {
                return false;
            }
        }
    }
    // A position inside `Directories` is still active.
    for (state, inside) in states.iter_mut().zip(inside_directories) {
        *state |= *inside;
    }
    verdict(states)
}

/// Advances past tokens that can match nothing. Once reached, `Directories` consumes text until the
/// end and can be left after every `/`.
fn spread(
    tokens: &[Token],
    states: &mut [bool],
    inside_directories: &mut [bool],
    last: Option<u32>,
) {
    for (index, token) in tokens.iter().enumerate() {
        match token {
            Token::Star | Token::Everything => states[index + 1] |= states[index],
            Token::Directories => {
                let let_go = inside_directories[index] && last == Some(SLASH);
                states[index + 1] |= states[index] || let_go;
                inside_directories[index] |= states[index];
            }
            _ => {}
        }
    }
}

fn line_span(line: usize, text: &[u8]) -> Span {
    let text = String::from_utf8_lossy(text.trim_ascii_end());
    Span { line, column: 1, end_line: line, end_column: text.chars().count().max(1) + 1 }
}

#[cfg(test)]
mod tests;
