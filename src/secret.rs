//! Secrets: text that is never shown, and taking known secrets out of what is shown.
//!
//! Must not know where secrets come from.

use std::borrow::Cow;

/// A password, key or token. `Debug` shows none of it; the memory is overwritten when it goes.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself: for the wire only.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// Replaces known secrets in text that goes to a log, a journal or a screen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Redactor {
    /// Longest first, so that a secret that holds another one goes whole.
    secrets: Vec<Secret>,
}

/// A secret shorter than this is not looked for: it would take innocent text along.
const SHORTEST: usize = 4;

impl Redactor {
    /// Knows `secret` from now on; of several lines each is looked for.
    pub(crate) fn add(&mut self, secret: &Secret) {
        for line in secret.expose().lines() {
            let line = line.trim();
            if line.len() >= SHORTEST && !self.secrets.iter().any(|known| known.0 == line) {
                self.secrets.push(Secret::new(line));
            }
        }
        self.secrets
            .sort_by_key(|secret| std::cmp::Reverse(secret.0.len()));
    }

    /// The text with `***` in place of each known secret.
    pub(crate) fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        for secret in &self.secrets {
            if text.contains(secret.expose()) {
                text = Cow::Owned(text.replace(secret.expose(), "***"));
            }
        }
        text
    }
}

/// Words in the name of a variable that make its value a secret.
const SECRET_WORDS: [&str; 7] = [
    "passw",
    "passphrase",
    "secret",
    "token",
    "credential",
    "apikey",
    "private_key",
];

/// Whether the variable `name` holds what must not be shown.
pub(crate) fn is_secret_name(name: &str) -> bool {
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
        assert_eq!(
            redactor.redact("login passw0rd x abcdef pass!"),
            "login *** x *** ***!"
        );
        assert!(matches!(redactor.redact("nothing"), Cow::Borrowed(_)));
    }

    #[test]
    fn variables_are_secret_by_name() {
        assert!(is_secret_name("registryPassword") && is_secret_name("MY_TOKEN"));
        assert!(!is_secret_name("registryDomain") && !is_secret_name("etcdData"));
    }
}
