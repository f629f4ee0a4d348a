//! Executes a plan: several hosts at once, recorded in a journal, and resumed where it stopped.
//!
//! Must not depend on the purpose of the steps. After a failure, no new step starts; running steps
//! finish.

pub mod decision;
mod lanes;
mod log;
mod running;
mod ticker;
mod together;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::pipeline::executor::decision::{Decision, decide};
use crate::pipeline::step::{Lane, OnFailure, Phase, Plan, journals};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::quote::quote;
use imgctl_base::secret::Redactor;
use imgctl_base::workers::lock;
use imgctl_journal::event::{Event, Listener, Outcome};
use imgctl_journal::interrupt::Interrupt;
use imgctl_journal::{Journal, Past, Record, past};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_runtime::action::HostPool;

#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum number of hosts at once.
    pub parallel: usize,
    /// Number of retries of a step after its connection is lost.
    pub retries: u32,
    /// Pause before the first retry; it doubles with each retry.
    pub backoff: Duration,
    /// Timeout of commands whose step has none of its own.
    pub timeout: Option<Duration>,
    /// Time that running steps have to finish after the first request to stop.
    pub grace: Duration,
    /// Time after which a step without output is reported.
    pub silence: Duration,
    /// Steps to take as done, and steps to execute regardless of the journal.
    pub assume_done: Vec<String>,
    pub redo: Vec<String>,
    /// Whether records must survive power loss.
    pub sync: bool,
    /// For crash tests: ends the process with SIGKILL after this number of records.
    #[cfg(any(test, feature = "testing"))]
    pub die_after: Option<u64>,
    /// The command line for the journal, without secrets.
    pub arguments: Vec<String>,
    /// Name of this controller, for the journal.
    pub controller: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            parallel: 32,
            retries: 5,
            backoff: Duration::from_secs(1),
            timeout: None,
            grace: Duration::from_secs(10),
            silence: Duration::from_secs(120),
            assume_done: Vec::new(),
            redo: Vec::new(),
            sync: true,
            #[cfg(any(test, feature = "testing"))]
            die_after: None,
            arguments: Vec::new(),
            controller: String::new(),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub done: usize,
    /// Steps done by an earlier run.
    pub skipped: usize,
    pub journal: String,
    /// The run has paused before hosts that it may not begin now.
    pub is_held: bool,
}

pub struct Surroundings<'a> {
    pub context: &'a ClusterContext,
    pub pool: Arc<dyn HostPool + Send>,
    pub redactor: &'a Redactor,
    pub listener: &'a dyn Listener,
    pub interrupt: &'a Interrupt,
}

/// Returns the run that `plan` would resume, if there is one.
pub fn unfinished(plan: &Plan, context: &ClusterContext) -> Result<Option<Past>> {
    let found = past::unfinished(&journals(context.state.directory()), &plan.intent)?;
    Ok(found.map(|mut past| {
        lost(&mut past, plan, context);
        past
    }))
}

/// Forgets what hosts have lost since the earlier run; returns them, and the IDs of their steps.
fn lost(past: &mut Past, plan: &Plan, context: &ClusterContext) -> (Vec<String>, Vec<String>) {
    let first = context.first().map(Host::id);
    past.forget_lost(&plan.blank, &plan.machines, first.as_deref())
}

/// Executes `plan`. A plan without steps does nothing and writes nothing.
pub fn execute(plan: &Plan, surroundings: &Surroundings<'_>, options: &Options) -> Result<Summary> {
    check_flags(plan, options)?;
    if plan.phases.is_empty() {
        return Ok(Summary::default());
    }
    let directory = journals(surroundings.context.state.directory());
    let mut past = past::unfinished(&directory, &plan.intent)?;
    let journal = match &past {
        Some(past) => Journal::reopen(&directory, &past.id, options.sync)?,
        None => Journal::create(&directory, &plan.verb, options.sync)?,
    };
    #[cfg(any(test, feature = "testing"))]
    let journal = match options.die_after {
        None => journal,
        Some(limit) => journal.telling(move |count| {
            if count >= limit {
                let me = rustix::process::getpid();
                let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
            }
        }),
    };
    if let Some(past) = &mut past {
        let (hosts, steps) = lost(past, plan, surroundings.context);
        for id in steps {
            journal.append(&forgotten(&id, past))?;
        }
        for host in hosts {
            let message =
                "it was installed anew since the earlier run: its steps are done again".to_owned();
            surroundings.listener.event(&Event::Note { host: Some(host), message });
        }
    }
    let run = Run::new(plan, surroundings, options, &journal, past.as_ref());
    run.all()
}

/// Returns the record of a step that a host has lost: later runs must not take it for done either.
fn forgotten(id: &str, past: &Past) -> Record {
    let step = past.steps.get(id).cloned().unwrap_or_default();
    Record::End {
        time: Timestamp::now(),
        step: id.to_owned(),
        fingerprint: step.fingerprint,
        attempt: step.attempt,
        outcome: Outcome::Failed,
        duration_ms: 0,
        log: step.log,
        message: Some("the host was installed anew".to_owned()),
        moved: BTreeMap::new(),
    }
}

/// Fails if a step named on the command line does not exist: a typo must not count as consent.
fn check_flags(plan: &Plan, options: &Options) -> Result<()> {
    let known: BTreeSet<&str> = plan.steps().map(|step| step.id.as_str()).collect();
    for (flag, named) in [("--assume-done", &options.assume_done), ("--redo", &options.redo)] {
        if let Some(id) = named.iter().find(|id| !known.contains(id.as_str())) {
            return Err(Error::usage(format!("{flag} {id}: there is no such step in this run"))
                .hint("run the same command with --dry-run to list all steps"));
        }
    }
    Ok(())
}

/// One failure, without secrets.
struct Failure {
    step: String,
    host: String,
    attempt: u32,
    outcome: Outcome,
    error: Error,
    log: Option<PathBuf>,
}

struct Run<'a> {
    plan: &'a Plan,
    context: &'a ClusterContext,
    pool: Arc<dyn HostPool + Send>,
    redactor: &'a Redactor,
    listener: &'a dyn Listener,
    interrupt: &'a Interrupt,
    options: &'a Options,
    journal: &'a Journal,
    past: Option<&'a Past>,
    /// Position of each step among the steps of its host, for the names of logs.
    places: HashMap<&'a str, usize>,
    running: Arc<running::Running>,
    /// No new step starts.
    stop: AtomicBool,
    /// No further host begins, because the run does not admit it.
    held: AtomicBool,
    /// Message for the operator once a step has closed the run.
    closed: OnceLock<&'static str>,
    failures: Mutex<Vec<Failure>>,
    done: AtomicUsize,
    skipped: AtomicUsize,
}

impl<'a> Run<'a> {
    fn new(
        plan: &'a Plan,
        surroundings: &Surroundings<'a>,
        options: &'a Options,
        journal: &'a Journal,
        past: Option<&'a Past>,
    ) -> Self {
        let mut next: HashMap<String, usize> = HashMap::new();
        let mut places = HashMap::new();
        for lane in plan.phases.iter().flat_map(|phase| &phase.lanes) {
            let place = next.entry(lane.id()).or_default();
            for step in &lane.steps {
                *place += 1;
                places.insert(step.id.as_str(), *place);
            }
        }
        Self {
            plan,
            context: surroundings.context,
            pool: Arc::clone(&surroundings.pool),
            redactor: surroundings.redactor,
            listener: surroundings.listener,
            interrupt: surroundings.interrupt,
            options,
            journal,
            past,
            places,
            running: Arc::default(),
            stop: AtomicBool::new(false),
            held: AtomicBool::new(false),
            closed: OnceLock::new(),
            failures: Mutex::default(),
            done: AtomicUsize::new(0),
            skipped: AtomicUsize::new(0),
        }
    }

    fn all(&self) -> Result<Summary> {
        let started = Instant::now();
        self.journal.append(&Record::Start {
            time: Timestamp::now(),
            verb: self.plan.verb.clone(),
            cluster: self.plan.cluster.clone(),
            intent: self.plan.intent.clone(),
            plan: self.plan.digest(),
            arguments: self.options.arguments.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            destroys: self.plan.destroys,
            aside: self.plan.aside,
            controller: self.options.controller.clone(),
            machines: self.plan.machines.clone(),
        })?;
        self.listener.event(&Event::Start {
            journal: self.journal.id().to_owned(),
            verb: self.plan.verb.clone(),
            cluster: self.plan.cluster.clone(),
            hosts: self.plan.hosts(),
            steps: self.plan.steps().count(),
            resumed: self.goes_on(),
        });
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ticker = scope.spawn(|| ticker::tick(self, &ended));
            // Also ends the ticker if a step panics; otherwise the scope would wait for it forever.
            let _ends = ticker::Ends::new(&ended, ticker.thread());
            self.phases();
        });
        let failures = lock(&self.failures);
        let outcome = if !failures.is_empty() && self.closed.get().is_some() {
            Outcome::Aborted
        } else if !failures.is_empty() && !failures.iter().all(is_interruption) {
            Outcome::Failed
        } else if self.interrupt.is_asked() && self.ended() < self.plan.steps().count() {
            Outcome::Interrupted
        } else if failures.is_empty() && (self.plan.is_partial || self.is_held()) {
            Outcome::Paused
        } else if failures.is_empty() {
            Outcome::Done
        } else {
            Outcome::Failed
        };
        let finished = self.journal.append(&Record::Finish { time: Timestamp::now(), outcome });
        self.listener.event(&Event::End {
            outcome,
            done: self.done.load(Ordering::SeqCst),
            skipped: self.skipped.load(Ordering::SeqCst),
            failed: failures.len(),
            duration_ms: millis(started.elapsed()),
            journal: self.journal.path().display().to_string(),
        });
        match outcome {
            Outcome::Done | Outcome::Paused => {
                finished?;
                Ok(Summary {
                    done: self.done.load(Ordering::SeqCst),
                    skipped: self.skipped.load(Ordering::SeqCst),
                    journal: self.journal.id().to_owned(),
                    is_held: self.is_held(),
                })
            }
            Outcome::Interrupted => Err(self.interrupted()),
            _ => Err(self.failed(&failures)),
        }
    }

    fn phases(&self) {
        for phase in &self.plan.phases {
            if self.interrupt.is_asked() {
                return;
            }
            if self.stop.load(Ordering::SeqCst) && phase.on_failure != OnFailure::GoOn {
                continue;
            }
            let is_tolerant = matches!(phase.on_failure, OnFailure::Tolerate(_));
            if !is_tolerant && self.has_failed() && phase.on_failure != OnFailure::GoOn {
                continue;
            }
            if self.is_held() || self.holds_phase(phase) {
                return;
            }
            let started = Instant::now();
            self.listener.event(&Event::PhaseStart {
                phase: phase.name.clone(),
                hosts: phase.lanes.len(),
                steps: phase.lanes.iter().map(|lane| lane.steps.len()).sum(),
            });
            match &phase.together {
                Some(work) => together::run(self, phase, work.as_ref()),
                None => lanes::run(self, phase),
            }
            self.listener.event(&Event::PhaseEnd {
                phase: phase.name.clone(),
                duration_ms: millis(started.elapsed()),
            });
        }
    }

    fn is_held(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    /// Returns whether no host of `phase` may begin now, and none is in the middle of it.
    fn holds_phase(&self, phase: &Phase) -> bool {
        let (mut left, mut begun) = (false, false);
        for lane in phase.lanes.iter().filter(|_| phase.waits) {
            left |= !self.is_over(lane);
            begun |= !self.is_over(lane) && self.has_begun(lane);
        }
        let holds = left && !begun && !self.interrupt.admits();
        self.held.fetch_or(holds, Ordering::SeqCst);
        holds
    }

    /// Returns whether this host of `phase` may not begin now. After the first one, none may: a later
    /// run does the rest of the phase.
    fn holds(&self, phase: &Phase, lane: &Lane) -> bool {
        if !phase.waits || self.is_over(lane) || self.has_begun(lane) {
            return false;
        }
        let holds = self.is_held() || !self.interrupt.admits();
        self.held.fetch_or(holds, Ordering::SeqCst);
        holds
    }

    /// Returns whether all steps of `lane` are done.
    fn is_over(&self, lane: &Lane) -> bool {
        let options = self.options;
        let decide = |step| decide(step, self.past, &options.assume_done, &options.redo);
        lane.steps.iter().all(|step| matches!(decide(step), Decision::Skip))
    }

    /// Returns whether an earlier run began with `lane`, and nothing has undone that since.
    fn has_begun(&self, lane: &Lane) -> bool {
        let Some(past) = self.past else { return false };
        let is_redone = |id: &String| self.options.redo.contains(id);
        let known = |id: &String| past.steps.contains_key(id);
        lane.steps.iter().any(|step| known(&step.id) && !is_redone(&step.id))
    }

    /// Returns the number of steps that are done or skipped.
    fn ended(&self) -> usize {
        self.done.load(Ordering::SeqCst) + self.skipped.load(Ordering::SeqCst)
    }

    fn has_failed(&self) -> bool {
        !lock(&self.failures).is_empty()
    }

    /// Whether an earlier run of this journal has done something of the plan. One that failed while it
    /// checked hosts has not, and the hosts may be others now.
    fn goes_on(&self) -> bool {
        let Some(past) = self.past else { return false };
        let has_begun = |outcome| !matches!(outcome, Some(Outcome::Failed | Outcome::Lost));
        let mut known = self.plan.steps().filter_map(|step| past.steps.get(step.id.as_str()));
        known.any(|step| has_begun(step.outcome))
    }

    /// Tells the operator, whatever the verbosity.
    fn announce(&self, text: &str) {
        let message = self.redactor.redact(text).into_owned();
        self.listener.event(&Event::Note { host: None, message });
    }

    /// Records a failure in a phase of this `kind` and reports it. No new step starts after it,
    /// unless the phase tolerates it.
    fn fail_of(&self, kind: OnFailure, failure: Failure) {
        self.listener.event(&Event::Failure {
            host: failure.host.clone(),
            step: failure.step.clone(),
            message: failure.error.message().to_owned(),
            causes: failure.error.chain().into_iter().skip(1).collect(),
            hints: failure.error.hints().into_iter().map(str::to_owned).collect(),
            log: failure.log.as_ref().map(|log| log.display().to_string()),
        });
        let mut failures = lock(&self.failures);
        failures.push(failure);
        let hosts: BTreeSet<&str> = failures.iter().map(|one| one.host.as_str()).collect();
        if !matches!(kind, OnFailure::Tolerate(most) if hosts.len() <= most) {
            self.stop.store(true, Ordering::SeqCst);
        }
    }

    fn failed(&self, failures: &[Failure]) -> Error {
        // Interrupted steps are only consequences of the failures.
        let mut told: Vec<&Failure> = failures.iter().filter(|one| !is_interruption(one)).collect();
        told.sort_by(|a, b| a.step.cmp(&b.step));
        let Some(first) = told.first() else {
            return Error::failed("the run failed");
        };
        let message = match told.len() {
            1 => {
                format!("step {} failed on {} (attempt {})", first.step, first.host, first.attempt)
            }
            many => format!("{many} steps failed"),
        };
        let cause = &first.error;
        let mut error = Error::new(cause.kind(), message);
        if told.len() == 1 {
            error = error.caused_by(imgctl_model::redact::error(cause, self.redactor));
        } else {
            error = error.lines(told.iter().map(|failure| {
                let cause = imgctl_model::redact::error(&failure.error, self.redactor);
                let cause = cause.chain().join(": ");
                format!("  {} (attempt {}): {cause}", failure.step, failure.attempt)
            }));
            let hints: BTreeSet<&str> = told.iter().flat_map(|one| one.error.hints()).collect();
            for hint in hints {
                error = error.hint(hint);
            }
        }
        for failure in told.iter().take(MOST_LOGS) {
            if let Some(log) = &failure.log {
                error =
                    error.hint(format!("read the log: `less {}`", quote(&log.to_string_lossy())));
            }
        }
        if let Some(told) = self.closed.get() {
            return error.hint(format!("{told} (journal {})", self.journal.id()));
        }
        error.hint(format!(
            "{} once that is fixed: completed steps are not repeated (journal {})",
            self.plan.goes_on,
            self.journal.id()
        ))
    }

    fn interrupted(&self) -> Error {
        Error::new(
            Kind::Interrupted,
            format!("stopped on request; {} steps are done", self.ended()),
        )
        .hint(format!("{} to continue (journal {})", self.plan.goes_on, self.journal.id()))
    }
}

/// Maximum number of logs that an error names; the others are in the events and the journal.
const MOST_LOGS: usize = 5;

fn is_interruption(failure: &Failure) -> bool {
    failure.outcome == Outcome::Interrupted
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
