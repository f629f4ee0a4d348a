//! What went wrong with a request: worth another try or not, and the words for it.
//!
//! What a registry says in an error is shown, but only so much of it and nothing that a terminal
//! would obey.

use std::time::Duration;

use http::StatusCode;
use rustls::CertificateError;

use crate::error::{Error, Kind};
use crate::registry::client::resolver::PrivateAddress;

/// So much of what a registry says is shown, in bytes.
const LONGEST_QUOTE: usize = 512;

/// What to make of content that is not what was asked for.
pub(super) const OTHER_BYTES: &str =
    "the registry or something between gave other bytes than were asked for";

/// A try that failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: Error,
    /// Whether another try may succeed.
    pub(super) again: bool,
    /// How long the registry asks us to wait before.
    pub(super) wish: Option<Duration>,
    /// The answer, if there was one.
    pub(super) status: Option<StatusCode>,
}

impl From<Error> for Failure {
    /// A failure that repeating does not mend.
    fn from(error: Error) -> Self {
        Self {
            error,
            again: false,
            wish: None,
            status: None,
        }
    }
}

impl Failure {
    /// A failure that may pass.
    pub(super) fn passing(error: Error) -> Self {
        Self {
            again: true,
            ..Self::from(error)
        }
    }

    /// Something between us and `host` broke. URLs are not repeated: they may be signed.
    pub(super) fn transport(host: &str, error: &reqwest::Error) -> Self {
        let connecting = error.is_connect();
        let mut cause: &(dyn std::error::Error + 'static) = error;
        let mut certificate = None;
        while let Some(deeper) = inner(cause) {
            cause = deeper;
            if let Some(rustls::Error::InvalidCertificate(why)) = cause.downcast_ref() {
                certificate = Some(why);
            }
            if cause.is::<PrivateAddress>() {
                let message = format!("{host} is not told who we are: {cause}");
                return Self::from(Error::new(Kind::Denied, message));
            }
        }
        let cause = quoted(&cause.to_string());
        if let Some(why) = certificate {
            let message = format!("the certificate of {host} is not trusted: {cause}");
            return Self::from(Error::new(Kind::Network, message).hint(advice(why)));
        }
        let what = if connecting {
            "cannot connect to"
        } else {
            "the connection broke to"
        };
        Self::passing(Error::new(Kind::Network, format!("{what} {host}: {cause}")))
    }

    /// Nothing came for too long.
    pub(super) fn silence(host: &str, limit: Duration) -> Self {
        Self::passing(Error::new(
            Kind::Network,
            format!("{host} said nothing for {} s", limit.as_secs()),
        ))
    }
}

/// What to do about a certificate.
fn advice(why: &CertificateError) -> &'static str {
    match why {
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => {
            "renew the registry's certificate if this machine's clock is right, or use --tls-verify=false"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "ask by a name that is in the certificate's subjectAltName (a CN does not count), or use --tls-verify=false"
        }
        _ => {
            "put its authority into /etc/containers/certs.d/HOST/ca.crt, give --cert-dir, or use --tls-verify=false"
        }
    }
}

/// The error underneath; `io::Error` hides its own in `get_ref`.
fn inner<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a (dyn std::error::Error + 'static)> {
    if let Some(error) = error.downcast_ref::<std::io::Error>()
        && let Some(inner) = error.get_ref()
    {
        return Some(inner);
    }
    error.source()
}

/// Foreign text on one line, without control characters, clipped.
pub(super) fn quoted(text: &str) -> String {
    let mut clean = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()) {
        if word.is_empty() {
            continue;
        }
        if clean.len() + word.len() > LONGEST_QUOTE {
            let room = LONGEST_QUOTE.saturating_sub(clean.len());
            clean.extend(
                word.char_indices()
                    .take_while(|(at, c)| at + c.len_utf8() < room)
                    .map(|(_, c)| c),
            );
            clean.push('…');
            return clean;
        }
        if !clean.is_empty() {
            clean.push(' ');
        }
        clean.push_str(word);
    }
    clean
}

/// The codes and messages of an error answer (distribution-spec, "Error Codes"), else its text.
fn said(body: &[u8]) -> Option<String> {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let text = match parsed
        .as_ref()
        .and_then(|value| value.get("errors")?.as_array())
    {
        Some(errors) => {
            let each = errors.iter().map(|error| {
                let member = |name: &str| {
                    error
                        .get(name)
                        .and_then(serde_json::Value::as_str)
                        .filter(|text| !text.is_empty())
                };
                match (member("code"), member("message")) {
                    (Some(code), Some(message)) => format!("{code}: {message}"),
                    (one, other) => one.or(other).unwrap_or_default().to_owned(),
                }
            });
            each.collect::<Vec<_>>().join("; ")
        }
        None => {
            let text = String::from_utf8_lossy(body);
            // A web server's error page says less than its status does.
            if text.trim_start().starts_with('<') {
                return None;
            }
            text.into_owned()
        }
    };
    Some(quoted(&text)).filter(|text| !text.is_empty())
}

/// The same without our `secrets`, should the registry repeat them.
pub(super) fn said_without(body: &[u8], secrets: &[String]) -> Option<String> {
    let mut text = String::from_utf8_lossy(body).into_owned();
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        text = text.replace(secret, "***");
    }
    said(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_secrets_are_not_repeated() {
        let secrets = ["bWU6cHc=".to_owned(), "pw".to_owned(), String::new()];
        let body = br#"{"errors":[{"code":"DENIED","message":"Basic bWU6cHc= is me:pw"}]}"#;
        assert_eq!(
            said_without(body, &secrets).as_deref(),
            Some("DENIED: Basic *** is me:***")
        );
    }

    #[test]
    fn foreign_text_is_tamed() {
        assert_eq!(quoted("a\x1b[31m\r\nb\tc\u{9b}d "), "a [31m b c d");
        for long in ["x".repeat(5000), "é".repeat(5000), "word ".repeat(5000)] {
            let short = quoted(&long);
            assert!(
                short.len() <= LONGEST_QUOTE + '…'.len_utf8(),
                "{}",
                short.len()
            );
            assert!(short.ends_with('…'));
        }
    }

    #[test]
    fn error_answers_are_read() {
        for (body, expected) in [
            (
                r#"{"errors":[{"code":"DENIED","message":"no"}]}"#,
                Some("DENIED: no"),
            ),
            (r#"{"errors":[{"code":"A"},{"message":"b"}]}"#, Some("A; b")),
            (r#"{"errors":[]}"#, None),
            ("404 page not found\n", Some("404 page not found")),
            ("<html><body>Bad gateway</body></html>", None),
            ("", None),
        ] {
            assert_eq!(said(body.as_bytes()).as_deref(), expected, "{body}");
        }
    }
}
