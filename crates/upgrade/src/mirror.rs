//! Copies the records of an open upgrade to every control plane: they show its progress there, and
//! the journal survives the loss of the controller.
//!
//! `<data>/state` on a host has the layout of the cluster's directory on the controller, so the
//! copies are interchangeable. A copy may be a few steps old: steps begun since then can be found
//! on the host by the name of the journal, which is copied before any step begins. A host that
//! cannot be given a copy is skipped and reported at the end.
//!
//! Must not depend on the content of the files.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::upgrade_store::{STATE, UpgradeStore};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::directory;
use imgctl_base::image::{Digest, time::rfc3339};
use imgctl_host::agent::Agent;
use imgctl_journal::event::{Event, Listener};
use imgctl_journal::past;
use imgctl_model::context::{ClusterContext, Host, Paths};
use imgctl_model::state_files::StateFiles;
use imgctl_runtime::action::HostPool;
use imgctl_workflow::pipeline::files_of_hosts::write_content;
use imgctl_workflow::pipeline::step::journals;

/// How long to wait for a healthy host before skipping it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause before retrying a host after a failure.
const REST: Duration = Duration::from_secs(20);
/// Minimum pause after a copy that no caller waits for, and its minimum as a multiple of the
/// duration of that copy.
const PAUSE: Duration = Duration::from_millis(500);
const SHARE: u32 = 20;
/// Maximum number of journals on a host: those of the open upgrade and of the ones it consists of.
const MOST_JOURNALS: usize = 10;
/// Maximum size of the file that describes a host's copy, in bytes.
const MAX_TELLING: u64 = 64 << 10;

/// Description of a host's copy, in `upgrade/copied`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Copied {
    /// RFC 3339: time of the copied state.
    pub time: String,
    /// Name of the machine that runs the upgrade.
    pub controller: String,
    /// Names of the copied journals, oldest first.
    pub journals: Vec<String>,
}

/// Directory of the copy on a host.
pub fn directory(paths: &Paths) -> String {
    format!("{}/state", paths.root())
}

/// Reads the description of the copy in `state`; returns `None` if there is none.
pub fn copied(state: &Path) -> Option<Copied> {
    let text = std::fs::read(state.join(TELLING)).ok()?;
    serde_json::from_slice(&text).ok()
}

const TELLING: &str = "upgrade/copied";

/// The copies of one running upgrade.
pub struct Mirror {
    state: StateFiles,
    directory: String,
    /// The ID of the upgrade, and of the upgrade that it reverts.
    ids: Vec<String>,
    controller: String,
    step: Mutex<CopyState>,
    turned: Condvar,
}

#[derive(Default)]
struct CopyState {
    /// Counts state changes; a host is up to date once it has the latest.
    wanted: u64,
    /// The latest state that a caller waits for.
    urgent: u64,
    journal: Option<String>,
    ended: bool,
    /// Number of running steps, and the host of the last one started.
    running: usize,
    host: String,
    /// By host id.
    places: HashMap<String, Place>,
}

#[derive(Default)]
struct Place {
    has: u64,
    problem: Option<String>,
}

impl Mirror {
    /// Starts copying the records of the upgrade `id` from the upgrade store to all control planes
    /// of `context`.
    pub fn begin(
        context: &ClusterContext,
        pool: &Arc<dyn HostPool + Send>,
        id: &str,
        controller: &str,
    ) -> Result<Arc<Self>> {
        let state = context.state.clone();
        let mut ids = vec![id.to_owned()];
        ids.extend(UpgradeStore::of(&state).instead(id)?);
        let hosts: Vec<Host> = context.control_planes().cloned().collect();
        let mirror = Arc::new(Self {
            state,
            directory: directory(&context.paths),
            ids,
            controller: controller.to_owned(),
            step: Mutex::new(CopyState {
                places: hosts.iter().map(|host| (host.id(), Place::default())).collect(),
                ..CopyState::default()
            }),
            turned: Condvar::new(),
        });
        for host in hosts {
            // These threads are never joined: one may hang in a connection to a dead host.
            let (mirror, pool) = (Arc::clone(&mirror), Arc::clone(pool));
            std::thread::spawn(move || mirror.serve(&host, &*pool));
        }
        Ok(mirror)
    }

    /// Sets the journal of the upgrade.
    pub fn follow(&self, journal: &str) {
        self.step().journal = Some(journal.to_owned());
    }

    /// Waits until all healthy hosts have the current state, for at most `PATIENCE`.
    pub fn settle(&self) {
        let mut step = self.step();
        step.wanted += 1;
        step.urgent = step.wanted;
        let wanted = step.wanted;
        self.turned.notify_all();
        let began = Instant::now();
        loop {
            let late =
                step.places.values().any(|place| place.has < wanted && place.problem.is_none());
            let left = PATIENCE.saturating_sub(began.elapsed());
            if !late || left.is_zero() {
                return;
            }
            step = self.turned.wait_timeout(step, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Copies a last time; returns which hosts have an outdated copy, and why.
    pub fn end(&self) -> Vec<String> {
        self.settle();
        let mut step = self.step();
        step.ended = true;
        self.turned.notify_all();
        let wanted = step.wanted;
        let mut late: Vec<String> = step
            .places
            .iter()
            .filter(|(_, place)| place.has < wanted)
            .map(|(host, place)| {
                let why = place.problem.as_deref().unwrap_or("it takes too long");
                format!("{host} has no up-to-date copy of the upgrade's journal: {why}")
            })
            .collect();
        late.sort_unstable();
        late
    }

    fn touch(&self) {
        self.step().wanted += 1;
        self.turned.notify_all();
    }

    /// Records the start of a step. Returns whether it is the first on another host while no step
    /// is running: the result of the previous host is then copied first.
    fn begins(&self, host: &str) -> bool {
        let mut step = self.step();
        let is_next = step.running == 0 && step.host != host;
        step.running += 1;
        host.clone_into(&mut step.host);
        is_next
    }

    fn ends(&self) {
        let mut step = self.step();
        step.running = step.running.saturating_sub(1);
    }

    fn step(&self) -> MutexGuard<'_, CopyState> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the copy on one host up to date until the upgrade ends.
    fn serve(&self, host: &Host, pool: &dyn HostPool) {
        let id = host.id();
        let mut kept = Kept::default();
        let mut rest_until = Instant::now();
        while let Some(wanted) = self.next(&id, rest_until) {
            let began = Instant::now();
            let done = pool.agent(host).and_then(|agent| self.copy(&*agent, &mut kept));
            let took = began.elapsed();
            let mut step = self.step();
            if let Some(place) = step.places.get_mut(&id) {
                place.problem = done.as_ref().err().map(|error| error.chain().join(": "));
                if done.is_ok() {
                    place.has = wanted;
                }
            }
            rest_until = Instant::now()
                + match done {
                    Ok(()) => PAUSE.max(took.saturating_mul(SHARE)),
                    Err(_) => REST,
                };
            self.turned.notify_all();
        }
    }

    /// Waits until there is a change to copy; returns `None` at the end.
    fn next(&self, id: &str, rest_until: Instant) -> Option<u64> {
        let mut step = self.step();
        loop {
            let place = step.places.get(id)?;
            let rest = rest_until.saturating_duration_since(Instant::now());
            let is_behind = place.has < step.wanted;
            // Waiters do not wait for a host that has just failed.
            let is_urgent = place.has < step.urgent && place.problem.is_none();
            if step.ended && !(is_behind && is_urgent) {
                return None;
            }
            if is_behind && (rest.is_zero() || is_urgent) {
                return Some(step.wanted);
            }
            step = if is_behind {
                self.turned.wait_timeout(step, rest).unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.turned.wait(step).unwrap_or_else(PoisonError::into_inner)
            };
        }
    }

    /// Makes the copy on one host match the controller.
    fn copy(&self, agent: &dyn Agent, kept: &mut Kept) -> Result<()> {
        let journal = self.step().journal.clone();
        if kept.journals.is_none() {
            let path = format!("{}/{TELLING}", self.directory);
            let told = agent.read_file(&path, MAX_TELLING).ok().flatten();
            let told: Option<Copied> = told.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            kept.journals = Some(told.unwrap_or_default().journals);
        }
        // The journal comes first, because it covers every step that the other files refer to.
        if let Some(journal) = &journal {
            let path = past::path_of(&journals(self.state.directory()), journal);
            let name = format!("journal/{journal}.jsonl");
            self.send(agent, kept, &name, &path)?;
        }
        for id in &self.ids {
            let directory = self.state.path("upgrade").join(id);
            for name in files(&directory)? {
                let relative = format!("upgrade/{id}/{name}");
                self.send(agent, kept, &relative, &directory.join(&name))?;
            }
        }
        self.tell(agent, kept, journal)?;
        let state = self.state.path("upgrade").join(STATE);
        self.send(agent, kept, &format!("upgrade/{STATE}"), &state)
    }

    /// Writes the time of the copy; removes the oldest journals above the limit.
    fn tell(&self, agent: &dyn Agent, kept: &mut Kept, journal: Option<String>) -> Result<()> {
        let mut all = kept.journals.clone().unwrap_or_default();
        if let Some(journal) = journal {
            all.retain(|name| *name != journal);
            all.push(journal);
        }
        while all.len() > MOST_JOURNALS {
            let oldest = all.remove(0);
            // The name comes from the host: it must be a name, not a path.
            if !oldest.contains('/') {
                self.remove(agent, &format!("journal/{oldest}.jsonl"))?;
            }
        }
        let copied = Copied {
            time: rfc3339(jiff::Timestamp::now().as_second()),
            controller: self.controller.clone(),
            journals: all.clone(),
        };
        let text = serde_json::to_vec(&copied).doing(|| "cannot record the copies".to_owned())?;
        kept.journals = Some(all);
        self.put(agent, TELLING, &text)
    }

    /// Sends a file unless the host already has it; does nothing if the file does not exist.
    fn send(&self, agent: &dyn Agent, kept: &mut Kept, name: &str, path: &Path) -> Result<()> {
        let Some(mut reader) = self.state.open(path)? else { return Ok(()) };
        let mut content = Vec::new();
        reader.read_to_end(&mut content).path("read", path)?;
        let digest = Digest::of(&content);
        if kept.sent.get(name) == Some(&digest) {
            return Ok(());
        }
        self.put(agent, name, &content)?;
        kept.sent.insert(name.to_owned(), digest);
        Ok(())
    }

    fn put(&self, agent: &dyn Agent, name: &str, content: &[u8]) -> Result<()> {
        let path = format!("{}/{name}", self.directory);
        write_content(agent, &path, &mut &*content)
    }

    fn remove(&self, agent: &dyn Agent, name: &str) -> Result<()> {
        let left = agent.remove(&[format!("{}/{name}", self.directory)])?;
        match left.first() {
            None => Ok(()),
            Some(why) => Err(Error::failed(format!("{}: {why}", agent.host()))),
        }
    }
}

impl Listener for Mirror {
    fn event(&self, event: &Event) {
        match event {
            Event::Start { journal, .. } => {
                self.follow(journal);
                self.settle();
            }
            Event::PhaseEnd { .. } => self.settle(),
            Event::StepStart { host, .. } if self.begins(host) => self.settle(),
            Event::StepEnd { .. } => {
                self.ends();
                self.touch();
            }
            _ => {}
        }
    }
}

/// Known content of a host's copy.
#[derive(Default)]
struct Kept {
    sent: HashMap<String, Digest>,
    /// `None` until the host has been asked.
    journals: Option<Vec<String>>,
}

/// Returns the names of the files in a directory, except files being written and those that concern
/// only this machine.
fn files(path: &Path) -> Result<Vec<String>> {
    let paths = directory::list(path)?.into_iter();
    let names = paths.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    Ok(names.filter(|name| !name.starts_with('.') && name != "pause").collect())
}
