//! Text that nobody has classified (logs of programs, messages, settings, tables) without what could be a
//! secret: names of values and what is harmless by its shape stay, everything else goes.
//!
//! Knows forms only. The secrets that imgctl knows of a cluster are replaced by its redactor, before this.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::Value;

use crate::support::harmless::{Harmless, Verdict};

/// What stands in the place of what was removed.
const REMOVED: &str = "***";

/// Forms of secrets that span words or lines, and what stands in their place.
static FORMS: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    let forms = [
        (
            r"(?s)-----BEGIN [A-Z0-9 ]*(?:PRIVATE KEY|MESSAGE)[A-Z -]*-----.*?(?:-----END [A-Z0-9 ]+-----|\z)",
            "[private key]",
        ),
        // What is left of a key or a Secret whose beginning was cut off.
        (r"(?m)^[ \t]*[A-Za-z0-9+/]{60,}={0,2}[ \t]*$", "[base64]"),
        // The last @ of an address ends a login, whatever that contains; a digest is none.
        (
            r#"([A-Za-z][A-Za-z0-9+.-]*://)[^\s"'`<>]*@(?P<host>[^\s"'`<>@:][^\s"'`<>@]*)"#,
            "${1}***@${host}",
        ),
        (r#"([A-Za-z][A-Za-z0-9+.-]*://[^\s"'`<>?]*)\?[^\s"'`<>]*"#, "${1}?***"),
        // What follows a prompt.
        (r"(?i)\b((?:password|passphrase|passwd|passcode)\b[^:=\n]{0,60}:[ \t]+)[^\n]+", "${1}***"),
        (r"(?i)\b((?:bearer|basic|negotiate|ntlm|digest)[ \t]+)[A-Za-z0-9._~+/-]{6,}=*", "${1}***"),
    ];
    compiled(&forms)
});

/// The patterns are constants, and a test uses each of them.
fn compiled(forms: &[(&str, &'static str)]) -> Vec<(Regex, &'static str)> {
    forms.iter().filter_map(|(form, place)| Some((Regex::new(form).ok()?, *place))).collect()
}

/// A name and the sign behind it; or a flag, whose value is the next word.
static NAMED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r#"(?:^|[^A-Za-z0-9_.-])(?P<key>[A-Za-z_][A-Za-z0-9_.-]*)(?:\\?["'])?[ \t]*(?P<sign>[:=])[ \t]*|(?:^|[\s"'=\[])(?P<flag>--?[A-Za-z][A-Za-z0-9-]*)[ \t]+"#,
    )
    .ok()
});

/// What a value's name says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    /// It is a secret.
    Secret,
    /// It can be anything, as variables can.
    Anything,
    /// It is judged word by word.
    Words,
}

/// Parts of names whose values are secrets.
const SECRET: [&str; 34] = [
    "passw",
    "passphrase",
    "passcode",
    "passwd",
    "pwd",
    "secret",
    "token",
    "credential",
    "apikey",
    "accesskey",
    "privatekey",
    "signingkey",
    "encryptionkey",
    "secretkey",
    "sharedkey",
    "masterkey",
    "clientkey",
    "sshkey",
    "keydata",
    "certificatekey",
    "authkey",
    "signature",
    "authorization",
    "cookie",
    "session",
    "jwt",
    "bearer",
    "dsn",
    "connectionstring",
    "connstr",
    "hmac",
    "htpasswd",
    "sastoken",
    "webhookurl",
];

/// Names whose values are secrets.
const SECRET_NAMES: [&str; 22] = [
    "pass", "auth", "sig", "sign", "salt", "otp", "pin", "key", "cert", "user", "username",
    "login", "u", "p", "account", "conn", "identity", "license", "nonce", "seed", "mnemonic", "pw",
];

/// Names that contain such a part and say something else.
const NAMES_OF_SECRETS: [&str; 10] = [
    "secretname",
    "secretnames",
    "imagepullsecrets",
    "secretref",
    "secretkeyref",
    "tokenttl",
    "passwd-file",
    "tokenexpirationseconds",
    "sessionaffinity",
    "session",
];

/// Names whose values are written by users.
const ANYTHING: [&str; 9] =
    ["value", "data", "stringdata", "content", "env", "default", "args", "input", "export"];

fn kind_of(name: &str) -> Name {
    let plain: String = name.to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    let last = name.rsplit(['_', '-', '.']).next().unwrap_or(name).to_lowercase();
    if NAMES_OF_SECRETS.contains(&plain.as_str()) {
        return Name::Words;
    }
    if SECRET.iter().any(|part| plain.contains(part))
        || SECRET_NAMES.contains(&plain.as_str())
        || (last != plain && SECRET_NAMES.contains(&last.as_str()))
        || plain.ends_with("pass")
    {
        return Name::Secret;
    }
    let is_variable =
        name.len() > 2 && name.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_'));
    if is_variable || ANYTHING.contains(&plain.as_str()) { Name::Anything } else { Name::Words }
}

/// Returns `text` without what could be a secret.
pub(super) fn redact(text: &str, harmless: &Harmless) -> String {
    if let Ok(mut value @ (Value::Object(_) | Value::Array(_))) =
        serde_json::from_str::<Value>(text)
    {
        clean_value(&mut value, Name::Words, harmless);
        let shown = if text.trim().contains('\n') {
            serde_json::to_string_pretty(&value)
        } else {
            serde_json::to_string(&value)
        };
        return shown.map(|shown| shown + "\n").unwrap_or_default();
    }
    clean_text(text, harmless)
}

fn clean_value(value: &mut Value, name: Name, harmless: &Harmless) {
    match value {
        Value::Object(members) => {
            let old = std::mem::take(members);
            for (key, mut value) in old {
                let of_key = match (kind_of(&key), name) {
                    (Name::Words, Name::Words) => Name::Words,
                    (Name::Secret, _) if !value.is_object() => Name::Secret,
                    _ => Name::Anything,
                };
                clean_value(&mut value, of_key, harmless);
                members.insert(clean_words(&key, harmless), value);
            }
        }
        Value::Array(values) => {
            let mut hides_next = false;
            for value in values {
                let hides = std::mem::replace(
                    &mut hides_next,
                    value.as_str().is_some_and(|text| text.starts_with('-') && hides_value(text)),
                );
                clean_value(value, if hides { Name::Secret } else { name }, harmless);
            }
        }
        Value::String(text) => {
            *text = match name {
                Name::Secret => REMOVED.to_owned(),
                Name::Anything if harmless.is_plain_value(text) => return,
                Name::Anything => REMOVED.to_owned(),
                Name::Words => clean_text(text, harmless),
            };
        }
        Value::Number(_) if name == Name::Secret => *value = Value::String(REMOVED.to_owned()),
        _ => {}
    }
}

/// Returns whether the word behind a flag is a value that could be a secret.
fn hides_value(flag: &str) -> bool {
    let name = flag.trim_start_matches('-');
    !flag.contains('=') && (name.len() == 1 || kind_of(name) == Name::Secret)
}

fn clean_text(text: &str, harmless: &Harmless) -> String {
    let mut text = Cow::Borrowed(text);
    for (form, place) in FORMS.iter() {
        if let Cow::Owned(changed) = form.replace_all(&text, *place) {
            text = Cow::Owned(changed);
        }
    }
    let mut clean = String::with_capacity(text.len());
    // Lines below a name of YAML, indented more than it, are its value.
    let mut below: Option<(usize, Name)> = None;
    for line in text.split_inclusive('\n') {
        let indent = line.len() - line.trim_start_matches([' ', '-']).len();
        if line.trim().is_empty() {
            clean.push_str(line);
            continue;
        }
        below = below.filter(|(above, _)| indent > *above);
        if let Some((_, Name::Secret)) = below {
            clean.push_str(&line[..indent]);
            clean.push_str(REMOVED);
            clean.push('\n');
            continue;
        }
        if line.starts_with('{')
            && let Ok(mut value @ Value::Object(_)) = serde_json::from_str::<Value>(line)
        {
            clean_value(&mut value, Name::Words, harmless);
            clean.push_str(&format!("{value}\n"));
            continue;
        }
        let begins = block(line);
        clean.push_str(&clean_line(line, harmless));
        below = begins.map(|name| (indent, name)).or(below);
    }
    clean
}

/// Returns the kind of a name at the end of a line, with a value below.
fn block(line: &str) -> Option<Name> {
    let line = line.trim().trim_start_matches("- ");
    let (name, rest) = line.split_once(':')?;
    let name = name.trim_matches(['"', '\'']);
    let is_block = rest.trim().is_empty() || rest.trim().starts_with(['|', '>']);
    (is_block && !name.contains(' ')).then(|| kind_of(name))
}

/// Removes the values of names and flags that could be secrets, and cleans the words between them.
fn clean_line(line: &str, harmless: &Harmless) -> String {
    let Some(named) = NAMED.as_ref() else { return REMOVED.to_owned() };
    let mut clean = String::with_capacity(line.len());
    // What is before `done` is cleaned, what is before `at` has no further name.
    let (mut done, mut at) = (0, 0);
    while let Some(found) = named.captures_at(line, at) {
        let begin = found.get(0).map_or(line.len(), |found| found.end());
        at = begin;
        let kind = kind_of_found(&found);
        if kind == Name::Words {
            continue;
        }
        let value = &line[begin..];
        let value = &value[..extent(value, kind == Name::Secret, found.name("flag").is_some())];
        at += value.len();
        clean.push_str(&clean_words(&line[done..begin], harmless));
        done = at;
        let bare = value.trim_matches(['"', '\'', '\\', '\n']);
        let stays = bare.is_empty()
            || bare == REMOVED
            || (kind == Name::Anything && harmless.is_plain_value(bare));
        if stays {
            clean.push_str(value);
            continue;
        }
        let quote = if value.starts_with(['"', '\'']) { &value[..1] } else { "" };
        clean.push_str(&format!("{quote}{REMOVED}{quote}"));
        if value.ends_with('\n') {
            clean.push('\n');
        }
    }
    clean.push_str(&clean_words(&line[done..], harmless));
    clean
}

fn kind_of_found(found: &Captures<'_>) -> Name {
    match (found.name("flag"), found.name("key")) {
        (Some(flag), _) if !hides_value(flag.as_str()) => Name::Words,
        (Some(flag), _) if flag.as_str().len() == 2 => Name::Anything,
        (Some(_), _) => Name::Secret,
        (_, Some(key)) => kind_of(key.as_str()),
        _ => Name::Words,
    }
}

/// Returns the length of a value at the beginning of `text`: what is quoted, a word, or for a secret the rest
/// of the line, because it may contain spaces and commas.
fn extent(text: &str, to_the_end: bool, is_word: bool) -> usize {
    for quote in ["\\\"", "\"", "\\'", "'"] {
        let Some(inner) = text.strip_prefix(quote) else { continue };
        let mut at = 0;
        while let Some(found) = inner[at..].find(quote) {
            let end = at + found;
            let escapes = inner[..end].len() - inner[..end].trim_end_matches('\\').len();
            if escapes % 2 == 0 {
                return quote.len() + end + quote.len();
            }
            at = end + quote.len();
        }
        return text.len();
    }
    if to_the_end && !is_word {
        return if text.starts_with('{') { 0 } else { text.len() };
    }
    text.find(char::is_whitespace).unwrap_or(text.len())
}

/// Replaces each word that is not harmless.
fn clean_words(text: &str, harmless: &Harmless) -> String {
    let mut clean = String::with_capacity(text.len());
    let is_between = |c: char| c.is_whitespace() || "\"'`()[]{}<>,;|=&".contains(c);
    let mut rest = text;
    while !rest.is_empty() {
        let start = rest.find(|c| !is_between(c)).unwrap_or(rest.len());
        clean.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(is_between).unwrap_or(rest.len());
        if end > 0 {
            clean.push_str(&clean_word(&rest[..end], harmless));
            rest = &rest[end..];
        }
    }
    clean
}

fn clean_word(word: &str, harmless: &Harmless) -> String {
    let end = word.trim_end_matches([':', '.', '!', '?', '…', '%', '\\']).len();
    let start = end - word[..end].trim_start_matches(['\\', '*', '#', '~', '@']).len();
    let (inner, mut clean) = (&word[start..end], word[..start].to_owned());
    match harmless.judge(inner) {
        Verdict::Harmless => clean.push_str(inner),
        Verdict::Identifier(name) => clean.push_str(&name),
        Verdict::Unknown => clean.push_str(&parts(inner, harmless)),
    }
    clean + &word[end..]
}

/// Cleans what has parts: paths and addresses part by part, everything else as a whole.
fn parts(word: &str, harmless: &Harmless) -> String {
    let one = |part: &str| match harmless.judge(part) {
        Verdict::Harmless => part.to_owned(),
        Verdict::Identifier(name) => name,
        Verdict::Unknown => REMOVED.to_owned(),
    };
    if word == REMOVED {
        return word.to_owned();
    }
    if let Some((scheme, rest)) = word.split_once("://")
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'+')
    {
        let rest: Vec<String> = rest.split('/').map(one).collect();
        return format!("{scheme}://{}", rest.join("/"));
    }
    if word.starts_with(['/', '.', '~']) && word.contains('/') {
        let cleaned: Vec<String> = word.split('/').map(|part| clean_colons(part, &one)).collect();
        return cleaned.join("/");
    }
    let separators = ['/', ':', '@', '+', '→'];
    let all_harmless = word.contains(separators)
        && !(word.contains(':') && word.contains('@') && !word.contains("@sha"))
        && word.split(separators).all(|part| one(part) != REMOVED);
    if !all_harmless {
        return REMOVED.to_owned();
    }
    let mut clean = String::new();
    for piece in word.split_inclusive(separators) {
        let part = piece.trim_end_matches(separators);
        clean.push_str(&one(part));
        clean.push_str(&piece[part.len()..]);
    }
    clean
}

/// `/a/b:ro`, and the `.` of `/a/./b`.
fn clean_colons(part: &str, one: &dyn Fn(&str) -> String) -> String {
    part.split(':').map(one).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
#[path = "redaction_tests.rs"]
mod tests;
