//! Runs the hosts of one phase, several at once, and the steps of each host in order.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, atomic::Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::pipeline::executor::decision::{Decision, decide, may_still_run, unknown_end};
use crate::pipeline::executor::log::{StepLog, file_safe};
use crate::pipeline::executor::running::{StepWatch, WatchedPool};
use crate::pipeline::executor::{Failure, Run, millis};
use crate::pipeline::step::{OnFailure, Order, Phase, Step, StepContext, Work};
use imgctl_base::error::{Error, Result};
use imgctl_base::workers::map;
use imgctl_host::agent::protocol::OutputLine;
use imgctl_journal::Record;
use imgctl_journal::event::{Event, Outcome, Sources};
use imgctl_model::context::Host;
use imgctl_model::redact;
use imgctl_runtime::action::{HostPool, Repeat, Site};

/// Runs a phase with as many threads as its order and the limit allow.
pub(super) fn run(run: &Run<'_>, phase: &Phase) {
    let threads = match phase.order {
        Order::Serial => 1,
        Order::Parallel => run.options.parallel,
    };
    map(&phase.lanes, threads, |lane| {
        let host = lane.id();
        if run.holds(phase, lane) {
            return;
        }
        let mut has_failed = false;
        for step in &lane.steps {
            if must_stop(run, phase) || (has_failed && step.concludes) {
                break;
            }
            let task = Task { run, phase, host: &host, step };
            let is_done = task.settle(lane.host.as_ref());
            has_failed |= !is_done;
            if has_failed && phase.on_failure != OnFailure::GoOn {
                break;
            }
        }
    });
}

fn must_stop(run: &Run<'_>, phase: &Phase) -> bool {
    run.interrupt.is_asked()
        || (run.stop.load(Ordering::SeqCst)
            && matches!(phase.on_failure, OnFailure::Stop | OnFailure::Tolerate(_)))
}

/// One step on one host in a run.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub run: &'a Run<'a>,
    pub phase: &'a Phase,
    pub host: &'a str,
    pub step: &'a Step,
}

impl Task<'_> {
    /// Runs the step, from the decision to the record. Returns `false` if its lane ends with it.
    fn settle(&self, host: Option<&Host>) -> bool {
        let (run, step) = (self.run, self.step);
        let mut attempt = match decide(step, run.past, &run.options.assume_done, &run.options.redo)
        {
            Decision::Skip => return self.skip(),
            Decision::Assume(attempt) => {
                let record = Ending { outcome: Outcome::Assumed, attempt, ..Ending::default() };
                return match record.write(run, step) {
                    Ok(()) => self.skip(),
                    Err(error) => self.fail(attempt, Outcome::Failed, error, None),
                };
            }
            Decision::Stop(error) => {
                let past = run.past.and_then(|past| past.steps.get(&step.id));
                let attempt = past.map_or(1, |past| past.attempt);
                return self.fail(attempt, Outcome::Unknown, error, None);
            }
            Decision::Do(attempt) => attempt,
        };
        let log = self.log().titled(format!("{} attempt {attempt}", step.id));
        let watch = run.running.began(&step.id, self.host);
        let ended = self.attempts(host, &mut attempt, &log, &watch);
        run.running.ended(&step.id);
        match ended {
            Ok(()) => {
                run.done.fetch_add(1, Ordering::SeqCst);
                if let Some(told) = step.closes {
                    let _ = run.closed.set(told);
                }
                true
            }
            Err((outcome, error)) => self.fail(attempt, outcome, error, log.path()),
        }
    }

    pub(super) fn log(&self) -> StepLog {
        let (run, step) = (self.run, self.step);
        let place = run.places.get(step.id.as_str()).copied().unwrap_or(0);
        StepLog::new(run.context.state.directory(), run.journal.id(), self.host, place, &step.name)
    }

    fn skip(&self) -> bool {
        self.run.skipped.fetch_add(1, Ordering::SeqCst);
        self.run.listener.event(&Event::StepSkipped {
            phase: self.phase.name.clone(),
            host: self.host.to_owned(),
            step: self.step.id.clone(),
        });
        true
    }

    pub(super) fn fail(
        &self,
        attempt: u32,
        outcome: Outcome,
        error: Error,
        log: Option<PathBuf>,
    ) -> bool {
        let (step, host) = (self.step.id.clone(), self.host.to_owned());
        let failure = Failure { step, host, attempt, outcome, error, log };
        self.run.fail_of(self.phase.on_failure, failure);
        false
    }

    pub(super) fn note(&self, message: String) {
        self.run.listener.event(&Event::Note { host: Some(self.host.to_owned()), message });
    }

    pub(super) fn begin_record(&self, attempt: u32) -> Record {
        Record::Begin {
            time: Timestamp::now(),
            step: self.step.id.clone(),
            fingerprint: self.step.fingerprint.clone(),
            attempt,
        }
    }

    pub(super) fn tell_begin(&self, attempt: u32) {
        let step = self.step;
        self.run.listener.event(&Event::StepStart {
            phase: self.phase.name.clone(),
            host: self.host.to_owned(),
            step: step.id.clone(),
            attempt,
            says: step.says.clone(),
            bytes: (step.bytes > 0).then_some(step.bytes),
        });
    }

    /// Records and reports the end of an attempt.
    pub(super) fn end(&self, ending: Ending, recalled: bool) -> Result<()> {
        let from = (!ending.moved.is_empty()).then(|| Sources::of(&ending.moved));
        self.run.listener.event(&Event::StepEnd {
            phase: self.phase.name.clone(),
            host: self.host.to_owned(),
            step: self.step.id.clone(),
            outcome: ending.outcome,
            attempt: ending.attempt,
            duration_ms: millis(ending.duration),
            recalled,
            from,
            log: ending.log.clone(),
        });
        ending.write(self.run, self.step)
    }

    /// Runs the step until it has a final result.
    fn attempts(
        &self,
        host: Option<&Host>,
        number: &mut u32,
        log: &StepLog,
        watch: &Arc<StepWatch>,
    ) -> Result<(), (Outcome, Error)> {
        let (run, step) = (self.run, self.step);
        let mut lost = 0;
        let mut again = false;
        loop {
            let attempt = *number;
            let begun = Instant::now();
            let broken = |error| (Outcome::Failed, error);
            run.journal.append(&self.begin_record(attempt)).map_err(broken)?;
            self.tell_begin(attempt);
            let result = self
                .perform(host, attempt, log, watch)
                .map_err(|error| redact::error(&error, run.redactor));
            let unknown = watch.take_unknown();
            let outcome = match &result {
                Ok(()) => Outcome::Done,
                Err(_) if run.interrupt.is_urgent() && watch.was_cancelled() => {
                    Outcome::Interrupted
                }
                Err(_) if unknown.is_some() => Outcome::Unknown,
                Err(error) if may_still_run(error, host.is_some()) => Outcome::Lost,
                Err(_) => Outcome::Failed,
            };
            if let Err(error) = &result {
                log.line(&format!("# {}: {error}", outcome.word()));
            }
            let ending = Ending {
                outcome,
                attempt,
                duration: begun.elapsed(),
                log: log.path().map(|path| path.display().to_string()),
                message: result.as_ref().err().map(ToString::to_string),
                ..Ending::default()
            };
            self.end(ending, watch.was_recalled()).map_err(broken)?;
            let Err(error) = result else { return Ok(()) };
            match outcome {
                Outcome::Lost if lost < run.options.retries && !run.interrupt.is_asked() => {
                    // Same attempt: a command that is still running is followed, and one that has
                    // ended is recalled.
                    let pause = run.options.backoff * 2u32.saturating_pow(lost);
                    lost += 1;
                    self.note(format!("{error}; retrying in {:.1} s", pause.as_secs_f64()));
                    wait(run, pause);
                    if run.interrupt.is_asked() {
                        return Err((Outcome::Interrupted, error));
                    }
                }
                Outcome::Unknown if step.repeat == Repeat::Safe && !again => {
                    again = true;
                    *number += 1;
                }
                Outcome::Unknown if step.repeat == Repeat::Once => {
                    let why = unknown.unwrap_or_default();
                    return Err((outcome, unknown_end(step, &why)));
                }
                _ => return Err((outcome, error)),
            }
        }
    }

    fn perform(
        &self,
        host: Option<&Host>,
        attempt: u32,
        log: &StepLog,
        watch: &Arc<StepWatch>,
    ) -> Result<()> {
        let (run, step) = (self.run, self.step);
        let pool = WatchedPool { pool: Arc::clone(&run.pool), watch: Arc::clone(watch) };
        let output = |line: OutputLine| {
            let text = run.redactor.redact(&line.text);
            watch.hears(&text);
            if log.line(&text) {
                run.listener.event(&Event::Output {
                    host: self.host.to_owned(),
                    step: step.id.clone(),
                    stream: if line.error_stream { "stderr" } else { "stdout" },
                    text: text.into_owned(),
                });
            }
        };
        match (&step.work, host) {
            (Work::Action(action), Some(host)) => (action.does)(&Site {
                host,
                agent: &*pool.agent(host)?,
                pool: &pool,
                context: run.context,
                key: &key(run.journal.id(), &step.id, attempt),
                attempt,
                timeout: step.timeout.or(run.options.timeout),
                output: &output,
            }),
            (Work::Local(work), _) => work(&StepContext {
                pool: &pool,
                note: &|text| output(OutputLine { text: text.to_owned(), error_stream: false }),
                announce: &|text| run.announce(text),
            }),
            (Work::Action(_) | Work::BatchWork, _) => {
                Err(Error::failed(format!("step {} has no host to run on", step.id)))
            }
        }
    }
}

/// Sleeps until the pause is over or a stop is requested.
fn wait(run: &Run<'_>, pause: Duration) {
    let until = Instant::now() + pause.min(Duration::from_secs(60));
    while Instant::now() < until && !run.interrupt.is_asked() {
        std::thread::sleep(Duration::from_millis(20).min(pause));
    }
}

/// Returns the name of one execution on a host. It is the same in every run that resumes this
/// attempt.
fn key(journal: &str, step: &str, attempt: u32) -> String {
    let phase = file_safe(step.split('/').next().unwrap_or_default());
    let name = file_safe(step.rsplit('/').next().unwrap_or_default());
    match attempt {
        1 => format!("{journal}.{phase}.{name}"),
        more => format!("{journal}.{phase}.{name}.{more}"),
    }
}

/// Result of an attempt, for the journal.
pub(crate) struct Ending {
    pub outcome: Outcome,
    pub attempt: u32,
    pub duration: Duration,
    pub log: Option<String>,
    pub message: Option<String>,
    /// Bytes that the step moved to the host, by source.
    pub moved: BTreeMap<String, u64>,
}

impl Default for Ending {
    fn default() -> Self {
        Self {
            outcome: Outcome::Done,
            attempt: 1,
            duration: Duration::ZERO,
            log: None,
            message: None,
            moved: BTreeMap::new(),
        }
    }
}

/// Maximum length of a message in the journal, in characters.
const LONGEST_MESSAGE: usize = 4000;

impl Ending {
    fn write(self, run: &Run<'_>, step: &Step) -> Result<()> {
        let message = self.message.map(|text| match text.char_indices().nth(LONGEST_MESSAGE) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        });
        run.journal.append(&Record::End {
            time: Timestamp::now(),
            step: step.id.clone(),
            fingerprint: step.fingerprint.clone(),
            attempt: self.attempt,
            outcome: self.outcome,
            duration_ms: millis(self.duration),
            log: self.log,
            message,
            moved: self.moved,
        })
    }
}
