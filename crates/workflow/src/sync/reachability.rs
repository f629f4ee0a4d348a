//! Tracks which hosts can reach which others, based on successful and failed transfers.
//!
//! Firewalls and address translation divide networks into parts that are not known in advance.
//! Hosts that have served each other are in one part; after a few failures, a part stops trying
//! another part; the controller serves a host that no other host can serve. Must not depend on
//! blobs.

use std::collections::BTreeMap;

/// Number of failures between two parts after which they are not tried again.
const TRIES: u32 = 2;
/// Number of failed sources after which a host stops trying other hosts.
const PATIENCE: usize = 8;
/// Number of hosts that fail to reach a source before it is given up, if no host has ever reached
/// it.
const BLAMES: u32 = 4;

/// Knowledge about one host.
#[derive(Debug, Default)]
struct Known {
    /// Part of the host, as the number of one of the part's hosts.
    part: u32,
    /// Sources that failed to serve the host.
    not_from: Vec<u32>,
    /// Number of times that the host was served.
    served: usize,
    /// Number of hosts that it failed to serve.
    blamed: u32,
    /// Number of times that it served another host.
    serves: u32,
    /// Whether the host no longer serves others.
    is_mute: bool,
}

/// Knowledge about all hosts.
#[derive(Debug)]
pub(super) struct Reachability {
    hosts: Vec<Known>,
    troubled: Vec<u32>,
    /// Number of times that hosts of the second part failed to serve hosts of the first part.
    failures: BTreeMap<(u32, u32), u32>,
}

impl Reachability {
    pub(super) fn new(hosts: usize) -> Self {
        let known = |part| Known { part, ..Known::default() };
        Self {
            hosts: (0..).take(hosts).map(known).collect(),
            troubled: Vec::new(),
            failures: BTreeMap::new(),
        }
    }

    /// Reports whether `host` should try to fetch from `source`.
    pub(super) fn is_worth_a_try(&self, host: u32, source: u32) -> bool {
        let (known, from) = (&self.hosts[host as usize], &self.hosts[source as usize]);
        let pair = (known.part, from.part);
        host != source
            && !from.is_mute
            && !self.is_alone(host)
            && !known.not_from.contains(&source)
            && (pair.0 == pair.1 || self.failures.get(&pair).is_none_or(|&count| count < TRIES))
    }

    /// Reports whether `host` should no longer try any other host.
    pub(super) fn is_alone(&self, host: u32) -> bool {
        let known = &self.hosts[host as usize];
        known.not_from.len() >= PATIENCE + known.served
    }

    /// Returns the hosts that a source failed to serve, and the hosts in their parts.
    pub(super) fn troubled(&self) -> &[u32] {
        &self.troubled
    }

    pub(super) fn worked(&mut self, host: u32, source: u32) {
        self.hosts[host as usize].served += 1;
        self.hosts[source as usize].serves += 1;
        let (old, new) = (self.hosts[host as usize].part, self.hosts[source as usize].part);
        if old != new {
            self.join(old, new);
        }
    }

    /// Merges two parts.
    fn join(&mut self, old: u32, new: u32) {
        for known in self.hosts.iter_mut().filter(|known| known.part == old) {
            known.part = new;
        }
        let of = |part| if part == old { new } else { part };
        for ((host, source), count) in std::mem::take(&mut self.failures) {
            if of(host) != of(source) {
                *self.failures.entry((of(host), of(source))).or_default() += count;
            }
        }
        if self.failures.keys().any(|&(host, _)| host == new) {
            for (number, known) in (0..).zip(&self.hosts) {
                if known.part == new && !self.troubled.contains(&number) {
                    self.troubled.push(number);
                }
            }
        }
    }

    /// Records a failure; returns `true` if `source` should be given up.
    pub(super) fn failed(&mut self, host: u32, source: u32) -> bool {
        let known = &mut self.hosts[host as usize];
        let part = known.part;
        if !known.not_from.contains(&source) {
            known.not_from.push(source);
            if !self.troubled.contains(&host) {
                self.troubled.push(host);
            }
            let source = &mut self.hosts[source as usize];
            source.blamed += 1;
            if source.part != part {
                *self.failures.entry((part, source.part)).or_default() += 1;
            }
        }
        let source = &self.hosts[source as usize];
        !source.is_mute && source.serves == 0 && source.blamed >= BLAMES
    }

    /// Stops the use of `source` for all hosts.
    pub(super) fn give_up(&mut self, source: u32) {
        self.hosts[source as usize].is_mute = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_learn_of_each_other_and_inside_one_a_failure_is_one() {
        let mut known = Reachability::new(40);
        for host in 1..10 {
            known.worked(host, 0);
        }
        for host in 21..30 {
            known.worked(host, 20);
        }
        known.failed(3, 21);
        assert!(known.is_worth_a_try(3, 22), "once may be chance");
        known.failed(4, 22);
        assert!(!known.is_worth_a_try(5, 23), "none of its part has to try");
        assert!(known.is_worth_a_try(23, 5), "the other direction is another matter");
        assert!(known.is_worth_a_try(5, 30));
        known.failed(1, 2);
        known.failed(1, 3);
        assert!(!known.is_worth_a_try(1, 2) && known.is_worth_a_try(1, 4));
        // A host that joins a part inherits the part's knowledge.
        known.worked(30, 9);
        assert!(!known.is_worth_a_try(30, 25) && known.troubled().contains(&30));
    }

    #[test]
    fn a_host_that_reaches_nobody_gives_up() {
        let mut known = Reachability::new(40);
        for source in 1..=8 {
            assert!(known.is_worth_a_try(0, source));
            known.failed(0, source);
        }
        assert!(known.is_alone(0) && !known.is_worth_a_try(0, 9));
        known.worked(0, 8);
        assert!(known.is_worth_a_try(0, 9), "one success earns one more try");
    }

    #[test]
    fn a_source_that_nobody_reaches_is_given_up_and_one_that_served_is_not() {
        let mut known = Reachability::new(10);
        assert!(!known.failed(1, 0) && !known.failed(1, 0));
        assert!(!known.failed(2, 0) && !known.failed(3, 0) && known.failed(4, 0));
        known.give_up(0);
        assert!(!known.is_worth_a_try(5, 0));
        known.worked(1, 9);
        assert!(!(2..9).any(|host| known.failed(host, 9)));
    }
}
