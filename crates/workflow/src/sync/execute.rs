//! Executes a plan: transfers layers, then lets each host create its trees as soon as it has
//! everything. Must not depend on how jobs are chosen, see `schedule`.
//!
//! The number of threads is bounded regardless of the number of hosts, and no blob is held in
//! memory.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::sync::plan::{HostPlan, SyncPlan};
use crate::sync::recipe::{self, Held, Recipe, Recipes, is_of_recipe};
use crate::sync::schedule::{Job, Needs, Next, Schedule};
use crate::sync::source::Source;
use crate::sync::watch::Count;
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::image::{Descriptor, Digest, LayerKind};
use imgctl_base::workers::{for_each, lock};
use imgctl_host::agent::protocol::{Assemble, InventoryQuestion, PeerSource};
use imgctl_store::mount::layers::LayerOf;

pub use crate::sync::limits::Limits;
pub use crate::sync::watch::{Origin, Watch};

/// Interval at which a waiting thread checks whether to stop.
const LOOK: Duration = Duration::from_millis(200);
/// Size of a layer below which it is sent whole, in bytes.
const SMALL: u64 = 128 << 10;
/// Maximum number of hosts that end their peer sources at the same time.
const WITHDRAWALS: usize = 16;

/// Source of blobs on the controller, read from an offset to the end.
pub trait Blobs: Sync {
    fn open(&self, blob: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>>;

    /// Makes the recipe of a layer for hosts that have `held`, with patches of this level; `None`
    /// if it saves nothing.
    fn recipe(&self, layer: &LayerOf, held: &Held, level: i32) -> Result<Option<Recipe>> {
        let _ = (layer, held, level);
        Ok(None)
    }

    /// Returns the blobs of a registry that a layer brings.
    fn registry_files(&self, layer: &LayerOf) -> Result<Vec<Digest>> {
        let _ = layer;
        Ok(Vec::new())
    }

    /// Returns how many bytes of a layer are in none of `held`, if that is known.
    fn differing(&self, layer: &LayerOf, held: &Held) -> Option<u64> {
        let _ = (layer, held);
        None
    }
}

impl Blobs for imgctl_store::store::Store {
    fn open(&self, blob: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + 'static>> {
        use std::io::{Seek, SeekFrom};
        let mut file = self.open_blob(&blob.digest)?;
        file.seek(SeekFrom::Start(offset)).doing(|| format!("cannot read blob {}", blob.digest))?;
        Ok(Box::new(file))
    }

    fn recipe(&self, layer: &LayerOf, held: &Held, level: i32) -> Result<Option<Recipe>> {
        recipe::make(self, layer, held, level)
    }

    fn registry_files(&self, layer: &LayerOf) -> Result<Vec<Digest>> {
        recipe::registry_files(self, layer)
    }

    fn differing(&self, layer: &LayerOf, held: &Held) -> Option<u64> {
        recipe::differing(self, layer, held)
    }
}

#[derive(Debug)]
pub struct Synced {
    /// [`imgctl_model::context::Host::id`].
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
    let limits = match plan.brief.source {
        Source::Controller => limits,
        Source::Registry(_) => limits.of_registry(),
    };
    let threads = threads(&needs, limits);
    let run = Run {
        schedule: Mutex::new(Schedule::new(&sizes, needs, limits)),
        ended: Condvar::new(),
        hosts: plan.hosts.iter().map(|_| State::default()).collect(),
        recipes: Recipes::new(plan.brief.delta),
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
pub(super) struct State {
    offer: Mutex<Option<Arc<PeerSource>>>,
    /// Why the host got no layer from the registry.
    pub(super) refusal: Mutex<Option<Error>>,
    result: Mutex<Option<Result<()>>>,
}

impl State {
    fn into_result(self) -> Result<()> {
        // A host without work has no result.
        self.result.into_inner().unwrap_or_else(PoisonError::into_inner).unwrap_or(Ok(()))
    }
}

pub(super) struct Run<'a> {
    pub(super) schedule: Mutex<Schedule>,
    /// Notified when a job ends.
    ended: Condvar,
    pub(super) hosts: Vec<State>,
    pub(super) plan: &'a SyncPlan,
    recipes: Recipes,
    blobs: &'a dyn Blobs,
    pub(super) watch: &'a dyn Watch,
    pub(super) cancel: &'a Arc<AtomicBool>,
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
                    let stuck = schedule.stuck();
                    if stuck.is_empty() {
                        self.abandon(&schedule, without_source);
                        return None;
                    }
                    // The others go on without them.
                    for number in stuck {
                        schedule.leave(number);
                        self.give_up(number, without_source());
                    }
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
            self.give_up(number, error());
        }
    }

    /// Marks a host as failed for this reason, unless there is a better one.
    fn give_up(&self, number: u32, error: Error) {
        let id = self.host(number).host.id();
        let state = &self.hosts[number as usize];
        let mut result = lock(&state.result);
        if result.is_none() {
            let error = lock(&state.refusal).take().unwrap_or(error);
            *result = Some(Err(error.context(format!("{id}: not synced"))));
            self.watch.ended(&id, false);
        }
    }

    pub(super) fn host(&self, number: u32) -> &HostPlan {
        &self.plan.hosts[number as usize]
    }

    fn perform(&self, job: &Job) {
        let result = match job {
            Job::Upload { host, blob } => match &self.plan.brief.source {
                Source::Controller => self.upload(*host, *blob),
                Source::Registry(layers) => self.pull(layers, *host, *blob),
            },
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
        if self.upload_recipe(host, blob)? {
            lock(&self.schedule).uploaded(number, blob);
            return Ok(());
        }
        let count = Count::new(self.watch, &id, Origin::Controller, descriptor.size);
        let open = |offset: u64| -> Result<Box<dyn Read + Send + 'static>> {
            let inner = self.blobs.open(descriptor, offset)?;
            let cancel = Arc::clone(self.cancel);
            Ok(Box::new(Cancellable { inner, cancel }))
        };
        let sent = |bytes: u64| count.add(bytes);
        let send = || host.agent.send_blob(descriptor, &open, &sent).map(|()| count.told());
        let result = self.recipes.line().measured(send);
        count.end(result.is_ok());
        result.context(|| format!("{id}: cannot send layer {}", descriptor.digest))?;
        lock(&self.schedule).uploaded(number, blob);
        Ok(())
    }

    /// Sends a layer as a recipe, if that saves bytes. Returns whether the host has the layer now.
    fn upload_recipe(&self, host: &HostPlan, blob: u32) -> Result<bool> {
        let layer = self.plan.layer(blob);
        let Some(level) = self.recipes.level() else {
            return Ok(false);
        };
        if host.host.local || layer.blob.size < SMALL {
            return Ok(false);
        }
        let id = host.host.id();
        let mut held = host.resembled(self.plan, &layer.blob);
        if host.registry && layer.blob.layer_kind() == Some(LayerKind::Registry) {
            held.files = self.registry_files(host, &layer)?;
        }
        if held.is_empty() {
            return Ok(false);
        }
        let make = || self.blobs.recipe(&layer, &held, level);
        let recipe = match self.recipes.get(blob, &held, make) {
            Ok(Some(recipe)) => recipe,
            Ok(None) => return Ok(false),
            Err(error) => {
                let digest = &layer.blob.digest;
                tracing::warn!("layer {digest} is sent whole: no difference can be made: {error}");
                return Ok(false);
            }
        };
        let (whole, size) = (layer.blob.size, recipe.descriptor.size);
        let count = Count::new(self.watch, &id, Origin::Controller, size);
        let open = |offset: u64| -> Result<Box<dyn Read + Send + 'static>> {
            let inner = recipe.open(offset)?;
            let cancel = Arc::clone(self.cancel);
            Ok(Box::new(Cancellable { inner, cancel }))
        };
        let send = || {
            let sent = |bytes: u64| count.add(bytes);
            host.agent.send_blob(&recipe.descriptor, &open, &sent).map(|()| count.told())
        };
        let sent = self.recipes.line().measured(send);
        count.end(sent.is_ok());
        sent.context(|| {
            format!("{id}: cannot send the difference of layer {}", layer.blob.digest)
        })?;
        let request = Assemble {
            blob: layer.blob.clone(),
            recipe: recipe.descriptor.clone(),
            root: self.plan.brief.root.clone(),
        };
        match host.agent.assemble(&request) {
            Ok(()) => {
                self.watch.moved(&id, Origin::Itself, whole.saturating_sub(size));
                Ok(true)
            }
            Err(error) if is_of_recipe(&error) => {
                self.watch.lost(&id, size);
                tracing::warn!("{id}: layer {} is sent whole: {error}", layer.blob.digest);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns which of the blobs that a registry layer brings the host's registry has.
    fn registry_files(&self, host: &HostPlan, layer: &LayerOf) -> Result<BTreeSet<Digest>> {
        let registry_files = match self.blobs.registry_files(layer) {
            Ok(files) if !files.is_empty() => files,
            // What is wrong with the layer shows when it is sent.
            _ => return Ok(BTreeSet::new()),
        };
        let root = self.plan.brief.root.clone();
        let question = InventoryQuestion { root, registry_files, ..InventoryQuestion::default() };
        Ok(host.agent.inventory(&question)?.registry_files.into_iter().collect())
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

fn without_source() -> Error {
    Error::failed("no source has the layers that it lacks").hint("run it again")
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
