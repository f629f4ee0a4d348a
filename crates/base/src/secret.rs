//! Secrets: text that is never shown, and masking of known secrets in output. The memory of a secret is
//! overwritten when it is dropped, and a process that has had one leaves no core and lets no other process of
//! its user read its memory.
//!
//! Must not know where secrets come from.

use std::borrow::Cow;
use std::sync::Once;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use zeroize::Zeroize as _;

/// A password, key or token. `Debug` masks it.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        if !text.is_empty() {
            keep_memory_private();
        }
        Self(text)
    }

    /// Returns the secret itself: only for sending it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// For the rest of this process's lifetime: programs that it executes are not affected, so `RUN` is not.
fn keep_memory_private() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // A kernel that refuses leaves what was before.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    });
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// Replaces known secrets in text that goes to a log, a journal or a screen.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    /// Longest first, so that a secret that contains another one is replaced as a whole.
    secrets: Vec<Secret>,
}

/// Minimum length of a secret to mask: shorter ones would also match innocent text.
const SHORTEST: usize = 4;

impl Redactor {
    /// Adds `secret`; a multi-line secret is matched line by line.
    pub fn add(&mut self, secret: &Secret) {
        for line in secret.expose().lines() {
            let line = line.trim();
            if line.len() >= SHORTEST && !self.secrets.iter().any(|known| known.0 == line) {
                self.secrets.push(Secret::new(line));
            }
        }
        self.secrets.sort_by_key(|secret| std::cmp::Reverse(secret.0.len()));
    }

    /// Returns the text with `***` in place of each known secret.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        for secret in &self.secrets {
            if text.contains(secret.expose()) {
                text = Cow::Owned(text.replace(secret.expose(), "***"));
            }
        }
        text
    }
}

/// Words in a variable's name that mark its value as a secret.
const SECRET_WORDS: [&str; 7] =
    ["passw", "passphrase", "secret", "token", "credential", "apikey", "private_key"];

/// Reports whether the variable `name` contains a secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_secrets_go_whole_and_short_ones_are_not_looked_for() {
        let mut redactor = Redactor::default();
        for secret in ["pass", "passw0rd", "x", "-----KEY\nabcdef\n"] {
            redactor.add(&Secret::new(secret));
        }
        assert_eq!(redactor.redact("login passw0rd x abcdef pass!"), "login *** x *** ***!");
        assert!(matches!(redactor.redact("nothing"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_process_with_a_secret_is_not_dumpable() {
        drop(Secret::new(""));
        drop(Secret::new("hunter22"));
        let behavior = rustix::process::dumpable_behavior().unwrap();
        assert_eq!(behavior, DumpableBehavior::NotDumpable);
    }

    #[test]
    fn variables_are_secret_by_name() {
        assert!(is_secret_name("registryPassword") && is_secret_name("MY_TOKEN"));
        assert!(!is_secret_name("registryDomain") && !is_secret_name("etcdData"));
    }
}
