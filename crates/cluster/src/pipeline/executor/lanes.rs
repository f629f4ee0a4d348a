//! Runs the hosts of one phase, several at once, and the steps of each host in order.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::pipeline::event::{Event, Outcome};
use crate::pipeline::executor::decision::{Decision, decide, unknown_end};
use crate::pipeline::executor::log::{StepLog, file_safe};
use crate::pipeline::executor::running::{StepWatch, WatchedPool};
use crate::pipeline::executor::{Failure, Run, millis};
use crate::pipeline::step::{Lane, OnFailure, Order, Phase, Step, StepContext, Work};
use crate::pipeline::{journal::Record, redact};
use crate::runtime::action::{HostPool, Repeat, Site};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_host::agent::protocol::OutputLine;
use imgctl_transfer::transfer::workers::map;

/// Runs a phase with as many threads as its order and the limit allow.
pub(super) fn run(run: &Run<'_>, phase: &Phase) {
    let threads = match phase.order {
        Order::Serial => 1,
        Order::Parallel => run.options.parallel,
    };
    map(&phase.lanes, threads, |lane| {
        for step in &lane.steps {
            let goes_on = !must_stop(run, phase)
                && (one(run, phase, lane, step) || phase.on_failure == OnFailure::GoOn);
            if !goes_on {
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

/// Runs one step, from the decision to the record. Returns `false` if its lane ends with it.
fn one(run: &Run<'_>, phase: &Phase, lane: &Lane, step: &Step) -> bool {
    let host = lane.id();
    let options = run.options;
    let mut attempt = match decide(step, run.past, &options.assume_done, &options.redo) {
        Decision::Skip => {
            skip(run, phase, &host, step);
            return true;
        }
        Decision::Assume(attempt) => {
            let record = Ending { outcome: Outcome::Assumed, attempt, ..Ending::default() };
            match record.write(run, step) {
                Ok(()) => skip(run, phase, &host, step),
                Err(error) => {
                    return fail(run, phase, step, &host, (attempt, Outcome::Failed), error, None);
                }
            }
            return true;
        }
        Decision::Stop(error) => {
            let attempt =
                run.past.and_then(|past| past.steps.get(&step.id)).map_or(1, |past| past.attempt);
            return fail(run, phase, step, &host, (attempt, Outcome::Unknown), error, None);
        }
        Decision::Do(attempt) => attempt,
    };
    let place = run.places.get(step.id.as_str()).copied().unwrap_or(0);
    let log =
        StepLog::new(&run.context.state_directory, run.journal.id(), &host, place, &step.name)
            .titled(format!("{} attempt {attempt}", step.id));
    let watch = run.running.began(&step.id, &host);
    let ended = attempts(run, phase, lane, step, &mut attempt, &log, &watch);
    run.running.ended(&step.id);
    match ended {
        Ok(()) => {
            run.done.fetch_add(1, Ordering::SeqCst);
            true
        }
        Err((outcome, error)) => {
            fail(run, phase, step, &host, (attempt, outcome), error, Some(&log))
        }
    }
}

fn skip(run: &Run<'_>, phase: &Phase, host: &str, step: &Step) {
    run.skipped.fetch_add(1, Ordering::SeqCst);
    run.listener.event(&Event::StepSkipped {
        phase: phase.name.clone(),
        host: host.to_owned(),
        step: step.id.clone(),
    });
}

fn fail(
    run: &Run<'_>,
    phase: &Phase,
    step: &Step,
    host: &str,
    (attempt, outcome): (u32, Outcome),
    error: Error,
    log: Option<&StepLog>,
) -> bool {
    let failure = Failure {
        step: step.id.clone(),
        host: host.to_owned(),
        attempt,
        outcome,
        error,
        log: log.and_then(StepLog::path),
    };
    run.fail_of(phase.on_failure, failure);
    false
}

/// Runs the step until it has a final result.
fn attempts(
    run: &Run<'_>,
    phase: &Phase,
    lane: &Lane,
    step: &Step,
    number: &mut u32,
    log: &StepLog,
    watch: &std::sync::Arc<StepWatch>,
) -> Result<(), (Outcome, Error)> {
    let host = lane.id();
    let mut lost = 0;
    let mut again = false;
    loop {
        let attempt = *number;
        let begun = Instant::now();
        let record = Record::Begin {
            time: Timestamp::now(),
            step: step.id.clone(),
            fingerprint: step.fingerprint.clone(),
            attempt,
        };
        run.journal.append(&record).map_err(|error| (Outcome::Failed, error))?;
        run.listener.event(&Event::StepStart {
            phase: phase.name.clone(),
            host: host.clone(),
            step: step.id.clone(),
            attempt,
            says: step.says.clone(),
            bytes: (step.bytes > 0).then_some(step.bytes),
        });
        let result = perform(run, lane, step, attempt, log, watch)
            .map_err(|error| redact::error(&error, run.redactor));
        let unknown = watch.take_unknown();
        let outcome = match &result {
            Ok(()) => Outcome::Done,
            Err(_) if run.interrupt.is_urgent() && watch.was_cancelled() => Outcome::Interrupted,
            Err(_) if unknown.is_some() => Outcome::Unknown,
            Err(error) if error.kind() == Kind::Network => Outcome::Lost,
            Err(_) => Outcome::Failed,
        };
        if let Err(error) = &result {
            log.line(&format!("# {}: {error}", outcome.word()));
        }
        let path = log.path().map(|path| path.display().to_string());
        let ending = Ending {
            outcome,
            attempt,
            duration: begun.elapsed(),
            log: path.clone(),
            message: result.as_ref().err().map(ToString::to_string),
        };
        ending.write(run, step).map_err(|error| (Outcome::Failed, error))?;
        run.listener.event(&Event::StepEnd {
            phase: phase.name.clone(),
            host: host.clone(),
            step: step.id.clone(),
            outcome,
            attempt,
            duration_ms: millis(begun.elapsed()),
            recalled: watch.was_recalled(),
            log: path,
        });
        let Err(error) = result else { return Ok(()) };
        match outcome {
            Outcome::Lost if lost < run.options.retries && !run.interrupt.is_asked() => {
                // Same attempt: a command that is still running is followed, and one that has ended
                // is recalled.
                let pause = run.options.backoff * 2u32.saturating_pow(lost);
                lost += 1;
                run.listener.event(&Event::Note {
                    host: Some(host.clone()),
                    message: format!("{error}; retrying in {} ms", pause.as_millis()),
                });
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

/// Sleeps until the pause is over or a stop is requested.
fn wait(run: &Run<'_>, pause: Duration) {
    let until = Instant::now() + pause.min(Duration::from_secs(60));
    while Instant::now() < until && !run.interrupt.is_asked() {
        std::thread::sleep(Duration::from_millis(20).min(pause));
    }
}

fn perform(
    run: &Run<'_>,
    lane: &Lane,
    step: &Step,
    attempt: u32,
    log: &StepLog,
    watch: &std::sync::Arc<StepWatch>,
) -> Result<()> {
    let host = lane.id();
    let pool =
        WatchedPool { pool: std::sync::Arc::clone(&run.pool), watch: std::sync::Arc::clone(watch) };
    let output = |line: OutputLine| {
        let text = run.redactor.redact(&line.text);
        watch.hears(&text);
        if log.line(&text) {
            run.listener.event(&Event::Output {
                host: host.clone(),
                step: step.id.clone(),
                stream: if line.error_stream { "stderr" } else { "stdout" },
                text: text.into_owned(),
            });
        }
    };
    match (&step.work, &lane.host) {
        (Work::Action(action), Some(host)) => {
            let agent = pool.agent(host)?;
            let key = key(run.journal.id(), &step.id, attempt);
            (action.does)(&Site {
                host,
                agent: &*agent,
                pool: &pool,
                context: run.context,
                key: &key,
                attempt,
                timeout: step.timeout.or(run.options.timeout),
                output: &output,
            })
        }
        (Work::Local(work), _) => work(&StepContext {
            pool: &pool,
            note: &|text| {
                output(OutputLine { text: text.to_owned(), error_stream: false });
            },
            announce: &|text| {
                run.listener.event(&Event::Note {
                    host: None,
                    message: run.redactor.redact(text).into_owned(),
                });
            },
        }),
        (Work::Action(_) | Work::BatchWork, _) => {
            Err(Error::failed(format!("step {} has no host to run on", step.id)))
        }
    }
}

/// Returns the name of one execution on a host. It is the same in every run that resumes this
/// attempt.
fn key(journal: &str, step: &str, attempt: u32) -> String {
    let mut parts = step.split('/');
    let phase = parts.next().unwrap_or_default();
    let name = step.rsplit('/').next().unwrap_or_default();
    match attempt {
        1 => format!("{journal}.{}.{}", file_safe(phase), file_safe(name)),
        more => format!("{journal}.{}.{}.{more}", file_safe(phase), file_safe(name)),
    }
}

/// Result of an attempt, for the journal.
pub(crate) struct Ending {
    pub outcome: Outcome,
    pub attempt: u32,
    pub duration: Duration,
    pub log: Option<String>,
    pub message: Option<String>,
}

impl Default for Ending {
    fn default() -> Self {
        Self {
            outcome: Outcome::Done,
            attempt: 1,
            duration: Duration::ZERO,
            log: None,
            message: None,
        }
    }
}

/// Maximum length of a message in the journal, in characters.
const LONGEST_MESSAGE: usize = 4000;

impl Ending {
    pub(super) fn write(self, run: &Run<'_>, step: &Step) -> Result<()> {
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
        })
    }
}
