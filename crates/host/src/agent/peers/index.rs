//! Which hosts have what, for the digests whose records this host keeps. In memory only: when this service
//! starts, the other hosts tell it again what they have. Bounded.

use std::collections::HashMap;

use imgctl_base::image::Digest;

/// Maximum number of digests. A record takes about 200 bytes, and 16 more for each host.
const DIGESTS: usize = 100_000;
/// Maximum number of hosts per digest: the most recent ones.
const HOSTS: usize = 64;
/// Maximum number of hosts in an answer.
pub(super) const NAMED: usize = 4;

/// The records.
#[derive(Default)]
pub(super) struct Index {
    held: HashMap<Digest, Vec<u32>>,
    /// Hosts by number, and numbers by host.
    names: Vec<String>,
    numbers: HashMap<String, u32>,
    /// Where the next answer begins: answers rotate, so that hosts share the load.
    next: usize,
}

impl Index {
    fn number(&mut self, host: &str) -> u32 {
        if let Some(number) = self.numbers.get(host) {
            return *number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(host.to_owned());
        self.numbers.insert(host.to_owned(), number);
        number
    }

    /// Records that `host`, which is a peer, has these digests.
    pub(super) fn add(&mut self, host: &str, digests: impl IntoIterator<Item = Digest>) {
        let number = self.number(host);
        for digest in digests {
            if self.held.len() >= DIGESTS && !self.held.contains_key(&digest) {
                continue;
            }
            let hosts = self.held.entry(digest).or_default();
            if !hosts.contains(&number) {
                if hosts.len() >= HOSTS {
                    hosts.remove(0);
                }
                hosts.push(number);
            }
        }
    }

    /// Records that `host` no longer has these digests.
    pub(super) fn remove<'d>(&mut self, host: &str, digests: impl IntoIterator<Item = &'d Digest>) {
        let Some(number) = self.numbers.get(host).copied() else { return };
        for digest in digests {
            if let Some(hosts) = self.held.get_mut(digest) {
                hosts.retain(|one| *one != number);
                if hosts.is_empty() {
                    self.held.remove(digest);
                }
            }
        }
    }

    /// Forgets everything that `host` has told.
    pub(super) fn forget(&mut self, host: &str) {
        let Some(number) = self.numbers.get(host).copied() else { return };
        self.held.retain(|_, hosts| {
            hosts.retain(|one| *one != number);
            !hosts.is_empty()
        });
    }

    /// Returns some of the hosts that have `digest`, in rotation; never `but`.
    pub(super) fn holders(&mut self, digest: &Digest, but: &str) -> Vec<String> {
        let but = self.numbers.get(but);
        let Some(hosts) = self.held.get(digest) else { return Vec::new() };
        self.next = self.next.wrapping_add(1);
        let from = self.next % hosts.len().max(1);
        let turned = hosts.iter().cycle().skip(from).take(hosts.len());
        let names = turned.filter(|number| Some(*number) != but);
        let name = |number: &u32| self.names.get(usize::try_from(*number).ok()?).cloned();
        names.filter_map(name).take(NAMED).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_share_the_load_and_go() {
        let mut index = Index::default();
        let digest = Digest::of(b"layer");
        for host in 1..=6 {
            index.add(&format!("h{host}"), [digest.clone()]);
            index.add(&format!("h{host}"), [digest.clone()]);
        }
        let mut first = std::collections::BTreeSet::new();
        for _ in 0..12 {
            let holders = index.holders(&digest, "h3");
            assert!(holders.len() == NAMED && !holders.contains(&"h3".to_owned()), "{holders:?}");
            first.insert(holders[0].clone());
        }
        assert_eq!(first.len(), 5);
        index.remove("h1", [&digest]);
        index.forget("h2");
        for host in 4..=6 {
            index.forget(&format!("h{host}"));
        }
        assert_eq!(index.holders(&digest, "h9"), ["h3"]);
        index.forget("h3");
        assert!(index.holders(&digest, "h9").is_empty() && index.held.is_empty());
    }

    #[test]
    fn it_does_not_grow_without_bounds() {
        let mut index = Index::default();
        let digest = Digest::of(b"layer");
        for host in 0..HOSTS + 10 {
            index.add(&format!("h{host}"), [digest.clone()]);
        }
        assert_eq!(index.held[&digest].len(), HOSTS);
    }
}
