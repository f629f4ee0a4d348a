//! Who gets what from whom next. A pure state machine: it is asked for jobs and told how they
//! ended; must not know agents, threads or time.
//!
//! The controller's uplink is the narrow place, so it sends each blob to one host, different
//! blobs to different hosts, and again only where no host can be reached that has it. Everything
//! else hosts fetch from each other, what is rarest first, from whoever is least busy.

use std::collections::{BTreeSet, VecDeque};

use crate::sync::reachability::Reachability;

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;

/// Bytes of one fetch, so that many small blobs cost one round trip.
const BATCH: u64 = 64 << 20;
/// Blobs of one fetch.
const BATCH_BLOBS: usize = 64;
/// Holders of a blob that are looked at for the least busy one.
const SAMPLE: usize = 16;

/// What goes on at the same time, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Blobs that the controller sends.
    pub(crate) uploads: u32,
    /// Transfers into one host.
    pub(crate) per_host: u32,
    /// Hosts that one host serves.
    pub(crate) per_source: u32,
    /// Transfers in all.
    pub(crate) transfers: u32,
    /// Hosts that make their trees.
    pub(crate) checkouts: u32,
    /// Hosts fetch from each other.
    pub(crate) fan_out: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            uploads: 4,
            per_host: 3,
            per_source: 2,
            transfers: 32,
            checkouts: 32,
            fan_out: true,
        }
    }
}

/// What one host needs, in numbers of blobs.
#[derive(Clone, Debug, Default)]
pub(super) struct Needs {
    pub(super) lacks: Vec<u32>,
    pub(super) holds: Vec<u32>,
    /// Blobs that its host drops once it has used them: others should have them before.
    pub(super) drops: Vec<u32>,
    /// There is a tree to make.
    pub(super) checkout: bool,
}

/// Something to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Job {
    Upload {
        host: u32,
        blob: u32,
    },
    Fetch {
        host: u32,
        source: u32,
        blobs: Vec<u32>,
    },
    Checkout {
        host: u32,
    },
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Do(Job),
    /// Something has to end first.
    Wait,
    /// All hosts are done or have failed.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Transfer,
    Ready,
    Checkout,
    Ended,
}

struct Blob {
    size: u64,
    /// Hosts that can give it.
    holders: Vec<u32>,
    /// Those of them that are not busy.
    free: u32,
    /// Hosts that lack it and are not being given it.
    lacking: u32,
    /// Transfers of it that go on.
    moving: u32,
    /// Those of them that the controller does.
    uploading: u32,
}

struct Host {
    lacks: Vec<u32>,
    held: BTreeSet<u32>,
    drops: Vec<u32>,
    checkout: bool,
    /// Transfers into it.
    coming: u32,
    /// Hosts it serves.
    serving: u32,
    /// Blobs that the controller sent it.
    given: u32,
    serves: bool,
    stage: Stage,
}

/// The state of one sync.
pub(super) struct Schedule {
    limits: Limits,
    blobs: Vec<Blob>,
    hosts: Vec<Host>,
    known: Reachability,
    /// Hosts that lack something, in no order.
    lacking: Vec<u32>,
    /// Hosts that have everything and are yet to make their trees.
    ready: VecDeque<u32>,
    uploads: u32,
    transfers: u32,
    checkouts: u32,
    unended: u32,
    /// Where the next search begins, so that all get their turn.
    turn: usize,
}

impl Schedule {
    pub(super) fn new(sizes: &[u64], needs: Vec<Needs>, limits: Limits) -> Self {
        let limits = Limits {
            uploads: limits.uploads.max(1),
            per_host: limits.per_host.max(1),
            per_source: limits.per_source.max(1),
            transfers: limits.transfers.max(1),
            checkouts: limits.checkouts.max(1),
            fan_out: limits.fan_out,
        };
        let blobs = sizes.iter().map(|&size| Blob {
            size,
            holders: Vec::new(),
            free: 0,
            lacking: 0,
            moving: 0,
            uploading: 0,
        });
        let mut schedule = Self {
            limits,
            blobs: blobs.collect(),
            known: Reachability::new(needs.len()),
            hosts: Vec::with_capacity(needs.len()),
            lacking: Vec::new(),
            ready: VecDeque::new(),
            uploads: 0,
            transfers: 0,
            checkouts: 0,
            unended: 0,
            turn: 0,
        };
        for (host, needs) in (0..).zip(needs) {
            for &blob in &needs.lacks {
                schedule.blobs[blob as usize].lacking += 1;
            }
            if !needs.lacks.is_empty() {
                schedule.lacking.push(host);
            }
            schedule.unended += 1;
            schedule.hosts.push(Host {
                lacks: needs.lacks,
                held: BTreeSet::new(),
                drops: needs.drops,
                checkout: needs.checkout,
                coming: 0,
                serving: 0,
                given: 0,
                serves: limits.fan_out,
                stage: Stage::Transfer,
            });
            for blob in needs.holds {
                schedule.gain(host, blob);
            }
            schedule.advance(host);
        }
        schedule
    }

    /// The next thing to do.
    pub(super) fn next(&mut self) -> Next {
        if self.unended == 0 {
            return Next::End;
        }
        if self.transfers < self.limits.transfers
            && let Some(job) = self.upload().or_else(|| self.fetch())
        {
            return Next::Do(job);
        }
        match self.checkout() {
            Some(job) => Next::Do(job),
            None => Next::Wait,
        }
    }

    /// Whether anything goes on. Nothing to do, nothing going on and no end: a defect.
    pub(super) fn is_idle(&self) -> bool {
        self.transfers == 0 && self.checkouts == 0
    }

    /// Hosts that have not ended.
    pub(super) fn unended(&self) -> impl Iterator<Item = u32> + '_ {
        (0..)
            .zip(&self.hosts)
            .filter(|(_, host)| host.stage != Stage::Ended)
            .map(|(number, _)| number)
    }

    /// An upload has ended well.
    pub(super) fn uploaded(&mut self, host: u32, blob: u32) {
        self.upload_ended(host, blob);
        self.gain(host, blob);
        self.advance(host);
    }

    /// A fetch has ended; `missing` of the blobs could not be had.
    pub(super) fn fetched(&mut self, host: u32, source: u32, blobs: &[u32], missing: &[u32]) {
        self.fetch_ended(host, source, blobs);
        for &blob in blobs {
            if missing.contains(&blob) {
                self.lack_again(host, blob);
            } else {
                self.gain(host, blob);
            }
        }
        if missing.is_empty() {
            self.known.worked(host, source);
        } else if self.known.failed(host, source) {
            self.silence(source);
        }
        self.advance(host);
    }

    /// `source` cannot serve at all; what `host` wanted from it has to come from elsewhere.
    pub(super) fn not_served(&mut self, host: u32, source: u32, blobs: &[u32]) {
        self.fetch_ended(host, source, blobs);
        for &blob in blobs {
            self.lack_again(host, blob);
        }
        self.silence(source);
        self.advance(host);
    }

    /// The trees of `host` are made.
    pub(super) fn checked_out(&mut self, host: u32) {
        self.checkouts -= 1;
        self.end(host);
    }

    /// A job failed through its host, which is out of it now.
    pub(super) fn failed(&mut self, job: &Job) {
        let host = match job {
            Job::Upload { host, blob } => {
                self.upload_ended(*host, *blob);
                *host
            }
            Job::Fetch {
                host,
                source,
                blobs,
            } => {
                self.fetch_ended(*host, *source, blobs);
                *host
            }
            Job::Checkout { host } => {
                self.checkouts -= 1;
                *host
            }
        };
        self.silence(host);
        for blob in std::mem::take(&mut self.hosts[host as usize].lacks) {
            self.blobs[blob as usize].lacking -= 1;
        }
        self.lacking.retain(|&lacking| lacking != host);
        self.ready.retain(|&ready| ready != host);
        self.end(host);
    }

    fn end(&mut self, host: u32) {
        let host = &mut self.hosts[host as usize];
        if host.stage != Stage::Ended {
            host.stage = Stage::Ended;
            self.unended -= 1;
        }
    }

    fn upload_ended(&mut self, host: u32, blob: u32) {
        self.uploads -= 1;
        self.transfers -= 1;
        self.hosts[host as usize].coming -= 1;
        let blob = &mut self.blobs[blob as usize];
        blob.moving -= 1;
        blob.uploading -= 1;
    }

    fn fetch_ended(&mut self, host: u32, source: u32, blobs: &[u32]) {
        self.transfers -= 1;
        self.hosts[host as usize].coming -= 1;
        for &blob in blobs {
            self.blobs[blob as usize].moving -= 1;
        }
        self.serve(source, false);
    }

    /// One host more or less is served by `source`.
    fn serve(&mut self, source: u32, more: bool) {
        let limit = self.limits.per_source;
        let host = &mut self.hosts[source as usize];
        let was_free = host.serves && host.serving < limit;
        host.serving = match more {
            true => host.serving + 1,
            false => host.serving - 1,
        };
        let is_free = host.serves && host.serving < limit;
        if was_free != is_free {
            for &blob in &host.held {
                let free = &mut self.blobs[blob as usize].free;
                *free = if is_free { *free + 1 } else { *free - 1 };
            }
        }
    }

    /// `host` serves nobody from now on.
    fn silence(&mut self, host: u32) {
        self.known.give_up(host);
        let limit = self.limits.per_source;
        let silent = &mut self.hosts[host as usize];
        if !silent.serves {
            return;
        }
        let was_free = silent.serving < limit;
        silent.serves = false;
        for &blob in &silent.held {
            let blob = &mut self.blobs[blob as usize];
            blob.holders.retain(|&holder| holder != host);
            blob.free -= u32::from(was_free);
        }
    }

    fn gain(&mut self, host: u32, blob: u32) {
        let limit = self.limits.per_source;
        let gainer = &mut self.hosts[host as usize];
        if !gainer.held.insert(blob) || !gainer.serves {
            return;
        }
        let is_free = gainer.serving < limit;
        let blob = &mut self.blobs[blob as usize];
        blob.holders.push(host);
        blob.free += u32::from(is_free);
    }

    fn lack_again(&mut self, host: u32, blob: u32) {
        let lacking = &mut self.hosts[host as usize];
        if lacking.stage == Stage::Ended {
            return;
        }
        if lacking.lacks.is_empty() {
            self.lacking.push(host);
        }
        lacking.lacks.push(blob);
        self.blobs[blob as usize].lacking += 1;
    }

    /// Takes a blob off the list of what `host` lacks: it is on its way.
    fn begin(&mut self, host: u32, blob: u32) {
        let lacks = &mut self.hosts[host as usize].lacks;
        lacks.retain(|&lacked| lacked != blob);
        if lacks.is_empty() {
            self.lacking.retain(|&lacking| lacking != host);
        }
        let blob = &mut self.blobs[blob as usize];
        blob.lacking -= 1;
        blob.moving += 1;
    }

    /// A host that has everything is ready for its trees, or done.
    fn advance(&mut self, host: u32) {
        let advancing = &mut self.hosts[host as usize];
        let has_all = advancing.lacks.is_empty() && advancing.coming == 0;
        if advancing.stage != Stage::Transfer || !has_all {
            return;
        }
        if advancing.checkout {
            advancing.stage = Stage::Ready;
            self.ready.push_back(host);
        } else {
            self.end(host);
        }
    }

    fn checkout(&mut self) -> Option<Job> {
        if self.checkouts >= self.limits.checkouts {
            return None;
        }
        let is_wanted = |blob: &u32| {
            let blob = &self.blobs[*blob as usize];
            self.limits.fan_out && blob.lacking + blob.moving > 0
        };
        let position = self
            .ready
            .iter()
            .position(|&host| !self.hosts[host as usize].drops.iter().any(is_wanted))?;
        let host = self.ready.remove(position)?;
        self.hosts[host as usize].stage = Stage::Checkout;
        self.checkouts += 1;
        Some(Job::Checkout { host })
    }

    fn upload(&mut self) -> Option<Job> {
        if self.uploads >= self.limits.uploads || self.lacking.is_empty() {
            return None;
        }
        let (host, blob) = self.first_copy().or_else(|| self.further_copy())?;
        self.begin(host, blob);
        self.blobs[blob as usize].uploading += 1;
        let host_state = &mut self.hosts[host as usize];
        host_state.coming += 1;
        host_state.given += 1;
        self.uploads += 1;
        self.transfers += 1;
        Some(Job::Upload { host, blob })
    }

    /// A blob that no host can give, wanted by most hosts and then the largest; to the host that
    /// was given least.
    fn first_copy(&self) -> Option<(u32, u32)> {
        let mut candidates: Vec<u32> = (0..)
            .zip(&self.blobs)
            .filter(|(_, blob)| {
                blob.lacking > 0
                    && blob.holders.is_empty()
                    && (blob.uploading == 0 || !self.limits.fan_out)
            })
            .map(|(number, _)| number)
            .collect();
        candidates.sort_by_key(|&number| {
            let blob = &self.blobs[number as usize];
            std::cmp::Reverse((blob.lacking, blob.size))
        });
        candidates.into_iter().find_map(|blob| {
            let host = self.neediest(&self.lacking, blob, |_| true)?;
            Some((host, blob))
        })
    }

    /// A blob that some host has, for one that can reach none of those.
    fn further_copy(&self) -> Option<(u32, u32)> {
        if self.known.troubled().is_empty() {
            return None;
        }
        (0..).zip(&self.blobs).find_map(|(number, blob)| {
            if blob.lacking == 0 || blob.holders.is_empty() {
                return None;
            }
            let is_cut_off = |host: u32| {
                let alone = self.known.is_alone(host);
                // Another that is as cut off may soon be able to give it.
                alone
                    || (blob.uploading == 0
                        && !blob
                            .holders
                            .iter()
                            .any(|&holder| self.known.is_worth_a_try(host, holder)))
            };
            Some((
                self.neediest(self.known.troubled(), number, is_cut_off)?,
                number,
            ))
        })
    }

    /// Of `hosts` that lack `blob` the one that is least served.
    fn neediest(&self, hosts: &[u32], blob: u32, is_eligible: impl Fn(u32) -> bool) -> Option<u32> {
        hosts
            .iter()
            .copied()
            .filter(|&number| {
                let host = &self.hosts[number as usize];
                host.coming < self.limits.per_host
                    && host.lacks.contains(&blob)
                    && is_eligible(number)
            })
            .min_by_key(|&number| {
                let host = &self.hosts[number as usize];
                (host.coming, host.given, number)
            })
    }

    fn fetch(&mut self) -> Option<Job> {
        self.turn = self.turn.wrapping_add(1);
        let count = self.lacking.len();
        let (host, source, first) = (0..count).find_map(|step| {
            let host = self.lacking[(self.turn.wrapping_add(step)) % count];
            let (source, blob) = self.source_for(host)?;
            Some((host, source, blob))
        })?;
        let mut blobs = vec![first];
        let mut size = self.blobs[first as usize].size;
        let held = &self.hosts[source as usize].held;
        for &blob in &self.hosts[host as usize].lacks {
            let more = self.blobs[blob as usize].size;
            if blob != first
                && blobs.len() < BATCH_BLOBS
                && size.saturating_add(more) <= BATCH
                && held.contains(&blob)
            {
                size += more;
                blobs.push(blob);
            }
        }
        for &blob in &blobs {
            self.begin(host, blob);
        }
        self.hosts[host as usize].coming += 1;
        self.serve(source, true);
        self.transfers += 1;
        Some(Job::Fetch {
            host,
            source,
            blobs,
        })
    }

    /// The rarest blob that `host` can have from a host now, and from which.
    fn source_for(&self, host: u32) -> Option<(u32, u32)> {
        let needy = &self.hosts[host as usize];
        if needy.coming >= self.limits.per_host || self.known.is_alone(host) {
            return None;
        }
        let mut candidates: Vec<u32> = needy
            .lacks
            .iter()
            .copied()
            .filter(|&blob| self.blobs[blob as usize].free > 0)
            .collect();
        candidates.sort_by_key(|&number| {
            let blob = &self.blobs[number as usize];
            (blob.holders.len(), std::cmp::Reverse(blob.size))
        });
        candidates.into_iter().find_map(|blob| {
            let holders = &self.blobs[blob as usize].holders;
            let start = self.turn % holders.len();
            let is_free = |source: &u32| {
                self.hosts[*source as usize].serving < self.limits.per_source
                    && self.known.is_worth_a_try(host, *source)
            };
            let source = holders[start..]
                .iter()
                .chain(&holders[..start])
                .copied()
                .filter(is_free)
                .take(SAMPLE)
                .min_by_key(|&source| self.hosts[source as usize].serving)?;
            Some((source, blob))
        })
    }
}
