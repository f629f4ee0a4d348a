//! Runs a phase that handles several hosts in one operation, with a separate outcome for each.

use std::sync::Mutex;
use std::{collections::HashMap, path::PathBuf, sync::atomic::Ordering, time::Instant};

use jiff::Timestamp;

use crate::pipeline::event::{Event, Outcome};
use crate::pipeline::executor::{Failure, Run, millis};
use crate::pipeline::executor::{lanes::Ending, log::StepLog, running::WatchedPool};
use crate::pipeline::step::{BatchWork, Phase, Step, StepContext};
use crate::pipeline::{journal::Record, redact};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_transfer::transfer::workers::lock;

/// Runs the phase and retries hosts that lost their connection.
pub(super) fn run(run: &Run<'_>, phase: &Phase, work: &dyn BatchWork) {
    let steps: HashMap<String, &Step> =
        phase.lanes.iter().filter_map(|lane| Some((lane.id(), lane.steps.first()?))).collect();
    let mut pending: Vec<String> =
        phase.lanes.iter().map(crate::pipeline::step::Lane::id).collect();
    for attempt in 0..=run.options.retries {
        let last = attempt == run.options.retries || run.interrupt.is_asked();
        pending = round(run, phase, work, &steps, &pending, last);
        if pending.is_empty() {
            return;
        }
        std::thread::sleep(run.options.backoff * 2u32.saturating_pow(attempt.min(4)));
    }
}

/// Makes one attempt for `pending` and returns the hosts to retry.
fn round(
    run: &Run<'_>,
    phase: &Phase,
    work: &dyn BatchWork,
    steps: &HashMap<String, &Step>,
    pending: &[String],
    last: bool,
) -> Vec<String> {
    let attempt_of = |step: &Step| {
        let past = run.past.and_then(|past| past.steps.get(&step.id));
        past.map_or(1, |past| past.attempt + 1)
    };
    let begun: Vec<Record> = pending
        .iter()
        .filter_map(|host| steps.get(host))
        .map(|step| Record::Begin {
            time: Timestamp::now(),
            step: step.id.clone(),
            fingerprint: step.fingerprint.clone(),
            attempt: attempt_of(step),
        })
        .collect();
    if let Err(error) = run.journal.append_all(&begun) {
        if let Some((host, step)) = pending.first().and_then(|host| Some((host, steps.get(host)?)))
        {
            failed(run, step, host, attempt_of(step), error);
        }
        return Vec::new();
    }
    for (host, step) in pending.iter().filter_map(|host| Some((host, steps.get(host)?))) {
        run.listener.event(&Event::StepStart {
            phase: phase.name.clone(),
            host: host.clone(),
            step: step.id.clone(),
            attempt: attempt_of(step),
            says: step.says.clone(),
            bytes: (step.bytes > 0).then_some(step.bytes),
        });
    }
    let started = Instant::now();
    let moved = Mutex::new(HashMap::<String, u64>::new());
    let open = Mutex::new(pending.iter().cloned().collect::<std::collections::BTreeSet<_>>());
    let again = Mutex::new(Vec::new());
    let ended = |host: &str, result: Result<()>| {
        let Some(step) = steps.get(host) else { return };
        if !lock(&open).remove(host) {
            return;
        }
        let result = result.map_err(|error| redact::error(&error, run.redactor));
        let outcome = match &result {
            Ok(()) => Outcome::Done,
            Err(_) if run.interrupt.is_urgent() => Outcome::Interrupted,
            Err(error) if error.kind() == Kind::Network => Outcome::Lost,
            Err(_) => Outcome::Failed,
        };
        // Such work prints nothing; its error is written to the log of the step.
        let log = result.as_ref().err().and_then(|error| logged(run, step, host, outcome, error));
        let shown = log.as_ref().map(|log| log.display().to_string());
        let ending = Ending {
            outcome,
            attempt: attempt_of(step),
            duration: started.elapsed(),
            log: shown.clone(),
            message: result.as_ref().err().map(ToString::to_string),
        };
        let written = ending.write(run, step);
        run.listener.event(&Event::StepEnd {
            phase: phase.name.clone(),
            host: host.to_owned(),
            step: step.id.clone(),
            outcome,
            attempt: attempt_of(step),
            duration_ms: millis(started.elapsed()),
            recalled: false,
            log: shown,
        });
        match (result, written) {
            (Ok(()), Ok(())) => {
                run.done.fetch_add(1, Ordering::SeqCst);
            }
            (Err(error), _) if outcome == Outcome::Lost && !last => {
                run.listener.event(&Event::Note {
                    host: Some(host.to_owned()),
                    message: format!("{error}; retrying"),
                });
                lock(&again).push(host.to_owned());
            }
            (Err(error), _) | (Ok(()), Err(error)) => run.fail(Failure {
                step: step.id.clone(),
                host: host.to_owned(),
                attempt: attempt_of(step),
                outcome,
                error,
                log,
            }),
        }
    };
    let watch = run.running.began(&phase.name, &phase.name);
    let pool = WatchedPool {
        pool: std::sync::Arc::clone(&run.pool),
        watch: std::sync::Arc::clone(&watch),
    };
    let announce = |text: &str| {
        run.listener
            .event(&Event::Note { host: None, message: run.redactor.redact(text).into_owned() });
    };
    let step = StepContext { pool: &pool, note: &announce, announce: &announce };
    let progress = |host: &str, bytes: u64| {
        watch.hears("");
        let Some(step) = steps.get(host) else { return };
        let mut moved = lock(&moved);
        let sum = moved.entry(host.to_owned()).or_default();
        *sum += bytes;
        let bytes = *sum;
        drop(moved);
        run.listener.event(&Event::Progress {
            host: host.to_owned(),
            step: step.id.clone(),
            bytes,
        });
    };
    work.run(&step, pending, &progress, &ended, run.interrupt.urgent_flag());
    run.running.ended(&phase.name);
    let left: Vec<String> = {
        let open = lock(&open);
        open.iter().cloned().collect()
    };
    for host in left {
        let error = if run.interrupt.is_asked() {
            Error::new(Kind::Interrupted, "stopped on request")
        } else {
            Error::failed("it was skipped; this is a bug in imgctl")
        };
        ended(&host, Err(error));
    }
    std::mem::take(&mut *lock(&again))
}

/// Writes the full error and all its hints to the step's log.
fn logged(
    run: &Run<'_>,
    step: &Step,
    host: &str,
    outcome: Outcome,
    error: &Error,
) -> Option<PathBuf> {
    let place = run.places.get(step.id.as_str()).copied().unwrap_or(0);
    let state = &run.context.state_directory;
    let log = StepLog::new(state, run.journal.id(), host, place, &step.name);
    log.line(&format!("# {} {}: {}", Timestamp::now(), step.id, outcome.word()));
    for message in error.chain() {
        log.line(&message);
    }
    for hint in error.hints() {
        log.line(&format!("hint: {hint}"));
    }
    log.path()
}

fn failed(run: &Run<'_>, step: &Step, host: &str, attempt: u32, error: Error) {
    run.fail(Failure {
        step: step.id.clone(),
        host: host.to_owned(),
        attempt,
        outcome: Outcome::Failed,
        error,
        log: None,
    });
}
