//! Runs a phase that handles several hosts in one operation, with a separate outcome for each.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, atomic::Ordering};
use std::{path::PathBuf, time::Instant};

use jiff::Timestamp;

use crate::pipeline::executor::decision::may_still_run;
use crate::pipeline::executor::lanes::{Ending, Task};
use crate::pipeline::executor::{Run, running::WatchedPool};
use crate::pipeline::step::{BatchWork, Lane, Phase, Step, StepContext};
use crate::sync::execute::Origin;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::workers::lock;
use imgctl_journal::Record;
use imgctl_journal::event::{CONTROLLER, Event, Outcome, REGISTRY, Sources};
use imgctl_model::redact;

/// Runs the phase and retries hosts that lost their connection.
pub(super) fn run(run: &Run<'_>, phase: &Phase, work: &dyn BatchWork) {
    let steps: HashMap<String, &Step> =
        phase.lanes.iter().filter_map(|lane| Some((lane.id(), lane.steps.first()?))).collect();
    let mut pending: Vec<String> = phase.lanes.iter().map(Lane::id).collect();
    for attempt in 0..=run.options.retries {
        let is_last = attempt == run.options.retries || run.interrupt.is_asked();
        let round = Round {
            run,
            phase,
            steps: &steps,
            is_last,
            started: Instant::now(),
            moved: Mutex::default(),
            open: Mutex::new(pending.iter().cloned().collect()),
            again: Mutex::default(),
        };
        pending = round.run(work, &pending);
        if pending.is_empty() {
            return;
        }
        std::thread::sleep(run.options.backoff * 2u32.saturating_pow(attempt.min(4)));
    }
}

/// One attempt for the hosts that are left. Threads of the work tell it about hosts.
struct Round<'a> {
    run: &'a Run<'a>,
    phase: &'a Phase,
    /// The step of each host.
    steps: &'a HashMap<String, &'a Step>,
    /// A host that loses its connection fails: no attempt follows.
    is_last: bool,
    started: Instant,
    /// Bytes that each host has received, by where they came from.
    moved: Mutex<HashMap<String, BTreeMap<String, u64>>>,
    /// Hosts without an outcome.
    open: Mutex<BTreeSet<String>>,
    /// Hosts to try again.
    again: Mutex<Vec<String>>,
}

impl Round<'_> {
    /// Returns the hosts to retry.
    fn run(&self, work: &dyn BatchWork, hosts: &[String]) -> Vec<String> {
        let run = self.run;
        if !self.begin(hosts) {
            return Vec::new();
        }
        let watch = run.running.began(&self.phase.name, &self.phase.name);
        let pool = WatchedPool { pool: Arc::clone(&run.pool), watch: Arc::clone(&watch) };
        let announce = |text: &str| run.announce(text);
        let step = StepContext { pool: &pool, note: &announce, announce: &announce };
        let progress = |host: &str, from: Origin<'_>, bytes: u64| {
            watch.hears("");
            self.progress(host, from, bytes);
        };
        let ended = |host: &str, result: Result<()>| self.end(host, result);
        work.run(&step, hosts, &progress, &ended, run.interrupt.urgent_flag());
        run.running.ended(&self.phase.name);
        let left = lock(&self.open).clone();
        for host in left {
            let error = if run.interrupt.is_asked() {
                Error::new(Kind::Interrupted, "stopped on request")
            } else {
                Error::failed("it was skipped; this is a bug in imgctl")
            };
            self.end(&host, Err(error));
        }
        std::mem::take(&mut *lock(&self.again))
    }

    fn task<'t>(&'t self, host: &'t str) -> Option<Task<'t>> {
        let step = self.steps.get(host)?;
        Some(Task { run: self.run, phase: self.phase, host, step })
    }

    fn attempt_of(&self, step: &Step) -> u32 {
        let past = self.run.past.and_then(|past| past.steps.get(&step.id));
        past.map_or(1, |past| past.attempt + 1)
    }

    /// Records and announces the steps; returns whether they may begin.
    fn begin(&self, hosts: &[String]) -> bool {
        let tasks: Vec<Task<'_>> = hosts.iter().filter_map(|host| self.task(host)).collect();
        let begun: Vec<Record> =
            tasks.iter().map(|task| task.begin_record(self.attempt_of(task.step))).collect();
        if let Err(error) = self.run.journal.append_all(&begun) {
            if let Some(task) = tasks.first() {
                task.fail(self.attempt_of(task.step), Outcome::Failed, error, None);
            }
            return false;
        }
        for task in &tasks {
            task.tell_begin(self.attempt_of(task.step));
        }
        true
    }

    /// Records the outcome of a host; only the first one counts.
    fn end(&self, host: &str, result: Result<()>) {
        let run = self.run;
        let Some(task) = self.task(host) else { return };
        if !lock(&self.open).remove(host) {
            return;
        }
        let result = result.map_err(|error| redact::error(&error, run.redactor));
        let outcome = match &result {
            Ok(()) => Outcome::Done,
            Err(_) if run.interrupt.is_urgent() => Outcome::Interrupted,
            Err(error) if may_still_run(error, host != CONTROLLER && host != REGISTRY) => {
                Outcome::Lost
            }
            Err(_) => Outcome::Failed,
        };
        let attempt = self.attempt_of(task.step);
        // Such work prints nothing; its error is written to the log of the step.
        let log = result.as_ref().err().and_then(|error| logged(&task, outcome, error));
        let ending = Ending {
            outcome,
            attempt,
            duration: self.started.elapsed(),
            log: log.as_ref().map(|log| log.display().to_string()),
            message: result.as_ref().err().map(ToString::to_string),
            moved: lock(&self.moved).get(host).cloned().unwrap_or_default(),
        };
        match (result, task.end(ending, false)) {
            (Ok(()), Ok(())) => {
                run.done.fetch_add(1, Ordering::SeqCst);
            }
            (Err(error), _) if outcome == Outcome::Lost && !self.is_last => {
                task.note(format!("{error}; retrying"));
                lock(&self.again).push(host.to_owned());
            }
            (Err(error), _) | (Ok(()), Err(error)) => {
                task.fail(attempt, outcome, error, log);
            }
        }
    }

    /// Counts bytes that a host has received, and announces the sums.
    fn progress(&self, host: &str, from: Origin<'_>, bytes: u64) {
        let Some(step) = self.steps.get(host) else { return };
        let mut moved = lock(&self.moved);
        let sources = moved.entry(host.to_owned()).or_default();
        match from {
            Origin::Controller => *sources.entry(CONTROLLER.to_owned()).or_default() += bytes,
            Origin::Host(source) => *sources.entry(source.to_owned()).or_default() += bytes,
            Origin::Registry => *sources.entry(REGISTRY.to_owned()).or_default() += bytes,
            // It had them, or only tells that it works.
            Origin::Itself => {}
        }
        let from = Sources::of(sources);
        drop(moved);
        self.run.listener.event(&Event::Progress {
            host: host.to_owned(),
            step: step.id.clone(),
            bytes: from.sum(),
            from,
        });
    }
}

/// Writes the full error and all its hints to the step's log.
fn logged(task: &Task<'_>, outcome: Outcome, error: &Error) -> Option<PathBuf> {
    let log = task.log();
    log.line(&format!("# {} {}: {}", Timestamp::now(), task.step.id, outcome.word()));
    for message in error.chain() {
        log.line(&message);
    }
    for hint in error.hints() {
        log.line(&format!("hint: {hint}"));
    }
    log.path()
}
