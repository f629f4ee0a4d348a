//! Copies of what is kept of an open upgrade, on every control plane: whoever stands there sees how
//! far it is, and a controller that is lost does not take the journal with it.
//!
//! `<data>/state` on a host is laid out as the cluster's directory on the controller, so that a copy
//! of the one is the other. A copy may be a few steps old: what was begun on a host since then is
//! found there again by the name of the journal, which is copied before anything is begun. A host
//! that cannot be given a copy is passed over and told of in the end.
//!
//! Must not know what is in the files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::agent::Agent;
use crate::agent::protocol::WritePart;
use crate::cluster::host::Host;
use crate::cluster::paths::Paths;
use crate::cluster::scene::Scene;
use crate::error::{Error, IoContext, Result};
use crate::image::Digest;
use crate::pipeline::event::{Event, Listener};
use crate::pipeline::journal::past;
use crate::pipeline::step::journals;
use crate::runtime::action::Crew;
use crate::upgrade::book::Book;

/// Bytes that travel at once.
const PART: usize = 4 << 20;
/// What is waited for a host that was well before it is passed over.
const PATIENCE: Duration = Duration::from_secs(5);
/// After a failure a host is left alone for so long.
const REST: Duration = Duration::from_secs(20);
/// Between two copies that nobody waits for: at least this, and this many times what one takes.
const PAUSE: Duration = Duration::from_millis(500);
const SHARE: u32 = 20;
/// Journals that a host keeps: of the open upgrade, and of those that it is made of.
const MOST_JOURNALS: usize = 10;
/// Longest file that says what a host has, in bytes.
const MAX_TELLING: u64 = 64 << 10;

/// What a host says of its copy, in `upgrade/copied`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Copied {
    /// RFC 3339: how things stood then.
    pub(crate) time: String,
    /// The name of the machine that runs the upgrade.
    pub(crate) controller: String,
    /// Names of the journals that were copied, oldest first.
    pub(crate) journals: Vec<String>,
}

/// Where a host keeps its copy.
pub(crate) fn directory(paths: &Paths) -> String {
    format!("{}/state", paths.root())
}

/// What the copy in `state` says of itself; `None` where it is none.
pub(crate) fn copied(state: &Path) -> Option<Copied> {
    let text = std::fs::read(state.join(TELLING)).ok()?;
    serde_json::from_slice(&text).ok()
}

const TELLING: &str = "upgrade/copied";
const OPEN: &str = "upgrade/open";

/// The copies of one upgrade while it runs.
pub(crate) struct Mirror {
    state: PathBuf,
    directory: String,
    /// Its own, and that of the upgrade that it takes back.
    ids: Vec<String>,
    controller: String,
    desk: Mutex<Desk>,
    turned: Condvar,
}

#[derive(Default)]
struct Desk {
    /// Counts what happened; a host is up to date when it has the last.
    wanted: u64,
    /// Somebody waits for this one.
    urgent: u64,
    journal: Option<String>,
    ended: bool,
    /// Steps that run now, and the host of the one that began last.
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
    /// Begins to copy what the book says of the upgrade `id` to all control planes of `scene`.
    pub(crate) fn begin(
        scene: &Scene,
        crew: &Arc<dyn Crew + Send>,
        id: &str,
        controller: &str,
    ) -> Result<Arc<Self>> {
        let state = scene.state_directory.clone();
        let mut ids = vec![id.to_owned()];
        ids.extend(Book::of(&state).instead(id)?);
        let hosts: Vec<Host> = scene.control_planes().cloned().collect();
        let mirror = Arc::new(Self {
            state,
            directory: directory(&scene.paths),
            ids,
            controller: controller.to_owned(),
            desk: Mutex::new(Desk {
                places: hosts
                    .iter()
                    .map(|host| (host.id(), Place::default()))
                    .collect(),
                ..Desk::default()
            }),
            turned: Condvar::new(),
        });
        for host in hosts {
            // Nobody waits for these at the end: one may hang in a connection to a dead host.
            let (mirror, crew) = (Arc::clone(&mirror), Arc::clone(crew));
            std::thread::spawn(move || mirror.serve(&host, &*crew));
        }
        Ok(mirror)
    }

    /// The journal that the upgrade is written to.
    pub(crate) fn follow(&self, journal: &str) {
        self.desk().journal = Some(journal.to_owned());
    }

    /// Waits until all hosts that are well have what is true now, not longer than a moment.
    pub(crate) fn settle(&self) {
        let mut desk = self.desk();
        desk.wanted += 1;
        desk.urgent = desk.wanted;
        let wanted = desk.wanted;
        self.turned.notify_all();
        let began = Instant::now();
        loop {
            let late = desk
                .places
                .values()
                .any(|place| place.has < wanted && place.problem.is_none());
            let left = PATIENCE.saturating_sub(began.elapsed());
            if !late || left.is_zero() {
                return;
            }
            desk = self
                .turned
                .wait_timeout(desk, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Copies a last time; returns which hosts have an old copy and why.
    pub(crate) fn end(&self) -> Vec<String> {
        self.settle();
        let mut desk = self.desk();
        desk.ended = true;
        self.turned.notify_all();
        let wanted = desk.wanted;
        let mut late: Vec<String> = desk
            .places
            .iter()
            .filter(|(_, place)| place.has < wanted)
            .map(|(host, place)| {
                let why = place.problem.as_deref().unwrap_or("it takes too long");
                format!("{host} has no fresh copy of the upgrade's journal: {why}")
            })
            .collect();
        late.sort_unstable();
        late
    }

    fn touch(&self) {
        self.desk().wanted += 1;
        self.turned.notify_all();
    }

    /// A step begins; whether it is the first of a host while nothing else runs: what came of the
    /// host before it is copied first.
    fn begins(&self, host: &str) -> bool {
        let mut desk = self.desk();
        let is_next = desk.running == 0 && desk.host != host;
        desk.running += 1;
        host.clone_into(&mut desk.host);
        is_next
    }

    fn ends(&self) {
        let mut desk = self.desk();
        desk.running = desk.running.saturating_sub(1);
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the copy on one host up to date until the end.
    fn serve(&self, host: &Host, crew: &dyn Crew) {
        let id = host.id();
        let mut kept = Kept::default();
        let mut rest_until = Instant::now();
        while let Some(wanted) = self.next(&id, rest_until) {
            let began = Instant::now();
            let done = crew
                .agent(host)
                .and_then(|agent| self.copy(&*agent, &mut kept));
            let took = began.elapsed();
            let mut desk = self.desk();
            if let Some(place) = desk.places.get_mut(&id) {
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

    /// Waits until there is something to copy; `None` at the end.
    fn next(&self, id: &str, rest_until: Instant) -> Option<u64> {
        let mut desk = self.desk();
        loop {
            let place = desk.places.get(id)?;
            let rest = rest_until.saturating_duration_since(Instant::now());
            let is_behind = place.has < desk.wanted;
            // Whoever waits does not wait for a host that has just failed.
            let is_urgent = place.has < desk.urgent && place.problem.is_none();
            if desk.ended && !(is_behind && is_urgent) {
                return None;
            }
            if is_behind && (rest.is_zero() || is_urgent) {
                return Some(desk.wanted);
            }
            desk = match is_behind {
                true => {
                    self.turned
                        .wait_timeout(desk, rest)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                false => self
                    .turned
                    .wait(desk)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Makes the copy on one host what the controller has.
    fn copy(&self, agent: &dyn Agent, kept: &mut Kept) -> Result<()> {
        let journal = self.desk().journal.clone();
        if kept.journals.is_none() {
            let path = format!("{}/{TELLING}", self.directory);
            let told = agent.read_file(&path, MAX_TELLING).ok().flatten();
            let told: Option<Copied> = told.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            kept.journals = Some(told.unwrap_or_default().journals);
        }
        // The journal first: what the others say of a step, it knows.
        if let Some(journal) = &journal {
            let path = past::path_of(&journals(&self.state), journal);
            let name = format!("journal/{journal}.jsonl");
            self.send(agent, kept, &name, &path)?;
        }
        for id in &self.ids {
            let directory = self.state.join("upgrade").join(id);
            for name in files(&directory)? {
                let relative = format!("upgrade/{id}/{name}");
                self.send(agent, kept, &relative, &directory.join(&name))?;
            }
        }
        self.send(
            agent,
            kept,
            "upgrade/history",
            &self.state.join("upgrade/history"),
        )?;
        self.tell(agent, kept, journal)?;
        let open = self.state.join(OPEN);
        if open.exists() {
            return self.send(agent, kept, OPEN, &open);
        }
        kept.sent.remove(OPEN);
        self.remove(agent, OPEN)
    }

    /// Says how old the copy is; of more journals than are kept, the oldest goes.
    fn tell(&self, agent: &dyn Agent, kept: &mut Kept, journal: Option<String>) -> Result<()> {
        let mut all = kept.journals.clone().unwrap_or_default();
        if let Some(journal) = journal {
            all.retain(|name| *name != journal);
            all.push(journal);
        }
        while all.len() > MOST_JOURNALS {
            let oldest = all.remove(0);
            // It came from the host: a name, not a path.
            if !oldest.contains('/') {
                self.remove(agent, &format!("journal/{oldest}.jsonl"))?;
            }
        }
        let copied = Copied {
            time: jiff::Timestamp::now()
                .strftime("%Y-%m-%dT%H:%M:%SZ")
                .to_string(),
            controller: self.controller.clone(),
            journals: all.clone(),
        };
        let text = serde_json::to_vec(&copied)
            .map_err(|error| Error::failed("cannot write what was copied").caused_by(error))?;
        kept.journals = Some(all);
        self.put(agent, TELLING, &text)
    }

    /// Sends a file unless the host has it; nothing where there is none.
    fn send(&self, agent: &dyn Agent, kept: &mut Kept, name: &str, path: &Path) -> Result<()> {
        let content = match std::fs::read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            content => content.path("read", path)?,
        };
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
        let mut offset = 0;
        loop {
            let end = content.len().min(offset + PART);
            let is_last = end == content.len();
            agent.write_part(&WritePart {
                path: path.clone(),
                mode: 0o600,
                offset: offset as u64,
                content: content.get(offset..end).unwrap_or_default().to_vec(),
                is_last,
            })?;
            if is_last {
                return Ok(());
            }
            offset = end;
        }
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

/// What a host is known to have.
#[derive(Default)]
struct Kept {
    sent: HashMap<String, Digest>,
    /// `None`: it was not asked yet.
    journals: Option<Vec<String>>,
}

/// Names of the files in a directory, without those that are being written or mean only this machine.
fn files(directory: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.path("read", directory)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.path("read", directory)?.file_name();
        let name = name.to_string_lossy().into_owned();
        if !name.starts_with('.') && name != "pause" {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}
