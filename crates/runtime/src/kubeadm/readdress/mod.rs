//! Other addresses in what kubeadm wrote: static Pod manifests, kubeconfigs, kubelet flags,
//! ConfigMaps, names of certificates.
//!
//! Values in, values out. Must not depend on hosts, the API or the reason for the change.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::Value;

use crate::certificates::control_plane::Member;
use imgctl_base::error::{Error, Result};

#[cfg(test)]
mod tests;

/// Former addresses of hosts, each with its new one. All are replaced at the same time, so a new
/// address may be the former one of another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Addresses(Vec<(IpAddr, IpAddr)>);

impl Addresses {
    pub(crate) fn one(old: &str, new: &str) -> Result<Self> {
        Self::new(&[(old.to_owned(), new.to_owned())])
    }

    pub(crate) fn new(moves: &[(String, String)]) -> Result<Self> {
        let parse = |text: &str| {
            text.parse::<IpAddr>().map_err(|_| {
                Error::usage(format!("`{text}` is not an IP address"))
                    .hint("kubeadm writes the addresses of hosts, not their names, into its files")
            })
        };
        moves
            .iter()
            .map(|(old, new)| {
                let (old_ip, new_ip) = (parse(old)?, parse(new)?);
                if old_ip.is_ipv4() == new_ip.is_ipv4() {
                    return Ok((old_ip, new_ip));
                }
                Err(Error::usage(format!("{old} and {new} are of different families"))
                    .hint("a host keeps IPv4 or IPv6: the networks of a cluster are not changed"))
            })
            .collect::<Result<_>>()
            .map(Self)
    }

    /// Returns the new address of the host that was at `old`.
    fn of(&self, old: IpAddr) -> Option<IpAddr> {
        self.0.iter().find(|(known, _)| *known == old).map(|(_, new)| *new)
    }

    /// Replaces the addresses wherever they stand alone: `10.0.0.1` not in `10.0.0.11`, in
    /// `110.0.0.1`, in `10.0.0.1.example` or in the subnet `10.0.0.1/24`. Everything else stays
    /// byte for byte.
    pub(crate) fn in_text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            if length == 0 {
                let Some(c) = rest.chars().next() else { break };
                out.push(c);
                rest = rest.get(c.len_utf8()..).unwrap_or_default();
                continue;
            }
            let (word, after) = rest.split_at(length);
            let subnet = after.strip_prefix('/');
            let is_subnet =
                subnet.is_some_and(|bits| bits.starts_with(|c: char| c.is_ascii_digit()));
            match self.in_word(word).filter(|_| !is_subnet) {
                Some(new) => out.push_str(&new),
                None => out.push_str(word),
            }
            rest = after;
        }
        out
    }

    /// Returns `word` with its address replaced: an address or `address:port`.
    fn in_word(&self, word: &str) -> Option<String> {
        // The end of a key or of a sentence is not a part of the address.
        let core = word.trim_end_matches(['.', ':', '-', '_']);
        let tail = word.get(core.len()..)?;
        if let Ok(old) = core.parse::<IpAddr>() {
            return Some(format!("{}{tail}", self.of(old)?));
        }
        let (address, port) = core.rsplit_once(':')?;
        port.parse::<u16>().ok()?;
        let old = address.parse::<Ipv4Addr>().ok()?;
        Some(format!("{}:{port}{tail}", self.of(old.into())?))
    }

    /// Replaces the addresses of servers in a kubeconfig; certificates and keys stay as they are.
    pub(crate) fn in_kubeconfig(&self, text: &str) -> String {
        const KEY: &str = "server";
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(KEY) {
            let (before, after) = rest.split_at(at + KEY.len());
            out.push_str(before);
            rest = after;
            // Not `tls-server-name`, and quoted in JSON.
            let is_key = !before
                .trim_end_matches(KEY)
                .ends_with(|c: char| c.is_ascii_alphanumeric() || c == '-')
                && after.trim_start_matches(['"', '\'']).starts_with(':');
            if is_key {
                let length = after.find(['\n', ',', '}']).unwrap_or(after.len());
                let (value, after) = after.split_at(length);
                out.push_str(&self.in_text(value));
                rest = after;
            }
        }
        out.push_str(rest);
        out
    }

    /// Replaces the addresses in all values of a ConfigMap or Secret with `data` as text. Returns
    /// `None` if it contains none of them.
    pub(crate) fn in_config_map(&self, object: &Value) -> Option<Value> {
        let mut changed = object.clone();
        for value in changed.get_mut("data")?.as_object_mut()?.values_mut() {
            let new = value.as_str().map(|text| self.in_text(text));
            if let Some(new) = new {
                *value = new.into();
            }
        }
        (changed != *object).then_some(changed)
    }

    /// Replaces the addresses among the names of a certificate.
    pub(crate) fn in_names(&self, names: &[String]) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for name in names {
            let new = name.parse().ok().and_then(|old| self.of(old));
            let name = new.map_or_else(|| name.clone(), |new| new.to_string());
            if !all.contains(&name) {
                all.push(name);
            }
        }
        all
    }
}

/// Characters of addresses, host names and the ports behind them.
fn is_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '-' | '_')
}

/// Adds `names` to what the API server and etcd of a control plane are called in their
/// certificates.
pub(super) fn also_called(mut member: Member, names: &[String]) -> Member {
    member.api_names.extend_from_slice(names);
    if let Some((server, peer)) = &mut member.etcd {
        server.extend_from_slice(names);
        peer.extend_from_slice(names);
    }
    member
}
