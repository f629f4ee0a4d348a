//! The subject of a login: a registry, or a namespace of it.

use crate::registries::configured_host;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;

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
