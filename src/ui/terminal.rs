//! The single owner of stderr while bars may be drawn: all lines are written through it, so that
//! the bars are cleared first and redrawn afterwards.

use std::io::{self, IsTerminal, Write};

use indicatif::{MultiProgress, ProgressDrawTarget};

/// A standard stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Output,
    Error,
}

/// Returns whether `stream` is a terminal.
pub(crate) fn is_terminal(stream: Stream) -> bool {
    match stream {
        Stream::Output => io::stdout().is_terminal(),
        Stream::Error => io::stderr().is_terminal(),
    }
}

/// stderr with progress bars.
pub(crate) struct Terminal {
    bars: MultiProgress,
}

impl Terminal {
    /// Bars are drawn at most 15 times a second, and only if stderr is a terminal.
    pub(crate) fn new() -> Self {
        Self { bars: MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(15)) }
    }

    /// The bars.
    pub(crate) fn bars(&self) -> &MultiProgress {
        &self.bars
    }

    /// Writes whole lines (ending in a newline) above the bars. A write failure is ignored, because
    /// there is nowhere left to report it.
    pub(crate) fn write(&self, lines: &[u8]) {
        self.bars.suspend(|| {
            let mut stderr = io::stderr().lock();
            let _ = stderr.write_all(lines);
        });
    }

    /// Writes one line.
    pub(crate) fn line(&self, line: &str) {
        self.write(format!("{line}\n").as_bytes());
    }
}
