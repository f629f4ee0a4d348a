//! The controller's side: one host's agent, started on demand and restarted when its connection is
//! lost.

mod connection;
#[cfg(test)]
mod hostile_tests;
mod start;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "for tests only")]
pub mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tunnel_tests;
mod upload;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::agent::install::Binaries;
use crate::agent::protocol::{
    Assemble, CheckedOut, Checkout, Claim, Claimed, Facts, FileDigest, FileToWrite, HostsBlock,
    Inventory, InventoryQuestion, Outcome, OutputLine, PeerSource, ReadPart, RegistryPull, Run,
    SwitchTree, WritePart,
};
use crate::agent::tunnel::Tunnel;
use crate::agent::wire::{
    Call, Cancel, Content, FactsQuestion, Fetch, OfferBlobs, ReadFile, Remove, Withdraw,
};
use crate::agent::{Agent, BlobOpener, facts};
use crate::containerd::rehash::{Rehash, Rehashed};
use crate::host::transport::Transport;
use connection::{Connection, Told, Trouble};
use imgctl_base::error::{Context, Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest};

/// Duration after which an interrupted call may be retried again.
const LASTING: Duration = Duration::from_secs(30);
/// Time for a host to get the agent's program and to start it.
const START: Duration = Duration::from_secs(30 * 60);
/// Time for a canceled command to end: then nobody waits for its host any longer.
const GIVE_UP: Duration = Duration::from_secs(60);
/// Interval at which a call that can be canceled checks whether it is.
const LOOK: Duration = Duration::from_millis(200);

/// How to start the agent of a host.
#[derive(Clone)]
pub struct Launch {
    /// Programs to run on hosts, shared by all hosts.
    pub binaries: Arc<Binaries>,
    /// Directory for the agent's program on a host.
    pub directory: String,
    /// Root of the agent's store on a host, or `None` for the default.
    pub root: Option<String>,
    /// Directory where clusters keep their files on a host (`SEALOS_DATA_ROOT`).
    pub data_root: String,
}

/// A host's agent, reached through a transport.
pub struct Remote {
    transport: Arc<dyn Transport>,
    launch: Launch,
    runtime: Handle,
    connection: Mutex<Option<Arc<Connection>>>,
    facts: OnceLock<Facts>,
    /// By directory and key: whether the wait for a command is given up.
    running: Mutex<BTreeMap<(String, String), Arc<AtomicBool>>>,
}

impl Remote {
    /// Creates the agent without connecting. Asynchronous work runs on `runtime`; calls must not
    /// come from the threads of `runtime`.
    pub fn new(transport: Arc<dyn Transport>, launch: Launch, runtime: Handle) -> Self {
        Self {
            transport,
            launch,
            runtime,
            connection: Mutex::default(),
            facts: OnceLock::new(),
            running: Mutex::default(),
        }
    }

    /// Returns the live connection, or opens a new one if there is none. Other callers wait
    /// meanwhile.
    fn connection(&self) -> Result<Arc<Connection>> {
        let mut held = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = held.as_ref().filter(|held| !held.is_lost()) {
            return Ok(Arc::clone(connection));
        }
        // The old connection must end before the new one requests the same locks.
        *held = None;
        // The host may have to get the program first.
        let started = self.runtime.block_on(async {
            let started = start::start(&*self.transport, &self.launch);
            tokio::time::timeout(START, started).await.unwrap_or_else(|_| {
                Err(Error::network(format!("it is not ready after {} min", START.as_secs() / 60)))
            })
        });
        let connection = Arc::new(started.context(|| self.cannot_start())?);
        *held = Some(Arc::clone(&connection));
        Ok(connection)
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<(String, String), Arc<AtomicBool>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cannot_start(&self) -> String {
        format!("{}: cannot start the agent", self.transport.label())
    }

    /// Makes the call, and repeats it on a new connection if the first one was lost. Also returns
    /// whether it was.
    fn call_again<C: Call>(
        &self,
        call: C,
        lost: impl Fn(&mut C),
        told: &mut dyn FnMut(Told),
    ) -> Result<(C::Answer, bool)> {
        self.call_until(call, lost, told, &AtomicBool::new(false))
    }

    /// Like [`Self::call_again`]; once `cancel` is true, the agent learns that nobody waits for the
    /// answer.
    fn call_until<C: Call>(
        &self,
        mut call: C,
        lost: impl Fn(&mut C),
        told: &mut dyn FnMut(Told),
        cancel: &AtomicBool,
    ) -> Result<(C::Answer, bool)> {
        let mut is_second = false;
        let mut was_lost = false;
        loop {
            let connection = self.connection()?;
            let begun = Instant::now();
            let outcome = self.runtime.block_on(unless(cancel, connection.call(&call, told)));
            is_second &= begun.elapsed() < LASTING;
            match outcome {
                Ok(answer) => return Ok((answer, was_lost)),
                Err(Trouble::Refused(error)) => {
                    return Err(error.context(self.transport.label()));
                }
                Err(Trouble::Lost { error, .. }) if is_second => {
                    return Err(error.context(self.transport.label()));
                }
                Err(Trouble::Lost { error, has_begun }) => {
                    tracing::debug!("{}: {error}; retrying", self.transport.label());
                    if has_begun {
                        lost(&mut call);
                    }
                    is_second = true;
                    was_lost = true;
                }
            }
        }
    }

    fn call<C: Call>(&self, call: C) -> Result<C::Answer> {
        let (answer, _) = self.call_again(call, |_| {}, &mut |_| {})?;
        Ok(answer)
    }

    /// Makes a call that reports progress in bytes.
    fn call_with_progress<C: Call>(
        &self,
        call: C,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<(C::Answer, bool)> {
        self.call_again(call, |_| {}, &mut |told| {
            if let Told::Progress(bytes) = told {
                done(bytes);
            }
        })
    }
}

/// Waits for an answer until `cancel` is true.
async fn unless<T>(
    cancel: &AtomicBool,
    answer: impl Future<Output = Result<T, Trouble>>,
) -> Result<T, Trouble> {
    let mut answer = pin!(answer);
    loop {
        match tokio::time::timeout(LOOK, &mut answer).await {
            Ok(answer) => return answer,
            Err(_) if cancel.load(Ordering::Relaxed) => {
                return Err(Trouble::Refused(Error::new(Kind::Interrupted, "interrupted")));
            }
            Err(_) => {}
        }
    }
}

impl Agent for Remote {
    fn host(&self) -> &str {
        self.transport.label()
    }

    fn facts(&self) -> Result<Facts> {
        if let Some(facts) = self.facts.get() {
            return Ok(facts.clone());
        }
        let facts = self.current_facts()?;
        Ok(self.facts.get_or_init(|| facts).clone())
    }

    fn current_facts(&self) -> Result<Facts> {
        // Starting the agent does not count as part of the round trip.
        self.connection()?;
        let begun = Instant::now();
        let answer = self.call(FactsQuestion { data_root: self.launch.data_root.clone() })?;
        let (now, round) = (facts::now(), begun.elapsed());
        let spent = Duration::from_micros(answer.spent);
        let way = round.saturating_sub(spent) / 2;
        let way = i64::try_from(way.as_millis()).unwrap_or(i64::MAX);
        let mut facts = answer.facts;
        facts.skew_ms = facts.time_ms.saturating_sub(now.saturating_sub(way));
        Ok(facts)
    }

    fn inventory(&self, question: &InventoryQuestion) -> Result<Inventory> {
        self.call(question.clone())
    }

    fn send_blob(
        &self,
        blob: &Descriptor,
        open: &BlobOpener<'_>,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        upload::send(self, blob, open, sent)
            .context(|| format!("{}: cannot send blob {}", self.transport.label(), blob.digest))
    }

    fn offer(&self) -> Result<PeerSource> {
        self.call(OfferBlobs {})
    }

    fn withdraw(&self) -> Result<()> {
        let is_there = {
            let held = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
            held.as_ref().is_some_and(|held| !held.is_lost())
        };
        // An agent that has ended no longer serves blobs.
        if is_there { self.call(Withdraw {}) } else { Ok(()) }
    }

    fn fetch(
        &self,
        from: &PeerSource,
        blobs: &[Descriptor],
        fetched: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Digest>> {
        let call = Fetch { from: from.clone(), blobs: blobs.to_vec() };
        Ok(self.call_with_progress(call, fetched)?.0)
    }

    fn pull(
        &self,
        request: &RegistryPull,
        fetched: &(dyn Fn(u64) + Sync),
        cancel: &AtomicBool,
    ) -> Result<()> {
        let mut told = |told| {
            if let Told::Progress(bytes) = told {
                fetched(bytes);
            }
        };
        self.call_until(request.clone(), |_| {}, &mut told, cancel).map(drop)
    }

    fn assemble(&self, request: &Assemble) -> Result<()> {
        self.call(request.clone())
    }

    fn checkout(&self, request: &Checkout, done: &(dyn Fn(u64) + Sync)) -> Result<CheckedOut> {
        let (mut answer, was_lost) = self.call_with_progress(request.clone(), done)?;
        // The second agent may report changes of the first one as already done.
        answer.changed |= was_lost;
        Ok(answer)
    }

    fn switch_tree(&self, request: &SwitchTree) -> Result<Vec<String>> {
        self.call(request.clone())
    }

    fn run(&self, request: &Run, output: &mut dyn FnMut(OutputLine)) -> Result<Outcome> {
        // Once the command has been restarted, a repeated call follows it instead of restarting it
        // again.
        let lost = |call: &mut Run| call.again = false;
        let id = (request.directory.clone(), request.key.clone());
        let given_up = Arc::new(AtomicBool::new(false));
        self.running().insert(id.clone(), Arc::clone(&given_up));
        let outcome = self.call_until(
            request.clone(),
            lost,
            &mut |told| {
                if let Told::Line(line) = told {
                    output(line);
                }
            },
            &given_up,
        );
        self.running().remove(&id);
        Ok(outcome?.0)
    }

    fn cancel(&self, directory: &str, key: &str) -> Result<()> {
        let given_up = self.running().get(&(directory.to_owned(), key.to_owned())).cloned();
        if let Some(given_up) = given_up {
            self.runtime.spawn(async move {
                tokio::time::sleep(GIVE_UP).await;
                given_up.store(true, Ordering::Relaxed);
            });
        }
        self.call(Cancel { directory: directory.to_owned(), key: key.to_owned() })
    }

    fn write_file(&self, file: &FileToWrite) -> Result<bool> {
        let (changed, was_lost) = self.call_again(file.clone(), |_| {}, &mut |_| {})?;
        Ok(changed || was_lost)
    }

    fn read_file(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let content = self.call(ReadFile { path: path.to_owned(), limit })?;
        Ok(content.map(|Content(bytes)| bytes))
    }

    fn read_part(&self, part: &ReadPart) -> Result<Vec<u8>> {
        Ok(self.call(part.clone())?.content)
    }

    fn claim(&self, claim: &Claim) -> Result<Claimed> {
        self.call(claim.clone())
    }

    fn file_digest(&self, path: &str) -> Result<Digest> {
        self.call(FileDigest { path: path.to_owned() })
    }

    fn write_part(&self, part: &WritePart) -> Result<()> {
        self.call(part.clone())
    }

    fn remove(&self, paths: &[String]) -> Result<Vec<String>> {
        self.call(Remove { paths: paths.to_vec() })
    }

    fn set_hosts(&self, block: &HostsBlock) -> Result<bool> {
        let (set, was_lost) = self.call_again(block.clone(), |_| {}, &mut |_| {})?;
        for note in &set.notes {
            tracing::warn!("{}: {note}", self.transport.label());
        }
        Ok(set.changed || was_lost)
    }

    fn rehash(&self, request: &Rehash) -> Result<Rehashed> {
        let (seen, _) = self.call_again(request.clone(), |_| {}, &mut |_| {})?;
        Ok(seen)
    }

    fn tunnel(&self, address: &str, port: u16) -> Result<Tunnel> {
        let mut is_second = false;
        loop {
            let connection = self.connection()?;
            let opened = connection::open_tunnel(&connection, address, port);
            let error = match self.runtime.block_on(opened) {
                Ok(tunnel) => return Ok(tunnel),
                Err(Trouble::Lost { .. }) if !is_second => {
                    is_second = true;
                    continue;
                }
                Err(Trouble::Lost { error, .. } | Trouble::Refused(error)) => error,
            };
            return Err(error.context(self.transport.label()));
        }
    }
}
