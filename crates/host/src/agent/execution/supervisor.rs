//! The process that supervises one command: starts it, writes its log, ends it when its time is up,
//! and records its outcome. It has no connection to any other process and outlives the agent that
//! started it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::agent::execution::log::{LONGEST_LINE, Stream, Writer};
use crate::agent::execution::place::{KILLED, Place, Record, State};
use crate::agent::execution::start::Said;
use crate::agent::execution::surroundings;
use crate::agent::protocol::Run;
use imgctl_base::error::{IoContext, Result};
use imgctl_base::fs::lock::Lock;

/// Time between SIGTERM and SIGKILL.
pub(super) const GRACE: Duration = Duration::from_secs(10);
/// How long to keep reading output of background processes after the command itself has ended.
const AFTERWARDS: Duration = Duration::from_millis(300);
/// How often to check for a cancel request.
const TICK: Duration = Duration::from_millis(200);
/// How long to wait for the lock: other processes hold it only for an instant to check it.
const LOCK_PATIENCE: Duration = Duration::from_millis(300);
/// Maximum size of a request, in bytes: requests carry small files as input, not images.
const LONGEST_REQUEST: u64 = 256 << 20;

/// Runs one command to its end. Reads the request from standard input, a socket, and answers on it
/// once the command has been started or has failed to start.
pub(super) fn main(directory: &Path) -> ExitCode {
    // Detaches from the connection's hang-up. Fails only if the process is detached already.
    let _ = rustix::process::setsid();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let place = Place::at(directory);
    let Ok(mut socket) = socket() else {
        return ExitCode::from(125);
    };
    let started = read_request(&mut socket).and_then(|request| Started::new(&place, &request));
    let said = match &started {
        Ok(Some(_)) => Said::Started,
        Ok(None) => Said::Taken,
        Err(error) => Said::Failed {
            message: error.to_string(),
            hint: error.hints().first().map(|hint| (*hint).to_owned()),
        },
    };
    let _ = serde_json::to_vec(&said).map(|bytes| socket.write_all(&bytes));
    drop(socket);
    match started.map(|started| started.map(Started::look_after)) {
        Ok(Some(Err(_)) | None) | Err(_) => ExitCode::from(125),
        Ok(Some(Ok(()))) => ExitCode::SUCCESS,
    }
}

/// Takes over standard input, so that no child process inherits it.
fn socket() -> Result<UnixStream> {
    let doing = || "cannot take over standard input".to_owned();
    let socket = std::io::stdin().as_fd().try_clone_to_owned().doing(doing)?;
    let null = OwnedFd::from(File::open("/dev/null").path("open", "/dev/null")?);
    rustix::stdio::dup2_stdin(&null).doing(doing)?;
    Ok(UnixStream::from(socket))
}

fn read_request(socket: &mut UnixStream) -> Result<Run> {
    let mut bytes = Vec::new();
    socket
        .take(LONGEST_REQUEST)
        .read_to_end(&mut bytes)
        .doing(|| "cannot read the request".to_owned())?;
    serde_json::from_slice(&bytes).doing(|| "the request is truncated".to_owned())
}

struct Started {
    place: Place,
    child: Child,
    group: Option<Pid>,
    marker: String,
    log: Writer,
    begun: Instant,
    timeout: Option<Duration>,
    _alive: Lock,
}

impl Started {
    /// Starts the command; returns `None` if the key has run or is running already.
    fn new(place: &Place, request: &Run) -> Result<Option<Self>> {
        let begun = Instant::now();
        let alive = loop {
            match place.try_lock_alive()? {
                Some(lock) => break lock,
                None if begun.elapsed() > LOCK_PATIENCE => return Ok(None),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        if place.state()?.is_some() {
            return Ok(None);
        }
        let _ = std::fs::remove_file(place.cancel_file());
        let marker = marker();
        let environment = surroundings::environment(request, &marker);
        let bash = surroundings::bash(&environment)?;
        let workdir = surroundings::workdir(request)?;
        let log = Writer::create(place)?.hiding(surroundings::secrets(request));
        // From here on, the key counts as run.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        place.write_state(&State {
            boot_id: surroundings::boot_id(),
            marker: marker.clone(),
            started_ms: now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(0)),
            supervisor: std::process::id(),
        })?;
        let spawned = Command::new(bash)
            .args(["-e", "-c", &request.line])
            .env_clear()
            .envs(&environment)
            .current_dir(workdir)
            .stdin(if request.input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .doing(|| format!("cannot start {}", request.key));
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                // The command did not run after all.
                place.forget()?;
                return Err(error);
            }
        };
        if let (Some(mut stdin), Some(input)) = (child.stdin.take(), request.input.clone()) {
            // A command that does not read its input must not block the supervisor.
            let writer = std::thread::Builder::new().name("input".to_owned());
            let _ = writer.spawn(move || stdin.write_all(input.as_bytes()));
        }
        Ok(Some(Self {
            place: place.clone(),
            group: i32::try_from(child.id()).ok().and_then(Pid::from_raw),
            child,
            marker,
            log,
            begun,
            timeout: request.timeout_seconds.map(Duration::from_secs),
            _alive: alive,
        }))
    }

    /// Follows the command to its end and records it.
    fn look_after(mut self) -> Result<()> {
        let mut end = End::default();
        let watched = self.watch(&mut end);
        if watched.is_err() {
            // The log can no longer be written (for example, the disk is full): better no command
            // than one without a record.
            self.signal(Signal::KILL);
        }
        let status = self.child.wait().doing(|| "cannot wait for the command".to_owned())?;
        if end.timed_out || end.cancelled {
            // Processes that ignored the signal, in any process group.
            surroundings::kill_marked(&self.marker);
        }
        let (code, mut reason) = describe(status, &end, self.timeout);
        if let Err(error) = watched {
            reason = Some(format!("cannot write its output: {error}"));
        }
        let record = Record {
            code: if reason.is_some() { None } else { code },
            reason,
            duration_ms: u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        let _ = self.log.finish();
        self.place.write_record(&record)
    }

    /// Writes output to the log until the command has ended, and ends the command when it is due.
    fn watch(&mut self, end: &mut End) -> Result<()> {
        let out = self.child.stdout.take().map(OwnedFd::from);
        let err = self.child.stderr.take().map(OwnedFd::from);
        let mut streams = Vec::new();
        for (fd, stream) in [(out, Stream::Out), (err, Stream::Err)] {
            if let Some(fd) = fd {
                let _ = rustix::pipe::fcntl_setpipe_size(&fd, 256 << 10);
                streams.push(Lines::new(fd, stream));
            }
        }
        let ended = self.group.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let mut buffer = vec![0; 128 << 10];
        let mut gone = None;
        loop {
            let mut fds: Vec<PollFd<'_>> =
                streams.iter().map(|lines| PollFd::new(&lines.fd, PollFlags::IN)).collect();
            if let (Some(ended), None) = (&ended, gone) {
                fds.push(PollFd::new(ended, PollFlags::IN));
            }
            let timeout =
                Timespec { tv_sec: 0, tv_nsec: i64::try_from(TICK.as_nanos()).unwrap_or(0) };
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).doing(|| "cannot wait for output".to_owned()),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            let mut still = Vec::with_capacity(2);
            for (mut lines, ready) in streams.into_iter().zip(ready) {
                if !ready || lines.read(&mut buffer, &mut self.log)? {
                    still.push(lines);
                }
            }
            streams = still;
            self.log.flush()?;
            if gone.is_none() && matches!(self.child.try_wait(), Ok(Some(_))) {
                gone = Some(Instant::now());
            }
            match gone {
                Some(_) if streams.is_empty() => return Ok(()),
                // Background processes may hold the pipes open forever.
                Some(since) if since.elapsed() > AFTERWARDS => {
                    for lines in &mut streams {
                        lines.end(&mut self.log)?;
                    }
                    return self.log.flush();
                }
                Some(_) => {}
                None => self.end_when_due(end),
            }
        }
    }

    fn end_when_due(&self, end: &mut End) {
        if !end.timed_out && self.timeout.is_some_and(|limit| self.begun.elapsed() > limit) {
            end.timed_out = true;
        }
        if !end.timed_out && !end.cancelled && self.place.cancel_file().exists() {
            end.cancelled = true;
        }
        if !end.timed_out && !end.cancelled {
            return;
        }
        match end.asked {
            None => {
                self.signal(Signal::TERM);
                end.asked = Some(Instant::now());
            }
            Some(since) if since.elapsed() > GRACE => self.signal(Signal::KILL),
            Some(_) => {}
        }
    }

    /// Signals the command and its process group.
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, signal);
        }
    }
}

/// Why the supervisor ended a command.
#[derive(Default)]
struct End {
    timed_out: bool,
    cancelled: bool,
    /// Time at which SIGTERM was sent.
    asked: Option<Instant>,
}

fn describe(
    status: ExitStatus,
    end: &End,
    timeout: Option<Duration>,
) -> (Option<i32>, Option<String>) {
    if end.timed_out {
        let limit = timeout.unwrap_or_default().as_secs();
        return (None, Some(format!("timed out after {limit} s")));
    }
    if end.cancelled {
        return (None, Some("cancelled".to_owned()));
    }
    let reason = status.signal().map(|number| format!("{KILLED}{number}"));
    (status.code(), reason)
}

/// Returns a marker that distinguishes the processes of this run from all others.
fn marker() -> String {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's only source of randomness; its keys differ with each call.
    let random = || std::hash::RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

/// One output stream, split into lines.
struct Lines {
    fd: OwnedFd,
    stream: Stream,
    line: Vec<u8>,
    /// The line exceeds the maximum length.
    cut: bool,
}

impl Lines {
    fn new(fd: OwnedFd, stream: Stream) -> Self {
        Self { fd, stream, line: Vec::new(), cut: false }
    }

    /// Reads the available bytes; returns `false` at the end of the stream.
    fn read(&mut self, buffer: &mut [u8], log: &mut Writer) -> Result<bool> {
        let count = match rustix::io::read(&self.fd, &mut *buffer) {
            Ok(0) => {
                self.end(log)?;
                return Ok(false);
            }
            Ok(count) => count,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return Ok(true),
            Err(error) => return Err(error).doing(|| "cannot read the output".to_owned()),
        };
        let mut rest = buffer.get(..count).unwrap_or_default();
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.add(rest.get(..end).unwrap_or_default());
            self.write(log)?;
            rest = rest.get(end + 1..).unwrap_or_default();
        }
        self.add(rest);
        Ok(true)
    }

    fn add(&mut self, bytes: &[u8]) {
        let room = LONGEST_LINE - self.line.len();
        self.line.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
        self.cut |= bytes.len() > room;
    }

    fn write(&mut self, log: &mut Writer) -> Result<()> {
        if std::mem::take(&mut self.cut) {
            self.line.extend_from_slice("… (cut)".as_bytes());
        }
        let written = log.line(self.stream, &self.line);
        self.line.clear();
        written
    }

    /// Writes a final line that has no line break.
    fn end(&mut self, log: &mut Writer) -> Result<()> {
        if self.line.is_empty() {
            return Ok(());
        }
        self.write(log)
    }
}
