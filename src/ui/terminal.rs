//! The one owner of stderr while bars may be drawn: whoever has a line to say says it here, so
//! that bars are taken away first and drawn again after.

use std::io::{self, IsTerminal, Write};

use indicatif::{MultiProgress, ProgressDrawTarget};

/// A standard stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Output,
    Error,
}

/// Whether `stream` is a terminal.
pub(crate) fn is_terminal(stream: Stream) -> bool {
    match stream {
        Stream::Output => io::stdout().is_terminal(),
        Stream::Error => io::stderr().is_terminal(),
    }
}

/// stderr with the bars on it.
pub(crate) struct Terminal {
    bars: MultiProgress,
}

impl Terminal {
    /// Bars are drawn at most 15 times a second, and not at all where stderr is no terminal.
    pub(crate) fn new() -> Self {
        Self {
            bars: MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(15)),
        }
    }

    /// The bars.
    pub(crate) fn bars(&self) -> &MultiProgress {
        &self.bars
    }

    /// Writes whole lines (ending in a newline) above the bars. What cannot be written is lost:
    /// there is nowhere left to say so.
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
