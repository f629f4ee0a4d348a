//! Addresses of hosts, and the list syntax for them. Must not depend on how hosts are reached.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use imgctl_base::address::join_port;
use imgctl_base::error::{Error, Result};

pub const SSH_PORT: u16 = 22;

/// Maximum number of hosts in a list; a longer list is a mistake, such as `10.0.0.0/8`.
const MOST_HOSTS: usize = 4096;

/// Address of a host. `Display` writes `name`, `name:port` if the port is not 22, and `[v6]:port`
/// for IPv6.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// An IPv4 or IPv6 address without brackets, or a DNS name.
    pub name: String,
    pub port: u16,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.port {
            SSH_PORT => write!(f, "{}", self.name),
            port => write!(f, "{}", join_port(&self.name, port)),
        }
    }
}

/// Parses a list in the format of `--masters` and `--nodes`: comma-separated items, each `ip`,
/// `ip:port`, `[v6]:port`, `ip-ip` (a range, both ends included), `cidr` (hosts only, without
/// network and broadcast address), or a name. Duplicates are errors. `port` applies to items
/// without a port.
pub fn parse_list(text: &str, port: u16) -> Result<Vec<Address>> {
    let mut list = Vec::new();
    if text.trim().is_empty() {
        return Ok(list);
    }
    let mut seen = HashSet::new();
    for item in text.split(',').map(str::trim) {
        for address in parse_item(item, port)? {
            if !seen.insert(address.clone()) {
                return Err(Error::usage(format!(
                    "the host {address} appears twice in the list `{}`",
                    shortened(text)
                )));
            }
            list.push(address);
        }
        if list.len() > MOST_HOSTS {
            return Err(too_many(text));
        }
    }
    Ok(list)
}

/// Parses one host: `ip`, `ip:port`, `[v6]:port`, `name` or `name:port`.
pub fn parse_one(text: &str, port: u16) -> Result<Address> {
    let wrong = |why: &str| {
        Error::usage(format!("`{}` is not a host: {why}", shortened(text))).hint(
            "write an IP address, a name, ip:port, [IPv6]:port, a range (10.0.0.1-10.0.0.9) or a CIDR (10.0.0.0/28)",
        )
    };
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) =
            rest.split_once(']').ok_or_else(|| wrong("the bracket is not closed"))?;
        let address: Ipv6Addr =
            inside.parse().map_err(|_| wrong("there is no IPv6 address in the brackets"))?;
        let port = match after.strip_prefix(':') {
            Some(port) => parse_port(port).ok_or_else(|| wrong("the port is not 1 to 65535"))?,
            None if after.is_empty() => port,
            None => return Err(wrong("only a port may follow the bracket")),
        };
        return Ok(Address { name: address.to_string(), port });
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(Address { name: address.to_string(), port });
    }
    let (name, port) = match text.split_once(':') {
        Some((_, port)) if port.contains(':') => {
            return Err(wrong("it is not an IPv6 address; with a port it needs brackets"));
        }
        Some((name, port)) => {
            (name, parse_port(port).ok_or_else(|| wrong("the port is not 1 to 65535"))?)
        }
        None => (text, port),
    };
    if name.parse::<Ipv4Addr>().is_err()
        && let Some(why) = wrong_name(name)
    {
        return Err(wrong(why));
    }
    Ok(Address { name: name.to_ascii_lowercase(), port })
}

fn parse_item(item: &str, port: u16) -> Result<Vec<Address>> {
    if item.is_empty() {
        return Err(Error::usage("a list of hosts has an empty entry"));
    }
    let addresses = if item.contains('/') {
        cidr(item)?
    } else if let Some((first, last)) = range_ends(item)? {
        range(item, first, last)?
    } else {
        return Ok(vec![parse_one(item, port)?]);
    };
    let named = addresses.into_iter().map(|address| Address { name: address.to_string(), port });
    Ok(named.collect())
}

/// Returns the ends of `ip-ip`; `None` if it is not a range but possibly a name that contains a
/// dash.
fn range_ends(item: &str) -> Result<Option<(IpAddr, IpAddr)>> {
    let Some((first, last)) = item.split_once('-') else {
        return Ok(None);
    };
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) => Ok(Some((first, last))),
        (Ok(_), Err(_)) => Err(Error::usage(format!(
            "`{}` is not a range: `{}` is not an IP address",
            shortened(item),
            shortened(last)
        ))
        .hint("write both ends in full: 10.0.0.1-10.0.0.9")),
        (Err(_), _) => Ok(None),
    }
}

fn range(item: &str, first: IpAddr, last: IpAddr) -> Result<Vec<IpAddr>> {
    let (low, high) = match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            (u128::from(first.to_bits()), u128::from(last.to_bits()))
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => (first.to_bits(), last.to_bits()),
        _ => {
            return Err(Error::usage(format!(
                "`{item}` is not a range: one end is IPv4 and the other IPv6"
            )));
        }
    };
    if low > high {
        return Err(Error::usage(format!("`{item}` is not a range: it ends before it begins")));
    }
    between(item, low, high, first.is_ipv4())
}

/// Returns the hosts of a network, given by any address in it. In networks with one or two
/// addresses (/31, /32, /127, /128), every address is a host. IPv6 has no broadcast address, but
/// its first address is the anycast address of the routers.
fn cidr(item: &str) -> Result<Vec<IpAddr>> {
    let wrong = || {
        Error::usage(format!("`{}` is not a network", shortened(item)))
            .hint("write an IP address and the length of the prefix: 10.0.0.0/28")
    };
    let (address, length) = item.split_once('/').ok_or_else(wrong)?;
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let length: u32 = length.parse().map_err(|_| wrong())?;
    let (bits, width): (u128, u32) = match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let free = width.checked_sub(length).ok_or_else(wrong)?;
    if free > 16 {
        return Err(too_many(item));
    }
    let mask = (1u128 << free) - 1;
    let (mut low, mut high) = (bits & !mask, bits | mask);
    if free > 1 {
        low += 1;
        high -= u128::from(address.is_ipv4());
    }
    between(item, low, high, address.is_ipv4())
}

fn between(item: &str, low: u128, high: u128, v4: bool) -> Result<Vec<IpAddr>> {
    if high - low >= MOST_HOSTS as u128 {
        return Err(too_many(item));
    }
    let address = |bits: u128| match u32::try_from(bits) {
        Ok(bits) if v4 => IpAddr::V4(Ipv4Addr::from_bits(bits)),
        _ => IpAddr::V6(Ipv6Addr::from_bits(bits)),
    };
    Ok((low..=high).map(address).collect())
}

fn too_many(item: &str) -> Error {
    Error::usage(format!("`{}` is more than {MOST_HOSTS} hosts", shortened(item)))
}

fn parse_port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

/// Returns why a name is not a valid host name.
fn wrong_name(name: &str) -> Option<&'static str> {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    let labels = name.strip_suffix('.').unwrap_or(name);
    if labels.is_empty() || name.len() > 253 || !labels.split('.').all(label) {
        return Some("names have letters, digits, dashes and dots");
    }
    let last = labels.rsplit('.').next().unwrap_or_default();
    // `10.0.0.256` and `10.0.1` are typing errors, and no top-level domain is a number.
    last.bytes().all(|byte| byte.is_ascii_digit()).then_some("it is not an IP address")
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(text: &str) -> Vec<String> {
        parse_list(text, SSH_PORT).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_form_is_read() {
        assert_eq!(
            names(
                "10.0.0.1, 10.0.0.2:2222,Node-1.example.com,web_1:23,fd00::1,[fd00::2],[FD00:0::3]:22022"
            ),
            [
                "10.0.0.1",
                "10.0.0.2:2222",
                "node-1.example.com",
                "web_1:23",
                "fd00::1",
                "fd00::2",
                "[fd00::3]:22022"
            ]
        );
        assert_eq!(names(" "), [""; 0]);
        assert_eq!(parse_list("a,b:1", 77).unwrap()[0].port, 77);
    }

    #[test]
    fn ranges_include_both_ends_and_networks_only_hosts() {
        assert_eq!(names("10.0.0.254-10.0.1.1").len(), 4);
        assert_eq!(names("fd00::fffe-fd00::1:1").len(), 4);
        assert_eq!(names("10.0.0.9/30"), ["10.0.0.9", "10.0.0.10"]);
        assert_eq!(names("10.0.0.0/31"), ["10.0.0.0", "10.0.0.1"]);
        assert_eq!(names("10.0.0.7/32"), ["10.0.0.7"]);
        assert_eq!(names("fd00::/126"), ["fd00::1", "fd00::2", "fd00::3"]);
        assert_eq!(names("fd00::/127"), ["fd00::", "fd00::1"]);
        assert_eq!(names("255.255.255.252/30").len(), 2);
        assert_eq!(names("10.0.0.0/20").len(), 4094);
    }

    #[test]
    fn what_is_no_host_is_refused_with_a_reason() {
        for wrong in [
            "a,,b",
            "a,",
            "10.0.0.256",
            "10.0.1",
            "10.0.0.1:0",
            "10.0.0.1:+22",
            "10.0.0.1:99999",
            "10.0.0.1:22:22",
            "[::1",
            "[10.0.0.1]:22",
            "[::1]22",
            "::1::2",
            "10.0.0.5-10.0.0.1",
            "10.0.0.1-9",
            "10.0.0.1-::1",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/8",
            "fd00::/64",
            "::/0",
            "0.0.0.0-255.255.255.255",
            "10.0.0.0/20,10.1.0.0/20",
            "root@host",
            "-x",
            "a b",
            "é",
            "10.0.0.1,10.0.0.0/30",
            "Host,host",
        ] {
            assert!(parse_list(wrong, SSH_PORT).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(v6 in any::<u128>(), v4 in any::<u32>(), port in 1u16.., name in "[a-z][a-z0-9]{0,9}(\\.[a-z]{1,5}){0,3}") {
            for name in [Ipv6Addr::from_bits(v6).to_string(), Ipv4Addr::from_bits(v4).to_string(), name] {
                let address = Address { name, port };
                let read = parse_list(&address.to_string(), SSH_PORT).unwrap();
                prop_assert_eq!(read, vec![address]);
            }
        }

        #[test]
        fn ranges_are_ordered_without_gaps(first in any::<u32>(), length in 0u32..300) {
            let last = first.saturating_add(length);
            let text = format!("{}-{}", Ipv4Addr::from_bits(first), Ipv4Addr::from_bits(last));
            let list = parse_list(&text, SSH_PORT).unwrap();
            prop_assert_eq!(list.len() as u32, last - first + 1);
            prop_assert_eq!(&list[0].name, &Ipv4Addr::from_bits(first).to_string());
            prop_assert_eq!(&list[list.len() - 1].name, &Ipv4Addr::from_bits(last).to_string());
        }

        #[test]
        fn networks_hold_what_ping_would_reach(base in any::<u32>(), length in 20u32..=32) {
            let text = format!("{}/{length}", Ipv4Addr::from_bits(base));
            let count = parse_list(&text, SSH_PORT).unwrap().len();
            let expected = match length { 32 => 1, 31 => 2, _ => (1usize << (32 - length)) - 2 };
            prop_assert_eq!(count, expected);
        }

        #[test]
        fn nothing_panics(text in ".{0,80}") {
            let _ = parse_list(&text, SSH_PORT);
        }
    }
}
