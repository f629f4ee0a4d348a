//! A host's network as its kernel reports it, addresses and listening ports, and the offer of this
//! host's blobs to other hosts: read-only, over TCP, to clients that present the token of the
//! offer.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use tokio::sync::oneshot;

use crate::agent::protocol;
use imgctl_base::error::{Error, Result};
use imgctl_base::secret::Secret;
use imgctl_base::text::hex;
use imgctl_registry::server::{Limits, ServeOptions, Server};
use imgctl_store::store::Store;
use imgctl_transfer::transfer::store_backend::StoreBackend;

/// Returns the addresses of active interfaces at which other machines may reach this one, in the
/// kernel's order.
pub(super) fn addresses() -> Vec<String> {
    let Ok(interfaces) = getifaddrs() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for interface in interfaces {
        if !interface.flags.contains(InterfaceFlags::IFF_UP) {
            continue;
        }
        let Some(address) = interface.address else {
            continue;
        };
        let address: Option<IpAddr> = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => Some(v4.ip().into()),
            (_, Some(v6)) => Some(v6.ip().into()),
            _ => None,
        };
        let address = address.filter(is_global).map(|address| address.to_string());
        found.extend(address.filter(|address| !found.contains(address)));
    }
    found
}

fn is_global(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local() && !v6.is_unspecified(),
    }
}

/// Returns the TCP ports with a listener on any address.
pub(super) fn listening() -> Vec<u16> {
    let mut ports = BTreeSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        ports.extend(text.lines().filter_map(listening_port));
    }
    ports.into_iter().collect()
}

/// Returns the port of a line of /proc/net/tcp whose state is LISTEN (0A).
fn listening_port(line: &str) -> Option<u16> {
    let mut words = line.split_whitespace();
    let local = words.nth(1)?;
    let state = words.nth(1)?;
    let (_, port) = local.rsplit_once(':')?;
    u16::from_str_radix(port, 16).ok().filter(|_| state == "0A")
}

/// Maximum number of concurrent connections from all fetching hosts.
const CONNECTIONS: usize = 256;
/// Number of random bytes in a token.
const TOKEN: usize = 32;

/// The current offer, if any.
#[derive(Default)]
pub(super) struct Offers(Mutex<Option<Offered>>);

struct Offered {
    offer: protocol::PeerSource,
    /// Stops serving when dropped.
    _stop: oneshot::Sender<()>,
}

impl Offers {
    /// Starts serving. If already serving, returns the existing offer. Must be called on the
    /// runtime.
    pub(super) fn begin(&self, store: &Store) -> Result<protocol::PeerSource> {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = &*current {
            return Ok(current.offer.clone());
        }
        let token = token()?;
        let options = ServeOptions {
            // The first address also accepts IPv4; without IPv6, the second one is used.
            addresses: vec![
                SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
                SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            ],
            token: Some(Secret::new(token.clone())),
            read_only: true,
            limits: Limits { connections: CONNECTIONS, ..Limits::default() },
            ..ServeOptions::default()
        };
        let server = Server::bind(&options, Arc::new(StoreBackend::by_digest(store)))?;
        let mut addresses = addresses();
        if addresses.is_empty() {
            addresses.push(Ipv4Addr::LOCALHOST.to_string());
        }
        let offer = protocol::PeerSource { addresses, port: server.address().port(), token };
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let served = server.serve(async {
                let _ = stopped.await;
            });
            if let Err(error) = served.await {
                tracing::warn!("stopped serving other hosts: {error}");
            }
        });
        *current = Some(Offered { offer: offer.clone(), _stop: stop });
        Ok(offer)
    }

    pub(super) fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn token() -> Result<String> {
    let mut bytes = [0_u8; TOKEN];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| Error::failed("the system provides no random numbers"))?;
    Ok(hex(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_socket_is_seen_and_a_closed_one_is_not() {
        let port = imgctl_base::testing::free_port();
        let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert!(listening().contains(&port));
        drop(listener);
        assert!(!listening().contains(&port));
    }

    #[test]
    fn lines_of_other_states_say_nothing() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000";
        assert_eq!(listening_port(line), Some(8080));
        assert_eq!(listening_port(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(listening_port("  sl  local_address rem_address   st"), None);
    }

    #[test]
    fn loopback_is_nothing_to_others() {
        assert!(addresses().iter().all(|one| !one.starts_with("127.") && one != "::1"));
    }
}
