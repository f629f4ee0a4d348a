//! The controller itself as a host: commands are child processes. Must not depend on SSH.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal};
use tokio::process::Command;
use tokio::sync::oneshot;

use crate::host::login::Login;
use crate::host::reactor;
use crate::host::sudo::Sudo;
use crate::host::transport::{BoxFuture, Channel, Ended, Guarded, Privilege, Transport, held};
use imgctl_base::error::{Error, IoContext, Result};

const LABEL: &str = "localhost";

/// Runs commands as child processes of `/bin/sh`, each in a process group of its own.
pub(super) struct Local {
    label: String,
    sudo: Sudo,
}

impl Local {
    /// The passwords of the login are for sudo, if the process does not run as root.
    pub(super) fn new(label: Option<String>, login: &Login) -> Self {
        let label = label.unwrap_or_else(|| LABEL.to_owned());
        let user = format!("user {}", rustix::process::geteuid().as_raw());
        Self { sudo: Sudo::new(label.clone(), user, login), label }
    }

    fn start(&self, line: &str) -> Result<Channel> {
        let runtime = reactor::reactor()?;
        let _inside = runtime.enter();
        let mut child = Command::new("/bin/sh")
            .arg("-c")
            .arg(line)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .current_dir("/")
            .spawn()
            .doing(|| "cannot start /bin/sh on this machine".to_owned())?;
        let missing = || Error::failed("a child process has no pipes");
        let (input, output, errors) = (
            child.stdin.take().ok_or_else(missing)?,
            child.stdout.take().ok_or_else(missing)?,
            child.stderr.take().ok_or_else(missing)?,
        );
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let (token, released) = held();
        let (tell, told) = oneshot::channel();
        runtime.spawn(async move {
            tokio::select! {
                status = child.wait() => {
                    let _ = tell.send(status);
                }
                _ = released => {
                    // The child has not been waited for, so the PID is still valid.
                    if let Some(group) = group {
                        let _ = rustix::process::kill_process_group(group, Signal::KILL);
                    }
                    let _ = child.wait().await;
                }
            }
        });
        let held = token.clone();
        let ended = async move {
            let _held = held;
            let status = told
                .await
                .map_err(|_| Error::failed("a command on this machine was lost"))?
                .doing(|| "cannot wait for a command on this machine".to_owned())?;
            Ok(ended(status))
        };
        Ok(Channel {
            input: Box::new(Guarded { inner: input, _held: token.clone() }),
            output: Box::new(Guarded { inner: output, _held: token.clone() }),
            errors: Box::new(Guarded { inner: errors, _held: token }),
            ended: Box::pin(ended),
        })
    }
}

fn ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Code(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, signal) => Ended::Signal(signal.unwrap_or_default()),
    }
}

impl Transport for Local {
    fn label(&self) -> &str {
        &self.label
    }

    fn is_local(&self) -> bool {
        true
    }

    fn open<'a>(&'a self, line: &'a str, privilege: Privilege) -> BoxFuture<'a, Result<Channel>> {
        Box::pin(async move {
            if privilege == Privilege::User || rustix::process::geteuid().is_root() {
                return self.start(line);
            }
            self.sudo.check()?;
            let channel = self.start(&self.sudo.wrap(line))?;
            self.sudo.pass(channel).await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::host::testing_run::run;
    use imgctl_base::error::Kind;

    fn local() -> Local {
        Local::new(None, &Login::default())
    }

    fn go(line: &str, input: Option<&[u8]>) -> crate::host::command::Output {
        let patience = Duration::from_secs(20);
        run(&local(), line, Privilege::User, input, 1 << 20, patience).unwrap()
    }

    #[test]
    fn outputs_codes_and_signals_come_back() {
        let output = go("cat; echo oops >&2; exit 7", Some(b"\0\xff8-bit"));
        assert_eq!(output.stdout, b"\0\xff8-bit");
        assert_eq!(output.stderr, b"oops\n");
        assert_eq!(output.ended, Ended::Code(7));
        assert_eq!(go("kill -9 $$", None).ended, Ended::Signal(9));
    }

    #[test]
    fn output_beyond_the_limit_is_dropped_and_input_nobody_reads_hangs_nothing() {
        let big = vec![1; 4 << 20];
        let output = go("head -c 3000000 /dev/zero", Some(&big));
        assert_eq!((output.stdout.len(), output.truncated), (1 << 20, true));
    }

    #[test]
    fn what_a_command_leaves_behind_does_not_hold_us_up() {
        let begun = Instant::now();
        assert_eq!(go("sleep 30 & echo $!", None).ended, Ended::Code(0));
        assert!(begun.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn a_timeout_ends_the_command_and_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x");
        let line = format!("(sleep 2; touch {}) & wait", file.display());
        let patience = Duration::from_millis(300);
        let error = run(&local(), &line, Privilege::User, None, 100, patience).unwrap_err();
        assert_eq!(error.kind(), Kind::Network);
        std::thread::sleep(Duration::from_millis(2500));
        assert!(!file.exists());
    }
}
