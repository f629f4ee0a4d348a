//! How the client authenticates to a host: passwords, tokens, and the source of tokens.
//!
//! Nothing is sent before the host asks for it (RFC 9110 §11). Credentials go only to that host, or
//! to the token server it names by https.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use crate::client::challenge::{Authorization, Challenge, Scopes, basic, bearer};
use crate::client::failure::Failure;
use crate::client::hosts::Place;
use crate::client::tokens;
use crate::credentials::{Credential, Login};
use imgctl_base::error::{Error, Kind, Result};

impl Place {
    /// Returns the authorization to send, if the host is known to require one.
    pub(super) async fn known_authorization(
        &self,
        scopes: &Scopes,
    ) -> Result<Option<Authorization>, Failure> {
        if self.host.auth.given.is_some() {
            return Ok(self.host.auth.given.clone());
        }
        let asked = self.host.auth.asked.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match asked {
            None => Ok(None),
            Some(challenge) => self.meet(&challenge, scopes, None).await.map(Some),
        }
    }

    /// Returns the authorization for a host that did not accept `used` and sent `challenge`.
    pub(super) async fn renewed_authorization(
        &self,
        challenge: &Challenge,
        scopes: &Scopes,
        used: Option<&Authorization>,
    ) -> Result<Authorization, Failure> {
        if self.host.auth.given.is_some() {
            return Err(no_credentials(self).into());
        }
        *self.host.auth.asked.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(challenge.clone());
        self.meet(challenge, scopes, used).await
    }

    async fn meet(
        &self,
        challenge: &Challenge,
        scopes: &Scopes,
        refused: Option<&Authorization>,
    ) -> Result<Authorization, Failure> {
        let credential = self.credential().await?;
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
                    return Err(no_credentials(self).into());
                };
                let value = basic(user, password.expose())?;
                Ok(Authorization { value, source })
            }
            Challenge::Bearer { realm, service, scopes: wanted } => {
                let server = (realm.as_str(), service.as_deref());
                let credential = credential.as_ref();
                self.token(server, (scopes, wanted), credential, refused).await
            }
        }
    }

    /// Returns the token for `scopes` from the server (realm and service). Adds the scopes that the
    /// host `wanted` if a token without them was refused.
    async fn token(
        &self,
        (realm, service): (&str, Option<&str>),
        (scopes, wanted): (&Scopes, &Scopes),
        credential: Option<&Credential>,
        refused: Option<&Authorization>,
    ) -> Result<Authorization, Failure> {
        let slot = {
            let mut slots = self.host.auth.slots.lock().unwrap_or_else(PoisonError::into_inner);
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
        let token = tokens::fetch(self, realm, service, &scopes, credential).await?;
        let authorization = token.authorization.clone();
        slot.token = Some(token);
        Ok(authorization)
    }

    /// Returns our credential for a self. Looked up once, because a helper may be slow or prompt
    /// the user.
    async fn credential(&self) -> Result<Option<Credential>> {
        let mut found = self.host.auth.found.lock().await;
        if let Some(credential) = found.get(&self.repository) {
            return Ok(credential.clone());
        }
        let mut credentials = self.shared.options.credentials.clone();
        if !self.host.asked {
            // --creds applies only to the registry in the image's name, not to a mirror.
            credentials.explicit = None;
        }
        let (registry, repository) = (self.host.registry().to_owned(), self.repository.clone());
        let looking = tokio::task::spawn_blocking(move || credentials.find(&registry, &repository));
        let credential = looking.await.map_err(|error| {
            Error::failed("the search for credentials failed").caused_by(error)
        })??;
        found.insert(self.repository.clone(), credential.clone());
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
