//! A simulation: hosts that exist only in this process and drive plans, journal and executor
//! without machines.
//!
//! For tests and for `scripts/bench sim`. If a directory is given, it records the commands that a
//! host has run, so that they survive a controller that is killed. A started command continues like
//! one that is detached from its connection.

mod bare;
mod files;

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::pipeline::execution_context::{ExecutionContext, PhaseUpdate, StateStore};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::{Descriptor, Digest};
use imgctl_host::agent::protocol::{
    CheckedOut, Checkout, Claim, Claimed, Facts, FileToWrite, HostsBlock, HostsEntry, Inventory,
    InventoryQuestion, Outcome, OutputLine, PeerSource, Run, SwitchTree, UID_FILE,
};
use imgctl_host::agent::{Agent, BlobOpener};
use imgctl_host::host::{address::Address, login::Login};
use imgctl_model::context::{ClusterContext, Host, MASTER, NODE, Paths};
use imgctl_model::image::{ClusterImage, ImageKind};
use imgctl_runtime::action::HostPool;

/// Behavior of simulated hosts.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Directory that records executed commands; `None`: in memory.
    pub directory: Option<PathBuf>,
    pub duration: Duration,
    /// Commands whose line contains the first text fail on hosts whose address ends in the second.
    pub fails: Option<(String, String)>,
    /// Every n-th call loses its connection after the host has started the request.
    pub loses_every: u64,
    /// Hosts that do not answer, by name.
    pub unreachable: Vec<String>,
    /// Number of lines that each command prints.
    pub chatter: usize,
    /// Number of bytes that each host lacks.
    pub lacks: u64,
    /// The end of the first execution of a line that contains this text is not observed.
    pub reboots: Option<String>,
    /// A host that reports files as removed but keeps them.
    pub keeps_files: Option<String>,
}

pub use crate::sync::simulation::simulate as simulate_sync;
pub use bare::Bare;
pub use files::SimulatedFiles;

/// All simulated hosts.
pub struct Simulation {
    behaviour: Behaviour,
    calls: AtomicU64,
    agents: Mutex<HashMap<String, Arc<SimulatedAgent>>>,
    /// Executed commands: host and key.
    ran: Mutex<Vec<(String, String)>>,
    /// UIDs of the clusters that hosts belong to, by host and the directory of the cluster.
    uids: Mutex<BTreeMap<(String, String), String>>,
    /// The machine-ids that they had then.
    machines: Mutex<BTreeMap<(String, String), String>>,
    /// Blocks of the hosts files, by host and block.
    names: Mutex<BTreeMap<(String, String), Vec<HostsEntry>>>,
    /// Hosts that were installed anew, and how often.
    reinstalled: Mutex<BTreeMap<String, usize>>,
}

impl Simulation {
    /// Creates hosts with this behavior.
    pub fn new(behaviour: Behaviour) -> Arc<Self> {
        Arc::new(Self {
            behaviour,
            calls: AtomicU64::new(0),
            agents: Mutex::default(),
            ran: Mutex::default(),
            uids: Mutex::default(),
            machines: Mutex::default(),
            names: Mutex::default(),
            reinstalled: Mutex::default(),
        })
    }

    /// Installs a host anew: another machine without files. `keeps_data`: but for its data directory.
    pub fn reinstall(&self, host: &str, keeps_data: bool) {
        lock(&self.agents).remove(host);
        lock(&self.names).retain(|(own, _), _| own != host);
        if !keeps_data {
            for ids in [&self.uids, &self.machines] {
                lock(ids).retain(|(own, _), _| own != host);
            }
        }
        *lock(&self.reinstalled).entry(host.to_owned()).or_default() += 1;
    }

    /// Writes the hosts file of a host anew, without the lines of clusters.
    pub fn forget_names(&self, host: &str) {
        lock(&self.names).retain(|(own, _), _| own != host);
    }

    /// Removes all cluster files from a host, as a lost disk does.
    #[cfg(test)]
    pub(crate) fn lose_files(&self, host: &str) {
        lock(&self.agents).remove(host);
        for ids in [&self.uids, &self.machines] {
            lock(ids).retain(|(own, _), _| own != host);
        }
    }

    /// Makes hosts as they were before clusters had UIDs.
    pub fn forget_uids(&self) {
        lock(&self.uids).clear();
        lock(&self.machines).clear();
    }

    /// Returns the UIDs that hosts have, by host.
    pub fn uids(&self) -> Vec<(String, String)> {
        lock(&self.uids).iter().map(|((host, _), uid)| (host.clone(), uid.clone())).collect()
    }

    /// Returns how often each command was executed: host, key, count.
    #[cfg(test)]
    pub(crate) fn executed(&self) -> BTreeMap<(String, String), usize> {
        let mut times = BTreeMap::new();
        for entry in lock(&self.ran).iter() {
            *times.entry(entry.clone()).or_insert(0) += 1;
        }
        times
    }
}

pub struct SimulatedPool(pub Arc<Simulation>);

impl HostPool for SimulatedPool {
    fn agent(&self, host: &Host) -> Result<Arc<dyn Agent>> {
        if self.0.behaviour.unreachable.contains(&host.address.name) {
            return Err(Error::network(format!("cannot reach {}: no route to host", host.id())));
        }
        let mut agents = lock(&self.0.agents);
        let agent = agents.entry(host.id()).or_insert_with(|| {
            Arc::new(SimulatedAgent {
                host: host.clone(),
                name: host.id(),
                simulation: Arc::clone(&self.0),
                runs: Mutex::default(),
                tree: Mutex::default(),
            })
        });
        Ok(Arc::clone(agent) as Arc<dyn Agent>)
    }
}

struct SimulatedAgent {
    host: Host,
    name: String,
    simulation: Arc<Simulation>,
    /// Start time of each key, in milliseconds since 1970, and whether it was cancelled.
    runs: Mutex<HashMap<String, (u64, bool)>>,
    /// The cluster whose files it has. With a directory of records, the file `synced` there has it, too.
    tree: Mutex<Option<String>>,
}

impl SimulatedAgent {
    fn behaviour(&self) -> &Behaviour {
        &self.simulation.behaviour
    }

    /// Returns the cluster whose files the host has.
    fn tree(&self) -> Option<String> {
        let on_disk = || std::fs::read_to_string(self.place()?.join("synced")).ok();
        lock(&self.tree).clone().or_else(on_disk)
    }

    /// Takes over a tree of a cluster.
    fn gets(&self, root: &str, tree: &str) {
        if tree == "rootfs" {
            *lock(&self.tree) = root.rsplit('/').next().map(str::to_owned);
        }
    }

    /// Returns the directory that records what this host ran.
    fn place(&self) -> Option<PathBuf> {
        let directory = self.behaviour().directory.as_ref()?;
        Some(directory.join(&self.name))
    }

    /// Starts `key` unless it was started before. Returns its start time and whether it is new.
    fn begin(&self, key: &str) -> Result<(u64, bool)> {
        let now = now();
        let Some(place) = self.place() else {
            let mut runs = lock(&self.runs);
            let is_new = !runs.contains_key(key);
            let begun = runs.entry(key.to_owned()).or_insert((now, false)).0;
            return Ok((begun, is_new));
        };
        std::fs::create_dir_all(&place).path("create", &place)?;
        let path = place.join(key);
        let created = std::fs::OpenOptions::new().write(true).create_new(true).open(&path);
        let (begun, is_new) = match created {
            Ok(mut file) => {
                file.write_all(now.to_string().as_bytes()).path("write", &path)?;
                (now, true)
            }
            Err(_) => {
                let text = std::fs::read_to_string(&path).path("read", &path)?;
                // Killed between creating the file and writing it: the command was started.
                (text.parse().unwrap_or(0), false)
            }
        };
        lock(&self.runs).entry(key.to_owned()).or_insert((begun, false));
        Ok((begun, is_new))
    }

    fn maybe_lose(&self) -> Result<()> {
        let every = self.behaviour().loses_every;
        let call = self.simulation.calls.fetch_add(1, Ordering::Relaxed);
        if every > 0 && call % every == every - 1 {
            Err(Error::network(format!("{}: the connection was lost", self.name)))
        } else {
            Ok(())
        }
    }

    fn is_cancelled(&self, key: &str) -> bool {
        lock(&self.runs).get(key).is_some_and(|(_, cancelled)| *cancelled)
    }
}

impl Agent for SimulatedAgent {
    fn host(&self) -> &str {
        &self.name
    }

    fn facts(&self) -> Result<Facts> {
        let mut facts = facts(&self.host);
        for ((host, directory), uid) in lock(&self.simulation.uids).iter() {
            if *host == self.name
                && let Some(name) = directory.rsplit('/').next()
            {
                facts.clusters.push(name.to_owned());
                facts.cluster_uids.insert(name.to_owned(), uid.clone());
            }
        }
        if let Some(tree) = self.tree() {
            if !facts.clusters.contains(&tree) {
                facts.clusters.push(tree.clone());
            }
            facts.cluster_trees.push(tree);
        }
        if let Some(times) = lock(&self.simulation.reinstalled).get(&self.name) {
            facts.machine_id.push_str(&format!("-{times}"));
        }
        for ((host, directory), machine) in lock(&self.simulation.machines).iter() {
            if *host == self.name
                && let Some(name) = directory.rsplit('/').next()
            {
                facts.cluster_machines.insert(name.to_owned(), machine.clone());
            }
        }
        let names = lock(&self.simulation.names);
        let own = names.iter().filter(|((host, _), _)| *host == self.name);
        let own = own.map(|((_, block), entries)| (block.clone(), entries.clone()));
        facts.hosts_blocks = Some(own.collect());
        Ok(facts)
    }

    fn inventory(&self, _question: &InventoryQuestion) -> Result<Inventory> {
        Ok(Inventory::default())
    }

    fn send_blob(
        &self,
        _blob: &Descriptor,
        _open: &BlobOpener<'_>,
        _sent: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        self.maybe_lose()
    }

    fn offer(&self) -> Result<PeerSource> {
        Err(Error::failed("a simulated host offers nothing"))
    }

    fn withdraw(&self) -> Result<()> {
        Ok(())
    }

    fn fetch(
        &self,
        _from: &PeerSource,
        _blobs: &[Descriptor],
        _fetched: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Digest>> {
        Ok(Vec::new())
    }

    fn checkout(&self, request: &Checkout, _done: &(dyn Fn(u64) + Sync)) -> Result<CheckedOut> {
        self.gets(&request.root, &request.tree);
        Ok(CheckedOut::default())
    }

    fn switch_tree(&self, request: &SwitchTree) -> Result<Vec<String>> {
        self.maybe_lose()?;
        self.gets(&request.root, &request.tree);
        Ok(Vec::new())
    }

    fn run(&self, request: &Run, output: &mut dyn FnMut(OutputLine)) -> Result<Outcome> {
        let (begun, is_new) = self.begin(&request.key)?;
        if is_new {
            lock(&self.simulation.ran).push((self.name.clone(), request.key.clone()));
        }
        self.maybe_lose()?;
        let behaviour = self.behaviour();
        let ends = begun + u64::try_from(behaviour.duration.as_millis()).unwrap_or(0);
        while now() < ends && !self.is_cancelled(&request.key) {
            let left = Duration::from_millis(ends.saturating_sub(now()).clamp(1, 20));
            std::thread::sleep(left);
        }
        for number in 0..behaviour.chatter {
            output(OutputLine {
                text: format!("{}: line {number} of {}", self.name, request.line),
                error_stream: number % 2 == 1,
            });
        }
        let mut outcome = Outcome {
            code: Some(0),
            reason: None,
            duration_ms: ends - begun,
            recalled: !is_new,
            log: format!("{}/{}/log", request.directory, request.key),
        };
        let holds =
            |text: &Option<String>| text.as_ref().is_some_and(|text| request.line.contains(text));
        let fails = behaviour.fails.as_ref().is_some_and(|(text, host)| {
            request.line.contains(text) && self.host.address.name.ends_with(host)
        });
        if self.is_cancelled(&request.key) {
            (outcome.code, outcome.reason) = (None, Some("cancelled".to_owned()));
        } else if holds(&behaviour.reboots) && !request.key.ends_with(".2") {
            outcome.code = None;
            outcome.reason = Some("the host was rebooted while it ran".to_owned());
        } else if fails {
            output(OutputLine {
                text: "no: the secret is hunter22".to_owned(),
                error_stream: true,
            });
            outcome.code = Some(3);
        }
        Ok(outcome)
    }

    fn cancel(&self, _directory: &str, key: &str) -> Result<()> {
        if let Some(run) = lock(&self.runs).get_mut(key) {
            run.1 = true;
        }
        Ok(())
    }

    fn write_file(&self, _file: &FileToWrite) -> Result<bool> {
        self.maybe_lose()?;
        Ok(true)
    }

    fn claim(&self, claim: &Claim) -> Result<Claimed> {
        self.maybe_lose()?;
        let mut uids = lock(&self.simulation.uids);
        for ((host, directory), uid) in uids.iter() {
            let cluster = directory.rsplit('/').next().unwrap_or_default();
            let is_ours = cluster == claim.cluster && *uid == claim.uid;
            if *host == self.name && !is_ours && claim.known.get(cluster) != Some(uid) {
                return Ok(Claimed::Taken(cluster.to_owned(), uid.clone()));
            }
        }
        let key = (self.name.clone(), format!("{}/{}", claim.data, claim.cluster));
        uids.insert(key.clone(), claim.uid.clone());
        drop(uids);
        let machine = self.facts()?.machine_id;
        lock(&self.simulation.machines).insert(key, machine);
        Ok(Claimed::Ours)
    }

    fn read_file(&self, path: &str, _limit: u64) -> Result<Option<Vec<u8>>> {
        let Some((directory, UID_FILE)) = path.rsplit_once('/') else { return Ok(None) };
        let key = (self.name.clone(), directory.to_owned());
        Ok(lock(&self.simulation.uids).get(&key).map(|uid| uid.clone().into_bytes()))
    }

    fn remove(&self, paths: &[String]) -> Result<Vec<String>> {
        self.maybe_lose()?;
        if self.behaviour().keeps_files.as_ref() == Some(&self.name) {
            return Ok(Vec::new());
        }
        for ids in [&self.simulation.uids, &self.simulation.machines] {
            lock(ids)
                .retain(|(host, directory), _| *host != self.name || !paths.contains(directory));
        }
        let is_gone = |tree: &String| paths.iter().any(|path| path.ends_with(&format!("/{tree}")));
        if self.tree().as_ref().is_some_and(is_gone) {
            *lock(&self.tree) = None;
            if let Some(place) = self.place() {
                let _ = std::fs::remove_file(place.join("synced"));
            }
        }
        Ok(Vec::new())
    }

    fn set_hosts(&self, block: &HostsBlock) -> Result<bool> {
        let key = (self.name.clone(), block.cluster.clone());
        lock(&self.simulation.names).insert(key, block.entries.clone());
        self.maybe_lose()?;
        Ok(true)
    }
}

/// Stores the marks of the record.
#[derive(Default)]
pub struct SimulatedStateStore(pub Mutex<Vec<PhaseUpdate>>);

impl StateStore for SimulatedStateStore {
    fn mark(&self, mark: &PhaseUpdate) -> Result<()> {
        lock(&self.0).push(mark.clone());
        Ok(())
    }

    fn copies(&self) -> Result<Vec<FileToWrite>> {
        Ok(vec![FileToWrite { path: "Clusterfile".to_owned(), mode: 0o600, content: Vec::new() }])
    }

    fn clusterfile(&self) -> Result<String> {
        Ok(String::new())
    }
}

/// Returns the given number of control planes and workers.
pub fn hosts(masters: usize, workers: usize) -> Vec<Host> {
    (0..masters + workers)
        .map(|number| Host {
            address: Address {
                name: format!("10.77.{}.{}", number / 250, number % 250 + 1),
                port: 22,
            },
            roles: vec![if number < masters { MASTER } else { NODE }.to_owned()],
            environment: BTreeMap::new(),
            login: Login::default(),
            local: false,
        })
        .collect()
}

pub fn facts(host: &Host) -> Facts {
    Facts {
        hostname: format!("host-{}", host.address.name.replace('.', "-")),
        architecture: "amd64".to_owned(),
        system: "Simulated".to_owned(),
        free_bytes: 1 << 40,
        writable: true,
        bash: Some("/bin/bash".to_owned()),
        machine_id: format!("machine-{}", host.address.name),
        ..Facts::default()
    }
}

/// Returns the execution context of pipelines on simulated hosts.
pub fn execution<'a>(
    simulation: &Arc<Simulation>,
    files: &'a SimulatedFiles,
    parallel: usize,
) -> ExecutionContext<'a> {
    ExecutionContext {
        pool: Arc::new(SimulatedPool(Arc::clone(simulation))),
        runtime: &Bare,
        files,
        applications: None,
        registry: &|_, _| Ok(Vec::new()),
        clean_registry: &|_, _| Ok(Vec::new()),
        state_store: Arc::new(SimulatedStateStore::default()),
        validity: imgctl_runtime::certificates::validity::Validity::default(),
        parallel,
        copy_state: true,
        draining: imgctl_kube::drain::Options::default(),
        force: false,
    }
}

/// Returns a cluster of `hosts` with a rootfs, a patch and an application.
pub fn sample_context(name: &str, hosts: Vec<Host>, state: &Path) -> ClusterContext {
    ClusterContext {
        adopted: None,
        unfinished: None,
        in_process: false,
        uid: None,
        renew_certificates: None,
        share_images: None,
        shared: imgctl_model::variables::SharedCache::default(),
        name: name.to_owned(),
        hosts,
        leaving: Vec::new(),
        images: vec![
            image("rootfs:v1", ImageKind::Rootfs, &[]),
            image("patch:v1", ImageKind::Patch, &["apply patch"]),
            image("app:v1", ImageKind::Application, &["deploy $(NAME)", "wait"]),
        ],
        paths: Paths::new("/var/lib/sealos", name),
        state: imgctl_model::state_files::StateFiles::plain(state),
        environment: BTreeMap::from([("NAME".to_owned(), "hello".to_owned())]),
        flag_environment: BTreeMap::new(),
        registry: None,
        vip: None,
        documents: Vec::new(),
    }
}

/// Returns an image of one layer.
pub fn image(name: &str, kind: ImageKind, command: &[&str]) -> ClusterImage {
    ClusterImage {
        name: name.to_owned(),
        mount_name: name.replace(':', "-"),
        kind,
        digest: Digest::of(name.as_bytes()),
        labels: BTreeMap::new(),
        environment: BTreeMap::new(),
        entrypoint: Vec::new(),
        command: command.iter().map(|&line| line.to_owned()).collect(),
        layers: vec![imgctl_model::image::ImageLayer {
            descriptor: Descriptor::new("application/octet-stream", Digest::of(b""), 0),
            diff_id: Digest::of(b""),
            registry: false,
        }],
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
