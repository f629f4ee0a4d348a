//! Writes to stdout and stderr. When the reader of stdout is gone (`| head -1`), the work ends
//! without a failure.

use std::error::Error as _;
use std::fmt;
use std::io::{self, Write};

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
