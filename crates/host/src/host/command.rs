//! Runs a command on a host to completion, for blocking callers. Must not depend on the transport.

use std::time::Duration;

use tokio::io::AsyncReadExt as _;

use crate::host::reactor;
use crate::host::transport::{Channel, Ended, Privilege, Transport};
use imgctl_base::error::{Error, IoContext, Kind, Result};

/// How long to wait for output after the command has ended while a process that it left behind
/// keeps the streams open, counted from the last byte.
pub(super) const AFTER_THE_END: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    pub ended: Ended,
    /// The first `limit` bytes of each stream.
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Whether a stream exceeded the limit.
    pub truncated: bool,
}

impl Output {
    /// Returns the output of a successful command. Otherwise, returns an error that names `doing`,
    /// with the end of stderr (of stdout, if stderr is empty).
    pub fn success(self, host: &str, doing: &str) -> Result<Self> {
        if self.ended.is_success() {
            return Ok(self);
        }
        let mut error =
            Error::new(Kind::CommandFailed, format!("cannot {doing} on {host}: {}", self.ended));
        let said = if self.stderr.is_empty() { &self.stdout } else { &self.stderr };
        let said = last_lines(said);
        if !said.is_empty() {
            error = error.caused_by(Error::several(Kind::CommandFailed, said.lines()));
        }
        Err(error)
    }
}

/// Returns the last lines of an output, as text for a message.
fn last_lines(bytes: &[u8]) -> String {
    const LONGEST: usize = 2000;
    let from = bytes.len().saturating_sub(LONGEST);
    let text = String::from_utf8_lossy(bytes.get(from..).unwrap_or_default());
    let lines: Vec<&str> = text.trim().lines().collect();
    let from = lines.len().saturating_sub(10);
    lines.get(from..).unwrap_or_default().join("\n")
}

/// The stream that output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Output,
    Errors,
}

/// Runs `line` without input and passes its output to `sink` as it arrives. A slow `sink` slows
/// down the command (and only that if the connection is not shared); a `sink` that fails terminates
/// it.
pub fn follow(
    transport: &dyn Transport,
    line: &str,
    privilege: Privilege,
    sink: &mut dyn FnMut(Source, &[u8]) -> Result<()>,
) -> Result<Ended> {
    reactor::block_on(async {
        let Channel { input, mut output, mut errors, ended } =
            transport.open(line, privilege).await?;
        drop(input);
        let doing = || format!("cannot read the output of a command on {}", transport.label());
        let (mut first, mut second) = (vec![0; 32 << 10], vec![0; 32 << 10]);
        let (mut is_open, mut errors_open) = (true, true);
        let (mut ended, mut how) = (ended, None);
        let mut silent_since = tokio::time::Instant::now();
        while is_open || errors_open {
            tokio::select! {
                count = output.read(&mut first), if is_open => {
                    let count = count.doing(doing)?;
                    is_open = count > 0;
                    sink(Source::Output, &first[..count])?;
                }
                count = errors.read(&mut second), if errors_open => {
                    let count = count.doing(doing)?;
                    errors_open = count > 0;
                    sink(Source::Errors, &second[..count])?;
                }
                end = &mut ended, if how.is_none() => how = Some(end?),
                () = tokio::time::sleep_until(silent_since + AFTER_THE_END), if how.is_some() => break,
            }
            silent_since = tokio::time::Instant::now();
        }
        match how {
            Some(how) => Ok(how),
            None => ended.await,
        }
    })
}
