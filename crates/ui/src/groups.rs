//! Steps as folded groups of a CI system's log.
//!
//! Groups cannot overlap, but the stages of a build run at the same time. One stage at a time has the
//! log; what the others report is kept until it ends its step, for a while and up to a limit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::ci::{System, group_end, group_start, harmless};
use crate::progress::line_task;
use crate::table::{now, one_line};
use imgctl_base::progress::{Reporter, Task, Unit};
use imgctl_base::text::Lines;

/// What is kept of a stage that does not have the log, in bytes and time; then it gets the log.
const MOST_KEPT: usize = 256 << 10;
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Writes whole lines to the log.
type Out = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Reports to the log of a CI system.
pub(crate) struct Groups(Arc<Log>);

impl Groups {
    /// Writes lines with `out`.
    pub(crate) fn new(system: System, out: Out) -> Self {
        Self(Arc::new(Log { system, out, state: Mutex::default() }))
    }
}

impl Reporter for Groups {
    fn start(&self, title: &str, unit: Unit, total: Option<u64>) -> Box<dyn Task> {
        let log = Arc::clone(&self.0);
        let say = move |line: &str| log.write(line.as_bytes());
        line_task(Box::new(say), title, unit, total)
    }

    fn note(&self, message: &str) {
        self.0.write(message.as_bytes());
    }

    fn output(&self, line: &[u8], _error_stream: bool) {
        self.0.write(line);
    }

    fn sequence(&self) -> Option<Box<dyn Reporter + '_>> {
        let mut state = self.0.lock();
        state.sequences += 1;
        Some(Box::new(Sequence { log: Arc::clone(&self.0), id: state.sequences }))
    }
}

/// Reports the steps of one stage; the last one ends with this value.
struct Sequence {
    log: Arc<Log>,
    id: u64,
}

impl Reporter for Sequence {
    fn start(&self, title: &str, unit: Unit, total: Option<u64>) -> Box<dyn Task> {
        let (log, id) = (Arc::clone(&self.log), self.id);
        let say = move |line: &str| log.line(id, line.as_bytes());
        line_task(Box::new(say), title, unit, total)
    }

    fn note(&self, message: &str) {
        self.log.line(self.id, message.as_bytes());
    }

    fn output(&self, line: &[u8], _error_stream: bool) {
        self.log.line(self.id, line);
    }

    fn step(&self, title: &str) {
        self.log.begin(self.id, &one_line(title));
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        self.log.end(self.id);
    }
}

struct Log {
    system: System,
    out: Out,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sequences: u64,
    groups: u64,
    /// The stage that has the log; its group is open.
    open: Option<u64>,
    /// The current step of each stage.
    steps: BTreeMap<u64, Step>,
    /// Steps that ended without the log.
    ended: Vec<Step>,
}

struct Step {
    title: String,
    /// Seconds since 1970.
    began: i64,
    kept: Vec<u8>,
    kept_since: Instant,
    group: u64,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line that belongs to no stage.
    fn write(&self, line: &[u8]) {
        let _state = self.lock();
        (self.out)(&safe(line));
    }

    fn begin(&self, id: u64, title: &str) {
        let mut state = self.lock();
        self.finish(&mut state, id);
        let step = Step {
            title: title.to_owned(),
            began: now(),
            kept: Vec::new(),
            kept_since: Instant::now(),
            group: 0,
        };
        state.steps.insert(id, step);
        if state.open.is_none() {
            self.open(&mut state, id);
        }
    }

    fn end(&self, id: u64) {
        let mut state = self.lock();
        self.finish(&mut state, id);
        // Who waits longest gets the log.
        let next = state.steps.iter().min_by_key(|(_, step)| step.kept_since);
        if let (None, Some(next)) = (state.open, next.map(|(id, _)| *id)) {
            self.open(&mut state, next);
        }
    }

    fn line(&self, id: u64, line: &[u8]) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let line = safe(line);
        let has_log = state.open == Some(id);
        let step = state.steps.get_mut(&id).filter(|_| !has_log);
        // Before its first step, a stage reports as if it were none.
        let Some(step) = step else {
            return (self.out)(&line);
        };
        if step.kept.is_empty() {
            step.kept_since = Instant::now();
        }
        step.kept.extend_from_slice(&line);
        if step.kept.len() > MOST_KEPT || step.kept_since.elapsed() > LONGEST_WAIT {
            self.close(state);
            self.open(state, id);
        }
    }

    /// Ends a stage's step.
    fn finish(&self, state: &mut State, id: u64) {
        let had_log = state.open == Some(id);
        if had_log {
            self.close(state);
        }
        let Some(step) = state.steps.remove(&id) else { return };
        if !had_log {
            state.ended.push(step);
            if state.open.is_none() {
                self.write_ended(state);
            }
        }
    }

    /// Takes the log from the stage that has it.
    fn close(&self, state: &mut State) {
        if let Some(step) = state.open.take().and_then(|id| state.steps.get_mut(&id)) {
            self.put(&group_end(self.system, step.group, now()));
            if !step.title.ends_with(CONTINUED) {
                step.title.push_str(CONTINUED);
            }
            step.began = now();
            step.kept_since = Instant::now();
        }
        self.write_ended(state);
    }

    fn write_ended(&self, state: &mut State) {
        for step in std::mem::take(&mut state.ended) {
            // The rest of a step that was shown before.
            if step.kept.is_empty() && step.title.ends_with(CONTINUED) {
                continue;
            }
            state.groups += 1;
            self.put(&group_start(self.system, state.groups, step.began, &step.title));
            (self.out)(&step.kept);
            self.put(&group_end(self.system, state.groups, now()));
        }
    }

    /// Gives the log to a stage.
    fn open(&self, state: &mut State, id: u64) {
        let Some(step) = state.steps.get_mut(&id) else { return };
        state.groups += 1;
        step.group = state.groups;
        self.put(&group_start(self.system, step.group, step.began, &step.title));
        (self.out)(&std::mem::take(&mut step.kept));
        state.open = Some(id);
    }

    fn put(&self, line: &str) {
        (self.out)(format!("{line}\n").as_bytes());
    }
}

const CONTINUED: &str = " (continued)";

/// Returns a line without commands for a runner or a terminal, with exactly one newline at its end; what
/// was overwritten with carriage returns becomes lines. Bytes that are not UTF-8 are replaced.
fn safe(line: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line));
    let lines: Lines = text.trim_end_matches('\r').split('\r').collect();
    harmless(lines.as_str()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> (Groups, Arc<Mutex<Vec<u8>>>) {
        let written: Arc<Mutex<Vec<u8>>> = Arc::default();
        let out = Arc::clone(&written);
        let out = move |bytes: &[u8]| out.lock().unwrap().extend_from_slice(bytes);
        (Groups::new(System::Github, Box::new(out)), written)
    }

    fn text(written: &Mutex<Vec<u8>>) -> Vec<String> {
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn each_step_is_a_group_with_what_it_said() {
        let (groups, written) = log();
        groups.note("before");
        let stage = groups.sequence().unwrap();
        stage.step("[1/2] RUN a\n%");
        stage.output(b"::error::not ours\n", false);
        stage.step("[2/2] COPY b /");
        drop(stage);
        groups.note("after");
        let expected = [
            "before",
            "::group::[1/2] RUN a %25",
            "| ::error::not ours",
            "::endgroup::",
            "::group::[2/2] COPY b /",
            "::endgroup::",
            "after",
        ];
        assert_eq!(text(&written), expected);
    }

    #[test]
    fn stages_that_run_at_the_same_time_do_not_mix() {
        let (groups, written) = log();
        let (a, b) = (groups.sequence().unwrap(), groups.sequence().unwrap());
        a.step("a1");
        b.step("b1");
        a.note("one");
        b.note("two");
        b.step("b2");
        b.note("three");
        a.note("four");
        a.step("a2");
        a.note("five");
        drop(a);
        b.note("six");
        drop(b);
        let expected = [
            "::group::a1",
            "one",
            "four",
            "::endgroup::",
            "::group::b1",
            "two",
            "::endgroup::",
            "::group::a2",
            "five",
            "::endgroup::",
            "::group::b2",
            "three",
            "six",
            "::endgroup::",
        ];
        assert_eq!(text(&written), expected);
    }

    #[test]
    fn a_stage_that_says_much_gets_the_log() {
        let (groups, written) = log();
        let (a, b) = (groups.sequence().unwrap(), groups.sequence().unwrap());
        a.step("a1");
        b.step("b1");
        a.note("one");
        b.output(&vec![b'x'; MOST_KEPT + 1], false);
        b.note("more");
        a.note("two");
        drop(b);
        drop(a);
        let shown: Vec<String> =
            text(&written).into_iter().filter(|line| line.len() < 99).collect();
        let expected = [
            "::group::a1",
            "one",
            "::endgroup::",
            "::group::b1",
            "more",
            "::endgroup::",
            "::group::a1 (continued)",
            "two",
            "::endgroup::",
        ];
        assert_eq!(shown, expected);
    }
}
