//! Shows a run over hosts: on a terminal one line per host with its step, or counts for a large
//! number of hosts; without a terminal plain lines; or JSON, one object per line (docs/operations.md).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use serde_json::Value;

use crate::table::{Table, counted, cut, human, one_line};
use crate::{Terminal, edge};
use imgctl_base::text::of_host;
use imgctl_journal::event::{Event, Listener, Outcome};

/// Maximum number of hosts listed; more are only counted.
const MOST_LINES: usize = 20;
/// Among counted hosts, those that have spent this long on one step are still listed.
const SLOW: Duration = Duration::from_secs(10);
const MOST_SLOW: usize = 8;

/// Displays events to the user.
pub struct HostsView {
    terminal: Arc<Terminal>,
    /// Redraws lines continuously; otherwise, each line is printed once.
    live: bool,
    /// Also prints the output of commands, each line with its host.
    verbose: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    hosts: BTreeMap<String, Line>,
    phase: String,
    phase_hosts: usize,
    /// Finished steps of this phase.
    ended: usize,
    steps: usize,
    bars: Vec<ProgressBar>,
    totals: BTreeMap<String, Totals>,
    /// What is known about each failure.
    failures: Vec<String>,
    drawn: Option<Instant>,
}

struct Line {
    step: String,
    says: String,
    since: Instant,
    bytes: u64,
    total: Option<u64>,
    last: String,
}

/// Row of a host in the final table.
#[derive(Default)]
struct Totals {
    done: usize,
    skipped: usize,
    failed: Option<String>,
    time_ms: u64,
    bytes: u64,
}

impl HostsView {
    /// Creates a view on `terminal`.
    pub(crate) fn new(terminal: Arc<Terminal>, live: bool, verbose: bool) -> Self {
        Self { terminal, live, verbose, state: Mutex::default() }
    }

    /// Summarises the results: all hosts, or only the failed ones if there are many.
    fn summary(state: &State) -> Vec<String> {
        let many = state.totals.len() > MOST_LINES;
        let mut table = Table::new(&["HOST", "DONE", "BEFORE", "BYTES", "TIME", "RESULT"])
            .right(1)
            .right(2)
            .right(3)
            .right(4);
        let mut shown = 0;
        for (host, totals) in &state.totals {
            if many && totals.failed.is_none() {
                continue;
            }
            shown += 1;
            table.row(vec![
                host.clone(),
                totals.done.to_string(),
                totals.skipped.to_string(),
                match totals.bytes {
                    0 => "-".to_owned(),
                    bytes => human(bytes),
                },
                seconds(Duration::from_millis(totals.time_ms)),
                match &totals.failed {
                    Some(step) => format!("failed at {step}"),
                    None => "ok".to_owned(),
                },
            ]);
        }
        let table = table.render(true);
        let mut lines: Vec<String> = match shown {
            0 => Vec::new(),
            _ => table.as_str().lines().map(str::to_owned).collect(),
        };
        if many {
            let failed = state.totals.values().filter(|one| one.failed.is_some()).count();
            lines.push(format!(
                "{} hosts: {} ok, {failed} failed",
                state.totals.len(),
                state.totals.len() - failed
            ));
        }
        lines
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self, text: &str) {
        self.terminal.line(&one_line(text));
    }

    /// Applies an event to the state; returns the lines to print once.
    fn take(&self, state: &mut State, event: &Event) -> Vec<String> {
        let mut lines = Vec::new();
        match event {
            Event::Start { verb, cluster, hosts, steps, resumed, .. } => {
                let again = if *resumed { ", resuming where it stopped" } else { "" };
                let (steps, hosts) = (counted(*steps, "step"), counted(*hosts, "host"));
                lines.push(format!("{verb} {cluster}: {steps} on {hosts}{again}"));
            }
            Event::PhaseStart { phase, hosts, steps } => {
                state.phase.clone_from(phase);
                (state.phase_hosts, state.steps, state.ended) = (*hosts, *steps, 0);
                state.hosts.clear();
                if !self.live {
                    lines.push(format!("== {phase}: {}", counted(*hosts, "host")));
                }
            }
            Event::StepStart { host, step, says, bytes, attempt, .. } => {
                let says = says.first().cloned().unwrap_or_default();
                if !self.live && (state.phase_hosts <= MOST_LINES || *attempt > 1) {
                    lines.push(format!("{host}: {}: {says}", name_of(step)));
                }
                let line = Line {
                    step: name_of(step).to_owned(),
                    says,
                    since: Instant::now(),
                    bytes: 0,
                    total: *bytes,
                    last: String::new(),
                };
                state.hosts.insert(host.clone(), line);
            }
            Event::StepSkipped { host, .. } => {
                state.ended += 1;
                state.totals.entry(host.clone()).or_default().skipped += 1;
            }
            Event::Output { host, text, .. } => {
                if self.verbose {
                    lines.push(format!("{host} | {text}"));
                }
                if let Some(line) = state.hosts.get_mut(host) {
                    line.last.clone_from(text);
                }
            }
            Event::Progress { host, bytes, .. } => {
                if let Some(line) = state.hosts.get_mut(host) {
                    line.bytes = *bytes;
                }
            }
            Event::StepEnd { host, step, outcome, duration_ms, .. } => {
                state.ended += 1;
                let moved = state.hosts.remove(host).map_or(0, |line| line.bytes);
                let totals = state.totals.entry(host.clone()).or_default();
                totals.time_ms += duration_ms;
                totals.bytes += moved;
                match outcome {
                    Outcome::Done | Outcome::Assumed => totals.done += 1,
                    _ => lines.push(format!("{host}: {} {}", name_of(step), outcome.word())),
                }
                let took = Duration::from_millis(*duration_ms);
                if !self.live && *outcome == Outcome::Done && took >= SLOW {
                    lines.push(format!("{host}: {} done in {}", name_of(step), seconds(took)));
                }
            }
            Event::Failure { host, step, message, causes, hints, log } => {
                state.totals.entry(host.clone()).or_default().failed = Some(step.clone());
                lines.push(format!("FAILED {host}: {step}"));
                let own =
                    message.strip_prefix(host.as_str()).and_then(|rest| rest.strip_prefix(": "));
                let mut text = format!("{host}: {step}: {}", own.unwrap_or(message));
                for cause in causes {
                    let _ = write!(text, "\n  because: {}", cause.replace('\n', "\n  "));
                }
                for hint in hints {
                    let _ = write!(text, "\n  hint: {hint}");
                }
                if let Some(log) = log {
                    let _ = write!(text, "\n  log: {log}");
                }
                state.failures.push(text);
            }
            Event::Note { host, message } => lines.push(match host {
                Some(host) => format!("note: {}", of_host(host, message)),
                None => format!("note: {message}"),
            }),
            Event::PhaseEnd { phase, duration_ms } => {
                state.hosts.clear();
                if self.live {
                    let took = seconds(Duration::from_millis(*duration_ms));
                    let hosts = counted(state.phase_hosts, "host");
                    lines.push(format!("{phase}: {hosts}, {took}"));
                }
            }
            Event::End { outcome, done, skipped, failed, duration_ms, journal } => {
                state.hosts.clear();
                // The error of a run that failed says why.
                if *outcome != Outcome::Failed {
                    let texts = state.failures.iter().flat_map(|text| text.lines());
                    lines.extend(texts.map(str::to_owned));
                }
                lines.extend(Self::summary(state));
                lines.push(format!(
                    "{}: {} done, {skipped} done before, {failed} failed, {} (journal {journal})",
                    outcome.word(),
                    counted(*done, "step"),
                    seconds(Duration::from_millis(*duration_ms))
                ));
            }
        }
        lines
    }

    /// Returns the lines to draw below the printed lines.
    fn drawing(state: &State) -> Vec<String> {
        if state.hosts.is_empty() {
            return Vec::new();
        }
        let line = |host: &String, line: &Line| {
            let mut text = format!("  {host}  {}/{}  ", state.phase, line.step);
            match line.total {
                Some(total) if total > 0 => {
                    let _ = write!(text, "{} of {}  ", human(line.bytes), human(total));
                }
                _ if line.bytes > 0 => {
                    let _ = write!(text, "{}  ", human(line.bytes));
                }
                _ => {}
            }
            let _ = write!(text, "{}  ", seconds(line.since.elapsed()));
            let more = if line.last.is_empty() { &line.says } else { &line.last };
            text.push_str(&cut(&one_line(more), 60));
            text
        };
        if state.phase_hosts <= MOST_LINES {
            return state.hosts.iter().map(|(host, one)| line(host, one)).collect();
        }
        let mut lines = vec![format!(
            "  {}: {} of {} steps, {} hosts active",
            state.phase,
            state.ended,
            state.steps,
            state.hosts.len()
        )];
        let mut slow: Vec<(&String, &Line)> =
            state.hosts.iter().filter(|(_, one)| one.since.elapsed() >= SLOW).collect();
        slow.sort_by_key(|(_, one)| one.since);
        lines.extend(slow.into_iter().take(MOST_SLOW).map(|(host, one)| line(host, one)));
        lines
    }

    fn draw(&self, state: &mut State) {
        let lines = Self::drawing(state);
        while state.bars.len() > lines.len() {
            if let Some(bar) = state.bars.pop() {
                bar.finish_and_clear();
                self.terminal.bars().remove(&bar);
            }
        }
        while state.bars.len() < lines.len() {
            let style = ProgressStyle::with_template("{wide_msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::new_spinner().with_style(style);
            state.bars.push(self.terminal.bars().add(bar));
        }
        for (bar, line) in state.bars.iter().zip(lines) {
            edge::label(bar, &line);
        }
    }
}

impl Listener for HostsView {
    fn event(&self, event: &Event) {
        let mut state = self.lock();
        let lines = self.take(&mut state, event);
        if self.live {
            let is_frequent = matches!(event, Event::Progress { .. } | Event::Output { .. });
            let is_soon = |drawn: Instant| drawn.elapsed() < Duration::from_millis(100);
            if !is_frequent || !state.drawn.is_some_and(is_soon) {
                self.draw(&mut state);
                state.drawn = Some(Instant::now());
            }
        }
        drop(state);
        for line in lines {
            self.line(&line);
        }
    }
}

/// The last component of a step's identifier.
fn name_of(step: &str) -> &str {
    step.rsplit('/').next().unwrap_or(step)
}

/// `0.4 s`, `12 s`, `3 min 20 s`.
pub(super) fn seconds(duration: Duration) -> String {
    match duration.as_secs() {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        seconds @ 10..120 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

/// Minimum interval between progress lines of one host.
const INTERVAL_MS: i64 = 500;

/// Writes events to stdout.
#[derive(Default)]
pub struct JsonEvents {
    /// Time of the last progress line, by host.
    told: Mutex<std::collections::HashMap<String, Timestamp>>,
}

impl Listener for JsonEvents {
    fn event(&self, event: &Event) {
        let now = Timestamp::now();
        if let Event::Progress { host, .. } = event {
            let Ok(mut told) = self.told.lock() else {
                return;
            };
            let is_soon =
                |last: &Timestamp| now.as_millisecond() - last.as_millisecond() < INTERVAL_MS;
            if told.get(host).is_some_and(is_soon) {
                return;
            }
            told.insert(host.clone(), now);
        }
        // A closed stdout must not leave hosts half done.
        let _ = edge::json_line(&json_of(event, now));
    }
}

fn json_of(event: &Event, now: Timestamp) -> Value {
    let mut object = serde_json::Map::new();
    let time = now.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string();
    object.insert("time".to_owned(), Value::String(time));
    if let Ok(Value::Object(fields)) = serde_json::to_value(event) {
        object.extend(fields);
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_journal::event::Outcome;

    fn view() -> HostsView {
        HostsView::new(Arc::new(Terminal::new(false)), true, false)
    }

    fn start(view: &HostsView, hosts: usize) -> State {
        let mut state = State::default();
        let phase = Event::PhaseStart { phase: "sync".into(), hosts, steps: hosts };
        view.take(&mut state, &phase);
        for number in 0..hosts {
            let step = Event::StepStart {
                phase: "sync".into(),
                host: format!("h{number:03}"),
                step: format!("sync/h{number:03}/files"),
                attempt: 1,
                says: vec!["send 3 layers".into()],
                bytes: Some(2_000_000),
            };
            view.take(&mut state, &step);
        }
        state
    }

    #[test]
    fn few_hosts_are_lines_and_many_are_counted() {
        let view = view();
        let mut state = start(&view, 2);
        let moved = Event::Progress {
            host: "h001".into(),
            step: String::new(),
            bytes: 1_000_000,
            from: imgctl_journal::event::Sources::default(),
        };
        view.take(&mut state, &moved);
        let lines = HostsView::drawing(&state);
        assert_eq!(lines.len(), 2);
        assert!(lines[1].contains("h001  sync/files  1.00 MB of 2.00 MB"), "{}", lines[1]);
        let state = start(&view, 300);
        let lines = HostsView::drawing(&state);
        assert_eq!(lines, ["  sync: 0 of 300 steps, 300 hosts active"]);
    }

    #[test]
    fn failures_are_told_once_and_are_in_the_last_table() {
        let view = view();
        let failure = Event::Failure {
            host: "h000".into(),
            step: "sync/h000/files".into(),
            message: "h000: no space".into(),
            causes: vec!["a\nb".into()],
            hints: vec!["free some".into()],
            log: Some("/l".into()),
        };
        let end = |outcome| Event::End {
            outcome,
            done: 0,
            skipped: 0,
            failed: 1,
            duration_ms: 5,
            journal: "/j".into(),
        };
        // The error that follows a failed run has the cause.
        let mut state = start(&view, 1);
        assert_eq!(view.take(&mut state, &failure), ["FAILED h000: sync/h000/files"]);
        let lines = view.take(&mut state, &end(Outcome::Failed));
        assert!(lines.iter().any(|line| line.contains("failed at sync/h000/files")), "{lines:?}");
        assert!(lines[lines.len() - 1].starts_with("failed: 0 steps done"));
        assert!(!lines.iter().any(|line| line.contains("no space")), "{lines:?}");
        // Nothing follows a run that tolerates the failure.
        let mut state = start(&view, 1);
        view.take(&mut state, &failure);
        let lines = view.take(&mut state, &end(Outcome::Done));
        let whole = [
            "h000: sync/h000/files: no space",
            "  because: a",
            "  b",
            "  hint: free some",
            "  log: /l",
        ];
        assert_eq!(lines[..5], whole);
    }

    #[test]
    fn one_object_per_line_with_time_and_kind() {
        let event = Event::StepEnd {
            phase: "init".into(),
            host: "h".into(),
            step: "init/h/x".into(),
            outcome: Outcome::Done,
            attempt: 1,
            duration_ms: 5,
            recalled: false,
            from: None,
            log: None,
        };
        assert_eq!(
            json_of(&event, Timestamp::UNIX_EPOCH).to_string(),
            "{\"time\":\"1970-01-01T00:00:00.000Z\",\"event\":\"step-end\",\"phase\":\"init\",\
             \"host\":\"h\",\"step\":\"init/h/x\",\"outcome\":\"done\",\"attempt\":1,\
             \"duration_ms\":5,\"recalled\":false}"
        );
    }
}
