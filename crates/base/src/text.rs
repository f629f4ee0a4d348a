//! Text that people read: which characters of foreign text must not be shown as they are, on a page or a
//! terminal, and the type that cannot hold them.
//!
//! Foreign is what came from a host, an image, a registry, an archive, a cluster or a record.

use std::borrow::Cow;
use std::fmt::{self, Display, Write as _};

/// Splits a line of CSV: a field in double quotes may contain commas, and two quotes for one (RFC 4180).
pub fn csv(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let (mut quoted, mut letters) = (false, line.chars().peekable());
    while let Some(letter) = letters.next() {
        let Some(field) = fields.last_mut() else { break };
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                field.push('"');
            }
            '"' if quoted || field.is_empty() => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            other => field.push(other),
        }
    }
    fields
}

/// Returns `text` with the user and password removed from its URLs, for messages, histories and documents.
pub fn without_logins(text: &str) -> Cow<'_, str> {
    with_logins_as(text, |_| String::new())
}

/// Like [`without_logins`], but replaces them with asterisks so that positions in the text stay the same.
pub fn masked_logins(text: &str) -> Cow<'_, str> {
    with_logins_as(text, |login| "*".repeat(login.len() - 1) + "@")
}

/// Replaces the user and the password of each URL, with the `@` behind them.
fn with_logins_as(text: &str, shown: impl Fn(&str) -> String) -> Cow<'_, str> {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        let is_end = |c: char| c.is_whitespace() || "/?#\"'`".contains(c);
        let authority = &after[..after.find(is_end).unwrap_or(after.len())];
        let (login, behind) = after.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        kept.push_str(before);
        if !login.is_empty() {
            kept.push_str(&shown(login));
        }
        rest = behind;
    }
    if kept.is_empty() {
        return Cow::Borrowed(text);
    }
    kept.push_str(rest);
    Cow::Owned(kept)
}

/// Returns bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// Returns whether `character` has no shape of its own and changes what others look like: control
/// characters except the tab, formatting and bidirectional characters, tags. `shown` in
/// `crates/report/src/assets/core.js` has the same list.
pub fn is_unsafe(character: char) -> bool {
    (character.is_control() && character != '\t')
        || matches!(
            character,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Returns `text` as a part of one line: what [`is_unsafe`] names is spelled out (`\n`, `\u{1b}`). What
/// is escaped already stays as it is.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_unsafe(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// Returns text of several lines, such as a file, for a terminal: like [`escape`], except that lines end
/// as they did.
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|character| is_unsafe(character) && character != '\n') {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for line in text.split_inclusive('\n') {
        let ended = line.strip_suffix('\n');
        let line = ended.map_or(line, |line| line.strip_suffix('\r').unwrap_or(line));
        escaped.push_str(&escape(line));
        if ended.is_some() {
            escaped.push('\n');
        }
    }
    Cow::Owned(escaped)
}

/// Returns a JSON text with the same value, in which what [`is_unsafe`] names is written as `\uXXXX`. Such
/// characters occur in strings only; line feeds between the members stay.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    let is_unsafe = |character: char| is_unsafe(character) && character != '\n';
    if !json.chars().any(is_unsafe) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if is_unsafe(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// Lines for people. Whatever is put into a line, it stays one line, and has no escape sequences except
/// those of a [`Tone`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines(String);

impl Lines {
    /// Adds one line.
    pub fn line(&mut self, line: impl Display) -> &mut Self {
        self.part(line);
        self.0.push('\n');
        self
    }

    /// Adds one line of pieces that may be coloured.
    pub fn pieces(&mut self, pieces: &[(Tone, &dyn Display)]) -> &mut Self {
        for (tone, piece) in pieces {
            match tone.sequence() {
                "" => self.part(piece),
                sequence => {
                    self.0.push_str(sequence);
                    self.part(piece);
                    self.0.push_str("\x1b[0m");
                }
            }
        }
        self.0.push('\n');
        self
    }

    /// Returns the lines of a text that a renderer has coloured: sequences for colours stay.
    pub fn coloured(text: &str) -> Self {
        let mut lines = Self::default();
        for line in text.lines() {
            let mut rest = line;
            while let Some((before, behind)) = rest.split_once("\x1b[") {
                let parameters =
                    behind.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
                match parameters.strip_prefix('m') {
                    Some(more) => {
                        lines.part(before);
                        let sequence = rest.len() - more.len();
                        lines.0.push_str(&rest[before.len()..sequence]);
                        rest = more;
                    }
                    None => {
                        lines.part(&rest[..before.len() + 2]);
                        rest = behind;
                    }
                }
            }
            lines.line(rest);
        }
        lines
    }

    /// Adds other lines.
    pub fn append(&mut self, other: &Self) -> &mut Self {
        self.0.push_str(&other.0);
        self
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the lines, each with its line feed.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn part(&mut self, part: impl Display) {
        let start = self.0.len();
        let _ = write!(self.0, "{part}");
        if let Cow::Owned(escaped) = escape(&self.0[start..]) {
            self.0.truncate(start);
            self.0.push_str(&escaped);
        }
    }
}

impl<T: Display> FromIterator<T> for Lines {
    fn from_iter<I: IntoIterator<Item = T>>(lines: I) -> Self {
        let mut all = Self::default();
        lines.into_iter().for_each(|line| {
            all.line(line);
        });
        all
    }
}

impl Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a piece of a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    /// Bold and red: the word for an error.
    Error,
    /// Bold and cyan: the word for a hint.
    Hint,
    /// Yellow: the word for a warning.
    Warning,
}

impl Tone {
    fn sequence(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Error => "\x1b[1;31m",
            Self::Hint => "\x1b[1;36m",
            Self::Warning => "\x1b[33m",
        }
    }
}

/// Prefixes `message` with the host that it is about, unless it names that host.
pub fn of_host(host: &str, message: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    // A full stop or a colon behind the name ends it, unless something follows.
    let ends = |rest: &str| {
        let rest = rest.trim_start_matches(['.', ':']);
        !rest.starts_with(is_part)
    };
    let is_named = message
        .match_indices(host)
        .any(|(at, _)| !message[..at].ends_with(is_part) && ends(&message[at + host.len()..]));
    if is_named { message.to_owned() } else { format!("{host}: {message}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_named_once() {
        for (host, message, expected) in [
            ("h1", "no route", "h1: no route"),
            ("h1", "h1: no route", "h1: no route"),
            ("h1", "cannot connect to h1 (10.0.0.1)", "cannot connect to h1 (10.0.0.1)"),
            ("h1", "copied to h11", "h1: copied to h11"),
            ("10.0.0.1", "copied to 10.0.0.11", "10.0.0.1: copied to 10.0.0.11"),
            (
                "10.0.0.1",
                "the key of 10.0.0.1:23 is new",
                "10.0.0.1: the key of 10.0.0.1:23 is new",
            ),
            (
                "127.0.0.1:1",
                "cannot connect to 127.0.0.1:1: refused",
                "cannot connect to 127.0.0.1:1: refused",
            ),
            ("a.b", "nothing answers on a.b.", "nothing answers on a.b."),
        ] {
            assert_eq!(of_host(host, message), expected);
        }
    }

    #[test]
    fn who_logs_in_is_left_out() {
        for (text, expected) in [
            ("ADD https://me:pw@host/a?b=c@d /x", "ADD https://host/a?b=c@d /x"),
            ("https://me:p@w@host", "https://host"),
            ("https://host/a@b \"http://t@h\"", "https://host/a@b \"http://h\""),
            ("a@b:c/d", "a@b:c/d"),
            ("://", "://"),
        ] {
            assert_eq!(without_logins(text), expected);
        }
        assert_eq!(masked_logins("ADD http://me:pw@h/a /b"), "ADD http://*****@h/a /b");
    }
    use proptest::prelude::*;

    #[test]
    fn a_field_of_csv_may_hold_commas_and_quotes() {
        assert_eq!(csv("a,\"b,\"\"c\"\"\",,d"), ["a", "b,\"c\"", "", "d"]);
        assert_eq!(csv("type=image,\"name=a,b\""), ["type=image", "name=a,b"]);
    }

    #[test]
    fn what_moves_or_hides_other_text_is_unsafe() {
        for character in ['\u{1b}', '\u{9b}', '\u{202e}', '\u{2066}', '\u{200d}', '\n'] {
            assert!(is_unsafe(character), "{character:?}");
        }
        for character in ['a', 'é', '日', '\t', ' ', '…'] {
            assert!(!is_unsafe(character), "{character:?}");
        }
    }

    #[test]
    fn files_keep_their_lines() {
        assert_eq!(escape_lines("a\r\n\u{1b}b\nc\rd"), "a\n\\u{1b}b\nc\\rd");
        assert!(matches!(escape_lines("a\n\tb\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn colours_are_those_of_this_file() {
        let mut lines = Lines::default();
        lines.pieces(&[(Tone::Error, &"error:"), (Tone::Plain, &" a\x1b[0m\nb")]);
        assert_eq!(lines.as_str(), "\x1b[1;31merror:\x1b[0m a\\u{1b}[0m\\nb\n");
    }

    #[test]
    fn colours_of_a_renderer_stay() {
        let lines = Lines::coloured("\x1b[1;31ma\x1b[0m\x1b[2Jb\n\x1b[");
        assert_eq!(lines.as_str(), "\x1b[1;31ma\x1b[0m\\u{1b}[2Jb\n\\u{1b}[\n");
    }

    proptest! {
        #[test]
        fn a_line_stays_one_line(text in "(?s).{0,40}|[\\x00-\\x20\u{7f}-\u{9f}\u{200b}-\u{202e}a]{0,20}") {
            let mut lines = Lines::default();
            lines.line(&text).line("end");
            prop_assert!(lines.as_str().ends_with("\nend\n"));
            prop_assert_eq!(lines.as_str().matches('\n').count(), 2);
            prop_assert!(!lines.as_str().chars().any(|c| is_unsafe(c) && c != '\n'));
            let escaped = escape(&text);
            prop_assert_eq!(escape(&escaped), escaped.as_ref());
            let json = serde_json::to_string(&text).unwrap();
            let escaped = escape_json(&json);
            prop_assert!(!escaped.chars().any(is_unsafe));
            prop_assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
        }
    }
}
