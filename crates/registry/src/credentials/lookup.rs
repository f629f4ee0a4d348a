//! Finds a login in one credentials file: its key and the content of its entry. The key is the
//! subject of the login: a registry, or a namespace of it. Must not depend on the location of
//! files.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};

use crate::config_file::member;
use crate::credentials::{Login, Secret};
use crate::registries::configured_host;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;

/// Key under which docker stores the login for Docker Hub.
pub(super) const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// base64 of `user:password`, with or without padding.
const AUTH: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

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

/// Returns the registry that `key` names as a whole; `None` if it names a namespace. An address with
/// a scheme, a `/` at the end, or the path of the API is docker's notation of a whole registry.
pub(super) fn host_of(key: &str, legacy: bool) -> Option<&str> {
    let (is_address, without) = match key.split_once("://") {
        Some((_, rest)) => (true, rest),
        None => (legacy, key),
    };
    let Some((host, path)) = without.split_once(['/', '?', '#']) else {
        return Some(host_in(without, is_address));
    };
    let is_whole = is_address || matches!(path, "" | "v1" | "v1/" | "v2" | "v2/");
    is_whole.then(|| host_in(host, is_address))
}

/// Returns the registry of `[USER@]HOST[:PORT]`.
fn host_in(authority: &str, is_address: bool) -> &str {
    let host = authority.rsplit_once('@').filter(|_| is_address).map(|(_, host)| host);
    configured_host(host.unwrap_or(authority))
}

/// Key of an entry that cannot be parsed. Omits the content, which is secret.
#[derive(Debug)]
pub(super) struct Malformed(pub(super) String);

/// Returns the login in an entry; `None` if it is empty, as docker writes it when a helper is used.
fn login(key: &str, value: &Value) -> Result<Option<Login>, Malformed> {
    let malformed = || Malformed(key.to_owned());
    let entry = match value {
        Value::Object(entry) => entry,
        Value::Null => return Ok(None),
        _ => return Err(malformed()),
    };
    let text = |name: &str| match member(entry, name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(&**text),
        Some(_) => Err(malformed()),
    };
    match text("registrytoken")? {
        "" => {}
        token => return Ok(Some(Login::Bearer(Secret::new(token)))),
    }
    match text("identitytoken")? {
        "" => {}
        token => return Ok(Some(Login::Identity(Secret::new(token)))),
    }
    let auth = text("auth")?;
    let (user, password) = if auth.is_empty() {
        (text("username")?.to_owned(), text("password")?.to_owned())
    } else {
        // Programs that encode into lines of 76 characters leave their ends in it.
        let auth: String = auth.chars().filter(|char| !char.is_ascii_whitespace()).collect();
        let bytes = AUTH.decode(auth).map_err(|_| malformed())?;
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
    fn keys_of_whole_registries_have_many_notations() {
        for key in [
            "r.io:5000",
            "r.io:5000/",
            "r.io:5000/v1/",
            "r.io:5000/v2",
            "https://r.io:5000",
            "HTTP://r.io:5000/v2/",
            "https://me@r.io:5000/a/b?c",
        ] {
            assert_eq!(host_of(key, false), Some("r.io:5000"), "{key}");
        }
        for key in ["r.io:5000/team", "r.io:5000/team/", "r.io:5000/v1/team"] {
            assert_eq!(host_of(key, false), None, "{key}");
        }
        assert_eq!(host_of("r.io:5000/team", true), Some("r.io:5000"));
        assert_eq!(host_of("index.docker.io/v1/", false), Some("docker.io"));
    }

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
