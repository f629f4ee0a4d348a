//! stderr with a single owner while bars or a full-screen view may be drawn: all lines and log records are
//! written through it, so that bars are cleared first and redrawn afterwards, and lines wait until the end
//! of a full-screen view.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clap::ValueEnum;
use indicatif::{MultiProgress, ProgressDrawTarget};
use ratatui_core::buffer::Buffer;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::edge::{Stream, for_terminal, is_terminal, shown, stderr, stdout};
use crate::{full_screen::FullScreen, tty};
use imgctl_base::error::Result;
use imgctl_base::text::{Lines, Tone, escape_json};

/// stderr with progress bars or a full-screen view.
pub struct Terminal {
    /// A CI system takes lines of the log for commands.
    on_runner: bool,
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
    pub(crate) fn new(on_runner: bool) -> Self {
        Self {
            on_runner,
            bars: MultiProgress::with_draw_target(bar_target()),
            screen: Mutex::default(),
            questions: Mutex::default(),
        }
    }

    /// The bars.
    pub(crate) fn bars(&self) -> &MultiProgress {
        &self.bars
    }

    /// Writes one line.
    pub(crate) fn line(&self, line: &str) {
        let lines: Lines = [line].into_iter().collect();
        self.write(shown(&lines, self.on_runner).as_bytes());
    }

    /// Writes a line that a command printed. What it overwrote on its terminal with carriage returns
    /// becomes lines.
    pub(crate) fn output(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line));
        let text = text.trim_end_matches('\r');
        let lines: Lines = text.split('\r').collect();
        self.write(shown(&lines, self.on_runner).as_bytes());
    }

    /// Writes whole lines (ending in a newline) of a CI system's log, with commands of `ci`.
    pub(super) fn log_of_runner(&self, lines: &[u8]) {
        self.write(lines);
    }

    /// Writes whole lines (ending in a newline) above the bars, or behind the end of a full-screen
    /// view. A write failure is ignored, because there is nowhere left to report it.
    fn write(&self, lines: &[u8]) {
        let mut screen = self.lock();
        let Screen { full, asks } = &mut *screen;
        match full {
            Some(full) => full.hold(lines, false),
            // The question stays on its own line.
            None if *asks => self.write_now(&[b"\n", lines].concat()),
            None => self.write_now(lines),
        }
    }

    /// Writes lines to stdout.
    pub(crate) fn result(&self, lines: &Lines) -> Result<()> {
        self.out(shown(lines, self.on_runner).as_bytes())
    }

    /// Writes a JSON text to stdout.
    pub(crate) fn json(&self, text: &str) -> Result<()> {
        self.out(escape_json(text).as_bytes())
    }

    /// Writes content to stdout: exactly, unless it is a terminal.
    pub(crate) fn content(&self, bytes: &[u8]) -> Result<()> {
        if is_terminal(Stream::Output) {
            self.out(for_terminal(bytes).as_bytes())
        } else {
            self.out(bytes)
        }
    }

    /// Writes to stdout. What would be on the terminal of a full-screen view waits for its end.
    fn out(&self, bytes: &[u8]) -> Result<()> {
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
            let _ = if held.to_stdout {
                stdout(&held.bytes)
            } else {
                self.write_now(&held.bytes);
                Ok(())
            };
        }
        self.bars.set_draw_target(bar_target());
    }

    fn write_now(&self, lines: &[u8]) {
        self.bars.suspend(|| {
            stderr(lines);
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
pub enum Level {
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
        .with_ansi(false)
        .without_time()
        .with_writer(Through { terminal: Arc::clone(terminal), colour })
        .finish();
    let _ = tracing::subscriber::set_global_default(subscriber);
}

struct Through {
    terminal: Arc<Terminal>,
    colour: bool,
}

impl<'a> MakeWriter<'a> for Through {
    type Writer = Record;

    fn make_writer(&'a self) -> Record {
        Record { terminal: Arc::clone(&self.terminal), colour: self.colour, bytes: Vec::new() }
    }
}

/// Collects one record, which is then written in one piece.
struct Record {
    terminal: Arc<Terminal>,
    colour: bool,
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
            let lines = record(&String::from_utf8_lossy(&self.bytes), self.colour);
            self.terminal.write(shown(&lines, self.terminal.on_runner).as_bytes());
        }
    }
}

/// Returns a log record as one line; its level is coloured.
fn record(text: &str, colour: bool) -> Lines {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let start = text.len() - text.trim_start().len();
    let end = text[start..].find(' ').map_or(text.len(), |length| start + length);
    let tone = match &text[start..end] {
        _ if !colour => Tone::Plain,
        "ERROR" => Tone::Error,
        "WARN" => Tone::Warning,
        _ => Tone::Plain,
    };
    let mut lines = Lines::default();
    lines.pieces(&[(tone, &&text[..end]), (Tone::Plain, &&text[end..])]);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_line() {
        let lines = record(" WARN a\x1b[2J\nhint: b\n", true);
        assert_eq!(lines.as_str(), "\x1b[33m WARN\x1b[0m a\\u{1b}[2J\\nhint: b\n");
        assert_eq!(record("ERROR\n", false).as_str(), "ERROR\n");
    }
}
