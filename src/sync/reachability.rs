//! Which hosts can be had from which others, learnt from what worked and what did not.
//!
//! Networks are cut into parts by firewalls and address translation, and nobody tells us. A host
//! tries a few others; one that reaches none of them is fed by the controller, or by another that
//! is as cut off as itself: they may be in the same part. Must not know blobs.

/// Others that a host tries in vain before it counts as cut off.
const TRIES: usize = 4;
/// Hosts that could not reach a source which nobody has reached, before it is given up.
const BLAMES: u32 = 3;

/// What is known of one host.
#[derive(Debug, Default)]
struct Known {
    /// Sources it could not be served by.
    not_from: Vec<u32>,
    /// Times it was served.
    served: usize,
    /// Hosts that it could not serve.
    blamed: u32,
    /// Times it served.
    serves: u32,
    /// It serves nobody.
    is_mute: bool,
}

/// What is known of all hosts.
#[derive(Debug)]
pub(super) struct Reachability {
    hosts: Vec<Known>,
    troubled: Vec<u32>,
}

impl Reachability {
    pub(super) fn new(hosts: usize) -> Self {
        Self {
            hosts: (0..hosts).map(|_| Known::default()).collect(),
            troubled: Vec::new(),
        }
    }

    /// Whether it is worth a try that `host` fetches from `source`.
    pub(super) fn is_worth_a_try(&self, host: u32, source: u32) -> bool {
        let known = &self.hosts[host as usize];
        host != source
            && !self.hosts[source as usize].is_mute
            && !known.not_from.contains(&source)
            && (!self.is_cut_off(host)
                || (self.is_cut_off(source) && known.not_from.len() < 2 * TRIES + known.served))
    }

    /// Whether `host` is not to try anybody any more.
    pub(super) fn is_alone(&self, host: u32) -> bool {
        let known = &self.hosts[host as usize];
        known.not_from.len() >= 2 * TRIES + known.served
    }

    /// Hosts that have met a source they could not be served by.
    pub(super) fn troubled(&self) -> &[u32] {
        &self.troubled
    }

    fn is_cut_off(&self, host: u32) -> bool {
        let known = &self.hosts[host as usize];
        known.not_from.len() >= TRIES + known.served
    }

    pub(super) fn worked(&mut self, host: u32, source: u32) {
        self.hosts[host as usize].served += 1;
        self.hosts[source as usize].serves += 1;
    }

    /// Notes that it did not work; `true` when `source` is thereby given up.
    pub(super) fn failed(&mut self, host: u32, source: u32) -> bool {
        let known = &mut self.hosts[host as usize];
        if !known.not_from.contains(&source) {
            if known.not_from.is_empty() {
                self.troubled.push(host);
            }
            known.not_from.push(source);
            self.hosts[source as usize].blamed += 1;
        }
        let source = &self.hosts[source as usize];
        !source.is_mute && source.serves == 0 && source.blamed >= BLAMES
    }

    /// `source` serves nobody from now on.
    pub(super) fn give_up(&mut self, source: u32) {
        self.hosts[source as usize].is_mute = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_reaches_nobody_tries_a_few_and_then_those_like_itself() {
        let mut known = Reachability::new(40);
        for source in 1..=4 {
            assert!(known.is_worth_a_try(0, source));
            known.failed(0, source);
        }
        assert!(!known.is_worth_a_try(0, 5) && !known.is_alone(0));
        for source in 1..=4 {
            known.failed(20, source);
        }
        assert!(known.is_worth_a_try(0, 20) && known.is_worth_a_try(20, 0));
        known.worked(0, 20);
        assert!(known.is_worth_a_try(0, 5), "one success earns one more try");
    }

    #[test]
    fn a_source_that_nobody_reaches_is_given_up_and_one_that_served_is_not() {
        let mut known = Reachability::new(10);
        assert!(!known.failed(1, 0) && !known.failed(1, 0) && !known.failed(2, 0));
        assert!(known.failed(3, 0));
        known.give_up(0);
        assert!(!known.is_worth_a_try(4, 0));
        known.worked(1, 9);
        assert!(!(2..9).any(|host| known.failed(host, 9)));
    }
}
