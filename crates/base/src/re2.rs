//! Regular expressions of Go (RE2's syntax) in the syntax of Rust's `regex`, with the same meaning. Must not compile
//! them.
//!
//! Differences: in RE2 a `{` that begins no repetition is a character, classes have no set operators and do not
//! nest, `\w`, `\d`, `\s` and `\b` are ASCII, `\Q…\E` and octal numbers exist, and a repetition of a repetition is an
//! error.

use std::fmt::Write as _;

/// Maximum count of a repetition.
const MOST_REPEATED: u32 = 1000;

/// Translates an expression. The error says what RE2 refuses.
pub fn translated(pattern: &str) -> Result<String, String> {
    let mut reader = Reader { rest: pattern, out: String::with_capacity(pattern.len() + 16) };
    // Whether a repetition was the last item.
    let mut after_repetition = false;
    while let Some(c) = reader.next() {
        let was_repetition = std::mem::take(&mut after_repetition);
        match c {
            '\\' => reader.escape()?,
            '[' => reader.class()?,
            '(' => reader.group()?,
            '*' | '+' | '?' => {
                reader.repetition(&c.to_string(), was_repetition)?;
                after_repetition = true;
            }
            '{' => match reader.count()? {
                Some(count) => {
                    reader.repetition(&count, was_repetition)?;
                    after_repetition = true;
                }
                None => reader.literal('{'),
            },
            '.' | '^' | '$' | '|' | ')' => reader.out.push(c),
            c => reader.literal(c),
        }
    }
    Ok(reader.out)
}

struct Reader<'p> {
    rest: &'p str,
    out: String,
}

impl<'p> Reader<'p> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn take(&mut self, start: &str) -> bool {
        let rest = self.rest.strip_prefix(start);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Takes what comes before `end`, and `end`.
    fn until(&mut self, end: &str) -> Option<&'p str> {
        let (before, rest) = self.rest.split_once(end)?;
        self.rest = rest;
        Some(before)
    }

    /// Writes a character that stands for itself, anywhere.
    fn literal(&mut self, c: char) {
        if c.is_ascii_alphanumeric()
            || matches!(c, ' ' | '_' | '/' | '"' | '\'' | ',' | ':' | '=')
            || !c.is_ascii()
        {
            self.out.push(c);
        } else {
            let _ = write!(self.out, "\\x{:02x}", u32::from(c));
        }
    }

    /// Writes a repetition, of which `count` is the sign.
    fn repetition(&mut self, count: &str, was_repetition: bool) -> Result<(), String> {
        let lazy = self.take("?");
        if was_repetition {
            return Err(format!("invalid nested repetition operator: `{count}`"));
        }
        self.out.push_str(count);
        self.out.push_str(if lazy { "?" } else { "" });
        Ok(())
    }

    /// Takes the count after `{`, if it is one: `{2}`, `{2,}`, `{2,3}`.
    fn count(&mut self) -> Result<Option<String>, String> {
        let Some((count, rest)) = self.rest.split_once('}') else { return Ok(None) };
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            // Leading zeros are none of a number.
            is_number && (text.len() == 1 || !text.starts_with('0'))
        };
        let (least, most) = match count.split_once(',') {
            None => (count, Some(count)),
            Some((least, "")) => (least, None),
            Some((least, most)) => (least, Some(most)),
        };
        if !number(least) || !most.is_none_or(number) {
            return Ok(None);
        }
        let value = |text: &str| text.parse().ok().filter(|value: &u32| *value <= MOST_REPEATED);
        let bounds = (value(least), most.map(value));
        match bounds {
            (Some(_), None) => {}
            (Some(least), Some(Some(most))) if least <= most => {}
            _ => return Err(format!("invalid repeat count: `{{{count}}}`")),
        }
        self.rest = rest;
        Ok(Some(format!("{{{count}}}")))
    }

    /// Writes the beginning of a group.
    fn group(&mut self) -> Result<(), String> {
        if !self.take("?") {
            self.out.push('(');
            return Ok(());
        }
        if self.take("P<") || self.take("<") {
            let name = self.until(">").unwrap_or_default();
            let is_name = |c: char| c == '_' || c.is_ascii_alphanumeric();
            if name.is_empty() || !name.chars().all(is_name) {
                return Err("invalid named capture".to_owned());
            }
            // Rust wants no digit at the beginning.
            let mark = if name.starts_with(|c: char| c.is_ascii_digit()) { "_" } else { "" };
            let _ = write!(self.out, "(?P<{mark}{name}>");
            return Ok(());
        }
        let end = self.rest.find([':', ')']).ok_or("missing argument to group syntax: `(?`")?;
        let flags = &self.rest[..end];
        let valid = flags.chars().all(|c| matches!(c, 'i' | 'm' | 's' | 'U' | '-'));
        if !valid || flags.matches('-').count() > 1 || flags.ends_with('-') {
            return Err(format!("invalid or unsupported Perl syntax: `(?{flags}`"));
        }
        let (flags, rest) = self.rest.split_at(end + 1);
        self.rest = rest;
        if flags != ")" {
            let _ = write!(self.out, "(?{flags}");
        }
        Ok(())
    }

    /// Writes what follows a backslash outside of a class.
    fn escape(&mut self) -> Result<(), String> {
        if self.take("Q") {
            let literal = match self.until("\\E") {
                Some(literal) => literal,
                None => std::mem::take(&mut self.rest),
            };
            literal.chars().for_each(|c| self.literal(c));
            return Ok(());
        }
        let word = match self.rest.chars().next() {
            Some('b') => "(?-u:\\b)",
            Some('B') => "(?-u:\\B)",
            Some('A') => "\\A",
            Some('z') => "\\z",
            _ => {
                if let Some(set) = self.perl() {
                    let _ = write!(self.out, "[{set}]");
                } else if !self.unicode()? {
                    let c = self.character()?;
                    self.literal(c);
                }
                return Ok(());
            }
        };
        self.rest = &self.rest[1..];
        self.out.push_str(word);
        Ok(())
    }

    /// Takes `d`, `s`, `w` and their opposites after a backslash, as part of a class.
    fn perl(&mut self) -> Option<&'static str> {
        let set = match self.rest.chars().next()? {
            'd' => "[:digit:]",
            'D' => "[:^digit:]",
            's' => "\\t\\n\\f\\r ",
            'S' => "[^\\t\\n\\f\\r ]",
            'w' => "[:word:]",
            'W' => "[:^word:]",
            _ => return None,
        };
        self.rest = &self.rest[1..];
        Some(set)
    }

    /// Takes and writes `pL`, `p{Greek}`, `p{^Greek}` after a backslash.
    fn unicode(&mut self) -> Result<bool, String> {
        let mut negated = match self.rest.chars().next() {
            Some('p') => false,
            Some('P') => true,
            _ => return Ok(false),
        };
        self.rest = &self.rest[1..];
        let name = if self.take("{") {
            let name = self.until("}").ok_or("invalid character class range: `\\p{`")?;
            name.strip_prefix('^').map_or(name, |name| {
                negated = !negated;
                name
            })
        } else {
            let end = self.rest.chars().next().map_or(0, char::len_utf8);
            let (name, rest) = self.rest.split_at(end);
            self.rest = rest;
            name
        };
        let is_name = |c: char| c == '_' || c.is_ascii_alphabetic();
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(format!("invalid character class range: `\\p{{{name}}}`"));
        }
        let _ = write!(self.out, "\\{}{{{name}}}", if negated { 'P' } else { 'p' });
        Ok(true)
    }

    /// Takes one character after a backslash.
    fn character(&mut self) -> Result<char, String> {
        let Some(c) = self.next() else {
            return Err("trailing backslash at end of expression".to_owned());
        };
        let wrong = || format!("invalid escape sequence: `\\{c}`");
        let from = |text: &str, radix| {
            u32::from_str_radix(text, radix).ok().and_then(char::from_u32).ok_or_else(wrong)
        };
        match c {
            'a' => Ok('\u{7}'),
            'f' => Ok('\u{c}'),
            'n' => Ok('\n'),
            'r' => Ok('\r'),
            't' => Ok('\t'),
            'v' => Ok('\u{b}'),
            '0'..='7' => {
                let octal = |c: char| ('0'..='7').contains(&c);
                let more = self.rest.chars().take(2).take_while(|c| octal(*c)).count();
                // One digit alone would be a reference to a group.
                if c != '0' && more == 0 {
                    return Err(wrong());
                }
                let (digits, rest) = self.rest.split_at(more);
                self.rest = rest;
                from(&format!("{c}{digits}"), 8)
            }
            'x' if self.take("{") => {
                let digits = self.until("}").ok_or_else(wrong)?;
                let is_hex = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
                if is_hex { from(digits, 16) } else { Err(wrong()) }
            }
            'x' => {
                let digits = self.rest.get(..2).ok_or_else(wrong)?;
                self.rest = &self.rest[2..];
                let is_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
                if is_hex { from(digits, 16) } else { Err(wrong()) }
            }
            c if c.is_ascii_punctuation() || (c.is_ascii() && !c.is_ascii_alphanumeric()) => Ok(c),
            _ => Err(wrong()),
        }
    }

    /// Writes a class, after its `[`.
    fn class(&mut self) -> Result<(), String> {
        const NAMES: [&str; 14] = [
            "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print",
            "punct", "space", "upper", "word", "xdigit",
        ];
        self.out.push('[');
        if self.take("^") {
            self.out.push('^');
        }
        let mut first = true;
        loop {
            if !first && self.take("]") {
                self.out.push(']');
                return Ok(());
            }
            first = false;
            if self.rest.starts_with("[:") && self.rest.contains(":]") {
                let name = self.until(":]").unwrap_or_default().trim_start_matches("[:");
                if !NAMES.contains(&name.strip_prefix('^').unwrap_or(name)) {
                    return Err(format!("invalid character class range: `[:{name}:]`"));
                }
                let _ = write!(self.out, "[:{name}:]");
                continue;
            }
            if self.rest.starts_with('\\') {
                let before = self.rest;
                self.rest = &self.rest[1..];
                if let Some(set) = self.perl() {
                    self.out.push_str(set);
                    continue;
                }
                if self.unicode()? {
                    continue;
                }
                self.rest = before;
            }
            let low = self.member()?;
            self.literal(low);
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") && self.rest.len() > 1 {
                self.rest = &self.rest[1..];
                let high = self.member()?;
                if high < low {
                    return Err(format!("invalid character class range: `{low}-{high}`"));
                }
                self.out.push('-');
                self.literal(high);
            }
        }
    }

    /// Takes one character of a class.
    fn member(&mut self) -> Result<char, String> {
        match self.next() {
            Some('\\') => self.character(),
            Some(c) => Ok(c),
            None => Err("missing closing ]".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_keep_their_meaning() {
        for (pattern, expected) in [
            ("a{version}", "a\\x7bversion\\x7d"),
            ("a{2,3}?b{,2}c{02}", "a{2,3}?b\\x7b,2\\x7dc\\x7b02\\x7d"),
            ("[[]x]", "[\\x5b]x\\x5d"),
            ("[]a&&b+--]", "[\\x5da\\x26\\x26b\\x2b-\\x2d]"),
            ("[\\w-.]+", "[[:word:]\\x2d\\x2e]+"),
            ("\\Q.*\\E.", "\\x2e\\x2a."),
            ("\\101\\x41\\x{20ac}\\.\\<", "AA€\\x2e\\x3c"),
            ("\\d\\S\\b", "[[:digit:]][[^\\t\\n\\f\\r ]](?-u:\\b)"),
            ("(?i)(?P<a>x)(?:y)(?s-m:z)", "(?i)(?P<a>x)(?:y)(?s-m:z)"),
            ("[[:^alpha:]\\pL\\P{^Greek}]", "[[:^alpha:]\\p{L}\\p{Greek}]"),
            ("^a|b$", "^a|b$"),
        ] {
            assert_eq!(translated(pattern).as_deref(), Ok(expected), "{pattern}");
        }
    }

    #[test]
    fn what_re2_refuses_is_refused() {
        for pattern in [
            "a**", "a+*", "a*?+", "a{2}{3}", "a{1001}", "a{3,2}", "(?x)a", "(?=a)", "\\1", "\\y",
            "\\", "[a", "[z-a]", "[[:x:]]", "[a-\\d]", "\\x{zz}", "(?P<>a)", "\\p{",
        ] {
            assert!(translated(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn no_expression_makes_it_panic() {
        bolero::check!().with_type::<String>().for_each(|pattern: &String| {
            let _ = translated(pattern);
        });
    }
}
