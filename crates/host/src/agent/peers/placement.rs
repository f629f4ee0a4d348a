//! Which hosts keep the records of a digest: every host computes the same two. When hosts join or leave, only
//! the digests of those hosts move (rendezvous hashing).
//!
//! The function is part of the protocol between hosts: another version must compute the same.

use imgctl_base::image::Digest;

/// Number of hosts that keep the records of a digest: one may be away.
const KEEPERS: usize = 2;

/// The hosts, and a number for each.
pub(super) struct Placement {
    hosts: Vec<(String, u64)>,
}

impl Placement {
    pub(super) fn new(hosts: &[String]) -> Self {
        let mut hosts: Vec<(String, u64)> =
            hosts.iter().map(|host| (host.clone(), number(host.as_bytes()))).collect();
        hosts.sort();
        hosts.dedup();
        Self { hosts }
    }

    /// Returns the hosts that keep the records of `digest`, the first choice first.
    pub(super) fn keepers(&self, digest: &Digest) -> impl Iterator<Item = &str> {
        let own = number(digest.hex().as_bytes());
        let mut best: [Option<(u64, &str)>; KEEPERS] = [None; KEEPERS];
        for (host, number) in &self.hosts {
            let mut one = Some((mixed(own ^ number), host.as_str()));
            for place in &mut best {
                if one > *place {
                    std::mem::swap(&mut one, place);
                }
            }
        }
        best.into_iter().flatten().map(|(_, host)| host)
    }

    /// Returns whether `host` keeps the records of `digest`, mostly after a few comparisons.
    pub(super) fn keeps(&self, host: &str, digest: &Digest) -> bool {
        let own = number(digest.hex().as_bytes());
        let mine = (mixed(own ^ number(host.as_bytes())), host);
        let is_better =
            |(other, number): &&(String, u64)| (mixed(own ^ number), other.as_str()) > mine;
        let better = self.hosts.iter().filter(is_better);
        self.has(host) && better.take(KEEPERS).count() < KEEPERS
    }

    pub(super) fn has(&self, host: &str) -> bool {
        self.hosts.binary_search_by(|(own, _)| own.as_str().cmp(host)).is_ok()
    }
}

/// FNV-1a.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The finalizer of `SplitMix64`.
fn mixed(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn hosts(count: usize) -> Vec<String> {
        (1..=count).map(|at| format!("10.0.{}.{}", at / 250, at % 250)).collect()
    }

    #[test]
    fn records_are_spread_and_stay_when_a_host_goes() {
        let all = hosts(40);
        let (before, after) = (Placement::new(&all), Placement::new(&all[..39]));
        let mut kept = BTreeMap::new();
        let mut moved = 0;
        for number in 0..4000_u32 {
            let digest = Digest::of(&number.to_be_bytes());
            let keepers: Vec<&str> = before.keepers(&digest).collect();
            assert!(keepers.iter().all(|host| before.keeps(host, &digest)));
            assert!(all.iter().filter(|host| before.keeps(host, &digest)).count() == 2);
            assert!(keepers.len() == 2 && keepers[0] != keepers[1], "{keepers:?}");
            *kept.entry(keepers[0].to_owned()).or_insert(0) += 1;
            let stays = !keepers.contains(&all[39].as_str());
            let same = keepers == after.keepers(&digest).collect::<Vec<_>>();
            assert!(same || !stays, "{digest} moved without a reason");
            moved += usize::from(!same);
        }
        assert!(
            kept.len() == 40 && kept.values().all(|count| (50..200).contains(count)),
            "{kept:?}"
        );
        assert!((100..320).contains(&moved), "{moved}");
        assert_eq!(Placement::new(&hosts(1)).keepers(&Digest::of(b"x")).count(), 1);
        assert!(before.has("10.0.0.7") && !after.has(&all[39]));
    }

    #[test]
    fn the_choice_is_part_of_the_protocol() {
        let placement = Placement::new(&hosts(5));
        let keepers: Vec<&str> = placement.keepers(&Digest::of(b"imgctl")).collect();
        assert_eq!(keepers, PROTOCOL);
    }

    const PROTOCOL: [&str; 2] = ["10.0.0.3", "10.0.0.2"];
}
