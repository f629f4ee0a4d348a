//! Resolves host names: `/etc/hosts`, then the name servers of `/etc/resolv.conf`, without the C
//! library's NSS. Must not depend on SSH.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;

use imgctl_base::error::{Error, Kind, Result};

static RESOLVER: OnceLock<TokioResolver> = OnceLock::new();
/// Addresses of names that were resolved before, used if a later lookup fails.
static KNOWN: Mutex<BTreeMap<String, Vec<IpAddr>>> = Mutex::new(BTreeMap::new());

/// Returns the socket addresses of `name`, in the order in which to try them; never empty.
pub(super) async fn resolve(name: &str, port: u16, patience: Duration) -> Result<Vec<SocketAddr>> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let found = tokio::time::timeout(patience, resolver()?.lookup_ip(name))
        .await
        .map_err(|_| unknown(name).caused_by("the name servers do not respond"))
        .and_then(|found| found.map_err(|error| unknown(name).caused_by(error)))
        .map(|found| found.iter().collect::<Vec<IpAddr>>());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let addresses = match (found, known.get(name)) {
        (Ok(found), _) if !found.is_empty() => {
            known.insert(name.to_owned(), found.clone());
            found
        }
        // The network itself may be down: then the connection fails, which is retried.
        (_, Some(before)) => before.clone(),
        (found, None) => return Err(found.err().unwrap_or_else(|| unknown(name))),
    };
    let sockets = addresses.into_iter();
    Ok(sockets.map(|ip| SocketAddr::new(ip, port)).collect())
}

/// The error kind is not retried: a misspelled name stays wrong.
fn unknown(name: &str) -> Error {
    Error::new(Kind::NotFound, format!("cannot find the address of {name}")).hint(
        "use its IP address, or add the name to /etc/hosts or the name servers of this machine",
    )
}

fn resolver() -> Result<&'static TokioResolver> {
    if let Some(resolver) = RESOLVER.get() {
        return Ok(resolver);
    }
    let mut builder = TokioResolver::builder_tokio().unwrap_or_else(|error| {
        // No public name servers are used as a fallback, so only /etc/hosts remains.
        tracing::debug!("there is no name server: {error}");
        let provider = TokioRuntimeProvider::default();
        TokioResolver::builder_with_config(ResolverConfig::default(), provider)
    });
    builder.options_mut().ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
    let made = builder
        .build()
        .map_err(|error| Error::failed("cannot set up name resolution").caused_by(error))?;
    Ok(RESOLVER.get_or_init(|| made))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::reactor::block_on;

    #[test]
    fn addresses_need_no_server_and_etc_hosts_counts() {
        let patience = Duration::from_secs(10);
        let v6 = block_on(resolve("fe80::1", 22, patience)).unwrap();
        assert_eq!(v6[0].to_string(), "[fe80::1]:22");
        let local = block_on(resolve("localhost", 2222, patience)).unwrap();
        assert!(!local.is_empty());
        assert!(local.iter().all(|address| address.ip().is_loopback()));
    }

    #[test]
    fn a_name_that_nobody_knows_is_no_matter_of_the_network() {
        let patience = Duration::from_secs(3);
        let error = block_on(resolve("no-such-host.invalid", 22, patience)).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
    }
}
