//! Runs a command on a host to completion, for blocking callers. Must not depend on the transport.

use std::time::Duration;

use tokio::io::AsyncReadExt as _;
#[cfg(test)]
use tokio::io::{AsyncRead, AsyncWriteExt as _};
#[cfg(test)]
use tokio::sync::watch;

use crate::host::reactor;
use crate::host::transport::{Channel, Ended, Privilege, Transport};
use imgctl_base::error::{Error, IoContext, Kind, Result};

/// How long to wait for output after the command has ended while a process that it left behind
/// keeps the streams open, counted from the last byte.
const AFTER_THE_END: Duration = Duration::from_secs(2);

/// Result of a command.
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
            error = error.caused_by(said);
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

/// Runs `line` and waits for it to end. `input` goes to its stdin, which is then closed
/// (immediately without input). At most `limit` bytes of each output are kept; the rest is read and
/// discarded. After `timeout`, the command is terminated and the call fails.
#[cfg(test)]
pub(super) fn run(
    transport: &dyn Transport,
    line: &str,
    privilege: Privilege,
    input: Option<&[u8]>,
    limit: usize,
    timeout: Duration,
) -> Result<Output> {
    reactor::block_on(async {
        let whole = async {
            let channel = transport.open(line, privilege).await?;
            drive(channel, input.unwrap_or_default(), limit).await
        };
        tokio::time::timeout(timeout, whole).await.unwrap_or_else(|_| {
            Err(Error::new(
                Kind::Network,
                format!(
                    "a command did not end on {} within {} s",
                    transport.label(),
                    timeout.as_secs()
                ),
            ))
        })
    })
}

#[cfg(test)]
async fn drive(channel: Channel, input: &[u8], limit: usize) -> Result<Output> {
    let Channel { input: mut stdin, mut output, mut errors, ended } = channel;
    let feed = async move {
        // A command that does not read all of its input is not an error: its exit code reports the
        // outcome.
        if stdin.write_all(input).await.is_ok() {
            let _ = stdin.shutdown().await;
        }
    };
    let (tell, over) = watch::channel(false);
    let end = async move {
        let ended = ended.await;
        let _ = tell.send(true);
        ended
    };
    let read = async {
        let reading =
            (collect(&mut output, limit, over.clone()), collect(&mut errors, limit, over.clone()));
        tokio::join!(reading.0, reading.1)
    };
    // Unread input must not keep the call running after the command has ended.
    let feed = async {
        let mut over = over.clone();
        tokio::select! {
            () = feed => {}
            _ = over.wait_for(|over| *over) => {}
        }
    };
    let ((), (stdout, stderr), ended) = tokio::join!(feed, read, end);
    let ended = ended?;
    let (stdout, stderr) = (
        stdout.doing(|| "cannot read the output of a command".to_owned())?,
        stderr.doing(|| "cannot read the output of a command".to_owned())?,
    );
    Ok(Output { ended, truncated: stdout.1 || stderr.1, stdout: stdout.0, stderr: stderr.0 })
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

/// Reads to the end, or until no output has arrived for a while after the command ended.
#[cfg(test)]
async fn collect(
    from: &mut (dyn AsyncRead + Send + Unpin),
    limit: usize,
    mut over: watch::Receiver<bool>,
) -> std::io::Result<(Vec<u8>, bool)> {
    let (mut kept, mut truncated) = (Vec::new(), false);
    let mut buffer = vec![0; 32 << 10];
    loop {
        let silence = async {
            // A dropped sender has already sent its value.
            let _ = over.wait_for(|over| *over).await;
            tokio::time::sleep(AFTER_THE_END).await;
        };
        let count = tokio::select! {
            count = from.read(&mut buffer) => count?,
            () = silence => 0,
        };
        if count == 0 {
            return Ok((kept, truncated));
        }
        let room = limit - kept.len();
        kept.extend_from_slice(&buffer[..count.min(room)]);
        truncated |= count > room;
    }
}
