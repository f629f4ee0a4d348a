//! What authentication to a host needs: header values, tokens, and what is known about the host.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;

use crate::client::challenge::{Challenge, Scopes};
use crate::credentials::{Credential, Login};
use imgctl_base::error::{Error, Result};

/// Value of the `Authorization` header, and the source of its credential.
#[derive(Clone, Debug)]
pub(super) struct Authorization {
    pub(super) value: HeaderValue,
    /// Source of the credential; `None` for an anonymous token.
    pub(super) source: Option<String>,
}

impl Authorization {
    /// Returns the secrets in the value: the token, or both forms of the password.
    pub(super) fn secrets(&self) -> Vec<String> {
        let text = self.value.to_str().unwrap_or_default();
        let Some((scheme, secret)) = text.split_once(' ') else {
            return Vec::new();
        };
        let mut secrets = vec![secret.to_owned()];
        if scheme == "Basic"
            && let Ok(pair) = STANDARD.decode(secret)
            && let Some((_, password)) = String::from_utf8_lossy(&pair).split_once(':')
        {
            secrets.push(password.to_owned());
        }
        secrets
    }
}

/// A token as sent to the registry.
#[derive(Debug)]
pub(super) struct Token {
    pub(super) authorization: Authorization,
    pub(super) until: Instant,
}

/// Token for one set of scopes. Locked during a fetch, so that other requests wait for its result.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) token: Option<Token>,
    /// Scopes that the host requested in addition to ours.
    pub(super) extra: Scopes,
}

/// Authentication state of a host.
#[derive(Debug, Default)]
pub(super) struct Auth {
    /// The only authorization for a host whose token is known beforehand.
    pub(super) given: Option<Authorization>,
    pub(super) asked: Mutex<Option<Challenge>>,
    pub(super) slots: Mutex<HashMap<Scopes, Arc<tokio::sync::Mutex<Slot>>>>,
    pub(super) found: tokio::sync::Mutex<HashMap<String, Option<Credential>>>,
}

impl Auth {
    /// Returns the state of a host that accepts `token`.
    pub(super) fn with_token(token: &str) -> Result<Self> {
        let given = Some(Authorization { value: bearer(token)?, source: None });
        Ok(Self { given, ..Self::default() })
    }
}

/// Returns the `Authorization` value for a user and password.
pub(super) fn basic(user: &str, password: &str) -> Result<HeaderValue> {
    let pair = STANDARD.encode(format!("{user}:{password}"));
    secret(format!("Basic {pair}"))
}

/// Returns the `Authorization` value for a token.
pub(super) fn bearer(token: &str) -> Result<HeaderValue> {
    secret(format!("Bearer {token}"))
}

/// Returns the secrets of a login, in each form in which they are sent.
pub(super) fn secrets_of(login: &Login) -> Vec<String> {
    match login {
        Login::Password { user, password } => {
            let password = password.expose();
            let pair = STANDARD.encode(format!("{user}:{password}"));
            vec![pair, password.to_owned()]
        }
        Login::Identity(token) | Login::Bearer(token) => vec![token.expose().to_owned()],
    }
}

/// Returns a header value that is hidden from logs.
fn secret(text: String) -> Result<HeaderValue> {
    let mut value = HeaderValue::try_from(text).map_err(|_| {
        Error::bad_content("a token or password cannot be sent: it contains a control character")
    })?;
    value.set_sensitive(true);
    Ok(value)
}
