//! Decides which host gets which blob from which source next. A pure state machine: callers request
//! jobs and report their outcomes. Must not depend on agents, threads or time.
//!
//! The controller's uplink is the bottleneck, so it sends each blob to one host and different blobs
//! to different hosts. It sends a blob again only if a host can reach no host that has it. Hosts
//! fetch everything else from each other, rarest blobs first, from the least busy host.
//!
//! A registry takes the controller's place ("upload" then means that a host pulls). It can serve
//! several hosts at once, so a few pull the same blob while no other host is free to serve it; and a
//! host that it does not serve still gets blobs from other hosts.

use std::collections::{BTreeSet, VecDeque};

use crate::sync::limits::Limits;
use crate::sync::reachability::Reachability;

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;

/// Maximum number of bytes per fetch, so that many small blobs cost one round trip.
const BATCH: u64 = 64 << 20;
/// Maximum number of blobs per fetch.
const BATCH_BLOBS: usize = 64;
/// Number of a blob's holders to examine for the least busy one.
const SAMPLE: usize = 16;

/// Number of failed pulls after which a registry that has served no host is given up.
const PATIENCE: u32 = 8;

/// Needs of one host, as blob numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Needs {
    pub(super) lacks: Vec<u32>,
    pub(super) holds: Vec<u32>,
    /// Blobs that the host drops after use: other hosts should have them before.
    pub(super) drops: Vec<u32>,
    /// Whether there is a tree to create.
    pub(super) checkout: bool,
}

/// A job to start now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Job {
    Upload { host: u32, blob: u32 },
    Fetch { host: u32, source: u32, blobs: Vec<u32> },
    Checkout { host: u32 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Do(Job),
    /// A running job must end first.
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
    /// Hosts that can serve the blob.
    holders: Vec<u32>,
    /// Number of holders that are not busy.
    free: u32,
    /// Number of hosts that lack the blob without a running transfer of it.
    lacking: u32,
    /// Number of running transfers of the blob.
    moving: u32,
    /// Number of those transfers that come from the controller.
    uploading: u32,
}

struct Host {
    lacks: Vec<u32>,
    held: BTreeSet<u32>,
    drops: Vec<u32>,
    checkout: bool,
    /// Number of running transfers into the host.
    coming: u32,
    /// Number of hosts that the host is serving.
    serving: u32,
    /// Number of blobs that the controller sent to the host.
    given: u32,
    /// Whether the registry does not serve the host.
    cut_off: bool,
    serves: bool,
    stage: Stage,
}

/// State of one sync.
pub(super) struct Schedule {
    limits: Limits,
    blobs: Vec<Blob>,
    hosts: Vec<Host>,
    known: Reachability,
    /// Hosts that lack blobs, in no particular order.
    lacking: Vec<u32>,
    /// Hosts that have all blobs and have not created their trees yet.
    ready: VecDeque<u32>,
    uploads: u32,
    transfers: u32,
    checkouts: u32,
    unended: u32,
    /// Number of successful uploads.
    uploaded: u32,
    /// Number of pulls that the registry did not serve.
    refused: u32,
    /// Start of the next search, so that all hosts get their turn.
    turn: usize,
}

impl Schedule {
    pub(super) fn new(sizes: &[u64], needs: Vec<Needs>, limits: Limits) -> Self {
        let limits = limits.at_least_one();
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
            uploaded: 0,
            refused: 0,
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
                cut_off: false,
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

    pub(super) fn next(&mut self) -> Next {
        if self.unended == 0 {
            return Next::End;
        }
        // Who can get a blob from another host leaves the registry to the others.
        let peers_first = self.limits.copies > 1;
        if self.transfers < self.limits.transfers
            && let Some(job) = if peers_first {
                self.fetch().or_else(|| self.upload())
            } else {
                self.upload().or_else(|| self.fetch())
            }
        {
            return Next::Do(job);
        }
        match self.checkout() {
            Some(job) => Next::Do(job),
            None => Next::Wait,
        }
    }

    /// Reports whether nothing is running. If there is also no job and no end, that is a bug.
    pub(super) fn is_idle(&self) -> bool {
        self.transfers == 0 && self.checkouts == 0
    }

    pub(super) fn unended(&self) -> impl Iterator<Item = u32> + '_ {
        (0..)
            .zip(&self.hosts)
            .filter(|(_, host)| host.stage != Stage::Ended)
            .map(|(number, _)| number)
    }

    /// Records a successful upload.
    pub(super) fn uploaded(&mut self, host: u32, blob: u32) {
        self.uploaded += 1;
        self.upload_ended(host, blob);
        self.gain(host, blob);
        self.advance(host);
    }

    /// Records that the registry does not serve `host`, which must get its blobs from other hosts.
    pub(super) fn not_pulled(&mut self, host: u32, blob: u32) {
        self.refused += 1;
        self.upload_ended(host, blob);
        self.lack_again(host, blob);
        self.hosts[host as usize].cut_off = true;
        self.advance(host);
    }

    /// Returns the hosts that lack blobs. If nothing is running and there is no job, they cannot get
    /// them.
    pub(super) fn stuck(&self) -> Vec<u32> {
        self.lacking.clone()
    }

    /// Records the end of a fetch; `missing` contains the blobs that it did not deliver.
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

    /// Records that `source` cannot serve at all; `host` must get the blobs elsewhere.
    pub(super) fn not_served(&mut self, host: u32, source: u32, blobs: &[u32]) {
        self.fetch_ended(host, source, blobs);
        for &blob in blobs {
            self.lack_again(host, blob);
        }
        self.silence(source);
        self.advance(host);
    }

    /// Records that the trees of `host` are created.
    pub(super) fn checked_out(&mut self, host: u32) {
        self.checkouts -= 1;
        self.end(host);
    }

    /// Records a job that failed because of its host, which leaves the sync.
    pub(super) fn failed(&mut self, job: &Job) {
        let host = match job {
            Job::Upload { host, blob } => {
                self.upload_ended(*host, *blob);
                *host
            }
            Job::Fetch { host, source, blobs } => {
                self.fetch_ended(*host, *source, blobs);
                *host
            }
            Job::Checkout { host } => {
                self.checkouts -= 1;
                *host
            }
        };
        self.leave(host);
    }

    /// Takes a host out of the sync.
    pub(super) fn leave(&mut self, host: u32) {
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

    /// Records that `source` serves one host more or less.
    fn serve(&mut self, source: u32, more: bool) {
        let limit = self.limits.per_source;
        let host = &mut self.hosts[source as usize];
        let was_free = host.serves && host.serving < limit;
        host.serving = if more { host.serving + 1 } else { host.serving - 1 };
        let is_free = host.serves && host.serving < limit;
        if was_free != is_free {
            for &blob in &host.held {
                let free = &mut self.blobs[blob as usize].free;
                *free = if is_free { *free + 1 } else { *free - 1 };
            }
        }
    }

    /// Stops the use of `host` as a source.
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

    /// Removes a blob that is in transfer from the list of blobs that `host` lacks.
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

    /// Moves a host that has all blobs to its trees, or to the end.
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
        if self.uploaded == 0 && self.refused >= PATIENCE {
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

    /// Selects a blob that no host can serve (of a registry: that no host is free to serve),
    /// preferring the one that most hosts need and then the largest, and the host that received the
    /// least.
    fn first_copy(&self) -> Option<(u32, u32)> {
        let mut candidates: Vec<u32> = (0..)
            .zip(&self.blobs)
            .filter(|(_, blob)| {
                let is_unserved = match self.limits.copies {
                    0 | 1 => blob.holders.is_empty(),
                    _ => blob.free == 0,
                };
                blob.lacking > 0
                    && is_unserved
                    && (blob.uploading < self.limits.copies || !self.limits.fan_out)
            })
            .map(|(number, _)| number)
            .collect();
        candidates.sort_by_key(|&number| {
            let blob = &self.blobs[number as usize];
            (blob.uploading, std::cmp::Reverse((blob.lacking, blob.size)))
        });
        candidates.into_iter().find_map(|blob| {
            let host = self.neediest(&self.lacking, blob, |_| true)?;
            Some((host, blob))
        })
    }

    /// Selects a blob for a host that can reach none of the blob's holders.
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
                // Another host that is equally cut off may soon be able to serve the blob.
                alone
                    || (blob.uploading == 0
                        && !blob
                            .holders
                            .iter()
                            .any(|&holder| self.known.is_worth_a_try(host, holder)))
            };
            Some((self.neediest(self.known.troubled(), number, is_cut_off)?, number))
        })
    }

    /// Selects the host of `hosts` that lacks `blob` and has received the least.
    fn neediest(&self, hosts: &[u32], blob: u32, is_eligible: impl Fn(u32) -> bool) -> Option<u32> {
        hosts
            .iter()
            .copied()
            .filter(|&number| {
                let host = &self.hosts[number as usize];
                host.coming < self.limits.per_host
                    && !host.cut_off
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
        Some(Job::Fetch { host, source, blobs })
    }

    /// Selects the rarest blob that `host` can currently fetch from another host, and the source.
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
