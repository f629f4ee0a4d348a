//! How the client authenticates to a host: passwords, tokens, and the source of tokens.
//!
//! Nothing is sent before the host asks for it (RFC 9110 §11). Credentials go only to that host, or
//! to the token server it names by https.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;

use crate::client::challenge::{Challenge, Scopes};
use crate::client::failure::Failure;
use crate::client::place::Place;
use crate::client::tokens::{self, Token};
use crate::credentials::{Credential, Login};
use imgctl_base::error::{Error, Kind, Result};

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

/// Token for one set of scopes. Locked during a fetch, so that other requests wait for its result.
#[derive(Debug, Default)]
struct Slot {
    token: Option<Token>,
    /// Scopes that the host requested in addition to ours.
    extra: Scopes,
}

/// Authentication state of a host.
#[derive(Debug, Default)]
pub(super) struct Auth {
    /// The only authorization for a host whose token is known beforehand.
    given: Option<Authorization>,
    asked: Mutex<Option<Challenge>>,
    slots: Mutex<HashMap<Scopes, Arc<tokio::sync::Mutex<Slot>>>>,
    found: tokio::sync::Mutex<HashMap<String, Option<Credential>>>,
}

impl Auth {
    /// Returns the state of a host that accepts `token`.
    pub(super) fn with_token(token: &str) -> Result<Self> {
        let given = Some(Authorization { value: bearer(token)?, source: None });
        Ok(Self { given, ..Self::default() })
    }

    /// Returns the authorization to send, if the host is known to require one.
    pub(super) async fn known(
        &self,
        place: &Place,
        scopes: &Scopes,
    ) -> Result<Option<Authorization>, Failure> {
        if self.given.is_some() {
            return Ok(self.given.clone());
        }
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match asked {
            None => Ok(None),
            Some(challenge) => self.meet(place, &challenge, scopes, None).await.map(Some),
        }
    }

    /// Returns the authorization for a host that did not accept `used` and sent `challenge`.
    pub(super) async fn renewed(
        &self,
        place: &Place,
        challenge: &Challenge,
        scopes: &Scopes,
        used: Option<&Authorization>,
    ) -> Result<Authorization, Failure> {
        if self.given.is_some() {
            return Err(no_credentials(place).into());
        }
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(challenge.clone());
        self.meet(place, challenge, scopes, used).await
    }

    async fn meet(
        &self,
        place: &Place,
        challenge: &Challenge,
        scopes: &Scopes,
        refused: Option<&Authorization>,
    ) -> Result<Authorization, Failure> {
        let credential = self.credential(place).await?;
        let source = credential.as_ref().map(|credential| credential.source.clone());
        if let Some(Credential { login: Login::Bearer(token), .. }) = &credential {
            let value = bearer(token.expose())?;
            return Ok(Authorization { value, source });
        }
        match challenge {
            Challenge::Basic => {
                let Some(Credential { login: Login::Password { user, password }, .. }) =
                    &credential
                else {
                    return Err(no_credentials(place).into());
                };
                let value = basic(user, password.expose())?;
                Ok(Authorization { value, source })
            }
            Challenge::Bearer { realm, service, scopes: wanted } => {
                let server = (realm.as_str(), service.as_deref());
                let credential = credential.as_ref();
                self.token(place, server, (scopes, wanted), credential, refused).await
            }
        }
    }

    /// Returns the token for `scopes` from the server (realm and service). Adds the scopes that the
    /// host `wanted` if a token without them was refused.
    async fn token(
        &self,
        place: &Place,
        (realm, service): (&str, Option<&str>),
        (scopes, wanted): (&Scopes, &Scopes),
        credential: Option<&Credential>,
        refused: Option<&Authorization>,
    ) -> Result<Authorization, Failure> {
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(slots.entry(scopes.clone()).or_default())
        };
        let mut slot = slot.lock().await;
        if let Some(token) = &slot.token
            && token.until > Instant::now()
            && refused.is_none_or(|refused| refused.value != token.authorization.value)
        {
            return Ok(token.authorization.clone());
        }
        slot.token = None;
        if refused.is_some() {
            slot.extra = std::mem::take(&mut slot.extra).union(wanted);
        }
        // The challenge names the scope of the request that caused it, which may be a different
        // request.
        let scopes = scopes.clone().union(&slot.extra);
        let token = tokens::fetch(place, realm, service, &scopes, credential).await?;
        let authorization = token.authorization.clone();
        slot.token = Some(token);
        Ok(authorization)
    }

    /// Returns our credential for a place. Looked up once, because a helper may be slow or prompt
    /// the user.
    async fn credential(&self, place: &Place) -> Result<Option<Credential>> {
        let mut found = self.found.lock().await;
        if let Some(credential) = found.get(&place.repository) {
            return Ok(credential.clone());
        }
        let mut credentials = place.shared.options.credentials.clone();
        if !place.host.asked {
            // --creds applies only to the registry in the image's name, not to a mirror.
            credentials.explicit = None;
        }
        let (registry, repository) = (place.host.registry().to_owned(), place.repository.clone());
        let looking = tokio::task::spawn_blocking(move || credentials.find(&registry, &repository));
        let credential = looking.await.map_err(|error| {
            Error::failed("the search for credentials failed").caused_by(error)
        })??;
        found.insert(place.repository.clone(), credential.clone());
        Ok(credential)
    }
}

/// Returns the error for a missing credential for `place`.
pub(super) fn no_credentials(place: &Place) -> Error {
    let registry = place.host.registry();
    Error::new(
        Kind::Denied,
        format!("{registry} requires a login, and no credentials for it were found"),
    )
    .hint(format!("log in: `imgctl login {registry}`"))
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
