//! Running one command on a host to its end, for callers that wait. Must not know what carries it.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;

use crate::error::{Error, IoContext, Kind, Result};
use crate::host::reactor;
use crate::host::transport::{Channel, Ended, Privilege, Transport};

/// So long outputs are waited for when the command has ended but something it left behind holds
/// them open, counted from the last byte.
const AFTER_THE_END: Duration = Duration::from_secs(2);

/// What a command came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) ended: Ended,
    /// The first `limit` bytes of each.
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// Whether an output was longer than the limit.
    pub(crate) truncated: bool,
}

impl Output {
    /// The output of a command that succeeded; else an error that says what `doing` came to, with
    /// the end of what it wrote on stderr.
    pub(crate) fn success(self, host: &str, doing: &str) -> Result<Self> {
        if self.ended.is_success() {
            return Ok(self);
        }
        let mut error = Error::new(
            Kind::CommandFailed,
            format!("cannot {doing} on {host}: {}", self.ended),
        );
        let said = if self.stderr.is_empty() {
            &self.stdout
        } else {
            &self.stderr
        };
        let said = last_lines(said);
        if !said.is_empty() {
            error = error.caused_by(said);
        }
        Err(error)
    }
}

/// The last lines of an output, as text for a message.
fn last_lines(bytes: &[u8]) -> String {
    const LONGEST: usize = 2000;
    let from = bytes.len().saturating_sub(LONGEST);
    let text = String::from_utf8_lossy(bytes.get(from..).unwrap_or_default());
    let lines: Vec<&str> = text.trim().lines().collect();
    let from = lines.len().saturating_sub(10);
    lines.get(from..).unwrap_or_default().join("\n")
}

/// Runs `line` and waits for its end. `input` goes to its stdin, which is closed then (at once
/// without one). At most `limit` bytes of each output are kept; the rest is read and dropped.
/// After `timeout` the command is ended and the call is an error.
#[cfg_attr(not(test), expect(dead_code, reason = "for tests"))]
pub(crate) fn run(
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
        tokio::time::timeout(timeout, whole)
            .await
            .unwrap_or_else(|_| {
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

async fn drive(channel: Channel, input: &[u8], limit: usize) -> Result<Output> {
    let Channel {
        input: mut stdin,
        mut output,
        mut errors,
        ended,
    } = channel;
    let feed = async move {
        // A command that does not read all of its input is none of our business: its exit code
        // tells what became of it.
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
        let reading = (
            collect(&mut output, limit, over.clone()),
            collect(&mut errors, limit, over.clone()),
        );
        tokio::join!(reading.0, reading.1)
    };
    // Input that nobody takes must not outlive the command.
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
    Ok(Output {
        ended,
        truncated: stdout.1 || stderr.1,
        stdout: stdout.0,
        stderr: stderr.0,
    })
}

/// Which output something came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Output,
    Errors,
}

/// Runs `line` without input and hands over its output as it comes. A `sink` that takes its time
/// slows the command down, and nothing else when the connection is its own; one that fails ends it.
pub(crate) fn follow(
    transport: &dyn Transport,
    line: &str,
    privilege: Privilege,
    sink: &mut dyn FnMut(Source, &[u8]) -> Result<()>,
) -> Result<Ended> {
    reactor::block_on(async {
        let Channel {
            input,
            mut output,
            mut errors,
            ended,
        } = transport.open(line, privilege).await?;
        drop(input);
        let doing = || {
            format!(
                "cannot read the output of a command on {}",
                transport.label()
            )
        };
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

/// Reads to the end, or until nothing has come for a while after the command was over.
async fn collect(
    from: &mut (dyn AsyncRead + Send + Unpin),
    limit: usize,
    mut over: watch::Receiver<bool>,
) -> std::io::Result<(Vec<u8>, bool)> {
    let (mut kept, mut truncated) = (Vec::new(), false);
    let mut buffer = vec![0; 32 << 10];
    loop {
        let silence = async {
            // A sender that is gone has told before.
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
