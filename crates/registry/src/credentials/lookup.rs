//! Finds a login in one credentials file: its key and the content of its entry. The key is the
//! subject of the login: a registry, or a namespace of it. Must not depend on the location of
//! files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::credentials::{Login, Secret};
use crate::registries::configured_host;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;

/// Key under which docker stores the login for Docker Hub.
pub(super) const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// One entry of `auths`. Other members are ignored.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    /// base64 of `user:password`.
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

/// Returns the keys to look up, the most specific first: `registry/a/b`, `registry/a`, `registry`.
pub(super) fn keys(registry: &str, repository: &str) -> Vec<String> {
    let mut whole = format!("{}/{repository}", configured_host(registry));
    let mut keys = Vec::new();
    loop {
        let trimmed = whole.trim_end_matches('/').len();
        whole.truncate(trimmed);
        keys.push(whole.clone());
        match whole.rfind('/') {
            Some(at) => whole.truncate(at),
            None => return keys,
        }
    }
}

/// Returns the login for `keys` from `auths`. An entry without a login hides entries with shorter
/// keys. `legacy` files (`.dockercfg`) use API addresses as keys.
pub(super) fn find(
    auths: &Map<String, Value>,
    keys: &[String],
    legacy: bool,
) -> Result<Option<Login>, Malformed> {
    if !legacy && let Some((key, value)) = keys.iter().find_map(|key| auths.get_key_value(key)) {
        return login(key, value);
    }
    let Some(host) = keys.last() else {
        return Ok(None);
    };
    for (key, value) in auths {
        if host_of(key, legacy).is_some_and(|found| found == *host)
            && let Some(login) = login(key, value)?
        {
            return Ok(Some(login));
        }
    }
    Ok(None)
}

/// Returns the registry that `key` names as a whole; `None` if it names a namespace.
pub(super) fn host_of(key: &str, legacy: bool) -> Option<&str> {
    let without = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://"));
    let is_address = without.is_some() || legacy;
    let without = without.unwrap_or(key);
    match without.split_once('/') {
        Some((host, _)) if is_address => Some(configured_host(host)),
        Some(_) => None,
        None => Some(configured_host(without)),
    }
}

/// Key of an entry that cannot be parsed. Omits the content, which is secret.
#[derive(Debug)]
pub(super) struct Malformed(pub(super) String);

/// Returns the login in an entry; `None` if it is empty, as docker writes it when a helper is used.
fn login(key: &str, value: &Value) -> Result<Option<Login>, Malformed> {
    let malformed = || Malformed(key.to_owned());
    let entry = Entry::deserialize(value).map_err(|_| malformed())?;
    if !entry.registrytoken.is_empty() {
        return Ok(Some(Login::Bearer(Secret::new(entry.registrytoken))));
    }
    if !entry.identitytoken.is_empty() {
        return Ok(Some(Login::Identity(Secret::new(entry.identitytoken))));
    }
    let (user, password) = if entry.auth.is_empty() {
        (entry.username, entry.password)
    } else {
        let bytes = STANDARD.decode(entry.auth.trim()).map_err(|_| malformed())?;
        let text = String::from_utf8(bytes).map_err(|_| malformed())?;
        let (user, password) = text.split_once(':').ok_or_else(malformed)?;
        // Old versions of docker padded the password with NUL.
        (user.to_owned(), password.trim_end_matches('\0').to_owned())
    };
    if user.is_empty() && password.is_empty() {
        return Ok(None);
    }
    Ok(Some(Login::Password { user, password: Secret::new(password) }))
}

/// `host[:port][/namespace…]`, as used for keys in credentials files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    registry: String,
    namespace: String,
}

impl Key {
    /// Parses user input. Removes a scheme, a trailing slash and docker's `/v1/`.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::usage(format!("`{}` is not a registry", text.escape_debug()))
                .hint("it looks like registry.example.com:5000, or quay.io/team for a part of one")
        };
        let address = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let whole = address.unwrap_or(text).trim_end_matches('/');
        let (host, mut namespace) = whole.split_once('/').unwrap_or((whole, ""));
        if matches!(namespace, "v1" | "v2") && address.is_some() {
            namespace = "";
        }
        let repository = if namespace.is_empty() { "x" } else { namespace };
        let reference = Reference::parse(&format!("{host}/{repository}")).map_err(|_| wrong())?;
        if host.is_empty() || reference.tag().is_some() || reference.digest().is_some() {
            return Err(wrong());
        }
        Ok(Self { registry: configured_host(host).to_owned(), namespace: namespace.to_owned() })
    }

    /// Returns `host[:port]`.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Returns the part after the host; empty for a whole registry.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.registry)?;
        if !self.namespace.is_empty() {
            write!(f, "/{}", self.namespace)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_are_read_as_people_type_them() {
        for (text, expected) in [
            ("quay.io", "quay.io"),
            ("https://quay.io/", "quay.io"),
            ("http://localhost:5000", "localhost:5000"),
            ("quay.io/team/app", "quay.io/team/app"),
            ("https://index.docker.io/v1/", "docker.io"),
            ("docker.io", "docker.io"),
            ("registry", "registry"),
            ("[::1]:5000", "[::1]:5000"),
        ] {
            assert_eq!(Key::parse(text).unwrap().to_string(), expected, "{text}");
        }
        for text in ["", "/", "a b", "quay.io/App", "quay.io/app:v1", "https://", "a.io/../b"] {
            assert!(Key::parse(text).is_err(), "{text}");
        }
    }
}
