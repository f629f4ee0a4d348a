//! `__sandbox`: the process that stays in the host's namespaces for the duration of one command. It
//! does what cannot be done from inside (starting the network helper, removing mount points) and
//! reports how the command ended. Mounts nothing.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};

use super::spec::{Exit, ExitOutcome, Network, RunSpec, Stub};
use super::wire::{self, Answer, Event, Go};
use super::{network, process, target};
use imgctl_base::error::{Error, IoContext, Result};

/// Reads a spec from standard input, runs it, and answers on the same socket.
pub(super) fn main() -> Result<()> {
    let mut caller = process::start()?;
    process::release_stdin()?;
    // Starts its own session, so that Ctrl-C reaches only imgctl, which decides, and not half of a
    // sandbox.
    nix::unistd::setsid().doing(|| "cannot start a session".to_owned())?;
    let outcome = match wire::receive::<RunSpec>(&mut caller) {
        Ok(None) => return Ok(()),
        Ok(Some(spec)) => supervise(spec, &caller),
        Err(error) => Err(error),
    };
    let answer = match outcome {
        Ok(outcome) => Answer::Ended(outcome),
        Err(error) => Answer::Failed((&error).into()),
    };
    wire::send(&mut caller, &answer)
}

fn supervise(mut spec: RunSpec, caller: &UnixStream) -> Result<ExitOutcome> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // An overlay is visible only inside; out here, its upper directory shows what was created.
    let upper = spec.overlay.as_ref().and_then(|overlay| overlay.upper.as_ref());
    let path = upper.map_or(spec.rootfs.as_path(), |upper| upper.directory.as_path()).to_owned();
    let root = rustix::fs::open(&path, flags, Mode::empty()).path("open", &path)?;
    let mut run = Running::start()?;
    let result = run.follow(&mut spec, caller);
    // Must precede the clean-up, because a process inside could still create files. The kernel ends
    // the whole PID namespace before its first process can be waited for.
    run.stop();
    target::remove_stubs(root.as_fd(), &run.stubs)?;
    let (exit, message) = result?;
    Ok(ExitOutcome {
        exit,
        message,
        notes: std::mem::take(&mut run.notes),
        created_stubs: std::mem::take(&mut run.stubs),
    })
}

/// A sandbox as seen from outside.
struct Running {
    child: Child,
    socket: UnixStream,
    helper: Option<network::Helper>,
    stubs: Vec<Stub>,
    notes: Vec<String>,
}

impl Running {
    fn start() -> Result<Self> {
        let (socket, theirs) =
            UnixStream::pair().doing(|| "cannot create a socket pair for RUN".to_owned())?;
        let child = Command::new("/proc/self/exe")
            .arg(super::OUTER)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .doing(|| "cannot start the sandbox".to_owned())?;
        Ok(Self { child, socket, helper: None, stubs: Vec::new(), notes: Vec::new() })
    }

    /// Helps to set up the sandbox and waits until the command ends.
    fn follow(
        &mut self,
        spec: &mut RunSpec,
        caller: &UnixStream,
    ) -> Result<(Exit, Option<String>)> {
        wire::send(&mut self.socket, spec)?;
        let mut message = None;
        while let Some(event) = wire::receive::<Event>(&mut self.socket)? {
            match event {
                Event::Namespaces { notes } => {
                    self.notes.extend(notes);
                    self.connect(spec);
                    // The second copy is for the init process, which uses the socket from now on.
                    wire::send(&mut self.socket, &Go::On)?;
                    wire::send(&mut self.socket, spec)?;
                }
                Event::Ready { stubs } => {
                    self.stubs = stubs;
                    self.check_that_all_live(caller)?;
                    wire::send(&mut self.socket, &Go::On)?;
                }
                Event::NotStarted(why) => message = Some(why),
                Event::Failed { failure, stubs } => {
                    self.stubs.extend(stubs);
                    return Err(failure.into());
                }
                Event::Ended(exit) => return Ok((exit, message)),
            }
        }
        Err(Error::failed("the sandbox ended without an error message")
            .hint("check the kernel log for an out-of-memory kill"))
    }

    fn connect(&mut self, spec: &mut RunSpec) {
        if spec.network != Network::Default {
            return;
        }
        match network::Helper::start(self.child.id()) {
            Ok(helper) => {
                let text = spec.resolv_conf.take();
                spec.resolv_conf = text.map(|text| network::with_name_server(&text.0).into());
                self.helper = Some(helper);
            }
            Err(why) => self.notes.push(format!("RUN has no network: {why}")),
        }
    }

    /// A parent that died before its child set the death signal would go unnoticed. All processes
    /// have set it by now, so checking once is enough.
    fn check_that_all_live(&mut self, caller: &UnixStream) -> Result<()> {
        let mut polled = [PollFd::from_borrowed_fd(caller.as_fd(), PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut polled, Some(&at_once))
            .doing(|| "cannot watch the caller of the sandbox".to_owned())?;
        let gone = polled[0].revents().contains(PollFlags::HUP);
        if gone || !matches!(self.child.try_wait(), Ok(None)) {
            return Err(Error::failed("the sandbox lost its parent"));
        }
        Ok(())
    }

    fn stop(&mut self) {
        // A process that sent `Ended` is about to exit; the kill is for the others.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.helper = None;
    }
}
