//! What authentication to a host needs: its challenge (\`WWW-Authenticate\`, RFC 9110 §11.6.1), the
//! scopes of registry tokens, header values, tokens, and what is known about the host.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::credentials::{Credential, Login, Secret};
use imgctl_base::error::{Error, Result};

/// Maximum length of the header, in bytes; a longer one is ignored.
const LONGEST: usize = 8 << 10;

/// Authentication that a registry requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    Basic,
    /// A token from `realm`.
    Bearer {
        realm: String,
        service: Option<String>,
        scopes: Scopes,
    },
}

/// Permissions: maps `type:name` to actions, for example `repository:team/app` to `pull` and
/// `push`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Scopes(BTreeMap<String, BTreeSet<String>>);

impl Scopes {
    /// Returns the scopes for comma-separated `actions` on a repository.
    pub(super) fn repository(name: &str, actions: &str) -> Self {
        let mut scopes = Self::default();
        scopes.add(&format!("repository:{name}"), actions);
        scopes
    }

    /// Parses space-separated scopes. The name may contain colons (a port).
    pub(super) fn parse(text: &str) -> Self {
        let mut scopes = Self::default();
        for scope in text.split_ascii_whitespace() {
            if let Some((resource, actions)) = scope.rsplit_once(':') {
                scopes.add(resource, actions);
            }
        }
        scopes
    }

    fn add(&mut self, resource: &str, actions: &str) {
        let known = self.0.entry(resource.to_owned()).or_default();
        known.extend(actions.split(',').filter(|action| !action.is_empty()).map(str::to_owned));
    }

    /// Returns the union of both permissions.
    pub(super) fn union(mut self, other: &Self) -> Self {
        for (resource, actions) in &other.0 {
            let known = self.0.entry(resource.clone()).or_default();
            known.extend(actions.iter().cloned());
        }
        self
    }

    /// Returns one text per resource: `repository:team/app:pull,push`.
    pub(super) fn texts(&self) -> Vec<String> {
        self.0
            .iter()
            .map(|(resource, actions)| {
                let actions: Vec<&str> = actions.iter().map(String::as_str).collect();
                format!("{resource}:{}", actions.join(","))
            })
            .collect()
    }
}

/// Returns the preferred challenge of a response: a token is preferred to a password.
pub(super) fn of_headers(headers: &HeaderMap) -> Option<Challenge> {
    let mut basic = None;
    for value in headers.get_all(header::WWW_AUTHENTICATE) {
        if value.len() > LONGEST {
            continue;
        }
        // A realm may hold any bytes above 0x7f (RFC 9110, section 5.6.4).
        let text = String::from_utf8_lossy(value.as_bytes());
        for (scheme, parameters) in parse(&text) {
            if scheme.eq_ignore_ascii_case("basic") {
                basic = Some(Challenge::Basic);
            } else if scheme.eq_ignore_ascii_case("bearer")
                && let Some(realm) = parameters.get("realm")
            {
                return Some(Challenge::Bearer {
                    realm: realm.clone(),
                    service: parameters.get("service").cloned(),
                    scopes: Scopes::parse(parameters.get("scope").map_or("", String::as_str)),
                });
            }
        }
    }
    basic
}

/// Returns the schemes with their parameters, names in lower case. Ignores everything after a
/// syntax error.
fn parse(text: &str) -> Vec<(String, BTreeMap<String, String>)> {
    let mut found: Vec<(String, BTreeMap<String, String>)> = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let (word, after) = token(rest);
        if word.is_empty() {
            return found;
        }
        let Some(value) = after.trim_start().strip_prefix('=') else {
            found.push((word.to_owned(), BTreeMap::new()));
            rest = after;
            continue;
        };
        let (Some((_, parameters)), Some((value, after))) =
            (found.last_mut(), parameter_value(value.trim_start()))
        else {
            return found;
        };
        // The first of two equal parameters counts: a proxy may append, but must not replace.
        parameters.entry(word.to_ascii_lowercase()).or_insert(value);
        rest = after;
    }
}

fn token(text: &str) -> (&str, &str) {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    text.split_at(text.find(|c| !is_token(c)).unwrap_or(text.len()))
}

/// Returns a token or quoted string, and the text after it.
fn parameter_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        // More than a token: some registries do not quote the address of a realm.
        let end = text.find([',', ' ', '\t', '"']).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        return (!word.is_empty()).then(|| (word.to_owned(), rest));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            _ => value.push(character),
        }
    }
    None
}

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

    /// Returns the state of a host for whose `repository` no other credential is looked for.
    pub(super) fn with_credential(repository: &str, credential: Option<Credential>) -> Self {
        let found = HashMap::from([(repository.to_owned(), credential)]);
        Self { found: tokio::sync::Mutex::new(found), ..Self::default() }
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

/// Returns configured headers as they are sent.
pub(super) fn headers(pairs: &[(String, Secret)]) -> Result<Vec<(HeaderName, HeaderValue)>> {
    let mut headers = Vec::with_capacity(pairs.len());
    for (name, value) in pairs {
        let name = HeaderName::try_from(name)
            .map_err(|_| Error::bad_content(format!("`{name}` is not the name of a header")))?;
        headers.push((name, secret(value.expose().to_owned())?));
    }
    Ok(headers)
}

/// Returns a header value that is hidden from logs.
fn secret(text: String) -> Result<HeaderValue> {
    let mut value = HeaderValue::try_from(text).map_err(|_| {
        Error::bad_content("a token or password cannot be sent: it contains a control character")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenge(values: &[&str]) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::WWW_AUTHENTICATE, value.parse().unwrap());
        }
        of_headers(&headers)
    }

    fn bearer(realm: &str, service: Option<&str>, scopes: &str) -> Option<Challenge> {
        Some(Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
            scopes: Scopes::parse(scopes),
        })
    }

    #[test]
    fn challenges_are_read() {
        let hub = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/nginx:pull""#;
        let expected = bearer(
            "https://auth.docker.io/token",
            Some("registry.docker.io"),
            "repository:library/nginx:pull",
        );
        assert_eq!(challenge(&[hub]), expected);
        assert_eq!(challenge(&["Basic realm=\"x\"", hub]), expected);
        assert_eq!(challenge(&[&format!("Basic realm=x, {hub}")]), expected);
        assert_eq!(challenge(&["basic realm=\"a \\\" b, Bearer\""]), Some(Challenge::Basic));
        assert_eq!(
            challenge(&["bearer  REALM = \"https://a/t\" , error=\"insufficient_scope\""]),
            bearer("https://a/t", None, "")
        );
        assert_eq!(
            challenge(&["Bearer realm=\"https://a\",realm=\"https://b\""]),
            bearer("https://a", None, "")
        );
        assert_eq!(
            challenge(&["Bearer realm=https://a/t?x=y,service=s, Basic realm=/"]),
            bearer("https://a/t?x=y", Some("s"), "")
        );
        assert_eq!(challenge(&["Basic realm=/"]), Some(Challenge::Basic));
    }

    #[test]
    fn a_realm_need_not_be_ascii() {
        for value in [&b"Basic realm=\"R\xe9pertoire\""[..], "Basic realm=\"Ré\"".as_bytes()] {
            let mut headers = HeaderMap::new();
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_bytes(value).unwrap());
            assert_eq!(of_headers(&headers), Some(Challenge::Basic));
        }
    }

    #[test]
    fn what_is_no_challenge_for_us_is_none() {
        for text in [
            "",
            "Negotiate",
            "Negotiate YII=, x",
            "Bearer",
            "Bearer realm=\"https://a",
            "=,=",
            "Bearer service=x",
        ] {
            assert_eq!(challenge(&[text]), None, "{text}");
        }
        assert_eq!(challenge(&[]), None);
        let long = format!("Bearer realm=\"https://a/{}\"", "x".repeat(LONGEST));
        assert_eq!(challenge(&[&long]), None);
    }

    #[test]
    fn no_header_makes_the_parser_panic() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(value) = HeaderValue::from_bytes(bytes) {
                let mut headers = HeaderMap::new();
                headers.insert(header::WWW_AUTHENTICATE, value);
                let _ = of_headers(&headers);
            }
        });
    }

    #[test]
    fn scopes_are_joined() {
        let scopes = Scopes::repository("a/b", "push,pull")
            .union(&Scopes::parse("repository:a/b:delete repository:h:5000/c:pull junk"));
        assert_eq!(scopes.texts(), ["repository:a/b:delete,pull,push", "repository:h:5000/c:pull"]);
    }
}
