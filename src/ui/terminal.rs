//! stdout and stderr. When the reader of stdout is gone (`| head -1`), the work ends without a failure.
//! stderr has a single owner while bars or a full-screen view may be drawn: all lines and log records are
//! written through it, so that bars are cleared first and redrawn afterwards, and lines wait until the end
//! of a full-screen view.

use std::collections::VecDeque;
use std::error::Error as _;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clap::ValueEnum;
use indicatif::{MultiProgress, ProgressDrawTarget};
use ratatui_core::buffer::Buffer;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::ui::{full_screen::FullScreen, tty};
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

/// stderr with progress bars or a full-screen view.
pub(crate) struct Terminal {
    bars: MultiProgress,
    screen: Mutex<Screen>,
    /// One question at a time.
    questions: Mutex<()>,
}

/// Who has the terminal.
#[derive(Default)]
struct Screen {
    full: Option<FullScreen>,
    /// A question is being asked: no view may cover it.
    asks: bool,
}

impl Terminal {
    /// Bars are drawn at most 15 times a second, and only if stderr is a terminal.
    pub(crate) fn new() -> Self {
        Self {
            bars: MultiProgress::with_draw_target(bar_target()),
            screen: Mutex::default(),
            questions: Mutex::default(),
        }
    }

    /// The bars.
    pub(crate) fn bars(&self) -> &MultiProgress {
        &self.bars
    }

    /// Writes whole lines (ending in a newline) above the bars, or behind the end of a full-screen
    /// view. A write failure is ignored, because there is nowhere left to report it.
    pub(crate) fn write(&self, lines: &[u8]) {
        let mut screen = self.lock();
        let Screen { full, asks } = &mut *screen;
        match full {
            Some(full) => full.hold(lines, false),
            // The question stays on its own line.
            None if *asks => self.write_now(&[b"\n", lines].concat()),
            None => self.write_now(lines),
        }
    }

    /// Writes one line.
    pub(crate) fn line(&self, line: &str) {
        self.write(format!("{line}\n").as_bytes());
    }

    /// Writes to stdout. What would be on the terminal of a full-screen view waits for its end.
    pub(crate) fn result(&self, bytes: &[u8]) -> Result<()> {
        let mut screen = self.lock();
        match &mut screen.full {
            Some(full) if is_terminal(Stream::Output) => {
                full.hold(bytes, true);
                Ok(())
            }
            _ => stdout(bytes),
        }
    }

    /// Asks a question on the normal screen; a full-screen view that is there goes away first and may
    /// be entered again afterwards. Bars are hidden meanwhile, because they would overwrite the question.
    pub(crate) fn aside<T>(&self, ask: impl FnOnce() -> T) -> T {
        let _one = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut screen = self.lock();
            // In one step, so that no view can return in between.
            screen.asks = true;
            self.leave_locked(&mut screen);
            let _ = self.bars.clear();
            self.bars.set_draw_target(ProgressDrawTarget::hidden());
        }
        let answer = ask();
        let mut screen = self.lock();
        screen.asks = false;
        self.bars.set_draw_target(bar_target());
        answer
    }

    /// Gives the whole terminal to a view, unless it is taken, too small, or not ours. Returns whether
    /// a view has it.
    pub(crate) fn enter(&self) -> bool {
        let mut screen = self.lock();
        if screen.full.is_none() && !screen.asks && tty::is_ours() && tty::is_large_enough() {
            let _ = self.bars.clear();
            self.bars.set_draw_target(ProgressDrawTarget::hidden());
            // Without the view, lines go on as before.
            screen.full = FullScreen::enter().ok();
            if screen.full.is_none() {
                self.bars.set_draw_target(bar_target());
            }
        }
        screen.full.is_some()
    }

    /// Returns whether a view has the terminal.
    pub(crate) fn has_view(&self) -> bool {
        self.lock().full.is_some()
    }

    /// Draws a frame, if a view has the terminal.
    pub(crate) fn paint(&self, draw: &mut dyn FnMut(&mut Buffer, &VecDeque<String>)) {
        if let Some(full) = &mut self.lock().full {
            full.paint(draw);
        }
    }

    /// Has the next frame drawn as a whole.
    pub(crate) fn redraw(&self) {
        if let Some(full) = &mut self.lock().full {
            full.redraw();
        }
    }

    /// Ends a full-screen view: the normal screen is back, followed by the lines that waited.
    pub(crate) fn leave(&self) {
        self.leave_locked(&mut self.lock());
    }

    /// Like [`Self::leave`], for a thread that panics and may be in the middle of a frame.
    pub(crate) fn rescue(&self) {
        if let Ok(mut screen) = self.screen.try_lock() {
            self.leave_locked(&mut screen);
        }
    }

    fn leave_locked(&self, screen: &mut Screen) {
        let Some(full) = screen.full.take() else { return };
        for held in full.leave() {
            // A reader of stdout that has exited is noticed with the next result.
            let _ = match held.to_stdout {
                true => stdout(&held.bytes),
                false => {
                    self.write_now(&held.bytes);
                    Ok(())
                }
            };
        }
        self.bars.set_draw_target(bar_target());
    }

    fn write_now(&self, lines: &[u8]) {
        self.bars.suspend(|| {
            let mut stderr = io::stderr().lock();
            let _ = stderr.write_all(lines);
        });
    }

    fn lock(&self) -> MutexGuard<'_, Screen> {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.leave();
    }
}

fn bar_target() -> ProgressDrawTarget {
    ProgressDrawTarget::stderr_with_hz(15)
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
