//! Changes of hosts' addresses: `OLD=NEW` as typed, and the hosts of a Clusterfile with them.

use std::net::IpAddr;

use crate::clusterfile::{ClusterDocument, HostGroup};
use crate::host_addresses::{is_loopback, of_nobody};
use imgctl_base::error::{Error, Result};
use imgctl_host::host::address::{self, Address, SSH_PORT};

/// One host and the address that it is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renumbering {
    pub old: Address,
    pub new: Address,
}

impl std::fmt::Display for Renumbering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.old, self.new)
    }
}

impl Renumbering {
    /// Parses `OLD=NEW`, both an IP address with or without an SSH port. Without a port, NEW has
    /// that of OLD.
    pub fn parse(text: &str) -> Result<Self> {
        let Some((old, new)) = text.split_once('=') else {
            return Err(Error::usage(format!("`{text}` is not OLD=NEW"))
                .hint("name the address of the host and its new one: 10.0.0.11=10.9.0.11"));
        };
        let old = one(old, SSH_PORT)?;
        let new = one(new, old.port)?;
        let (old_ip, new_ip) = (ip(&old)?, ip(&new)?);
        if old_ip == new_ip {
            return Err(Error::usage(format!("{} is already the address of this host", new.name)));
        }
        if old_ip.is_ipv4() != new_ip.is_ipv4() {
            return Err(Error::usage(format!(
                "{} and {} are of different families: a host keeps IPv4 or IPv6",
                old.name, new.name
            ))
            .hint("the networks of the cluster are of one family; create a new cluster instead"));
        }
        if is_loopback(&new.name) || of_nobody(&new.name).is_some() {
            return Err(Error::usage(format!("{} cannot be the address of a host", new.name))
                .hint("name the address under which the other hosts reach it"));
        }
        Ok(Self { old, new })
    }
}

fn one(text: &str, port: u16) -> Result<Address> {
    // Ranges and subnets name several hosts.
    if text.contains(',') || text.contains('/') {
        return Err(Error::usage(format!("`{text}` is not one address")));
    }
    address::parse_one(text, port)
}

fn ip(address: &Address) -> Result<IpAddr> {
    address.name.parse().map_err(|_| {
        Error::usage(format!("`{}` is a name, not an IP address", address.name)).hint(
            "a host that the Clusterfile lists by name changes its address in the name service; \
             renumber is for hosts listed by address",
        )
    })
}

impl ClusterDocument {
    /// Gives a host its new address. Its place in the list, its roles, variables and login stay.
    /// Returns the change with the port that the Clusterfile has. `Ok(None)`: the host is listed
    /// under its new address and not under the old one.
    pub fn renumber(&mut self, change: &Renumbering) -> Result<Option<Renumbering>> {
        let all = self.addresses()?;
        let named = |name: &str| all.iter().filter(|own| own.name == name).collect::<Vec<_>>();
        let (old, new) = (named(&change.old.name), named(&change.new.name));
        let found = match &old[..] {
            [] if !new.is_empty() => return Ok(None),
            [] => {
                let list: Vec<String> = all.iter().map(ToString::to_string).collect();
                return Err(Error::not_found(format!(
                    "host {} does not belong to cluster `{}`",
                    change.old, self.name
                ))
                .hint(format!("it has {}", list.join(", "))));
            }
            [one] => (*one).clone(),
            _ => {
                return Err(Error::usage(format!(
                    "several hosts of cluster `{}` are at {}, with different ports",
                    self.name, change.old.name
                ))
                .hint("such hosts are behind one address, which they cannot change alone"));
            }
        };
        if !new.is_empty() {
            return Err(Error::usage(format!(
                "{} is the address of another host of cluster `{}`",
                change.new.name, self.name
            ))
            .hint(
                "hosts cannot swap their addresses at once: move one of them to a third address \
                 first, then the other, then the first again",
            ));
        }
        let port = if change.new.port == SSH_PORT { found.port } else { change.new.port };
        let exact = Renumbering {
            new: Address { name: change.new.name.clone(), port },
            old: found.clone(),
        };
        for at in 0..self.hosts.len() {
            let Some(group) = self.hosts.get(at) else { break };
            let addresses = self.addresses_of(group)?;
            if addresses.contains(&found) {
                let ips = addresses.iter().map(|own| if *own == found { &exact.new } else { own });
                let ips =
                    ips.map(|own| imgctl_base::address::join_port(&own.name, own.port)).collect();
                let renumbered = HostGroup { ips, ..group.clone() };
                if let Some(group) = self.hosts.get_mut(at) {
                    *group = renumbered;
                }
            }
        }
        Ok(Some(exact))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(groups: &[(&str, &str)]) -> ClusterDocument {
        let group = |(ips, role): &(&str, &str)| HostGroup {
            ips: ips.split(' ').map(str::to_owned).collect(),
            roles: vec![(*role).to_owned()],
            ..HostGroup::default()
        };
        let hosts = groups.iter().map(group).collect();
        ClusterDocument { name: "c".to_owned(), hosts, ..ClusterDocument::default() }
    }

    fn change(text: &str) -> Renumbering {
        Renumbering::parse(text).unwrap()
    }

    #[test]
    fn what_can_be_typed() {
        assert_eq!(change("10.0.0.1=10.0.0.2").to_string(), "10.0.0.1=10.0.0.2");
        assert_eq!(change("10.0.0.1:99=10.0.0.2").new.port, 99);
        assert_eq!(change("[fd00::1]:22=fd00::2").new.name, "fd00::2");
        for (text, expected) in [
            ("10.0.0.1", "is not OLD=NEW"),
            ("10.0.0.1=10.0.0.1", "already the address"),
            ("10.0.0.1=fd00::1", "different families"),
            ("cp-1=10.0.0.1", "is a name"),
            ("10.0.0.1=10.0.0.2,10.0.0.3", "not one address"),
            ("10.0.0.1=10.0.0.0/30", "not one address"),
            ("10.0.0.1=127.0.0.1", "cannot be the address"),
            ("10.0.0.1=0.0.0.0", "cannot be the address"),
        ] {
            let error = Renumbering::parse(text).unwrap_err();
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
        assert!(
            Renumbering::parse("=10.0.0.1").is_err() && Renumbering::parse("10.0.0.1=").is_err()
        );
    }

    #[test]
    fn a_host_keeps_its_place() {
        let mut own = document(&[("10.0.0.1-10.0.0.3", "master"), ("10.0.0.9:2222", "node")]);
        let exact = own.renumber(&change("10.0.0.1=10.9.0.1")).unwrap().unwrap();
        assert_eq!(exact.to_string(), "10.0.0.1=10.9.0.1");
        assert_eq!(own.hosts[0].ips, ["10.9.0.1:22", "10.0.0.2:22", "10.0.0.3:22"]);
        let exact = own.renumber(&change("10.0.0.9=10.9.0.9")).unwrap().unwrap();
        assert_eq!(exact.to_string(), "10.0.0.9:2222=10.9.0.9:2222");
        assert_eq!(own.hosts[1].ips, ["10.9.0.9:2222"]);
        // Once more: it is there already.
        assert_eq!(own.renumber(&change("10.0.0.9=10.9.0.9")).unwrap(), None);
        let swapped = own.renumber(&change("10.0.0.2=10.0.0.3")).unwrap_err();
        assert!(swapped.hints()[0].contains("swap"), "{swapped}");
        let foreign = own.renumber(&change("10.0.0.7=10.0.0.8")).unwrap_err();
        assert!(foreign.to_string().contains("does not belong to cluster `c`"), "{foreign}");
    }
}
