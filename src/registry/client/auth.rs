//! How a host is shown who we are: passwords, tokens, and where tokens come from.
//!
//! Nothing is sent before the host asks for it (RFC 9110 §11), and what it asks for goes to it or to
//! the token server it names by https, nowhere else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;

use crate::error::{Error, Kind, Result};
use crate::registry::client::challenge::{Challenge, Scopes};
use crate::registry::client::failure::Failure;
use crate::registry::client::place::Place;
use crate::registry::client::tokens::{self, Token};
use crate::registry::credentials::{Credential, Login};

/// What to put into `Authorization`, and whose it is.
#[derive(Clone, Debug)]
pub(super) struct Authorization {
    pub(super) value: HeaderValue,
    /// The source of the credential; `None` is a token for anybody.
    pub(super) source: Option<String>,
}

impl Authorization {
    /// What of it must not be seen: the token, or the password in both of its forms.
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

/// The token for one set of scopes. Held while one is fetched, so that others wait for it.
#[derive(Debug, Default)]
struct Slot {
    token: Option<Token>,
    /// What the host wanted beyond what we asked for.
    extra: Scopes,
}

/// What is known of a host's wishes.
#[derive(Debug, Default)]
pub(super) struct Auth {
    asked: Mutex<Option<Challenge>>,
    slots: Mutex<HashMap<Scopes, Arc<tokio::sync::Mutex<Slot>>>>,
    found: tokio::sync::Mutex<HashMap<String, Option<Credential>>>,
}

impl Auth {
    /// What to send along, as far as the host is known to ask for anything.
    pub(super) async fn known(
        &self,
        place: &Place,
        scopes: &Scopes,
    ) -> Result<Option<Authorization>, Failure> {
        let asked = self
            .asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        match asked {
            None => Ok(None),
            Some(challenge) => self.meet(place, &challenge, scopes, None).await.map(Some),
        }
    }

    /// What to send to a host that did not accept `used` and asks for `challenge`.
    pub(super) async fn renewed(
        &self,
        place: &Place,
        challenge: &Challenge,
        scopes: &Scopes,
        used: Option<&Authorization>,
    ) -> Result<Authorization, Failure> {
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
        let source = credential
            .as_ref()
            .map(|credential| credential.source.clone());
        if let Some(Credential {
            login: Login::Bearer(token),
            ..
        }) = &credential
        {
            let value = bearer(token.expose())?;
            return Ok(Authorization { value, source });
        }
        match challenge {
            Challenge::Basic => {
                let Some(Credential {
                    login: Login::Password { user, password },
                    ..
                }) = &credential
                else {
                    return Err(no_credentials(place).into());
                };
                let value = basic(user, password.expose())?;
                Ok(Authorization { value, source })
            }
            Challenge::Bearer {
                realm,
                service,
                scopes: wanted,
            } => {
                let server = (realm.as_str(), service.as_deref());
                let credential = credential.as_ref();
                self.token(place, server, (scopes, wanted), credential, refused)
                    .await
            }
        }
    }

    /// The token for `scopes` from the server (realm and service); what the host `wanted` is added
    /// when a token without it was refused.
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
        // The first challenge names the scope of the request that met it, perhaps another one's.
        let scopes = scopes.clone().union(&slot.extra);
        let token = tokens::fetch(place, realm, service, &scopes, credential).await?;
        let authorization = token.authorization.clone();
        slot.token = Some(token);
        Ok(authorization)
    }

    /// Our credential for a place; looked for once (a helper may be slow or ask something).
    async fn credential(&self, place: &Place) -> Result<Option<Credential>> {
        let mut found = self.found.lock().await;
        if let Some(credential) = found.get(&place.repository) {
            return Ok(credential.clone());
        }
        let mut credentials = place.shared.options.credentials.clone();
        if !place.host.asked {
            // --creds is for the registry in the image's name; a mirror is another one.
            credentials.explicit = None;
        }
        let (registry, repository) = (place.host.registry().to_owned(), place.repository.clone());
        let looking = tokio::task::spawn_blocking(move || credentials.find(&registry, &repository));
        let credential = looking.await.map_err(|error| {
            Error::failed("the search for credentials broke").caused_by(error)
        })??;
        found.insert(place.repository.clone(), credential.clone());
        Ok(credential)
    }
}

/// There is nothing that we could show to `place`.
pub(super) fn no_credentials(place: &Place) -> Error {
    let registry = place.host.registry();
    Error::new(
        Kind::Denied,
        format!("{registry} asks who we are, and no credentials for it were found"),
    )
    .hint(format!("log in: `imgctl login {registry}`"))
}

/// `Authorization` of a user and password.
pub(super) fn basic(user: &str, password: &str) -> Result<HeaderValue> {
    let pair = STANDARD.encode(format!("{user}:{password}"));
    secret(format!("Basic {pair}"))
}

/// `Authorization` of a token.
pub(super) fn bearer(token: &str) -> Result<HeaderValue> {
    secret(format!("Bearer {token}"))
}

/// What of a login must not be seen, in each form in which it is sent.
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

/// A header's value that no log shows.
fn secret(text: String) -> Result<HeaderValue> {
    let mut value = HeaderValue::try_from(text).map_err(|_| {
        Error::bad_content("a token or password cannot be sent: it holds a control character")
    })?;
    value.set_sensitive(true);
    Ok(value)
}
