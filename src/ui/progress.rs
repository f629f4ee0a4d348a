//! Shows progress: bars on a terminal, plain lines for CI logs and pipes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::ui::Terminal;
use crate::ui::table::{human, one_line};
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
        let (terminal, title) = (Arc::clone(&self.terminal), one_line(title));
        if !self.bars {
            let (done, said) = (AtomicU64::new(0), Mutex::new(Instant::now()));
            return Box::new(Line { terminal, title, unit, total, done, said });
        }
        let bar = match total {
            Some(total) => ProgressBar::new(total),
            None => ProgressBar::new_spinner(),
        };
        let bar = self.terminal.bars().add(bar.with_style(style(unit, total.is_some())));
        bar.set_message(title);
        // Keeps the bar's clock running between updates.
        bar.enable_steady_tick(Duration::from_millis(200));
        Box::new(Bar { terminal, bar })
    }

    fn note(&self, message: &str) {
        self.terminal.line(message);
    }

    fn output(&self, line: &[u8], _error_stream: bool) {
        self.terminal.write(&with_newline(line));
    }
}

/// Returns the line as the command printed it, with exactly one final newline.
fn with_newline(line: &[u8]) -> Vec<u8> {
    let mut line = line.strip_suffix(b"\n").unwrap_or(line).to_vec();
    line.push(b'\n');
    line
}

struct Line {
    terminal: Arc<Terminal>,
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
            self.terminal.line(&format!(
                "{}: {}",
                self.title,
                amount_of(self.unit, done, self.total)
            ));
        }
    }

    fn done(&self, summary: &str) {
        self.terminal.line(&one_line(summary));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_say_what_they_count() {
        assert_eq!(amount_of(Unit::Items, 3, Some(12)), "3 of 12");
        assert_eq!(amount_of(Unit::Bytes, 12_000_000, None), "12.0 MB");
    }

    #[test]
    fn lines_end_once() {
        assert_eq!(with_newline(b"a\n"), b"a\n");
        assert_eq!(with_newline(b"\xff"), b"\xff\n");
    }
}
