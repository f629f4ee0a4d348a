//! Running steps and their commands on hosts, so that they can be reported and cancelled.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use imgctl_base::error::Result;
use imgctl_base::workers::lock;
use imgctl_host::agent::Agent;
use imgctl_host::agent::protocol::{Outcome, OutputLine, Run};
use imgctl_journal::event::WAITING;
use imgctl_model::context::Host;
use imgctl_runtime::action::HostPool;

#[derive(Default)]
pub(super) struct Running {
    steps: Mutex<HashMap<String, Arc<StepWatch>>>,
}

pub(crate) struct StepWatch {
    pub step: String,
    pub host: String,
    heard: Mutex<Heard>,
    commands: Mutex<Vec<Command>>,
    cancelled: AtomicBool,
    recalled: AtomicBool,
    unknown: Mutex<Option<String>>,
}

/// Output of a step.
struct Heard {
    at: Instant,
    last: String,
    /// Time since which the step has reported that it waits, for whatever reason.
    waits: Option<Instant>,
    /// How long the step had been silent or waiting when it was last reported.
    mentioned: Duration,
}

/// Time after which a waiting step is reported.
const WAITS: Duration = Duration::from_secs(15);

/// One command that is running on a host.
#[derive(Clone)]
pub(super) struct Command {
    agent: Arc<dyn Agent>,
    directory: String,
    key: String,
    cancelled: bool,
}

impl Running {
    /// Registers a step until [`Running::ended`].
    pub(crate) fn began(&self, step: &str, host: &str) -> Arc<StepWatch> {
        let watch = Arc::new(StepWatch {
            step: step.to_owned(),
            host: host.to_owned(),
            heard: Mutex::new(Heard {
                at: Instant::now(),
                last: String::new(),
                waits: None,
                mentioned: Duration::ZERO,
            }),
            commands: Mutex::default(),
            cancelled: AtomicBool::new(false),
            recalled: AtomicBool::new(false),
            unknown: Mutex::default(),
        });
        lock(&self.steps).insert(step.to_owned(), Arc::clone(&watch));
        watch
    }

    pub(super) fn ended(&self, step: &str) {
        lock(&self.steps).remove(step);
    }

    pub(super) fn steps(&self) -> Vec<Arc<StepWatch>> {
        lock(&self.steps).values().cloned().collect()
    }
}

impl StepWatch {
    /// Records output of the step.
    pub(crate) fn hears(&self, text: &str) {
        let mut heard = lock(&self.heard);
        heard.at = Instant::now();
        match text.strip_prefix(WAITING) {
            Some(what) => {
                what.clone_into(&mut heard.last);
                if heard.waits.is_none() {
                    heard.waits = Some(heard.at);
                    heard.mentioned = Duration::ZERO;
                }
            }
            None => {
                text.clone_into(&mut heard.last);
                heard.waits = None;
                heard.mentioned = Duration::ZERO;
            }
        }
    }

    /// Returns the message due for the step: what it waits for, or that it has been silent for
    /// `first`. Repeats whenever the time has doubled.
    pub(crate) fn mention(&self, first: Duration) -> Option<String> {
        let mut heard = lock(&self.heard);
        let (since, first) = match heard.waits {
            Some(since) => (since, WAITS.min(first)),
            None => (heard.at, first),
        };
        let lasts = since.elapsed();
        let due = if heard.mentioned.is_zero() { first } else { heard.mentioned * 2 };
        if lasts < due {
            return None;
        }
        heard.mentioned = lasts;
        let seconds = lasts.as_secs();
        let last = heard.last.lines().next().unwrap_or_default();
        Some(match heard.waits {
            Some(_) => format!("step {} has waited for {seconds} s: {last}", self.step),
            None if last.is_empty() => {
                format!("step {} has printed nothing for {seconds} s", self.step)
            }
            None => format!(
                "step {} has printed nothing for {seconds} s; its last line: {last}",
                self.step
            ),
        })
    }

    /// Returns the commands that have not been cancelled yet and marks them as cancelled.
    pub(crate) fn to_cancel(&self) -> Vec<Command> {
        let mut commands = lock(&self.commands);
        let open = commands.iter_mut().filter(|command| !command.cancelled);
        let taken: Vec<Command> = open
            .map(|command| {
                command.cancelled = true;
                command.clone()
            })
            .collect();
        if !taken.is_empty() {
            self.cancelled.store(true, Ordering::SeqCst);
        }
        taken
    }

    pub(crate) fn was_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// Returns whether a command had run before and its result was only recalled.
    pub(crate) fn was_recalled(&self) -> bool {
        self.recalled.load(Ordering::SeqCst)
    }

    /// Takes the reason why the result of a command is unknown.
    pub(crate) fn take_unknown(&self) -> Option<String> {
        lock(&self.unknown).take()
    }
}

impl Command {
    /// Cancels the command. Blocks until its host has answered; a command on an unreachable host is
    /// found by the next run.
    pub(super) fn cancel(&self) {
        let _ = self.agent.cancel(&self.directory, &self.key);
    }
}

struct WatchedAgent {
    agent: Arc<dyn Agent>,
    watch: Arc<StepWatch>,
}

pub(crate) struct WatchedPool {
    pub pool: Arc<dyn HostPool + Send>,
    pub watch: Arc<StepWatch>,
}

impl HostPool for WatchedPool {
    fn agent(&self, host: &Host) -> Result<Arc<dyn Agent>> {
        Ok(Arc::new(WatchedAgent { agent: self.pool.agent(host)?, watch: Arc::clone(&self.watch) }))
    }
}

impl Agent for WatchedAgent {
    fn host(&self) -> &str {
        self.agent.host()
    }

    fn inner(&self) -> Result<&dyn Agent> {
        Ok(&*self.agent)
    }

    fn run(&self, request: &Run, output: &mut dyn FnMut(OutputLine)) -> Result<Outcome> {
        lock(&self.watch.commands).push(Command {
            agent: Arc::clone(&self.agent),
            directory: request.directory.clone(),
            key: request.key.clone(),
            cancelled: false,
        });
        let outcome = self.agent.run(request, output);
        lock(&self.watch.commands).retain(|command| command.key != request.key);
        let outcome = outcome?;
        if outcome.recalled {
            self.watch.recalled.store(true, Ordering::SeqCst);
        }
        if let Some(why) = end_is_unknown(&outcome) {
            *lock(&self.watch.unknown) = Some(why.to_owned());
        }
        Ok(outcome)
    }
}

/// Returns the reason if the end of a command was not observed: the host rebooted, or its
/// supervisor was killed, while the command ran. A signal, a timeout and a cancellation are known
/// ends.
fn end_is_unknown(outcome: &Outcome) -> Option<&str> {
    let reason = outcome.reason.as_deref()?;
    (outcome.code.is_none() && reason.ends_with("while it ran")).then_some(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_waits_is_mentioned_with_what_it_waits_for() {
        let running = Running::default();
        let watch = running.began("control-plane/h/gate-node", "h");
        let long = Duration::from_secs(3600);
        assert_eq!(watch.mention(long), None);
        let silent = watch.mention(Duration::ZERO).unwrap();
        assert!(silent.ends_with("has printed nothing for 0 s"), "{silent}");
        watch.hears("pulled");
        let silent = watch.mention(Duration::ZERO).unwrap();
        assert!(silent.ends_with("; its last line: pulled"), "{silent}");
        // The reason for waiting changes, but the step keeps waiting.
        watch.hears("waiting: Node a is not Ready");
        let since = lock(&watch.heard).waits;
        watch.hears("waiting: Pod p is not Ready");
        assert_eq!(lock(&watch.heard).waits, since);
        let waits = watch.mention(Duration::ZERO).unwrap();
        assert!(waits.ends_with("gate-node has waited for 0 s: Pod p is not Ready"), "{waits}");
        // The next message is due when the time has doubled.
        lock(&watch.heard).mentioned = long;
        assert_eq!(watch.mention(Duration::ZERO), None);
        watch.hears("done");
        assert!(lock(&watch.heard).waits.is_none());
    }
}
