//! Shows progress: as bars on a terminal, as plain lines for CI logs and pipes, or as JSON, one object
//! per line (docs/cli.md has the schema).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::Terminal;
use crate::edge;
use crate::table::{human, one_line};
use imgctl_base::progress::{Reporter, Task, Unit};

/// Interval of status lines for long tasks, so that a CI system does not assume a hang.
const SIGN_OF_LIFE: Duration = Duration::from_secs(20);

/// Shows tasks as bars, or with one line when a task ends and occasional lines while it runs.
pub(crate) struct OnTerminal {
    pub(crate) terminal: Arc<Terminal>,
    pub(crate) bars: bool,
}

impl Reporter for OnTerminal {
    fn start(&self, title: &str, unit: Unit, total: Option<u64>) -> Box<dyn Task> {
        let terminal = Arc::clone(&self.terminal);
        if !self.bars {
            return line_task(Box::new(move |line: &str| terminal.line(line)), title, unit, total);
        }
        let bar = match total {
            Some(total) => ProgressBar::new(total),
            None => ProgressBar::new_spinner(),
        };
        let bar = self.terminal.bars().add(bar.with_style(style(unit, total.is_some())));
        edge::label(&bar, title);
        // Keeps the bar's clock running between updates.
        bar.enable_steady_tick(Duration::from_millis(200));
        Box::new(Bar { terminal, bar })
    }

    fn note(&self, message: &str) {
        self.terminal.line(message);
    }

    fn output(&self, line: &[u8], _error_stream: bool) {
        self.terminal.output(line);
    }
}

/// Returns a task that says with `say` when it ends, and occasionally that it goes on.
pub(crate) fn line_task(say: Say, title: &str, unit: Unit, total: Option<u64>) -> Box<dyn Task> {
    let (done, said) = (AtomicU64::new(0), Mutex::new(Instant::now()));
    Box::new(Line { say, title: one_line(title), unit, total, done, said })
}

type Say = Box<dyn Fn(&str) + Send + Sync>;

struct Line {
    say: Say,
    title: String,
    unit: Unit,
    total: Option<u64>,
    done: AtomicU64,
    said: Mutex<Instant>,
}

impl Task for Line {
    fn advance(&self, amount: u64) {
        let done = self.done.fetch_add(amount, Ordering::Relaxed) + amount;
        // Another thread is already printing.
        let Ok(mut said) = self.said.try_lock() else {
            return;
        };
        if said.elapsed() >= SIGN_OF_LIFE {
            *said = Instant::now();
            (self.say)(&format!("{}: {}", self.title, amount_of(self.unit, done, self.total)));
        }
    }

    fn done(&self, summary: &str) {
        (self.say)(&one_line(summary));
    }
}

/// `12.0 MB of 50.0 MB`, `3 of 12`, `12.0 MB`.
fn amount_of(unit: Unit, done: u64, total: Option<u64>) -> String {
    let show = |amount: u64| match unit {
        Unit::Bytes => human(amount),
        Unit::Items => amount.to_string(),
    };
    match total {
        Some(total) => format!("{} of {}", show(done), show(total)),
        None => show(done),
    }
}

fn style(unit: Unit, known: bool) -> ProgressStyle {
    let template = match (unit, known) {
        (Unit::Bytes, true) => {
            "{spinner} {wide_msg} [{bar:20}] {decimal_bytes:>9}/{decimal_total_bytes:9} {decimal_bytes_per_sec:>11}"
        }
        (Unit::Bytes, false) => {
            "{spinner} {wide_msg} {decimal_bytes:>9} {decimal_bytes_per_sec:>11}"
        }
        (Unit::Items, true) => "{spinner} {wide_msg} [{bar:20}] {pos}/{len}",
        (Unit::Items, false) => "{spinner} {wide_msg} {elapsed}",
    };
    // Cannot fail, because the templates are constants; otherwise the default bar is sufficient.
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

struct Bar {
    terminal: Arc<Terminal>,
    bar: ProgressBar,
}

impl Task for Bar {
    fn advance(&self, amount: u64) {
        self.bar.inc(amount);
    }

    fn done(&self, summary: &str) {
        self.bar.finish_and_clear();
        self.terminal.line(&one_line(summary));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        self.terminal.bars().remove(&self.bar);
    }
}

/// Minimum interval between events of one task.
const INTERVAL: Duration = Duration::from_millis(200);

/// Writes one value as a line, in one call, so that lines of several threads do not mix.
type Sink = Arc<dyn Fn(&Value) + Send + Sync>;

/// Writes progress events.
pub(crate) struct JsonEvents {
    sink: Sink,
    next: AtomicU64,
}

impl JsonEvents {
    /// Writes events to `sink`.
    pub(crate) fn new(sink: impl Fn(&Value) + Send + Sync + 'static) -> Self {
        Self { sink: Arc::new(sink), next: AtomicU64::new(1) }
    }
}

impl Reporter for JsonEvents {
    fn start(&self, title: &str, unit: Unit, total: Option<u64>) -> Box<dyn Task> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let unit = match unit {
            Unit::Bytes => "bytes",
            Unit::Items => "items",
        };
        let start =
            json!({"event": "start", "id": id, "title": title, "unit": unit, "total": total});
        (self.sink)(&start);
        Box::new(Event {
            sink: Arc::clone(&self.sink),
            id,
            done: AtomicU64::new(0),
            said: Mutex::new(Instant::now()),
            ended: AtomicU64::new(0),
        })
    }

    fn note(&self, message: &str) {
        (self.sink)(&json!({"event": "note", "message": message}));
    }

    fn output(&self, line: &[u8], error_stream: bool) {
        let stream = if error_stream { "stderr" } else { "stdout" };
        let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line));
        (self.sink)(&json!({"event": "output", "stream": stream, "text": text}));
    }
}

struct Event {
    sink: Sink,
    id: u64,
    done: AtomicU64,
    said: Mutex<Instant>,
    ended: AtomicU64,
}

impl Task for Event {
    fn advance(&self, amount: u64) {
        let done = self.done.fetch_add(amount, Ordering::Relaxed) + amount;
        let Ok(mut said) = self.said.try_lock() else {
            return;
        };
        if said.elapsed() >= INTERVAL {
            *said = Instant::now();
            (self.sink)(&json!({"event": "progress", "id": self.id, "done": done}));
        }
    }

    fn done(&self, summary: &str) {
        self.ended.store(1, Ordering::Relaxed);
        let done = self.done.load(Ordering::Relaxed);
        let end = json!({"event": "done", "id": self.id, "done": done, "summary": summary});
        (self.sink)(&end);
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.ended.load(Ordering::Relaxed) == 0 {
            (self.sink)(&json!({"event": "end", "id": self.id}));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_say_what_they_count() {
        assert_eq!(amount_of(Unit::Items, 3, Some(12)), "3 of 12");
        assert_eq!(amount_of(Unit::Bytes, 12_000_000, None), "12.0 MB");
    }

    #[test]
    fn each_task_starts_and_ends_once() {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let sink = Arc::clone(&told);
        let events = JsonEvents::new(move |value| sink.lock().unwrap().push(value.to_string()));
        let task = events.start("layer 1", Unit::Bytes, Some(10));
        task.advance(10);
        task.done("layer 1 written");
        drop(task);
        drop(events.start("layer 2", Unit::Items, None));
        events.output(b"hello\xff\n", true);
        assert_eq!(
            *told.lock().unwrap(),
            [
                r#"{"event":"start","id":1,"title":"layer 1","unit":"bytes","total":10}"#,
                r#"{"event":"done","id":1,"done":10,"summary":"layer 1 written"}"#,
                r#"{"event":"start","id":2,"title":"layer 2","unit":"items","total":null}"#,
                r#"{"event":"end","id":2}"#,
                "{\"event\":\"output\",\"stream\":\"stderr\",\"text\":\"hello\u{fffd}\"}",
            ]
        );
    }
}
