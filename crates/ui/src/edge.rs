//! The edge at which text leaves: stdout and stderr. Nobody else may write there (`clippy.toml`).
//!
//! Nothing here writes a string as it is: lines were escaped when they were made, JSON is written in
//! escapes, and content goes to a terminal escaped, elsewhere exactly. When the reader of stdout is gone
//! (`| head -1`), the work ends without a failure.

use std::borrow::Cow;
use std::error::Error as _;
use std::fmt;
use std::io::{self, IsTerminal, Write};

use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::Value;

use crate::ci::harmless;
use crate::table::one_line;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::text::{Lines, escape, escape_json, escape_lines};

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
pub fn reader_is_gone(error: &Error) -> bool {
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

/// stdout for content (archives, files of images): exact, unless it is a terminal. There, lines keep their
/// ends and nothing else that a terminal obeys.
pub struct Stdout {
    out: io::Stdout,
    /// Only for a terminal: a character or an end of line that is incomplete so far.
    pending: Option<Vec<u8>>,
}

impl Stdout {
    /// Creates a writer to this process's stdout.
    pub fn open() -> Self {
        let pending = is_terminal(Stream::Output).then(Vec::new);
        Self { out: standard_output(), pending }
    }
}

impl Write for Stdout {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let Some(pending) = &mut self.pending else {
            return self.out.write(buffer).map_err(mark);
        };
        pending.extend_from_slice(buffer);
        let rest = pending.split_off(whole(pending));
        let text = std::mem::replace(pending, rest);
        self.out.write_all(for_terminal(&text).as_bytes()).map_err(mark)?;
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush().map_err(mark)
    }
}

impl Drop for Stdout {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take().filter(|pending| !pending.is_empty()) {
            let _ = self.out.write_all(for_terminal(&pending).as_bytes());
            let _ = self.out.flush();
        }
    }
}

/// Returns how many bytes end with a whole character, which is not the first half of a DOS line end.
fn whole(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last();
    let cut = last.map_or(&b""[..], |chunk| chunk.invalid());
    // What is invalid at the end may be the beginning of a character, of at most four bytes.
    let starts = cut.first().is_some_and(|first| *first >= 0xc2);
    let end = bytes.len() - if starts && cut.len() < 4 { cut.len() } else { 0 };
    end - usize::from(bytes[..end].ends_with(b"\r"))
}

/// Returns content as a terminal gets it.
pub(super) fn for_terminal(bytes: &[u8]) -> String {
    escape_lines(&String::from_utf8_lossy(bytes)).into_owned()
}

#[expect(clippy::disallowed_methods, reason = "the edge itself")]
fn standard_output() -> io::Stdout {
    io::stdout()
}

#[expect(clippy::disallowed_methods, reason = "the edge itself")]
fn standard_error() -> io::Stderr {
    io::stderr()
}

fn mark(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        io::Error::new(io::ErrorKind::BrokenPipe, ReaderIsGone)
    } else {
        error
    }
}

/// Writes all of `bytes` to stdout.
pub(super) fn stdout(bytes: &[u8]) -> Result<()> {
    let mut stdout = standard_output();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(mark)
        .doing(|| "cannot write to stdout".to_owned())
}

/// Writes one line to stdout that is a JSON value.
pub fn json_line(value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string(value)
        .map_err(|error| Error::failed("cannot write the result as JSON").caused_by(error))?;
    text.push('\n');
    stdout(escape_json(&text).as_bytes())
}

/// Writes one line to stderr that is a JSON value.
pub fn json_to_stderr(value: &Value) {
    // Inside of JSON texts only, where it means the same: runners take it for a command.
    let text = format!("{value}\n").replace("##[", "##\\u005b");
    stderr(escape_json(&text).as_bytes());
}

/// Writes one line to stderr, with white space as spaces.
pub fn line_to_stderr(line: &str) {
    stderr(format!("{}\n", one_line(line)).as_bytes());
}

/// Writes lines to stderr.
pub fn lines_to_stderr(lines: &Lines, on_runner: bool) {
    stderr(shown(lines, on_runner).as_bytes());
}

/// Writes what somebody is asked to stderr.
pub(super) fn question(text: &str) {
    stderr(escape(text).as_bytes());
}

/// Ends the line of a question.
pub(super) fn end_of_question() {
    stderr(b"\n");
}

/// Writes content to stderr: exactly, unless it is a terminal.
pub fn content_to_stderr(bytes: &[u8]) {
    if is_terminal(Stream::Error) {
        stderr(for_terminal(bytes).as_bytes());
    } else {
        stderr(bytes);
    }
}

/// Sets the text of a bar.
pub(super) fn label(bar: &ProgressBar, text: &str) {
    #[expect(clippy::disallowed_methods, reason = "the edge itself")]
    bar.set_message(one_line(text));
}

/// Writes bytes that this program made, such as frames of a view, to stderr at once.
pub(super) fn frame(bytes: &[u8]) -> io::Result<()> {
    let mut stderr = standard_error().lock();
    stderr.write_all(bytes)?;
    stderr.flush()
}

/// A failure is ignored, because there is nowhere left to report it.
pub(super) fn stderr(bytes: &[u8]) {
    let _ = standard_error().lock().write_all(bytes);
}

/// Returns lines as a CI system's log may have them.
pub(super) fn shown(lines: &Lines, on_runner: bool) -> Cow<'_, str> {
    if on_runner { Cow::Owned(harmless(lines.as_str())) } else { Cow::Borrowed(lines.as_str()) }
}

/// A standard stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Output,
    Error,
}

/// Returns the width of the terminal behind stdout, in columns; `None` if stdout is not a terminal.
pub fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(standard_output()).ok()?;
    (size.ws_col > 0).then(|| size.ws_col.into())
}

/// Returns whether `stream` is a terminal.
pub fn is_terminal(stream: Stream) -> bool {
    match stream {
        Stream::Output => standard_output().is_terminal(),
        Stream::Error => standard_error().is_terminal(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_cut_between_characters_and_lines() {
        for (bytes, expected) in [
            (&b"abc"[..], 3),
            ("aé".as_bytes(), 3),
            (b"a\xc3", 1),
            (b"a\xe2\x80", 1),
            (b"a\x80", 2),
            (b"a\r", 1),
            (b"", 0),
        ] {
            assert_eq!(whole(bytes), expected, "{bytes:?}");
        }
        assert_eq!(for_terminal(b"a\r\n\xff\x1b[2J"), "a\n\u{fffd}\\u{1b}[2J");
    }

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
