//! Addresses of the local machine, determined without the resolver.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Returns all addresses, including loopback; none if /proc does not list them.
pub fn all() -> Vec<IpAddr> {
    let read = |name: &str| std::fs::read_to_string(name).unwrap_or_default();
    let mut found = of_fib_trie(&read("/proc/self/net/fib_trie"));
    found.extend(of_if_inet6(&read("/proc/self/net/if_inet6")));
    found
}

/// Returns the address under which other hosts are likely to reach this machine: that of the
/// default route, otherwise the first that is not loopback, otherwise 127.0.0.1. Sends nothing.
pub fn primary() -> IpAddr {
    let of_default_route = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        // TEST-NET-1: only the choice of the source address matters.
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
        let address = socket.local_addr().ok()?.ip();
        (!address.is_unspecified()).then_some(address)
    };
    of_default_route()
        .or_else(|| all().into_iter().find(|ip| ip.is_ipv4() && !ip.is_loopback()))
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Parses address lines `|-- A` followed by `/32 host LOCAL`.
fn of_fib_trie(text: &str) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    let mut last = None;
    for line in text.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line.starts_with("/32 host LOCAL")
            && let Some(address) = last.map(IpAddr::V4)
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

/// Parses lines that begin with 32 hexadecimal digits.
fn of_if_inet6(text: &str) -> Vec<IpAddr> {
    let address = |line: &str| {
        let digits = line.split_whitespace().next()?;
        let bits = u128::from_str_radix(digits, 16).ok()?;
        (digits.len() == 32).then(|| IpAddr::V6(Ipv6Addr::from(bits)))
    };
    text.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.0.0\n        /24 link UNICAST\n     |-- 10.0.0.5\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\nLocal:\n     |-- 10.0.0.5\n        /32 host LOCAL\n     |-- 127.0.0.1\n        /32 host LOCAL\n";
        let expected: Vec<IpAddr> =
            ["10.0.0.5", "127.0.0.1"].iter().map(|ip| ip.parse().unwrap()).collect();
        assert_eq!(of_fib_trie(trie), expected);
        let inet6 = "fe80000000000000020000fffe000001 02 40 20 80     eth0\n00000000000000000000000000000001 01 80 10 80       lo\n";
        let expected: Vec<IpAddr> =
            ["fe80::200:ff:fe00:1", "::1"].iter().map(|ip| ip.parse().unwrap()).collect();
        assert_eq!(of_if_inet6(inet6), expected);
        assert!(of_fib_trie("").is_empty() && of_if_inet6("x").is_empty());
    }

    #[test]
    fn this_machine_has_an_address_of_its_own() {
        assert!(!primary().is_unspecified());
    }
}
