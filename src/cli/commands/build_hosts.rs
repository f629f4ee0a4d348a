//! `build --add-host`: lines of /etc/hosts in RUN steps, in the forms of docker and podman.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use imgctl_base::error::{Error, Result};
use imgctl_frontend::names::given;

/// The address by which a step reaches this machine.
const GATEWAY: &str = "host-gateway";
/// An address for documentation (RFC 5737): finds the interface with the default route.
const ELSEWHERE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);

/// Parses `NAME=ADDRESS`, `NAME:ADDRESS` and `NAME;NAME…:ADDRESS`, where the address may be in
/// brackets or `host-gateway`. `is_host`: steps share this machine's network.
pub(super) fn parse(texts: &[String], is_host: bool) -> Result<Vec<(String, IpAddr)>> {
    let mut hosts = Vec::new();
    for text in given(texts) {
        let wrong = |why: &str| {
            Error::usage(format!("--add-host `{text}`: {why}")).hint(
                "write NAME:ADDRESS, for example db:10.0.0.5, db:[2001:db8::5] or db:host-gateway",
            )
        };
        let separator = if text.contains('=') { '=' } else { ':' };
        let (names, address) =
            text.split_once(separator).ok_or_else(|| wrong("there is no address"))?;
        let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let address = match bare.unwrap_or(address) {
            GATEWAY if is_host => Ipv4Addr::LOCALHOST.into(),
            GATEWAY => this_machine().ok_or_else(|| wrong("this machine has no address"))?,
            address => address.parse().map_err(|_| wrong("the address is no IP address"))?,
        };
        for name in names.split(';') {
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            if name.is_empty() || !name.bytes().all(is_name) {
                return Err(wrong("the name is no host name"));
            }
            hosts.push((name.to_owned(), address));
        }
    }
    Ok(hosts)
}

/// Returns the address of the interface with the default route. No packet is sent.
fn this_machine() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(ELSEWHERE).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified() && !address.is_loopback()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_one(text: &str) -> Result<Vec<(String, IpAddr)>> {
        parse(&[text.to_owned()], true)
    }

    #[test]
    fn hosts_are_written_as_for_docker_and_podman() {
        for (text, expected) in [
            ("db:10.0.0.5", "db 10.0.0.5"),
            ("db=10.0.0.5", "db 10.0.0.5"),
            ("db:::1", "db ::1"),
            ("db:[::1]", "db ::1"),
            ("db=[2001:db8::5]", "db 2001:db8::5"),
            ("db=2001:db8::5", "db 2001:db8::5"),
            ("a;b.c:10.0.0.5", "a 10.0.0.5, b.c 10.0.0.5"),
            ("up:host-gateway", "up 127.0.0.1"),
            ("up=host-gateway", "up 127.0.0.1"),
            ("", ""),
        ] {
            let told: Vec<String> = parse_one(text)
                .unwrap()
                .iter()
                .map(|(name, address)| format!("{name} {address}"))
                .collect();
            assert_eq!(told.join(", "), expected, "{text}");
        }
        if let Ok(hosts) = parse(&["up:host-gateway".to_owned()], false) {
            assert!(!hosts[0].1.is_loopback() && !hosts[0].1.is_unspecified());
        }
    }

    #[test]
    fn what_is_no_address_of_a_host_is_refused() {
        for text in [
            "db",
            "db:",
            ":10.0.0.5",
            "db:999.1.1.1",
            "db:[::1",
            "db:host",
            "a b:10.0.0.5",
            "db:10.0.0.5 evil",
            "a:b=10.0.0.5",
            "db\n:10.0.0.5",
            "a;:10.0.0.5",
            "db:010.0.0.5",
        ] {
            assert!(parse_one(text).is_err(), "{text:?}");
        }
    }
}
