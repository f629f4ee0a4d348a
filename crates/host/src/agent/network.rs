//! A host's network as its kernel reports it: addresses and listening ports.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_socket_is_seen_and_a_closed_one_is_not() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
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
