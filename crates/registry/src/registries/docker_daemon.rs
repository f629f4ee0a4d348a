//! Registry settings of docker's `daemon.json`: mirrors of docker.io and insecure registries. The
//! file exists on nodes; its other members are ignored.

use std::net::IpAddr;
use std::path::Path;

use serde::Deserialize;

use crate::config_file;
use crate::registries::names::without_port;
use imgctl_base::error::{Error, Result};

/// Supported members.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct DockerDaemon {
    registry_mirrors: Vec<String>,
    insecure_registries: Vec<String>,
}

impl DockerDaemon {
    /// Adds the settings of `path` to the existing ones. Ignores a missing file.
    pub(super) fn add(&mut self, path: &Path) -> Result<()> {
        let Some(text) = config_file::text(path)? else {
            return Ok(());
        };
        if text.trim().is_empty() {
            return Ok(());
        }
        let read: Self = serde_json::from_str(&text).map_err(|error| {
            Error::usage(format!("{}:{}: {error}", path.display(), error.line()))
                .hint("this is docker's own configuration; dockerd refuses it as well")
        })?;
        for mirror in &read.registry_mirrors {
            parts(mirror).ok_or_else(|| {
                Error::usage(format!(
                    "{}: the mirror `{mirror}` is not http[s]://host[:port]",
                    path.display()
                ))
            })?;
        }
        self.registry_mirrors.extend(read.registry_mirrors);
        self.insecure_registries.extend(read.insecure_registries);
        Ok(())
    }

    /// Returns the mirrors of docker.io and whether they are insecure.
    pub(super) fn mirrors(&self) -> impl Iterator<Item = (&str, Option<bool>)> {
        self.registry_mirrors
            .iter()
            .filter_map(|mirror| parts(mirror))
            .map(|(host, is_plain)| (host, is_plain.then_some(true).or(self.insecure(host))))
    }

    /// Returns `Some(true)` if `host[:port]`, or the network of its address, is listed as insecure.
    pub(super) fn insecure(&self, host: &str) -> Option<bool> {
        let name = without_port(host);
        let address: Option<IpAddr> = name.parse().ok();
        self.insecure_registries
            .iter()
            .any(|listed| {
                let listed = listed
                    .strip_prefix("https://")
                    .or_else(|| listed.strip_prefix("http://"))
                    .unwrap_or(listed)
                    .trim_end_matches('/');
                listed == host || address.is_some_and(|address| is_in_network(address, listed))
            })
            .then_some(true)
    }
}

/// Returns the host of `http[s]://host[:port][/]` and whether it uses plain HTTP.
fn parts(mirror: &str) -> Option<(&str, bool)> {
    let (scheme, rest) = mirror.split_once("://")?;
    let host = rest.trim_end_matches('/');
    let is_plain = match scheme {
        "http" => true,
        "https" => false,
        _ => return None,
    };
    let odd = host.is_empty() || host.contains(['/', '?', '#', '@']);
    (!odd).then_some((host, is_plain))
}

/// Returns whether `address` is in `network` (`10.0.0.0/8`).
fn is_in_network(address: IpAddr, network: &str) -> bool {
    let Some((base, bits)) = network.split_once('/') else {
        return false;
    };
    let (Ok(base), Ok(bits)) = (base.parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    let bytes = |address: IpAddr| match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    };
    let width = if base.is_ipv4() { 32 } else { 128 };
    let mask = match bits {
        0 => 0,
        bits if bits <= width => u128::MAX << (128 - bits),
        _ => return false,
    };
    address.is_ipv4() == base.is_ipv4() && (bytes(address) ^ bytes(base)) & mask == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_networks() {
        for (address, network, expected) in [
            ("10.1.2.3", "10.0.0.0/8", true),
            ("11.1.2.3", "10.0.0.0/8", false),
            ("10.1.2.3", "10.1.2.3/32", true),
            ("10.1.2.4", "10.1.2.3/32", false),
            ("10.1.2.4", "0.0.0.0/0", true),
            ("10.1.2.4", "0.0.0.0/33", false),
            ("fd00::1", "fd00::/8", true),
            ("fd00::1", "10.0.0.0/8", false),
            ("10.1.2.4", "10.1.2.4", false),
            ("10.1.2.4", "registry/8", false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(is_in_network(address, network), expected, "{network}");
        }
    }

    #[test]
    fn mirrors_and_insecure_registries_are_read_and_mistakes_located() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.json");
        std::fs::write(
            &path,
            r#"{"data-root": "/x", "registry-mirrors": ["https://m.io/", "http://n.io:5000"],
                "insecure-registries": ["r.io:5000", "10.0.0.0/8", "http://s.io"]}"#,
        )
        .unwrap();
        let mut daemon = DockerDaemon::default();
        daemon.add(&path).unwrap();
        let mirrors: Vec<_> = daemon.mirrors().collect();
        assert_eq!(mirrors, [("m.io", None), ("n.io:5000", Some(true))]);
        for (host, expected) in [
            ("r.io:5000", Some(true)),
            ("r.io", None),
            ("s.io", Some(true)),
            ("10.2.3.4:443", Some(true)),
            ("[fd00::1]:443", None),
        ] {
            assert_eq!(daemon.insecure(host), expected, "{host}");
        }
        for (text, expected) in [
            ("{\n\"registry-mirrors\": 1}", "daemon.json:2: "),
            (r#"{"registry-mirrors": ["m.io"]}"#, "`m.io`"),
            (r#"{"registry-mirrors": ["https://m.io/x"]}"#, "`https://m.io/x`"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = daemon.add(&path).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
