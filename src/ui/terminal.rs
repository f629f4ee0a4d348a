//! stdout and stderr. When the reader of stdout is gone (`| head -1`), the work ends without a failure.
//! stderr has a single owner while bars may be drawn: all lines and log records are written through it,
//! so that the bars are cleared first and redrawn afterwards.

use std::error::Error as _;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use clap::ValueEnum;
use indicatif::{MultiProgress, ProgressDrawTarget};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use imgctl_base::error::{Error, IoContext, Result};

/// Marks an error as caused by a closed stdout; a broken pipe elsewhere is a failure.
#[derive(Debug)]
struct ReaderIsGone;

impl fmt::Display for ReaderIsGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of the output has exited")
    }
}

impl std::error::Error for ReaderIsGone {}

/// Returns whether `error` was caused by a closed stdout.
pub(crate) fn reader_is_gone(error: &Error) -> bool {
    let mut source = error.source();
    while let Some(current) = source {
        if let Some(io) = current.downcast_ref::<io::Error>() {
            // An `io::Error` does not include its inner error in the source chain.
            if io.get_ref().and_then(|inner| inner.downcast_ref::<ReaderIsGone>()).is_some() {
                return true;
            }
            if let Some(ours) = io.get_ref().and_then(|inner| inner.downcast_ref::<Error>())
                && reader_is_gone(ours)
            {
                return true;
            }
        }
        source = current.source();
    }
    false
}

/// stdout for streams (archives); flushes on request.
pub(crate) struct Stdout(io::Stdout);

impl Stdout {
    /// Creates a writer to this process's stdout.
    pub(crate) fn new() -> Self {
        Self(io::stdout())
    }
}

impl Write for Stdout {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.0.write(buffer).map_err(mark)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(mark)
    }
}

fn mark(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        io::Error::new(io::ErrorKind::BrokenPipe, ReaderIsGone)
    } else {
        error
    }
}

/// Writes all of `bytes` to stdout.
pub(crate) fn stdout(bytes: &[u8]) -> Result<()> {
    let mut stdout = Stdout::new();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .doing(|| "cannot write to stdout".to_owned())
}

/// Writes to stderr; a failure is ignored, because there is nowhere left to report it.
pub(crate) fn stderr(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

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

/// Log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    #[value(aliases = ["fatal", "panic"])]
    Error,
    #[value(alias = "warning")]
    Warn,
    Info,
    Debug,
    Trace,
}

/// Starts logging for this process; further calls (in tests) have no effect.
pub(crate) fn start_log(level: Level, colour: bool, terminal: &Arc<Terminal>) {
    let filter = match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(filter)
        .with_target(level == Level::Debug || level == Level::Trace)
        .with_ansi(colour)
        .without_time()
        .with_writer(Through(Arc::clone(terminal)))
        .finish();
    let _ = tracing::subscriber::set_global_default(subscriber);
}

struct Through(Arc<Terminal>);

impl<'a> MakeWriter<'a> for Through {
    type Writer = Record;

    fn make_writer(&'a self) -> Record {
        Record { terminal: Arc::clone(&self.0), bytes: Vec::new() }
    }
}

/// Collects one record, which is then written in one piece.
struct Record {
    terminal: Arc<Terminal>,
    bytes: Vec<u8>,
}

impl Write for Record {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(buffer);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            self.terminal.write(&self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_stdout_counts() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        let elsewhere = Error::io("cannot talk to the child", broken());
        assert!(!reader_is_gone(&elsewhere));
        let ours = Error::io("cannot write to stdout", mark(broken())).context("cannot save x");
        assert!(reader_is_gone(&ours));
        let through_io: io::Error = ours.into();
        assert!(reader_is_gone(&Error::io("cannot save", through_io)));
    }
}
