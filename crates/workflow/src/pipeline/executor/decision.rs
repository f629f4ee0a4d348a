//! Decides what to do about a step, given an earlier run's records of it.

use crate::pipeline::step::Step;
use imgctl_base::error::{Error, Kind};
use imgctl_journal::event::Outcome;
use imgctl_journal::{Past, PastStep};
use imgctl_runtime::action::Repeat;

/// What to do about a step.
#[derive(Debug)]
pub enum Decision {
    /// The step is already done.
    Skip,
    /// The operator states that the step is done.
    Assume(u32),
    /// Execute the step as this attempt. The attempt number is part of the names of its commands on
    /// hosts: a command that may still run, or whose end was not observed, is found by this name
    /// and not run twice.
    Do(u32),
    /// The step must not be repeated, and its result is unknown.
    Stop(Error),
}

/// Whether a step's command may still be running on its host after `error`. A temporarily refused login (a booting host, sudo rules being
/// rewritten) says as little about the command as a lost connection: a new attempt would start a second instance.
pub(super) fn may_still_run(error: &Error, is_on_host: bool) -> bool {
    match error.kind() {
        Kind::Network => true,
        Kind::Denied => is_on_host,
        _ => false,
    }
}

pub fn decide(
    step: &Step,
    past: Option<&Past>,
    assume_done: &[String],
    redo: &[String],
) -> Decision {
    let known = past.and_then(|past| past.steps.get(&step.id));
    let attempt = known.map_or(0, |known| known.attempt);
    if redo.contains(&step.id) {
        return Decision::Do(attempt + 1);
    }
    if assume_done.contains(&step.id) {
        return Decision::Assume(attempt.max(1));
    }
    let Some(known) = known else {
        return Decision::Do(1);
    };
    let same = known.fingerprint == step.fingerprint;
    match known.outcome {
        Some(Outcome::Done | Outcome::Assumed) if same && !step.always => Decision::Skip,
        // The step ended, successfully or not: a new attempt is a new execution.
        Some(Outcome::Done | Outcome::Assumed | Outcome::Failed | Outcome::Interrupted) => {
            Decision::Do(attempt + 1)
        }
        // The host still knows the result, or will know it.
        None | Some(Outcome::Lost) if same => Decision::Do(attempt),
        None | Some(Outcome::Lost | Outcome::Unknown) if step.repeat == Repeat::Safe => {
            Decision::Do(attempt + 1)
        }
        None | Some(Outcome::Lost | Outcome::Paused | Outcome::Aborted) => Decision::Stop(unknown(
            step,
            "an earlier run started it with other inputs, and its outcome is unknown",
            known,
        )),
        Some(Outcome::Unknown) => Decision::Stop(unknown(
            step,
            known.message.as_deref().unwrap_or("its host could not tell"),
            known,
        )),
    }
}

/// Returns the error for a step that must not be repeated and may already be done.
pub fn unknown(step: &Step, why: &str, past: &PastStep) -> Error {
    let mut error = unknown_end(step, why);
    if let Some(log) = &past.log {
        error = error.hint(format!("its log: {log}"));
    }
    error
}

/// Same as `unknown`, without a log.
pub(crate) fn unknown_end(step: &Step, why: &str) -> Error {
    Error::failed(format!(
        "the outcome of step {} is unknown, and it must not run twice: {why}",
        step.id
    ))
    .hint(format!(
        "inspect the host; then run the same command with --assume-done {id} if the work is done, \
         or with --redo {id} if it is not",
        id = step.id
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(repeat: Repeat, always: bool) -> Step {
        let mut step = Step::local("x", "x", "x", |_| Ok(()));
        step.id = "init/h/x".to_owned();
        (step.repeat, step.always) = (repeat, always);
        step
    }

    #[test]
    fn a_refused_login_says_nothing_about_the_command() {
        let refused = Error::denied("h1 does not let deploy log in");
        assert!(may_still_run(&refused, true));
        assert!(!may_still_run(&refused, false));
        assert!(may_still_run(&Error::new(Kind::Network, "cut"), false));
        assert!(!may_still_run(&Error::failed("exit code 1"), true));
    }

    fn past(step: &Step, outcome: Option<Outcome>, same: bool) -> Past {
        let mut past = Past::default();
        let fingerprint = if same { step.fingerprint.clone() } else { "other".to_owned() };
        past.steps.insert(
            step.id.clone(),
            PastStep {
                at: None,
                fingerprint,
                attempt: 2,
                outcome,
                duration_ms: 0,
                log: None,
                message: None,
            },
        );
        past
    }

    #[test]
    fn table() {
        use Outcome::*;
        let (safe, once) = (step(Repeat::Safe, false), step(Repeat::Once, false));
        let looks = step(Repeat::Safe, true);
        for (step, outcome, same, expected) in [
            (&safe, Some(Done), true, "skip"),
            (&once, Some(Done), true, "skip"),
            (&looks, Some(Done), true, "do 3"),
            (&safe, Some(Done), false, "do 3"),
            (&once, Some(Assumed), true, "skip"),
            (&once, Some(Failed), true, "do 3"),
            (&once, Some(Interrupted), true, "do 3"),
            (&once, None, true, "do 2"),
            (&safe, None, true, "do 2"),
            (&once, Some(Lost), true, "do 2"),
            (&safe, None, false, "do 3"),
            (&once, None, false, "stop"),
            (&once, Some(Unknown), true, "stop"),
            (&safe, Some(Unknown), true, "do 3"),
        ] {
            let past = past(step, outcome, same);
            let got = match decide(step, Some(&past), &[], &[]) {
                Decision::Skip => "skip".to_owned(),
                Decision::Do(attempt) => format!("do {attempt}"),
                Decision::Assume(_) => "assume".to_owned(),
                Decision::Stop(_) => "stop".to_owned(),
            };
            assert_eq!(got, expected, "{outcome:?} same={same} {:?}", step.repeat);
        }
        let past = past(&once, Some(Unknown), true);
        let named = [once.id.clone()];
        assert!(matches!(decide(&once, Some(&past), &named, &[]), Decision::Assume(2)));
        assert!(matches!(decide(&once, Some(&past), &[], &named), Decision::Do(3)));
        assert!(matches!(decide(&once, None, &[], &[]), Decision::Do(1)));
    }
}
