//! Shows progress as plain lines, for CI logs and pipes.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::ui::Terminal;
use crate::ui::table::one_line;
use imgctl_base::progress::{Reporter, Task, Unit};

/// Interval of status lines for long tasks, so that a CI system does not assume a hang.
const SIGN_OF_LIFE: Duration = Duration::from_secs(20);

/// Prints one line when a task ends, and occasional lines while it runs.
pub(crate) struct PlainLines {
    terminal: Arc<Terminal>,
}

impl PlainLines {
    /// Prints lines on `terminal`.
    pub(crate) fn new(terminal: Arc<Terminal>) -> Self {
        Self { terminal }
    }
}

impl Reporter for PlainLines {
    fn start(&self, title: &str, unit: Unit, total: Option<u64>) -> Box<dyn Task> {
        Box::new(Line {
            terminal: Arc::clone(&self.terminal),
            title: one_line(title),
            unit,
            total,
            done: AtomicU64::new(0),
            said: Mutex::new(Instant::now()),
        })
    }

    fn note(&self, message: &str) {
        self.terminal.line(message);
    }

    fn output(&self, line: &[u8], _error_stream: bool) {
        self.terminal.write(&with_newline(line));
    }
}

/// Returns the line as the command printed it, with exactly one final newline.
pub(crate) fn with_newline(line: &[u8]) -> Vec<u8> {
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
pub(crate) fn amount_of(unit: Unit, done: u64, total: Option<u64>) -> String {
    let show = |amount: u64| match unit {
        Unit::Bytes => crate::ui::size::human(amount),
        Unit::Items => amount.to_string(),
    };
    match total {
        Some(total) => format!("{} of {}", show(done), show(total)),
        None => show(done),
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
