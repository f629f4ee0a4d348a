//! Name resolution: the resolver of a client, and the addresses to which it must not connect when
//! sending a password.
//!
//! A registry can name any token server. One on the internet that names a host of our own network
//! would make the client send it a password. The name alone does not show this; only the address of
//! the connection does.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Maximum number of remembered names; a client uses only a few.
const MAX_NAMES: usize = 4096;

/// Resolves names as configured in `/etc/resolv.conf` and `/etc/hosts`.
#[derive(Default)]
pub(crate) struct Hickory(Arc<OnceLock<TokioResolver>>);

impl Resolve for Hickory {
    fn resolve(&self, name: Name) -> Resolving {
        let state = Arc::clone(&self.0);
        Box::pin(async move {
            let resolver = match state.get() {
                Some(resolver) => resolver,
                None => {
                    // Created here because it needs a surrounding runtime.
                    let made = resolver()?;
                    state.get_or_init(|| made)
                }
            };
            let found = resolver.lookup_ip(name.as_str()).await.map_err(Unresolved::from)?;
            let found: Vec<SocketAddr> = found.iter().map(|ip| (ip, 0).into()).collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Error for a name without an address.
#[derive(Debug)]
pub(super) struct Unresolved(String);

impl From<NetError> for Unresolved {
    fn from(error: NetError) -> Self {
        Self(if error.is_nx_domain() {
            "there is no host of this name".to_owned()
        } else if error.is_no_records_found() {
            // The error itself would print the query in the form for debugging.
            "its name has no address".to_owned()
        } else {
            format!("its name cannot be resolved: {error}")
        })
    }
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unresolved {}

fn resolver() -> Result<TokioResolver, NetError> {
    let mut builder = TokioResolver::builder_tokio().unwrap_or_else(|error| {
        // Does not fall back to public name servers; only /etc/hosts remains.
        tracing::debug!("there is no name server: {error}");
        let provider = TokioRuntimeProvider::default();
        TokioResolver::builder_with_config(ResolverConfig::default(), provider)
    });
    builder.options_mut().ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
    builder.build()
}

/// Results of name resolution.
pub(super) struct Names {
    resolver: Arc<dyn Resolve>,
    /// Whether all addresses to which a name ever resolved were private.
    private: Mutex<HashMap<String, bool>>,
}

impl Names {
    pub(super) fn new(resolver: Arc<dyn Resolve>) -> Arc<Self> {
        Arc::new(Self { resolver, private: Mutex::default() })
    }

    /// Returns the addresses of a URL's host, with its port. Empty if they cannot be found.
    pub(super) async fn addresses(self: &Arc<Self>, url: &Url) -> Vec<SocketAddr> {
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Vec::new();
        };
        if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            return vec![SocketAddr::new(address, port)];
        }
        let Ok(name) = host.parse() else { return Vec::new() };
        let guard = Guard { names: Arc::clone(self), exempt: None };
        let found = guard.resolve(name).await;
        found.map_or_else(
            |_| Vec::new(),
            |found| found.map(|address| SocketAddr::new(address.ip(), port)).collect(),
        )
    }

    /// Returns whether a URL is reachable only from this machine or its network, judging by its
    /// form or by its resolved addresses. Names that a proxy resolves are unknown.
    pub(super) fn is_private(&self, url: &Url) -> bool {
        let private = self.private.lock().unwrap_or_else(PoisonError::into_inner);
        let host = url.host_str().unwrap_or_default();
        looks_private(url) || private.get(host).copied().unwrap_or(false)
    }

    fn note(&self, name: &str, found: &[SocketAddr]) {
        let mut private = self.private.lock().unwrap_or_else(PoisonError::into_inner);
        let all = !found.is_empty() && found.iter().all(|address| is_private(address.ip()));
        // A name that once resolved to a public address stays public.
        if let Some(known) = private.get_mut(name) {
            *known &= all;
        } else if private.len() < MAX_NAMES {
            private.insert(name.to_owned(), all);
        }
    }
}

/// Restricts [`Names`] for one pool of connections.
pub(super) struct Guard {
    pub(super) names: Arc<Names>,
    /// Names that may resolve to private addresses; `None` = all.
    pub(super) exempt: Option<Vec<String>>,
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let text = name.as_str().to_owned();
        let free = self.exempt.as_ref().is_none_or(|exempt| exempt.contains(&text));
        let names = Arc::clone(&self.names);
        Box::pin(async move {
            let found: Vec<SocketAddr> = names.resolver.resolve(name).await?.collect();
            names.note(&text, &found);
            if !free && found.iter().any(|address| is_private(address.ip())) {
                return Err(PrivateAddress.into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Error for a connection that was refused because it would have carried a password.
#[derive(Debug)]
pub(super) struct PrivateAddress;

impl fmt::Display for PrivateAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is at a private address, and the registry is not")
    }
}

impl std::error::Error for PrivateAddress {}

/// Returns whether an address is reachable only from this machine or its network.
pub(super) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => match embedded(address) {
            Some(address) => is_private_v4(address),
            None => {
                address.is_loopback()
                    || address.is_unique_local()
                    || address.is_unicast_link_local()
                    || address.is_unspecified()
                    || address.is_multicast()
            }
        },
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        // "This network", and the address space that carriers and clouds share among customers (RFC
        // 6598).
        || first == 0
        || (first == 100 && second & 0xc0 == 64)
}

/// Returns the IPv4 address embedded in an IPv6 address: mapped, or NAT64 (RFC 6052).
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    if let Some(mapped) = address.to_ipv4_mapped() {
        return Some(mapped);
    }
    let [high @ .., a, b] = address.segments();
    let ([a, b], [c, d]) = (a.to_be_bytes(), b.to_be_bytes());
    (high == [0x64, 0xff9b, 0, 0, 0, 0]).then(|| Ipv4Addr::new(a, b, c, d))
}

/// Returns whether a URL, judging by its form, is reachable only from this machine or its network.
pub(super) fn looks_private(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_matches(['[', ']']).trim_end_matches('.');
    host == "localhost" || host.ends_with(".localhost") || host.parse().is_ok_and(is_private)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_told_from_public_ones() {
        for address in [
            "127.0.0.1",
            "10.1.2.3",
            "172.31.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "0.0.0.0",
            "0.1.2.3",
            "100.64.0.1",
            "100.100.100.200",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fd00::1",
            "fe80::1",
            "ff02::1",
            "::ffff:10.0.0.1",
            "64:ff9b::10.0.0.1",
        ] {
            assert!(is_private(address.parse().unwrap()), "{address}");
        }
        for address in [
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.0",
            "172.32.0.1",
            "2001:db8::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
        ] {
            assert!(!is_private(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn a_name_that_was_ever_public_is_not_private() {
        let names = Names::new(Arc::new(Hickory::default()));
        let url = Url::parse("https://r.test/").unwrap();
        let (inside, outside) = (([10, 0, 0, 1], 0).into(), ([8, 8, 8, 8], 0).into());
        assert!(!names.is_private(&url));
        names.note("r.test", &[inside]);
        assert!(names.is_private(&url));
        names.note("r.test", &[inside, outside]);
        assert!(!names.is_private(&url));
        names.note("r.test", &[inside]);
        assert!(!names.is_private(&url));
    }
}
