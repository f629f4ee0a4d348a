//! The words of `EXPOSE`: ports of the container and, as `docker run -p` has it, an address and ports
//! of the host. Knows nothing about variables.

use std::net::IpAddr;
use std::ops::RangeInclusive;

/// What one word of `EXPOSE` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// The ports of the container.
    pub ports: RangeInclusive<u16>,
    /// `tcp`, `udp` or `sctp`, as written.
    pub protocol: String,
    /// Whether the word also names an address or a port of the host, which has no effect.
    pub is_published: bool,
}

/// Parses `[[ADDRESS:]PORT:]PORT[-PORT][/PROTOCOL]`; `None` if the word is something else.
pub fn parse(word: &str) -> Option<Exposed> {
    let mut parts = word.rsplit(':');
    let own = parts.next().unwrap_or_default();
    let of_host = parts.next().unwrap_or_default();
    let address = parts.rev().collect::<Vec<_>>().join(":");
    let (range, protocol) = own.split_once('/').unwrap_or((own, ""));
    let protocol = if protocol.is_empty() { "tcp" } else { protocol };
    if !matches!(protocol.to_lowercase().as_str(), "tcp" | "udp" | "sctp") {
        return None;
    }
    let ports = port_range(range)?;
    let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if !address.is_empty() && bare.unwrap_or(&address).parse::<IpAddr>().is_err() {
        return None;
    }
    if !of_host.is_empty() {
        let of_host = port_range(of_host)?;
        // One port may be published on any of a range.
        if ports.len() > 1 && of_host.len() != ports.len() {
            return None;
        }
    }
    let is_published = !address.is_empty() || !of_host.is_empty();
    Some(Exposed { ports, protocol: protocol.to_owned(), is_published })
}

fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_expose_have_ports_and_may_be_published() {
        for (word, ports, protocol, is_published) in [
            ("80", 80..=80, "tcp", false),
            ("53/UDP", 53..=53, "UDP", false),
            ("80/", 80..=80, "tcp", false),
            ("8000-8002", 8000..=8002, "tcp", false),
            (":80", 80..=80, "tcp", false),
            ("::80", 80..=80, "tcp", false),
            ("8080:80", 80..=80, "tcp", true),
            ("1-9:80/sctp", 80..=80, "sctp", true),
            ("1-2:3-4", 3..=4, "tcp", true),
            ("127.0.0.1::80", 80..=80, "tcp", true),
            ("[::1]:1-2:80", 80..=80, "tcp", true),
            ("::1:1:80", 80..=80, "tcp", true),
        ] {
            let expected = Exposed { ports, protocol: protocol.to_owned(), is_published };
            assert_eq!(parse(word), Some(expected), "{word}");
        }
        for wrong in [
            "",
            "x",
            "80/x",
            "2-1",
            "70000",
            "1-",
            "80:",
            "80/tcp:81",
            "localhost:80:80",
            "host:80",
            "[::1:80:80",
            "1-3:80-81",
            "80:80-81",
        ] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}
