//! Starts the agent on a host, and uploads it first if necessary.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::agent::install::{Binaries, Binary};
use crate::agent::remote::Launch;
use crate::agent::remote::connection::{self, Answered, Connection};
use crate::host::transport::{Channel, Ended, Privilege, Transport};
use imgctl_base::error::{Context, Error, IoContext, Kind, Result};

/// Number of bytes of the program to send at once.
const BLOCK: usize = 256 << 10;
/// Timeout for an upload that makes no progress.
const SILENCE: Duration = Duration::from_secs(120);
/// Timeout for a command to end after its last output.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of bytes to read from a command's stderr.
const ERRORS: u64 = 64 << 10;

/// The host's answer to the command that starts the agent.
enum Begun {
    Running(Connection),
    Needs(String, String),
}

pub(super) async fn start(transport: &dyn Transport, launch: &Launch) -> Result<Connection> {
    let (binaries, root) = (&launch.binaries, launch.root.as_deref());
    if transport.is_local() {
        return running(begin(transport, &binaries.local_line(root)).await?);
    }
    let line = binaries.line(&launch.directory, root)?;
    let (system, machine) = match begin(transport, &line).await? {
        Begun::Running(connection) => return Ok(connection),
        Begun::Needs(system, machine) => (system, machine),
    };
    let binary = binaries.for_host(&system, &machine)?;
    upload(transport, &binary, &launch.directory)
        .await
        .context(|| format!("cannot install the agent in {}", launch.directory))?;
    let line = Binaries::started_line(&binary, &launch.directory, root);
    running(begin(transport, &line).await?)
}

fn running(begun: Begun) -> Result<Connection> {
    match begun {
        Begun::Running(connection) => Ok(connection),
        Begun::Needs(..) => Err(Error::failed("the agent is installed but cannot be run")),
    }
}

async fn begin(transport: &dyn Transport, line: &str) -> Result<Begun> {
    let channel = transport.open(line, Privilege::Root).await?;
    let Channel { input, output, mut errors, ended } = channel;
    match connection::greeted(output).await? {
        Answered::Agent(output) => {
            let connection = Connection::open(output, input, errors, ended).await?;
            Ok(Begun::Running(connection))
        }
        Answered::Needs(system, machine) => Ok(Begun::Needs(system, machine)),
        Answered::Nothing(said) => {
            drop(input);
            let mut text = Vec::new();
            let mut told = (&mut errors).take(ERRORS);
            let _ = tokio::time::timeout(PATIENCE, told.read_to_end(&mut text)).await;
            let ended = tokio::time::timeout(PATIENCE, ended).await;
            let ended = ended.ok().transpose()?;
            Err(not_started(ended, &connection::tail(&text), &said))
        }
    }
}

/// Returns the error for an agent that did not start, with the output of its shell.
fn not_started(ended: Option<Ended>, errors: &str, said: &str) -> Error {
    let said = [errors, said].into_iter().find(|text| !text.is_empty());
    let said = said.map_or_else(String::new, |text| format!(": {text}"));
    let how = ended.map_or_else(|| "without an exit status".to_owned(), Ended::describe);
    let error = Error::failed(format!("it ended {how}{said}"));
    match ended {
        Some(Ended::Code(126 | 127)) => error
            .hint("the program may need libraries that the host lacks: use a statically linked imgctl (IMGCTL_AGENT)")
            .hint("or check the mounts for `noexec`, and the rules of sudo for `NOEXEC` (`sudo -l`): both prevent programs from running there"),
        Some(Ended::Signal(_)) => {
            error.hint("check the host's kernel log for the reason why it was killed (too little \
                        memory?)")
        }
        _ => error,
    }
}

/// Uploads a program to the host.
async fn upload(transport: &dyn Transport, binary: &Binary, directory: &str) -> Result<()> {
    let line = Binaries::upload_line(binary, directory);
    let channel = transport.open(&line, Privilege::Root).await?;
    let Channel { mut input, mut output, mut errors, ended } = channel;
    let path = &binary.path;
    let mut file = tokio::fs::File::open(path).await.path("open", path)?;
    let sending = async move {
        let mut buffer = vec![0; BLOCK];
        loop {
            let count = file.read(&mut buffer).await?;
            if count == 0 {
                break;
            }
            let part = buffer.get(..count).unwrap_or_default();
            match tokio::time::timeout(SILENCE, input.write_all(part)).await {
                Ok(written) => written?,
                Err(_) => return Err(io::Error::from(io::ErrorKind::TimedOut)),
            }
        }
        input.shutdown().await
    };
    let (mut said, mut text) = (Vec::new(), Vec::new());
    let mut noise = (&mut output).take(ERRORS);
    let mut told = (&mut errors).take(ERRORS);
    let (sent, _, _) =
        tokio::join!(sending, noise.read_to_end(&mut said), told.read_to_end(&mut text),);
    let ended = match tokio::time::timeout(SILENCE, ended).await {
        Ok(ended) => ended?,
        Err(_) => return Err(Error::network("the host does not respond")),
    };
    if ended == Ended::Code(0) {
        return Ok(());
    }
    let text = connection::tail(&text);
    if text.is_empty() {
        sent.doing(|| "the connection was lost".to_owned())?;
    }
    let kind = if text.contains("No space left") { Kind::NoSpace } else { Kind::Failed };
    Err(Error::new(kind, format!("it ended {}: {text}", ended.describe())))
}
