//! Runs a phase that handles several hosts in one operation, with a separate outcome for each.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, atomic::Ordering};
use std::{path::PathBuf, time::Instant};

use jiff::Timestamp;

use crate::pipeline::event::{Event, Outcome, REGISTRY, Sources};
use crate::pipeline::executor::lanes::{Ending, Task};
use crate::pipeline::executor::{Run, running::WatchedPool};
use crate::pipeline::step::{BatchWork, CONTROLLER, Lane, Phase, Step, StepContext};
use crate::pipeline::{journal::Record, redact};
use crate::sync::execute::Origin;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_transfer::transfer::workers::lock;

/// Runs the phase and retries hosts that lost their connection.
pub(super) fn run(run: &Run<'_>, phase: &Phase, work: &dyn BatchWork) {
    let steps: HashMap<String, &Step> =
        phase.lanes.iter().filter_map(|lane| Some((lane.id(), lane.steps.first()?))).collect();
    let mut pending: Vec<String> = phase.lanes.iter().map(Lane::id).collect();
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
    let tasks: Vec<Task<'_>> = pending
        .iter()
        .filter_map(|host| Some(Task { run, phase, host, step: steps.get(host)? }))
        .collect();
    let begun: Vec<Record> =
        tasks.iter().map(|task| task.begin_record(attempt_of(task.step))).collect();
    if let Err(error) = run.journal.append_all(&begun) {
        if let Some(task) = tasks.first() {
            task.fail(attempt_of(task.step), Outcome::Failed, error, None);
        }
        return Vec::new();
    }
    for task in &tasks {
        task.tell_begin(attempt_of(task.step));
    }
    let started = Instant::now();
    let moved = Mutex::new(HashMap::<String, BTreeMap<String, u64>>::new());
    let open = Mutex::new(pending.iter().cloned().collect::<BTreeSet<_>>());
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
        let task = Task { run, phase, host, step };
        let attempt = attempt_of(step);
        // Such work prints nothing; its error is written to the log of the step.
        let log = result.as_ref().err().and_then(|error| logged(&task, outcome, error));
        let ending = Ending {
            outcome,
            attempt,
            duration: started.elapsed(),
            log: log.as_ref().map(|log| log.display().to_string()),
            message: result.as_ref().err().map(ToString::to_string),
            moved: lock(&moved).get(host).cloned().unwrap_or_default(),
        };
        match (result, task.end(ending, false)) {
            (Ok(()), Ok(())) => {
                run.done.fetch_add(1, Ordering::SeqCst);
            }
            (Err(error), _) if outcome == Outcome::Lost && !last => {
                task.note(format!("{error}; retrying"));
                lock(&again).push(host.to_owned());
            }
            (Err(error), _) | (Ok(()), Err(error)) => {
                task.fail(attempt, outcome, error, log);
            }
        }
    };
    let watch = run.running.began(&phase.name, &phase.name);
    let pool = WatchedPool { pool: Arc::clone(&run.pool), watch: Arc::clone(&watch) };
    let announce = |text: &str| run.announce(text);
    let step = StepContext { pool: &pool, note: &announce, announce: &announce };
    let progress = |host: &str, from: Origin<'_>, bytes: u64| {
        watch.hears("");
        let Some(step) = steps.get(host) else { return };
        let mut moved = lock(&moved);
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
        run.listener.event(&Event::Progress {
            host: host.to_owned(),
            step: step.id.clone(),
            bytes: from.sum(),
            from,
        });
    };
    work.run(&step, pending, &progress, &ended, run.interrupt.urgent_flag());
    run.running.ended(&phase.name);
    let left = lock(&open).clone();
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
