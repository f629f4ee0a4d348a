//! Executes a plan: transfers layers, then lets each host create its trees as soon as it has
//! everything. Must not depend on how jobs are chosen, see `schedule`.
//!
//! The number of threads is bounded regardless of the number of hosts, and no blob is held in
//! memory.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::sync::plan::{HostPlan, SyncPlan};
use crate::sync::schedule::{Job, Needs, Next, Schedule};
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::image::Descriptor;
use imgctl_host::agent::protocol::PeerSource;
use imgctl_transfer::transfer::workers::{for_each, lock};

pub use crate::sync::schedule::Limits;

/// Interval at which a waiting thread checks whether to stop.
const LOOK: Duration = Duration::from_millis(200);
/// Maximum number of hosts that end their peer sources at the same time.
const WITHDRAWALS: usize = 16;

/// Source of blobs on the controller, read from an offset to the end.
pub trait Blobs: Sync {
    fn open(&self, blob: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>>;
}

impl Blobs for imgctl_store::store::Store {
    fn open(&self, blob: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        use std::io::{Seek, SeekFrom};
        let mut file = self.open_blob(&blob.digest)?;
        file.seek(SeekFrom::Start(offset)).doing(|| format!("cannot read blob {}", blob.digest))?;
        Ok(Box::new(file))
    }
}

#[derive(Debug)]
pub struct Synced {
    /// [`crate::cluster::context::Host::id`].
    pub host: String,
    pub result: Result<()>,
}

/// Executes the plan. Returns the result of each host: first those of the plan in its order, then
/// those that failed during planning. When `cancel` becomes true, no new job starts, uploads stop,
/// and unfinished work is an error of its host.
pub fn execute(
    plan: SyncPlan,
    blobs: &dyn Blobs,
    limits: Limits,
    watch: &dyn Watch,
    cancel: &Arc<AtomicBool>,
) -> Result<Vec<Synced>> {
    let sizes: Vec<u64> = plan.blobs.iter().map(|blob| blob.size).collect();
    let needs: Vec<Needs> = plan.hosts.iter().map(|host| needs(&plan, host)).collect();
    let threads = threads(&needs, limits);
    let run = Run {
        schedule: Mutex::new(Schedule::new(&sizes, needs, limits)),
        ended: Condvar::new(),
        hosts: plan.hosts.iter().map(|_| State::default()).collect(),
        plan: &plan,
        blobs,
        watch,
        cancel,
    };
    for host in plan.hosts.iter().filter(|host| host.is_done()) {
        watch.ended(&host.host.id(), true);
    }
    std::thread::scope(|scope| {
        for number in 0..threads {
            let thread = std::thread::Builder::new()
                .name("sync".to_owned())
                .spawn_scoped(scope, || run.work());
            match thread {
                Err(error) if number == 0 => return Err(Error::io("cannot start a thread", error)),
                // Fewer threads do the same work.
                Err(_) => break,
                Ok(_) => {}
            }
        }
        Ok(())
    })?;
    run.withdraw()?;
    let results = run.hosts.into_iter().map(State::into_result);
    let mut synced: Vec<Synced> = plan
        .hosts
        .iter()
        .zip(results)
        .map(|(host, result)| Synced { host: host.host.id(), result })
        .collect();
    synced.extend(
        plan.failed.into_iter().map(|(host, error)| Synced { host: host.id(), result: Err(error) }),
    );
    Ok(synced)
}

/// Returns the number of threads, at most the number of possible jobs.
fn threads(needs: &[Needs], limits: Limits) -> usize {
    let transfers: usize = needs.iter().map(|host| host.lacks.len()).sum();
    let checkouts = needs.iter().filter(|host| host.checkout).count();
    let most = |limit: u32, jobs: usize| jobs.min(limit.max(1) as usize);
    (most(limits.transfers, transfers) + most(limits.checkouts, checkouts)).max(1)
}

fn needs(plan: &SyncPlan, host: &HostPlan) -> Needs {
    let applied = |blob: &u32| {
        let digest = &plan.blobs[*blob as usize].digest;
        host.changes.iter().any(|change| change.apply.contains(digest))
    };
    let all = host.lacks.iter().chain(&host.holds);
    Needs {
        lacks: host.lacks.clone(),
        holds: host.holds.clone(),
        drops: all.copied().filter(applied).collect(),
        checkout: !host.is_done(),
    }
}

/// State of one host during the run.
#[derive(Default)]
struct State {
    offer: Mutex<Option<Arc<PeerSource>>>,
    result: Mutex<Option<Result<()>>>,
}

impl State {
    fn into_result(self) -> Result<()> {
        // A host without work has no result.
        self.result.into_inner().unwrap_or_else(PoisonError::into_inner).unwrap_or(Ok(()))
    }
}

struct Run<'a> {
    schedule: Mutex<Schedule>,
    /// Notified when a job ends.
    ended: Condvar,
    hosts: Vec<State>,
    plan: &'a SyncPlan,
    blobs: &'a dyn Blobs,
    watch: &'a dyn Watch,
    cancel: &'a Arc<AtomicBool>,
}

impl Run<'_> {
    fn work(&self) {
        while let Some(job) = self.next() {
            self.perform(&job);
            self.ended.notify_all();
        }
    }

    /// Returns the next job and waits for one if necessary; `None` at the end.
    fn next(&self) -> Option<Job> {
        let mut schedule = lock(&self.schedule);
        loop {
            if self.cancel.load(Ordering::Relaxed) {
                self.abandon(&schedule, interrupted);
                return None;
            }
            match schedule.next() {
                Next::Do(job) => return Some(job),
                Next::End => {
                    self.ended.notify_all();
                    return None;
                }
                Next::Wait if schedule.is_idle() => {
                    self.abandon(&schedule, || {
                        Error::failed("no source has the layers that it lacks").hint("run it again")
                    });
                    return None;
                }
                Next::Wait => {
                    schedule = self
                        .ended
                        .wait_timeout(schedule, LOOK)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
            }
        }
    }

    /// Marks the unfinished hosts as failed.
    fn abandon(&self, schedule: &Schedule, error: impl Fn() -> Error) {
        for number in schedule.unended() {
            let id = self.host(number).host.id();
            let mut result = lock(&self.hosts[number as usize].result);
            if result.is_none() {
                *result = Some(Err(error().context(format!("{id}: not synced"))));
                self.watch.ended(&id, false);
            }
        }
    }

    fn host(&self, number: u32) -> &HostPlan {
        &self.plan.hosts[number as usize]
    }

    fn perform(&self, job: &Job) {
        let result = match job {
            Job::Upload { host, blob } => self.upload(*host, *blob),
            Job::Fetch { host, source, blobs } => self.fetch(*host, *source, blobs),
            Job::Checkout { host } => self.checkout(*host),
        };
        let Err(error) = result else {
            return;
        };
        let (Job::Upload { host, .. } | Job::Fetch { host, .. } | Job::Checkout { host }) = job;
        let is_first = {
            let mut result = lock(&self.hosts[*host as usize].result);
            let is_first = result.is_none();
            result.get_or_insert(Err(error));
            is_first
        };
        if is_first {
            self.watch.ended(&self.host(*host).host.id(), false);
        }
        lock(&self.schedule).failed(job);
    }

    fn upload(&self, number: u32, blob: u32) -> Result<()> {
        let host = self.host(number);
        let id = host.host.id();
        let descriptor = &self.plan.blobs[blob as usize];
        let count = Count::new(self.watch, &id, Origin::Controller, descriptor.size);
        let open = |offset: u64| -> Result<Box<dyn Read + Send + 'static>> {
            let inner = self.blobs.open(descriptor, offset)?;
            let cancel = Arc::clone(self.cancel);
            Ok(Box::new(Cancellable { inner, cancel }))
        };
        let sent = |bytes: u64| count.add(bytes);
        let result = host.agent.send_blob(descriptor, &open, &sent);
        count.end(result.is_ok());
        result.context(|| format!("{id}: cannot send layer {}", descriptor.digest))?;
        lock(&self.schedule).uploaded(number, blob);
        Ok(())
    }

    fn fetch(&self, number: u32, source: u32, blobs: &[u32]) -> Result<()> {
        let offer = match self.offer(source) {
            Ok(offer) => offer,
            Err(error) => {
                tracing::warn!(
                    "{}: does not serve other hosts: {error}",
                    self.host(source).host.id()
                );
                lock(&self.schedule).not_served(number, source, blobs);
                return Ok(());
            }
        };
        let (host, from) = (self.host(number), self.host(source));
        let (id, from) = (host.host.id(), from.host.id());
        let wanted: Vec<Descriptor> =
            blobs.iter().map(|&blob| self.plan.blobs[blob as usize].clone()).collect();
        let size = wanted.iter().map(|blob| blob.size).sum();
        let count = Count::new(self.watch, &id, Origin::Host(&from), size);
        let result = host
            .agent
            .fetch(&offer, &wanted, &|bytes| count.add(bytes))
            .context(|| format!("{id}: cannot fetch layers from {from}"));
        let missing: Vec<u32> = match &result {
            Ok(missing) => blobs
                .iter()
                .zip(&wanted)
                .filter(|(_, blob)| missing.contains(&blob.digest))
                .map(|(&number, _)| number)
                .collect(),
            Err(_) => blobs.to_vec(),
        };
        let lost: u64 = missing.iter().map(|&blob| self.plan.blobs[blob as usize].size).sum();
        count.end_at(size - lost);
        result?;
        if !missing.is_empty() {
            tracing::debug!(
                "{id}: {} of {} layers could not be fetched from {from}",
                missing.len(),
                blobs.len()
            );
        }
        lock(&self.schedule).fetched(number, source, blobs, &missing);
        Ok(())
    }

    /// Returns the peer source of a host and starts it on first use.
    fn offer(&self, number: u32) -> Result<Arc<PeerSource>> {
        let mut offer = lock(&self.hosts[number as usize].offer);
        if let Some(offer) = &*offer {
            return Ok(Arc::clone(offer));
        }
        let host = self.host(number);
        let mut made = host.agent.offer()?;
        // Hosts of the cluster reach each other at the address that the controller knows.
        let ours = host.host.ip();
        if ours.parse::<std::net::IpAddr>().is_ok() && !host.host.local {
            made.addresses.retain(|address| address != ours);
            made.addresses.insert(0, ours.to_owned());
        }
        let made = Arc::new(made);
        *offer = Some(Arc::clone(&made));
        Ok(made)
    }

    fn checkout(&self, number: u32) -> Result<()> {
        let host = self.host(number);
        let id = host.host.id();
        for change in &host.changes {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(
                    interrupted().context(format!("{id}: {} was not created", change.tree.name))
                );
            }
            let tree = &change.tree.name;
            self.watch.checkout(&id, tree);
            let request = host.request(self.plan, change);
            host.agent
                .checkout(&request, &|bytes| self.watch.unpacked(&id, bytes))
                .context(|| format!("{id}: cannot create {tree}"))?;
        }
        lock(&self.hosts[number as usize].result).get_or_insert(Ok(()));
        self.watch.ended(&id, true);
        lock(&self.schedule).checked_out(number);
        Ok(())
    }

    /// Ends all peer sources. One that cannot be ended ends with its agent.
    fn withdraw(&self) -> Result<()> {
        let offering = (0..).zip(&self.hosts).filter_map(|(number, state)| {
            lock(&state.offer).take()?;
            Some(number)
        });
        for_each(offering, WITHDRAWALS, &AtomicBool::new(false), |number| {
            if let Err(error) = self.host(number).agent.withdraw() {
                tracing::debug!("{}: {error}", self.host(number).host.id());
            }
            Ok(())
        })
    }
}

fn interrupted() -> Error {
    Error::failed("interrupted")
}

/// A reader that stops when it is canceled.
struct Cancellable {
    inner: Box<dyn Read + Send + 'static>,
    cancel: Arc<AtomicBool>,
}

impl Read for Cancellable {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(interrupted().into());
        }
        self.inner.read(buffer)
    }
}

/// Counts one transfer. The final total is right even if existing bytes were skipped or bytes
/// arrived twice.
struct Count<'a> {
    watch: &'a dyn Watch,
    host: &'a str,
    origin: Origin<'a>,
    size: u64,
    told: AtomicU64,
}

impl<'a> Count<'a> {
    fn new(watch: &'a dyn Watch, host: &'a str, origin: Origin<'a>, size: u64) -> Self {
        Self { watch, host, origin, size, told: AtomicU64::new(0) }
    }

    fn add(&self, bytes: u64) {
        let before = self.told.fetch_add(bytes, Ordering::Relaxed);
        let bytes = bytes.min(self.size.saturating_sub(before));
        if bytes > 0 {
            self.watch.moved(self.host, self.origin, bytes);
        }
    }

    fn end(&self, well: bool) {
        self.end_at(if well { self.size } else { 0 });
    }

    /// Sets the final count to `bytes`.
    fn end_at(&self, bytes: u64) {
        let told = self.told.load(Ordering::Relaxed).min(self.size);
        if told < bytes {
            self.watch.moved(self.host, self.origin, bytes - told);
        } else if told > bytes {
            self.watch.lost(self.host, told - bytes);
        }
    }
}

/// Receives the progress of many hosts. Calls come frequently and from many threads.
pub trait Watch: Send + Sync {
    /// Another `bytes` of the blobs that `host` lacked were transferred.
    fn moved(&self, host: &str, from: Origin<'_>, bytes: u64);

    /// `bytes` of those must be transferred again after a failed transfer.
    fn lost(&self, host: &str, bytes: u64);

    /// `host` has all blobs and is creating `tree`.
    fn checkout(&self, host: &str, tree: &str);

    /// Another `bytes` of layers were unpacked on `host`.
    fn unpacked(&self, host: &str, bytes: u64);

    /// `host` has finished or failed.
    fn ended(&self, host: &str, well: bool);
}

/// Source of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin<'a> {
    Controller,
    Host(&'a str),
}
