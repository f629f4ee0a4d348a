//! Word expansion: removes quotes and escapes and inserts variables, as BuildKit's shell lexer
//! does.
//!
//! Must not depend on instructions or on the source of values: the caller looks them up.

use std::cell::RefCell;
use std::fmt;

use regex::Regex;

/// Maximum size of a value, in bytes (`ENV a=$a$a` doubles it with every line).
pub const MAX_VALUE: usize = 1 << 20;

/// Maximum nesting depth of `${a:-${b:-…}}`.
const MAX_DEPTH: usize = 64;

/// Returns the value of a variable, or `None` if it is not set.
pub(crate) type Lookup<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Reason why a word has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpandError {
    /// A quote or bracket that is not closed.
    Unclosed(&'static str),
    /// `${}`, `${:x}`, `${{x}}`.
    BadSubstitution,
    /// `${x^y}` and other forms that are not supported.
    UnknownModifier(String),
    /// `${x:?message}` for an unset variable: name and message.
    Required(String, String),
    /// `${x#\a}`: the pattern escapes a character that needs no escape.
    BadPattern(char),
    /// `${${…}}` is nested too deeply.
    TooDeep,
    /// The value would be larger than [`MAX_VALUE`], or a pattern is too large.
    TooLarge,
}

impl fmt::Display for ExpandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unclosed(what) => write!(f, "{what} is missing"),
            Self::BadSubstitution => f.write_str("a substitution needs a name, as in ${NAME}"),
            Self::UnknownModifier(modifier) => {
                write!(f, "there is no substitution with `{modifier}`")
            }
            Self::Required(name, message) => write!(f, "{name}: {message}"),
            Self::BadPattern(c) => {
                write!(f, "in a pattern only * ? \\ can be escaped, not `{c}`")
            }
            Self::TooDeep => write!(f, "substitutions are nested deeper than {MAX_DEPTH}"),
            Self::TooLarge => write!(f, "the value is larger than {MAX_VALUE} bytes"),
        }
    }
}

impl std::error::Error for ExpandError {}

/// Returns the value of a raw word as one string, whatever whitespace its variables contain.
pub fn expand(raw: &str, escape: char, lookup: &Lookup<'_>) -> Result<String, ExpandError> {
    Ok(run(raw, escape, lookup, false)?.value)
}

/// Returns the values of a raw word, splitting unquoted variables at whitespace and omitting empty
/// words.
pub fn expand_words(
    raw: &str,
    escape: char,
    lookup: &Lookup<'_>,
) -> Result<Vec<String>, ExpandError> {
    Ok(run(raw, escape, lookup, false)?.finish())
}

/// Expands the body of a here-document: variables and escapes are special, quotes are not. The
/// escape character is always `\`, regardless of `# escape=`, as in BuildKit.
pub fn expand_heredoc(body: &str, lookup: &Lookup<'_>) -> Result<String, ExpandError> {
    let mut expander = Expander::new(body, '\\', lookup, false);
    expander.quotes = false;
    Ok(expander.until(None, false)?.value)
}

/// Returns the variables of the body of a here-document, as [`variables`] does.
pub(crate) fn heredoc_variables(body: &str) -> Result<Vec<VariableUse>, ExpandError> {
    let nothing = |_: &str| None;
    let mut expander = Expander::new(body, '\\', &nothing, true);
    expander.quotes = false;
    expander.until(None, false)?;
    Ok(expander.uses.into_inner())
}

/// A variable that a word uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableUse {
    pub name: String,
    /// Whether the variable may be unset: `${x:-y}`, `${x:+y}`, `${x:?y}`.
    pub optional: bool,
}

/// Returns the variables of a raw word in order, including those in defaults. Fails only if the
/// word is invalid whatever the values are.
pub fn variables(raw: &str, escape: char) -> Result<Vec<VariableUse>, ExpandError> {
    let nothing = |_: &str| None;
    let mut expander = Expander::new(raw, escape, &nothing, true);
    expander.until(None, false)?;
    Ok(expander.uses.into_inner())
}

fn run(raw: &str, escape: char, lookup: &Lookup<'_>, survey: bool) -> Result<Words, ExpandError> {
    Expander::new(raw, escape, lookup, survey).until(None, false)
}

/// A value, and the words it is split into.
#[derive(Default)]
struct Words {
    value: String,
    words: Vec<String>,
    word: String,
}

impl Words {
    /// Adds a character of the raw word itself or of a variable; whitespace ends a word.
    fn push_cutting(&mut self, c: char) {
        self.value.push(c);
        if !c.is_whitespace() {
            self.word.push(c);
        } else if !self.word.is_empty() {
            self.words.push(std::mem::take(&mut self.word));
        }
    }

    /// Adds quoted or escaped text, which is never split.
    fn push_whole(&mut self, text: &str) {
        self.value.push_str(text);
        self.word.push_str(text);
    }

    fn finish(mut self) -> Vec<String> {
        if !self.word.is_empty() {
            self.words.push(self.word);
        }
        self.words
    }
}

struct Expander<'a> {
    chars: std::iter::Peekable<std::str::Chars<'a>>,
    escape: char,
    lookup: &'a Lookup<'a>,
    /// Whether only the names of the variables are wanted and values are ignored.
    survey: bool,
    /// Whether quotes are special.
    quotes: bool,
    depth: usize,
    uses: RefCell<Vec<VariableUse>>,
}

impl<'a> Expander<'a> {
    fn new(raw: &'a str, escape: char, lookup: &'a Lookup<'a>, survey: bool) -> Self {
        Self {
            chars: raw.chars().peekable(),
            escape,
            lookup,
            survey,
            quotes: true,
            depth: 0,
            uses: RefCell::default(),
        }
    }

    /// Expands up to `stop` (which is consumed) or the end. With `keep_escapes`, escape characters
    /// stay in the value, for use in patterns.
    fn until(&mut self, stop: Option<char>, keep_escapes: bool) -> Result<Words, ExpandError> {
        let mut out = Words::default();
        while let Some(&c) = self.chars.peek() {
            if stop == Some(c) {
                self.chars.next();
                return Ok(out);
            }
            match c {
                '\'' if self.quotes => {
                    let text = self.single_quoted()?;
                    out.push_whole(&text);
                }
                '"' if self.quotes => {
                    let text = self.double_quoted(keep_escapes)?;
                    out.push_whole(&text);
                }
                '$' => {
                    let value = self.dollar()?;
                    value.chars().for_each(|c| out.push_cutting(c));
                }
                _ => {
                    self.chars.next();
                    self.plain(c, keep_escapes, &mut out);
                }
            }
            if out.value.len() > MAX_VALUE {
                return Err(ExpandError::TooLarge);
            }
        }
        match stop {
            None => Ok(out),
            Some('/') => Err(ExpandError::Unclosed("the second / of ${name/pattern/text}")),
            Some(_) => Err(ExpandError::Unclosed("the closing } of ${")),
        }
    }

    fn plain(&mut self, c: char, keep_escapes: bool, out: &mut Words) {
        if c != self.escape {
            out.push_cutting(c);
            return;
        }
        if keep_escapes {
            out.push_whole(c.encode_utf8(&mut [0; 4]));
        }
        // A trailing escape character escapes nothing and is dropped.
        if let Some(escaped) = self.chars.next() {
            out.push_whole(escaped.encode_utf8(&mut [0; 4]));
        }
    }

    fn single_quoted(&mut self) -> Result<String, ExpandError> {
        self.chars.next();
        let mut text = String::new();
        for c in self.chars.by_ref() {
            if c == '\'' {
                return Ok(text);
            }
            text.push(c);
        }
        Err(ExpandError::Unclosed("the closing '"))
    }

    fn double_quoted(&mut self, keep_escapes: bool) -> Result<String, ExpandError> {
        self.chars.next();
        let mut text = String::new();
        while let Some(&c) = self.chars.peek() {
            match c {
                '"' => {
                    self.chars.next();
                    return Ok(text);
                }
                '$' => text.push_str(&self.dollar()?),
                _ if c == self.escape => {
                    self.chars.next();
                    if keep_escapes {
                        text.push(c);
                    }
                    match self.chars.peek() {
                        None => break,
                        Some(&next) if matches!(next, '"' | '$') || next == self.escape => {
                            text.push(next);
                            self.chars.next();
                        }
                        // No other character can be escaped here: the escape character is literal.
                        Some(_) => text.push(c),
                    }
                }
                _ => {
                    self.chars.next();
                    text.push(c);
                }
            }
            if text.len() > MAX_VALUE {
                return Err(ExpandError::TooLarge);
            }
        }
        Err(ExpandError::Unclosed("the closing \""))
    }

    /// Expands `$name` or `${…}`, starting at the `$`.
    fn dollar(&mut self) -> Result<String, ExpandError> {
        self.chars.next();
        if self.chars.peek() != Some(&'{') {
            let name = self.name();
            if name.is_empty() {
                return Ok("$".to_owned());
            }
            return Ok(self.value_of(&name, false).unwrap_or_default());
        }
        self.chars.next();
        match self.chars.peek() {
            None => return Err(ExpandError::Unclosed("the closing } of ${")),
            Some('{' | '}' | ':') => return Err(ExpandError::BadSubstitution),
            Some(_) => {}
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(ExpandError::TooDeep);
        }
        let value = self.braced();
        self.depth -= 1;
        value
    }

    /// Expands the inside of `${…}`, starting at the name.
    fn braced(&mut self) -> Result<String, ExpandError> {
        let name = self.name();
        let Some(mut operator) = self.chars.next() else {
            return Err(ExpandError::Unclosed("the closing } of ${"));
        };
        let colon = operator == ':';
        if colon {
            match self.chars.next() {
                Some(next) => operator = next,
                None => return Err(ExpandError::Unclosed("the closing } of ${")),
            }
        }
        match operator {
            '}' if !colon => Ok(self.value_of(&name, false).unwrap_or_default()),
            '-' | '+' | '?' => self.conditional(&name, operator, colon),
            '#' | '%' if !colon => self.trimmed(&name, operator),
            '/' if !colon => self.replaced(&name),
            _ => {
                let colon = if colon { ":" } else { "" };
                Err(ExpandError::UnknownModifier(format!("{colon}{operator}")))
            }
        }
    }

    fn conditional(
        &mut self,
        name: &str,
        operator: char,
        colon: bool,
    ) -> Result<String, ExpandError> {
        // Record this use before those in the word, which come after it.
        let value = self.value_of(name, true);
        let word = self.until(Some('}'), false)?.value;
        let is_set = value.is_some();
        let value = value.filter(|value| !(colon && value.is_empty()));
        Ok(match (operator, value) {
            ('-', value) => value.unwrap_or(word),
            ('+', Some(_)) => word,
            ('+', None) => String::new(),
            (_, Some(value)) => value,
            (_, None) if self.survey => String::new(),
            (_, None) => {
                let state = if is_set { "empty" } else { "unset" };
                let message =
                    if word.is_empty() { format!("is not allowed to be {state}") } else { word };
                return Err(ExpandError::Required(name.to_owned(), message));
            }
        })
    }

    fn trimmed(&mut self, name: &str, operator: char) -> Result<String, ExpandError> {
        let value = self.value_of(name, false).unwrap_or_default();
        let word = self.until(Some('}'), true)?.value;
        let (pattern, longest) = match word.strip_prefix(operator) {
            Some(pattern) => (pattern, true),
            None => (word.as_str(), false),
        };
        if self.survey {
            return Ok(String::new());
        }
        let pattern = ShellPattern::compile(pattern)?;
        let trimmed = match operator {
            '#' => pattern.trim_prefix(&value, longest),
            _ => pattern.trim_suffix(&value, longest),
        };
        trimmed.map(str::to_owned)
    }

    fn replaced(&mut self, name: &str) -> Result<String, ExpandError> {
        let value = self.value_of(name, false).unwrap_or_default();
        let all = self.chars.peek() == Some(&'/');
        if all {
            self.chars.next();
        }
        let pattern = self.until(Some('/'), true)?.value;
        let replacement = self.until(Some('}'), true)?.value;
        if self.survey {
            return Ok(String::new());
        }
        ShellPattern::compile(&pattern)?.replace(&value, &replacement, all, MAX_VALUE)
    }

    /// Reads a name: letters, digits and `_`, only digits, or one special parameter.
    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(&c) = self.chars.peek() {
            let first = name.is_empty();
            let fits = match name.chars().next() {
                Some(digit) if digit.is_numeric() => c.is_numeric(),
                _ => c.is_alphanumeric() || c == '_',
            };
            if first && matches!(c, '@' | '*' | '#' | '?' | '-' | '$' | '!') {
                self.chars.next();
                return c.to_string();
            }
            if !fits {
                break;
            }
            name.push(c);
            self.chars.next();
        }
        name
    }

    fn value_of(&self, name: &str, optional: bool) -> Option<String> {
        if self.survey {
            self.uses.borrow_mut().push(VariableUse { name: name.to_owned(), optional });
            return None;
        }
        (self.lookup)(name)
    }
}

/// The elements of the pattern of `${v#p}`, `${v%p}` or `${v/p/r}`, each as a regular expression: `*`
/// and `?`, without bracket classes (BuildKit's rule). As in BuildKit, wildcards do not match newlines.
#[derive(Debug)]
struct ShellPattern(Vec<String>);

impl ShellPattern {
    /// Reads a pattern. `\*`, `\?` and `\\` stand for the characters themselves; `\}` and `\/` are
    /// escaped because of the surrounding `${}`. No other character can be escaped.
    fn compile(pattern: &str) -> Result<Self, ExpandError> {
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
    fn trim_prefix<'a>(&self, value: &'a str, longest: bool) -> Result<&'a str, ExpandError> {
        let length = anchored(&self.0.concat(), value, longest)?;
        Ok(&value[length..])
    }

    /// Implements `${v%p}` and `${v%%p}`.
    fn trim_suffix<'a>(&self, value: &'a str, longest: bool) -> Result<&'a str, ExpandError> {
        let reversed: String = self.0.iter().rev().map(String::as_str).collect();
        let length = anchored(&reversed, &value.chars().rev().collect::<String>(), longest)?;
        Ok(&value[..value.len() - length])
    }

    /// Implements `${v/p/r}` and, with `all`, `${v//p/r}`: the leftmost, then longest matches. The
    /// result has at most `limit` bytes.
    fn replace(
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
mod tests;
#[cfg(test)]
mod pattern_tests {
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
