//! Shows progress as bars on a terminal.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::ui::Terminal;
use crate::ui::progress::with_newline;
use crate::ui::table::one_line;
use imgctl_base::progress::{Reporter, Task, Unit};

/// One bar or spinner per running task.
pub(crate) struct Bars {
    terminal: Arc<Terminal>,
}

impl Bars {
    /// Shows bars on `terminal`.
    pub(crate) fn new(terminal: Arc<Terminal>) -> Self {
        Self { terminal }
    }
}

impl Reporter for Bars {
    fn start(&self, title: &str, unit: Unit, total: Option<u64>) -> Box<dyn Task> {
        let bar = match total {
            Some(total) => ProgressBar::new(total),
            None => ProgressBar::new_spinner(),
        };
        let bar = self.terminal.bars().add(bar.with_style(style(unit, total.is_some())));
        bar.set_message(one_line(title));
        // Keeps the bar's clock running between updates.
        bar.enable_steady_tick(Duration::from_millis(200));
        Box::new(Bar { terminal: Arc::clone(&self.terminal), bar })
    }

    fn note(&self, message: &str) {
        self.terminal.line(message);
    }

    fn output(&self, line: &[u8], _error_stream: bool) {
        self.terminal.write(&with_newline(line));
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
