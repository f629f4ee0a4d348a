//! The caller's side: starts the supervisor, sends it the spec and streams the output. Does not
//! know how a sandbox is made.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags};

use super::spec::{ExitOutcome, RunSpec, Stream};
use super::wire::{self, Answer};
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::wire::encode;

/// Maximum length of the supervisor's answer, in bytes.
const LONGEST_ANSWER: u64 = 16 << 20;

/// Runs one command in a sandbox and waits for it. `exe` is the imgctl binary (`/proc/self/exe`);
/// `on_output` receives each piece of output as it arrives, on this thread.
///
/// The command cannot outlive this thread. An exit code other than 0 is an outcome, not an error.
/// An error means that the sandbox could not be made: a missing privilege (`Denied`) or an
/// impossible mount (`Usage`, `BadContent`).
pub fn run(
    spec: &RunSpec,
    exe: &Path,
    on_output: &mut dyn FnMut(Stream, &[u8]),
) -> Result<ExitOutcome> {
    let frame =
        encode(spec).context(|| "cannot pass the RUN step to its sandbox".to_owned()).map_err(
            |error| error.hint("secrets and scripts must be small; mount large files instead"),
        )?;
    let (mut ours, theirs) =
        UnixStream::pair().doing(|| "cannot create a socket pair for RUN".to_owned())?;
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
    // If the supervisor dies before it has read everything, the error is reported below, with its
    // exit status.
    let _ = ours.write_all(&frame);
    let mut answer = Vec::new();
    stream(out, err, ours.into(), &mut answer, on_output)?;
    let status = child.0.wait().doing(|| "cannot wait for the sandbox".to_owned())?;
    match wire::receive(&mut answer.as_slice())? {
        Some(Answer::Ended(outcome)) => Ok(outcome),
        Some(Answer::Failed(failure)) => Err(failure.into()),
        None => Err(Error::failed(format!("the sandbox of the RUN step died ({status})"))
            .hint("check the kernel log for an out-of-memory kill; other builds are not affected")),
    }
}

/// Reads the three descriptors until all of them reach their end.
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
                // The other end closed the socket with unread data.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
                other => other.doing(|| "cannot read the output of the RUN step".to_owned())?,
            };
            match stream {
                _ if count == 0 => ended.push(index),
                Some(stream) => on_output(*stream, &buffer[..count]),
                None if answer.len() as u64 + count as u64 > LONGEST_ANSWER => {
                    return Err(Error::failed("the response of the sandbox is too long"));
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

/// Waits until at least one descriptor is readable; returns the indices of the readable ones,
/// ascending.
fn wait<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>) -> Result<Vec<usize>> {
    let mut polled: Vec<PollFd<'_>> =
        fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
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

/// Kills the supervisor, and with it everything in the sandbox, if the caller returns early.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::{Bytes, Exit, Identity, Network, Security};
    use super::*;

    fn spec() -> RunSpec {
        RunSpec {
            rootfs: "/".into(),
            overlay: None,
            argv: vec!["true".into()],
            env: Vec::new(),
            cwd: Bytes::default(),
            user: Identity::default(),
            network: Network::None,
            mounts: Vec::new(),
            hostname: "box".to_owned(),
            resolv_conf: None,
            hosts: None,
            limits: Vec::new(),
            security: Security::Sandbox,
            stdin: None,
        }
    }

    /// Runs a shell script in place of the supervisor. Its standard input is the socket, for both
    /// directions.
    fn with_supervisor(
        script: &str,
        on_output: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<ExitOutcome> {
        let dir = tempfile::tempdir().unwrap();
        let exe = dir.path().join("imgctl");
        // Written by a child process; otherwise a concurrent fork could cause ETXTBSY.
        let status = Command::new("sh")
            .args(["-c", r#"printf %s "$1" >"$0" && chmod 755 "$0""#])
            .arg(&exe)
            .arg(format!("#!/bin/bash\nexport PATH=/usr/bin:/bin\n{script}\n"))
            .status()
            .unwrap();
        assert!(status.success());
        run(&spec(), &exe, on_output)
    }

    fn answer(json: &str) -> String {
        let length: String =
            (json.len() as u32).to_le_bytes().iter().map(|byte| format!("\\x{byte:02x}")).collect();
        format!("printf '{length}%s' '{json}' >&0")
    }

    const ENDED: &str =
        r#"{"Ended":{"exit":{"Code":3},"message":null,"notes":["n"],"created_stubs":[]}}"#;

    #[test]
    fn output_streams_as_it_comes_and_the_outcome_follows() {
        let script = format!(
            "test $1 = __sandbox -a -z \"$HOME\" || exit 9; echo out; echo err >&2; \
             head -c 300000 /dev/zero; {}; echo late",
            answer(ENDED)
        );
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let outcome = with_supervisor(&script, &mut |stream, bytes| match stream {
            Stream::Out => out.extend_from_slice(bytes),
            Stream::Err => err.extend_from_slice(bytes),
        })
        .unwrap();
        assert_eq!(
            (outcome.exit, outcome.notes.as_slice()),
            (Exit::Code(3), &["n".to_owned()][..])
        );
        assert_eq!(err, b"err\n");
        assert_eq!(out.len(), 4 + 300_000 + 5);
        assert!(out.starts_with(b"out\n") && out.ends_with(b"late\n"));
    }

    #[test]
    fn a_failure_arrives_with_its_hints() {
        let json = r#"{"Failed":{"kind":"denied","chain":["a","b"],"hints":["h"]}}"#;
        let error = with_supervisor(&answer(json), &mut |_, _| {}).unwrap_err();
        assert_eq!(error.to_string(), "a: b");
        assert_eq!(error.kind(), imgctl_base::error::Kind::Denied);
        assert_eq!(error.hints(), ["h"]);
    }

    #[test]
    fn a_supervisor_that_dies_is_an_error() {
        let cut = format!("{}; exit 4", answer(ENDED).replace("]}}", ""));
        for script in ["exit 4", "kill -9 $$", "printf 'ab' >&0", &cut] {
            let error = with_supervisor(script, &mut |_, _| {}).unwrap_err();
            assert!(error.to_string().contains("died"), "{script}: {error}");
        }
        let error = run(&spec(), Path::new("/no/such/imgctl"), &mut |_, _| {}).unwrap_err();
        assert!(error.to_string().contains("/no/such/imgctl"));
    }
}
