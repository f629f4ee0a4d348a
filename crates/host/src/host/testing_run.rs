//! Runs a command to its end, for the tests of this crate.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;

use crate::host::command::{AFTER_THE_END, Output};
use crate::host::reactor;
use crate::host::transport::{Channel, Privilege, Transport};
use imgctl_base::error::{Error, IoContext, Result};

/// Runs `line` and waits for it to end. `input` goes to its stdin, which is then closed
/// (immediately without input). At most `limit` bytes of each output are kept; the rest is read and
/// discarded. After `timeout`, the command is terminated and the call fails.
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
            Err(Error::network(format!(
                "a command did not end on {} within {} s",
                transport.label(),
                timeout.as_secs()
            )))
        })
    })
}

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

/// Reads to the end, or until no output has arrived for a while after the command ended.
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
