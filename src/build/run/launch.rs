//! The caller's side: starts the supervisor, hands it the spec and streams what comes out. Knows
//! nothing of how a sandbox is made.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags};

use super::spec::{ExitOutcome, RunSpec, Stream};
use super::wire::{self, Answer};
use crate::error::{Error, IoContext, Result};

/// No answer of the supervisor's is longer.
const LONGEST_ANSWER: u64 = 16 << 20;

/// Runs one command in a sandbox and waits for it. `exe` is the imgctl binary (`/proc/self/exe`);
/// `on_output` gets each piece of output as it comes, on this thread.
///
/// The command cannot outlive this process. An exit code other than 0 is an outcome, not an
/// error; an error means that the sandbox could not be made: a missing privilege (`Denied`), a
/// mount that cannot be (`Usage`, `BadContent`).
pub(crate) fn run(
    spec: &RunSpec,
    exe: &Path,
    on_output: &mut dyn FnMut(Stream, &[u8]),
) -> Result<ExitOutcome> {
    let (mut ours, theirs) =
        UnixStream::pair().doing(|| "cannot make a socket pair for RUN".to_owned())?;
    let mut child = Command::new(exe)
        .arg(super::SUPERVISOR)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map(KillOnDrop)
        .path("start", exe)?;
    let out = child.0.stdout.take().map(OwnedFd::from);
    let err = child.0.stderr.take().map(OwnedFd::from);
    wire::send(&mut ours, spec)?;
    let mut answer = Vec::new();
    stream(out, err, ours.into(), &mut answer, on_output)?;
    let status = child
        .0
        .wait()
        .doing(|| "cannot wait for the sandbox".to_owned())?;
    match wire::receive(&mut answer.as_slice())? {
        Some(Answer::Ended(outcome)) => Ok(outcome),
        Some(Answer::Failed(failure)) => Err(failure.into()),
        None => Err(
            Error::failed(format!("the sandbox of the RUN step died ({status})")).hint(
                "see the kernel log for an out-of-memory kill; other builds are not affected",
            ),
        ),
    }
}

/// Reads the three descriptors until each of them ends.
fn stream(
    out: Option<OwnedFd>,
    err: Option<OwnedFd>,
    control: OwnedFd,
    answer: &mut Vec<u8>,
    on_output: &mut dyn FnMut(Stream, &[u8]),
) -> Result<()> {
    let mut sources: Vec<(Option<Stream>, File)> = Vec::with_capacity(3);
    sources.extend(out.map(|fd| (Some(Stream::Out), fd.into())));
    sources.extend(err.map(|fd| (Some(Stream::Err), fd.into())));
    sources.push((None, control.into()));
    let mut buffer = vec![0; 64 << 10];
    while !sources.is_empty() {
        let ready = wait(sources.iter().map(|(_, file)| file.as_fd()))?;
        let mut ended = Vec::new();
        for index in ready {
            let (stream, file) = &mut sources[index];
            let count = match file.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The other side went away with something of ours unread.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
                other => other.doing(|| "cannot read the output of the RUN step".to_owned())?,
            };
            match stream {
                _ if count == 0 => ended.push(index),
                Some(stream) => on_output(*stream, &buffer[..count]),
                None if answer.len() as u64 + count as u64 > LONGEST_ANSWER => {
                    return Err(Error::failed("the sandbox's answer is too long"));
                }
                None => answer.extend_from_slice(&buffer[..count]),
            }
        }
        for index in ended.into_iter().rev() {
            sources.remove(index);
        }
    }
    Ok(())
}

/// Waits until at least one can be read; the indices of those, ascending.
fn wait<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>) -> Result<Vec<usize>> {
    let mut polled: Vec<PollFd<'_>> = fds
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    loop {
        match rustix::event::poll(&mut polled, None) {
            Err(rustix::io::Errno::INTR) => {}
            other => {
                other.doing(|| "cannot wait for the output of the RUN step".to_owned())?;
                break;
            }
        }
    }
    Ok(polled
        .iter()
        .enumerate()
        .filter(|(_, fd)| !fd.revents().is_empty())
        .map(|(index, _)| index)
        .collect())
}

/// Ends the supervisor, and with it all that is inside, when we leave early.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
