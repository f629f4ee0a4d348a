//! Errors of a request: their messages, and whether a retry is worthwhile.
//!
//! Messages include the registry's error text, truncated and without characters that a terminal
//! would interpret.

use std::time::Duration;

use http::StatusCode;
use rustls::CertificateError;

use crate::client::resolver::{PrivateAddress, Unresolved};
use imgctl_base::error::{Error, Kind};

/// Maximum number of bytes of a registry's text in a message.
const LONGEST_QUOTE: usize = 512;

/// Hint for content that differs from the requested content.
pub(super) const OTHER_BYTES: &str =
    "the registry or a proxy in between sent other bytes than requested";

/// Hint for a registry whose name has no address.
const NO_ADDRESS: &str =
    "check the name, the name servers in /etc/resolv.conf, and HTTPS_PROXY if there is a proxy";

#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: Error,
    /// Whether a retry may succeed.
    pub(super) again: bool,
    /// Delay that the registry requests before a retry.
    pub(super) retry_after: Option<Duration>,
    /// Status of the response, if there was one.
    pub(super) status: Option<StatusCode>,
}

impl From<Error> for Failure {
    /// Returns a permanent failure.
    fn from(error: Error) -> Self {
        Self { error, again: false, retry_after: None, status: None }
    }
}

/// Beginning of the message of a connection that could not be made.
pub(super) const CANNOT_CONNECT: &str = "cannot connect to";

impl Failure {
    /// Returns a temporary failure.
    pub(super) fn passing(error: Error) -> Self {
        Self { again: true, ..Self::from(error) }
    }

    /// Returns the failure of a connection to `host`. Omits the URL, which may be signed.
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
                let message = format!("not sending credentials to {host}: {cause}");
                return Self::from(Error::new(Kind::Denied, message));
            }
        }
        let unresolved = cause.is::<Unresolved>();
        let cause = quoted(&cause.to_string());
        if let Some(why) = certificate {
            let message = format!("the certificate of {host} is not trusted: {cause}");
            return Self::from(Error::new(Kind::Network, message).hint(advice(why)));
        }
        let what = if connecting { CANNOT_CONNECT } else { "the connection broke to" };
        let error = Error::new(Kind::Network, format!("{what} {host}: {cause}"));
        Self::passing(if unresolved { error.hint(NO_ADDRESS) } else { error })
    }

    /// Returns the failure for a timeout.
    pub(super) fn silence(host: &str, limit: Duration) -> Self {
        Self::passing(Error::new(
            Kind::Network,
            format!("{host} sent nothing for {} s", limit.as_secs()),
        ))
    }
}

/// Returns the hint for a certificate error.
fn advice(why: &CertificateError) -> &'static str {
    match why {
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => {
            "renew the registry's certificate if this machine's clock is right, or use --tls-verify=false"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "use a name that is in the certificate's subjectAltName (a CN does not count), or \
             use --tls-verify=false"
        }
        _ => {
            "put its CA certificate into /etc/containers/certs.d/HOST/ca.crt, pass --cert-dir, \
             or use --tls-verify=false"
        }
    }
}

/// Returns the cause of an error; `io::Error` returns its own only from `get_ref`.
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

/// Returns untrusted text on one line, without control characters and truncated.
pub(super) fn quoted(text: &str) -> String {
    let mut clean = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()) {
        if word.is_empty() {
            continue;
        }
        if clean.len() + word.len() > LONGEST_QUOTE {
            let room = LONGEST_QUOTE.saturating_sub(clean.len());
            clean.extend(
                word.char_indices().take_while(|(at, c)| at + c.len_utf8() < room).map(|(_, c)| c),
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

/// Returns the codes and messages of an error response (distribution-spec, "Error Codes"),
/// otherwise its text.
fn said(body: &[u8]) -> Option<String> {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let text = match parsed.as_ref().and_then(|value| value.get("errors")?.as_array()) {
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
            // The status says more than the error page of a web server.
            if text.trim_start().starts_with('<') {
                return None;
            }
            text.into_owned()
        }
    };
    Some(quoted(&text)).filter(|text| !text.is_empty())
}

/// Same as `said`, with our `secrets` removed in case the registry repeats them.
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
    use imgctl_base::testing::damaged;

    #[test]
    fn our_secrets_are_not_repeated() {
        let secrets = ["bWU6cHc=".to_owned(), "pw".to_owned(), String::new()];
        let body = br#"{"errors":[{"code":"DENIED","message":"Basic bWU6cHc= is me:pw"}]}"#;
        assert_eq!(said_without(body, &secrets).as_deref(), Some("DENIED: Basic *** is me:***"));
    }

    #[test]
    fn foreign_text_is_tamed() {
        assert_eq!(quoted("a\x1b[31m\r\nb\tc\u{9b}d "), "a [31m b c d");
        for long in ["x".repeat(5000), "é".repeat(5000), "word ".repeat(5000)] {
            let short = quoted(&long);
            assert!(short.len() <= LONGEST_QUOTE + '…'.len_utf8(), "{}", short.len());
            assert!(short.ends_with('…'));
        }
    }

    #[test]
    fn error_answers_are_read() {
        for (body, expected) in [
            (r#"{"errors":[{"code":"DENIED","message":"no"}]}"#, Some("DENIED: no")),
            (r#"{"errors":[{"code":"A"},{"message":"b"}]}"#, Some("A; b")),
            (r#"{"errors":[]}"#, None),
            ("404 page not found\n", Some("404 page not found")),
            ("<html><body>Bad gateway</body></html>", None),
            ("", None),
        ] {
            assert_eq!(said(body.as_bytes()).as_deref(), expected, "{body}");
        }
    }

    #[test]
    fn whatever_a_registry_says_is_shown_in_one_line() {
        let valid = br#"{"errors":[{"code":"DENIED","message":"no secret"},{"message":"x"}]}"#;
        bolero::check!().for_each(|input: &[u8]| {
            for body in [input.to_vec(), damaged(valid, input)] {
                if let Some(said) = said_without(&body, &["secret".to_owned()]) {
                    assert!(!said.contains(|c: char| c.is_control()), "{said:?}");
                }
            }
        });
    }
}
