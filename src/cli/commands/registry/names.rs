//! The names by which this machine knows itself. A registry without logins answers only to these.

use std::net::{IpAddr, UdpSocket};

use imgctl_registry::server::Names;

const HOSTS_FILE: &str = "/etc/hosts";

/// Returns the machine's name, the names that its hosts file has for its own addresses, and `given`.
pub(super) fn known(given: &[String]) -> Names {
    let hosts = std::fs::read_to_string(HOSTS_FILE).unwrap_or_default();
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // Only an address of this machine can be taken.
    let is_here = |address: IpAddr| UdpSocket::bind((address, 0)).is_ok();
    let names = given.iter().cloned().chain([own]);
    Names::new(names.chain(of_hosts_file(&hosts, is_here)))
}

/// Returns the names of addresses for which `is_here` holds. Entries for 0.0.0.0 are skipped: block lists map
/// unwanted names to it, and it also reaches this machine.
fn of_hosts_file(text: &str, is_here: impl Fn(IpAddr) -> bool) -> Vec<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let address: IpAddr = words.next()?.parse().ok()?;
            (!address.is_unspecified() && is_here(address)).then_some(words)
        })
        .flatten()
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_machines_and_of_nowhere_are_not_ours() {
        let text = "127.0.0.1 localhost\n127.0.1.1\thost.corp host # name\n::1 ip6-localhost\n\
                    #127.0.0.1 commented\n10.0.0.5 sealos.hub\n10.0.0.6 other.corp\n0.0.0.0 ads.example\n\
                    :: tracker.example\nnonsense line\n";
        let is_here = |address: IpAddr| address.is_loopback() || address.to_string() == "10.0.0.5";
        assert_eq!(
            of_hosts_file(text, is_here),
            ["localhost", "host.corp", "host", "ip6-localhost", "sealos.hub"]
        );
        let asks = |address: &str| {
            of_hosts_file(&format!("{address} x"), |a| UdpSocket::bind((a, 0)).is_ok())
        };
        assert_eq!(asks("127.0.0.1"), ["x"]);
        // Reserved for documentation (RFC 5737).
        assert_eq!(asks("192.0.2.1").len(), 0);
        assert_eq!(asks("0.0.0.0").len(), 0);
    }
}
