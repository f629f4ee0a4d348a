//! Finds a login in one credentials file: its key and the content of its entry. Must not depend on
//! the location of files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::credentials::{Login, Secret};
use crate::registries::configured_host;

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
