//! Addresses that cannot be those of a cluster's hosts: other hosts get them as they are listed, and
//! would find nobody or themselves there. Must not resolve names.

use std::net::{IpAddr, Ipv4Addr};

use crate::context::Host;
use imgctl_base::error::{Error, Result};

/// Names that `/etc/hosts` of every machine has for itself.
const OWN_NAMES: [&str; 4] =
    ["localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"];

fn ip(name: &str) -> Option<IpAddr> {
    name.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// Returns what kind of address this is, if no machine can have it.
pub(crate) fn of_nobody(name: &str) -> Option<&'static str> {
    match ip(name)? {
        address if address.is_unspecified() => Some("the unspecified address"),
        address if address.is_multicast() => Some("a multicast address"),
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some("the broadcast address"),
        // It needs an interface, which is another one on every machine.
        IpAddr::V6(address) if address.is_unicast_link_local() => Some("a link-local address"),
        _ => None,
    }
}

/// Returns whether this is the default hostname of a machine that has no name of its own.
pub fn is_no_hostname(name: &str) -> bool {
    OWN_NAMES.contains(&name)
}

/// Returns whether every machine means itself by this address or name.
pub(crate) fn is_loopback(name: &str) -> bool {
    match ip(name) {
        Some(address) => address.is_loopback(),
        None => OWN_NAMES.contains(&name) || name.ends_with(".localhost"),
    }
}

/// Fails if the hosts of a cluster cannot reach each other under the addresses that they have in the
/// list. A single address may be the loopback: a cluster of this machine alone, or ports that are
/// forwarded from here.
pub fn check(hosts: &[Host]) -> Result<()> {
    for host in hosts {
        let name = &host.address.name;
        if let Some(what) = of_nobody(name) {
            return Err(Error::usage(format!("{name} is {what} and cannot be that of a host"))
                .hint("list the host by its own address"));
        }
        if let Some(other) = hosts.iter().find(|other| other.address.name != *name)
            && is_loopback(name)
        {
            return Err(Error::usage(format!(
                "{name} cannot be the address of a host beside {}: every machine means itself by it",
                other.id()
            ))
            .hint("list the host by the address under which the other hosts reach it"));
        }
    }
    Ok(())
}

/// Fails if a name means this machine to this machine alone (`127.0.1.1 NAME`, as Debian writes it):
/// other hosts get the name. `resolved` knows the addresses that names of connected hosts have here,
/// `own` the address under which others reach this machine.
pub fn check_names(
    hosts: &[Host],
    resolved: impl Fn(&str) -> Vec<IpAddr>,
    own: impl Fn() -> IpAddr,
) -> Result<()> {
    for host in hosts {
        let name = &host.address.name;
        let Some(other) = hosts.iter().find(|other| other.address.name != *name) else {
            continue;
        };
        let found = resolved(name);
        if let Some(first) = found.first()
            && found.iter().all(|address| address.to_canonical().is_loopback())
        {
            return Err(Error::usage(format!(
                "{name} is {first} here and cannot be the name of a host beside {}: every machine means \
                 itself by that address",
                other.id()
            ))
            .hint(format!(
                "list it by its address (this machine has {}), or give the name that address in \
                 /etc/hosts",
                own()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn checked(names: &[&str]) -> Result<()> {
        let roles: Vec<&str> = names.iter().map(|_| "master").collect();
        let mut hosts = testing::context(&roles).hosts;
        for (host, name) in hosts.iter_mut().zip(names) {
            host.address = imgctl_host::host::address::parse_one(name, 22).unwrap();
        }
        check(&hosts)
    }

    #[test]
    fn a_name_that_is_the_loopback_here_is_refused_beside_others() {
        let named = |names: &[&str]| {
            let roles: Vec<&str> = names.iter().map(|_| "master").collect();
            let mut hosts = testing::context(&roles).hosts;
            for (host, name) in hosts.iter_mut().zip(names) {
                host.address = imgctl_host::host::address::parse_one(name, 22).unwrap();
            }
            let resolved = |name: &str| -> Vec<IpAddr> {
                let all: &[&str] = match name {
                    "h1" => &["127.0.1.1"],
                    "h2" => &["::1", "127.0.0.1"],
                    "h3" => &["127.0.0.1", "10.0.0.3"],
                    _ => &[],
                };
                all.iter().map(|one| one.parse().unwrap()).collect()
            };
            check_names(&hosts, resolved, || IpAddr::from([10, 0, 0, 9]))
        };
        for names in [&["h1", "10.0.0.2"][..], &["10.0.0.2", "h2"]] {
            let error = named(names).unwrap_err();
            assert!(error.hints()[0].contains("10.0.0.9"), "{error}");
        }
        for names in [&["h1"][..], &["h1:2201", "h1:2202"], &["h3", "h4", "10.0.0.2"]] {
            named(names).unwrap();
        }
    }

    #[test]
    fn hosts_have_addresses_that_lead_the_others_to_them() {
        for names in [
            &["127.0.0.1"][..],
            &["localhost"],
            &["127.0.0.1:2201", "127.0.0.1:2202"],
            &["10.0.0.1", "10.0.0.2", "h3", "fd00::1"],
        ] {
            checked(names).unwrap();
        }
        for (names, part) in [
            (&["127.0.0.1", "10.0.0.2"][..], "127.0.0.1"),
            (&["10.0.0.2", "::1"], "::1"),
            (&["10.0.0.2", "localhost"], "localhost"),
            (&["127.0.0.1", "127.0.1.1"], "127.0.0.1"),
            (&["10.0.0.2", "::ffff:127.0.0.1"], "127.0.0.1"),
            (&["0.0.0.0"], "unspecified"),
            (&["10.0.0.1", "::"], "unspecified"),
            (&["224.0.0.1"], "multicast"),
            (&["ff02::1", "fd00::1"], "multicast"),
            (&["255.255.255.255"], "broadcast"),
            (&["fe80::1"], "link-local"),
        ] {
            let error = checked(names).unwrap_err();
            assert!(error.to_string().contains(part) && !error.hints().is_empty(), "{error}");
        }
    }
}
