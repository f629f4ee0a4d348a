//! Names in the sense of `registries.conf`: normalised, matched by prefix, rewritten. Must not
//! depend on files.

use std::net::IpAddr;

use imgctl_base::error::{Error, Result};
use imgctl_base::image::Reference;
use imgctl_base::image::reference::DOCKER_HUB;

/// API host of Docker Hub.
const DOCKER_HUB_API: &str = "registry-1.docker.io";
/// Former name of Docker Hub in docker.
const DOCKER_HUB_LEGACY: &str = "index.docker.io";

/// A registry and a repository in it, in the notation of configuration files: `docker.io`, and
/// `library/` for docker.io's official images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) host: String,
    pub(super) repository: String,
    /// `:tag`, `@digest` or both.
    pub(super) end: String,
}

impl Name {
    /// Returns the normal form of `reference`, which must have a registry.
    pub(super) fn of(reference: &Reference) -> Result<Self> {
        let Some(host) = reference.registry() else {
            return Err(Error::usage(format!("`{reference}` does not name a registry"))
                .hint(format!("for example, write docker.io/{reference}")));
        };
        let mut end = String::new();
        if let Some(tag) = reference.tag() {
            end.push(':');
            end.push_str(tag);
        }
        if let Some(digest) = reference.digest() {
            end.push('@');
            end.push_str(&digest.to_string());
        }
        Ok(Self::new(host, reference.repository(), end))
    }

    fn new(host: &str, repository: &str, end: String) -> Self {
        let host = if host == DOCKER_HUB_LEGACY { DOCKER_HUB } else { host };
        let repository = if host == DOCKER_HUB && !repository.contains('/') {
            format!("library/{repository}")
        } else {
            repository.to_owned()
        };
        Self { host: host.to_owned(), repository, end }
    }

    /// Returns the same repository on another host.
    pub(super) fn on(&self, host: &str) -> Self {
        Self { host: host.to_owned(), ..self.clone() }
    }

    /// Returns `host/repository:tag@digest`.
    pub(super) fn text(&self) -> String {
        format!("{}/{}{}", self.host, self.repository, self.end)
    }

    /// Returns the same image with `location` in place of `prefix`: in its text or, if the prefix
    /// is `*.domain`, in place of the host.
    pub(super) fn rewritten(&self, prefix: &str, location: &str) -> Result<Self> {
        let text = self.text();
        let Some(matched) = matched_length(&text, prefix) else {
            return Err(Error::failed(format!("{prefix} is not a prefix of {text}")));
        };
        let physical = format!("{location}{}", &text[matched..]);
        let wrong = || {
            Error::usage(format!(
                "{text} is configured to be at {physical}, which is not an image name"
            ))
        };
        let reference = Reference::parse(&physical).map_err(|_| wrong())?;
        let name = Self::of(&reference).map_err(|_| wrong())?;
        if name.end != self.end {
            return Err(Error::usage(format!(
                "{text} is configured to be at {physical}: another tag or digest"
            ))
            .hint("a location may rename the registry and the repository only"));
        }
        Ok(name)
    }
}

/// Returns the API host of `host`.
pub(super) fn api_host(host: &str) -> &str {
    if host == DOCKER_HUB { DOCKER_HUB_API } else { host }
}

/// Returns the name that configuration files use for the registry whose API is at `host`.
pub(crate) fn configured_host(host: &str) -> &str {
    if host == DOCKER_HUB_API || host == DOCKER_HUB_LEGACY { DOCKER_HUB } else { host }
}

/// Returns the number of bytes of `text` (`host/repository:tag`) that `prefix` matches; `None` if
/// it is not a prefix that ends at a part of the name. Unlike in containers, where a comment calls
/// this unintended, `host` does not match `host:port`.
pub(super) fn matched_length(text: &str, prefix: &str) -> Option<usize> {
    let host_length = text.find('/').unwrap_or(text.len());
    if let Some(domain) = prefix.strip_prefix('*') {
        let host = &text[..host_length];
        let without_port = host.rsplit_once(':').map_or(host, |(name, port)| {
            if port.bytes().all(|byte| byte.is_ascii_digit()) { name } else { host }
        });
        let matches = without_port.len() > domain.len() && without_port.ends_with(domain);
        return matches.then_some(without_port.len());
    }
    let rest = text.strip_prefix(prefix)?;
    let ends = rest.is_empty()
        || rest.starts_with(['/', '@'])
        || (rest.starts_with(':') && prefix.len() > host_length);
    ends.then_some(prefix.len())
}

/// Returns the host without port and brackets.
pub(super) fn without_port(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    host.split(':').next().unwrap_or(host)
}

/// Returns whether `host[:port]` is this machine, so that requests do not pass a network.
pub(super) fn is_loopback(host: &str) -> bool {
    let name = without_port(host);
    name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_a_part_of_the_name_ends() {
        for (prefix, expected) in [
            ("a.io:5000", Some(9)),
            ("a.io", None),
            ("a.io:500", None),
            ("a.io:5000/x", Some(11)),
            ("a.io:5000/x/y", Some(13)),
            ("a.io:5000/x/y:1", Some(15)),
            ("a.io:5000/x/y:", None),
            ("a.io:5000/x/", None),
            ("a.io:5000/x/yy", None),
            ("b.io", None),
            ("*.io", Some(4)),
            ("*.a.io", None),
        ] {
            assert_eq!(matched_length("a.io:5000/x/y:1", prefix), expected, "{prefix}");
        }
        assert_eq!(matched_length("b.c.a.io/x", "*.a.io"), Some(8));
        assert_eq!(matched_length("ba.io/x.a.io", "*.a.io"), None);
    }

    #[test]
    fn loopback_is_known_by_name_and_address() {
        for (host, expected) in [
            ("localhost", true),
            ("localhost:5000", true),
            ("127.0.0.1:5000", true),
            ("127.3.2.1", true),
            ("[::1]:5000", true),
            ("[::2]", false),
            ("127.0.0.1.example.com", false),
            ("localhost.example.com", false),
            ("10.0.0.1:5000", false),
        ] {
            assert_eq!(is_loopback(host), expected, "{host}");
        }
    }
}
