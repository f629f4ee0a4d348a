//! How the client authenticates to a host: passwords, tokens, and the source of tokens, the server
//! that a registry names (distribution, "Token Authentication Specification" and "OAuth2 Token
//! Authentication").
//!
//! Nothing is sent before the host asks for it (RFC 9110 §11). Credentials go only to that host, or
//! to the token server it names by https.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use http::{Method, header};
use reqwest::Url;
use serde_json::{Map, Value};

use crate::client::challenge::{
    Authorization, Challenge, Scopes, Token, basic, bearer, secrets_of,
};
use crate::client::failure::{Failure, quoted, said_without};
use crate::client::hosts::{Place, Pool};
use crate::client::http::{Response, carry};
use crate::client::resolver::{PrivateAddress, looks_private};
use crate::client::retry::{may_pass, retry_after};
use crate::config_file::member;
use crate::credentials::{Credential, Login};
use crate::registries::Certificates;
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
        let token = fetch_token(self, realm, service, &scopes, credential).await?;
        let authorization = token.authorization.clone();
        slot.token = Some(token);
        Ok(authorization)
    }

    /// Returns our credential for a self. Looked up once, because a helper may be slow or prompt
    /// the user.
    pub(super) async fn credential(&self) -> Result<Option<Credential>> {
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

pub(super) fn no_credentials(place: &Place) -> Error {
    let registry = place.host.registry();
    Error::new(
        Kind::Denied,
        format!("{registry} requires a login, and no credentials for it were found"),
    )
    .hint(format!("log in: `imgctl login {registry}`"))
}

/// Minimum validity of a token, in seconds; also used if the server does not specify one.
const LEAST_VALIDITY: u64 = 60;
/// Maximum accepted validity, in seconds: a token may be revoked.
const MOST_VALIDITY: u64 = 3600;
/// Time before its expiry at which a token is no longer used.
const MARGIN: Duration = Duration::from_secs(5);
/// Maximum size of a token server's response, in bytes.
const MAX_ANSWER: u64 = 1 << 20;

/// Fetches a token for `scopes` from the server at `realm`.
pub(super) async fn fetch_token(
    place: &Place,
    realm: &str,
    service: Option<&str>,
    scopes: &Scopes,
    credential: Option<&Credential>,
) -> Result<Token, Failure> {
    let (url, connection) = checked_realm(place, realm, credential.is_some()).await?;
    let (request, url) = request(url, service, scopes, credential)?;
    let pace = &place.shared.pace;
    let mut response = carry(&connection, request, &url, pace, None).await?;
    let body = response.read(MAX_ANSWER, pace).await?;
    if !response.status.is_success() {
        return Err(refusal(place, &response, &body, credential));
    }
    read(&body, credential).map_err(|error| {
        let host = host_of(&url);
        error.context(format!("cannot use the token that {host} gave")).into()
    })
}

/// Checks that the token server is secure enough for our secret, and returns the connections for
/// it. The registry's own host uses the registry's connections. Other hosts do not receive our
/// certificate, need a valid one, and must not be in our network unless the registry is.
async fn checked_realm(
    place: &Place,
    realm: &str,
    secret: bool,
) -> Result<(Url, reqwest::Client), Failure> {
    let registry = &place.host.name;
    let refuse = |why: &str| {
        let realm = quoted(realm.split('?').next().unwrap_or_default());
        Failure::from(Error::new(
            Kind::Denied,
            format!("{registry} names a token server that is not trusted, {realm}: {why}"),
        ))
    };
    let url = Url::parse(realm).map_err(|_| refuse("it is not a URL"))?;
    let base = place.host.base(&place.shared.pace).await?;
    let same_host = url.host_str().is_some() && url.host_str() == base.host_str();
    let same_port = url.port_or_known_default() == base.port_or_known_default();
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refuse("it contains a password"));
    }
    match url.scheme() {
        "https" => {}
        // Another port is another server: only the registry's own gets a password in the clear.
        "http" if same_host && base.scheme() == "http" && (!secret || same_port) => {}
        "http" if same_host && base.scheme() == "http" => {
            return Err(refuse("it has another port than the registry, and it is not https"));
        }
        "http" => return Err(refuse("it is not https")),
        _ => return Err(refuse("it is not http")),
    }
    if same_host {
        return Ok((url, place.host.connection.clone()));
    }
    let public = secret && !place.shared.names.is_private(base);
    if public && looks_private(&url) {
        return Err(refuse(&PrivateAddress.to_string()));
    }
    let connection = place.shared.connection(Pool {
        insecure: false,
        public,
        certificates: Certificates { client: None, ..place.host.certificates.clone() },
    })?;
    Ok((url, connection))
}

fn host_of(url: &Url) -> &str {
    url.host_str().unwrap_or_default()
}

type Request = http::Request<reqwest::Body>;

fn request(
    mut url: Url,
    service: Option<&str>,
    scopes: &Scopes,
    credential: Option<&Credential>,
) -> Result<(Request, Url)> {
    let texts = scopes.texts();
    let mut request = http::Request::builder().method(Method::GET);
    let mut body = reqwest::Body::default();
    let login = credential.map(|credential| &credential.login);
    if let Some(Login::Identity(token)) = login {
        let mut form = url.clone();
        form.set_query(None);
        form.query_pairs_mut()
            .append_pair("grant_type", "refresh_token")
            .append_pair("service", service.unwrap_or_default())
            .append_pair("client_id", "imgctl")
            .append_pair("scope", &texts.join(" "))
            .append_pair("refresh_token", token.expose());
        body = form.query().unwrap_or_default().to_owned().into();
        request = request
            .method(Method::POST)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    } else {
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        pairs.extend(service.map(|service| ("service", service)));
        pairs.extend(texts.iter().map(|scope| ("scope", scope.as_str())));
        if let Some(Login::Password { user, password }) = login {
            pairs.push(("account", user));
            request = request.header(header::AUTHORIZATION, basic(user, password.expose())?);
        }
        if !pairs.is_empty() {
            url.query_pairs_mut().extend_pairs(pairs);
        }
    }
    let request = request
        .uri(url.as_str())
        .body(body)
        .map_err(|_| Error::bad_content("the token server's address cannot be used"))?;
    Ok((request, url))
}

fn refusal(
    place: &Place,
    response: &Response,
    body: &[u8],
    credential: Option<&Credential>,
) -> Failure {
    let (host, status) = (host_of(&response.url), response.status);
    let secrets = credential.map_or_else(Vec::new, |credential| secrets_of(&credential.login));
    let why = said_without(body, &secrets);
    let why = why.map_or_else(String::new, |text| format!(": {text}"));
    if may_pass(status) {
        let error =
            Error::new(Kind::Network, format!("the token server {host} answered {status}{why}"));
        return Failure { retry_after: retry_after(&response.headers), ..Failure::passing(error) };
    }
    let registry = place.host.registry();
    let whose = match credential {
        Some(credential) => format!("the credentials from {}", credential.source),
        None => format!("us without credentials (none for {registry} were found)"),
    };
    Error::new(Kind::Denied, format!("the token server {host} refused {whose}: {status}{why}"))
        .hint(format!("log in: `imgctl login {registry}`"))
        .into()
}

/// Reads a token server's answer. As other clients do, an empty token counts as absent, and a
/// validity that is no positive number as the least.
fn read(body: &[u8], credential: Option<&Credential>) -> Result<Token> {
    // A parser's message may quote the input, so it is dropped.
    let answer: Map<String, Value> = serde_json::from_slice(body)
        .map_err(|_| Error::bad_content("it is not the JSON of a token"))?;
    let text = ["token", "access_token"]
        .into_iter()
        .filter_map(|name| member(&answer, name)?.as_str())
        .find(|text| !text.is_empty())
        .ok_or_else(|| Error::bad_content("the response contains no token"))?;
    let validity = match member(&answer, "expires_in") {
        // A float becomes the nearest integer in range, NaN becomes 0.
        Some(Value::Number(seconds)) => seconds.as_f64().unwrap_or_default() as u64,
        Some(Value::String(seconds)) => seconds.trim().parse().unwrap_or_default(),
        _ => LEAST_VALIDITY,
    };
    let validity = validity.clamp(LEAST_VALIDITY, MOST_VALIDITY);
    Ok(Token {
        authorization: Authorization {
            value: bearer(text)?,
            source: credential.map(|credential| credential.source.clone()),
        },
        until: Instant::now() + Duration::from_secs(validity) - MARGIN,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_base::testing::damaged;

    fn seconds(body: &str) -> Option<u64> {
        let token = read(body.as_bytes(), None).ok()?;
        assert_eq!(token.authorization.value, "Bearer t", "{body}");
        let left = token.until + MARGIN - Instant::now();
        Some(left.as_secs_f64().round() as u64)
    }

    #[test]
    fn answers_of_other_forms_are_tokens_too() {
        for (body, expected) in [
            (r#"{"token":"t","expires_in":300}"#, Some(300)),
            (r#"{"token":"t"}"#, Some(60)),
            (r#"{"token":"t","expires_in":-1}"#, Some(60)),
            (r#"{"token":"t","expires_in":0,"issued_at":"once"}"#, Some(60)),
            (r#"{"token":"t","expires_in":300.5,"scope":null}"#, Some(300)),
            (r#"{"token":"t","expires_in":"300"}"#, Some(300)),
            (r#"{"token":"t","expires_in":1e300}"#, Some(3600)),
            (r#"{"token":"t","expires_in":18446744073709551616}"#, Some(3600)),
            (r#"{"token":"t","expires_in":[]}"#, Some(60)),
            (r#"{"token":"","access_token":"t"}"#, Some(60)),
            (r#"{"token":null,"access_token":"t"}"#, Some(60)),
            (r#"{"Token":"t","Expires_In":90}"#, Some(90)),
            (r#"{"token":"t","access_token":""}"#, Some(60)),
            (r#"{"token":"","access_token":""}"#, None),
            (r#"{"refresh_token":"t"}"#, None),
            (r#""t""#, None),
            ("t", None),
        ] {
            assert_eq!(seconds(body), expected, "{body}");
        }
    }

    #[test]
    fn any_answer_is_a_token_or_refused() {
        let valid = br#"{"token":"abc.def","access_token":"x","expires_in":300}"#;
        assert!(read(valid, None).is_ok());
        bolero::check!().for_each(|input: &[u8]| {
            for body in [input.to_vec(), damaged(valid, input)] {
                if let Ok(token) = read(&body, None) {
                    let longest = Instant::now() + Duration::from_secs(MOST_VALIDITY);
                    assert!(token.until <= longest);
                }
            }
        });
    }
}
