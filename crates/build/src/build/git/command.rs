//! The installed git, run so that only the repository decides about the files: not the caller's
//! repository, configuration, hooks or attributes. Must not know what is fetched.

use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::text::without_logins;

/// Protocols that git may use; `ext::` and `file` would run programs or read files on this machine.
const PROTOCOLS: &str = "git:http:https:ssh";

/// Variables that lead git to another repository or change the files that it writes. Git sets some of
/// them for hooks, which may run a build. What decides only about access (`GIT_SSH_COMMAND`,
/// `GIT_SSL_CAINFO`, …) stays.
pub(super) const FOREIGN: [&str; 27] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_ATTR_SOURCE",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DEFAULT_HASH",
    "GIT_DEFAULT_REF_FORMAT",
    "GIT_DIR",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM",
    "GIT_GLOB_PATHSPECS",
    "GIT_GRAFT_FILE",
    "GIT_ICASE_PATHSPECS",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_INDEX_VERSION",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_LITERAL_PATHSPECS",
    "GIT_NAMESPACE",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_QUARANTINE_PATH",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
];

/// Settings of every call. A git that knows `GIT_CONFIG_GLOBAL` (2.32) reads no file of the user or the
/// system; for an older one these are the settings that change files.
const SETTINGS: [&str; 12] = [
    "-c",
    "core.autocrlf=false",
    "-c",
    "core.attributesFile=/dev/null",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.logAllRefUpdates=false",
    // A server that is silent for a minute is considered dead.
    "-c",
    "http.lowSpeedLimit=1",
    "-c",
    "http.lowSpeedTime=60",
];

/// Without `--ssh`, git uses no SSH keys or agent, because the Kubefile may come from someone else. `GIT_SSH_COMMAND` takes
/// precedence.
const ANONYMOUS: [&str; 2] = [
    "-c",
    "core.sshCommand=ssh -F /dev/null -o BatchMode=yes -o IdentitiesOnly=yes -o IdentityFile=/dev/null -o IdentityAgent=none",
];

/// Timeout of one call. The git and SSH protocols have none of their own.
const LONGEST: Duration = Duration::from_hours(1);
/// How often the space on the disk is looked at while git runs: it writes gigabytes in a second.
const LOOK: Duration = Duration::from_millis(20);
/// Time in which a process that was killed must end.
const END: Duration = Duration::from_secs(10);
/// Maximum size of what git prints, in bytes.
const MOST_PRINTED: u64 = 64 << 20;

/// An `Authorization` header for the URLs below `place`.
pub(super) struct Login {
    pub place: String,
    pub header: String,
}

/// Git, in one directory.
pub(super) struct Git<'a> {
    pub directory: &'a Path,
    pub login: Option<Login>,
    /// Socket of the SSH agent that may log in.
    pub agent: Option<&'a Path>,
    /// More settings, as names and values.
    pub settings: Vec<(String, String)>,
    /// Whether the repository itself, but not what it refers to, may be in a directory of this machine.
    pub reads_files: bool,
    /// Fails if the disk lacks space for this many more bytes.
    pub room: &'a dyn Fn(u64) -> Result<()>,
}

/// Commands that fetch only what their arguments name, never what a repository's files name.
const DIRECT: [&str; 2] = ["ls-remote", "fetch"];

impl Git<'_> {
    /// Runs git, and returns what it prints.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<String> {
        let is_direct = arguments.first().is_some_and(|command| DIRECT.contains(command));
        let protocols = if self.reads_files && is_direct {
            format!("{PROTOCOLS}:file")
        } else {
            PROTOCOLS.to_owned()
        };
        let mut command = Command::new("git");
        FOREIGN.iter().for_each(|name| {
            command.env_remove(name);
        });
        command
            .args(SETTINGS)
            .args(if self.agent.is_some() { &[][..] } else { &ANONYMOUS })
            .args(arguments)
            .current_dir(self.directory)
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_TEMPLATE_DIR", "")
            .env("GIT_CEILING_DIRECTORIES", self.directory.parent().unwrap_or(self.directory))
            .env("GIT_ALLOW_PROTOCOL", protocols)
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_LFS_SKIP_SMUDGE", "1");
        match self.agent {
            Some(agent) => command.env("SSH_AUTH_SOCK", agent),
            None => command.env_remove("SSH_AUTH_SOCK"),
        };
        // Not as arguments: those are visible to every user of the machine.
        let header =
            |login: &Login| (format!("http.{}.extraHeader", login.place), login.header.clone());
        let mut settings: Vec<_> =
            self.settings.iter().cloned().chain(self.login.as_ref().map(header)).collect();
        if self.login.is_some() {
            // Otherwise git would send the header to any host that the server redirects to.
            settings.push(("http.followRedirects".to_owned(), "false".to_owned()));
        }
        command.env("GIT_CONFIG_COUNT", settings.len().to_string());
        for (number, (name, value)) in settings.iter().enumerate() {
            command.env(format!("GIT_CONFIG_KEY_{number}"), name);
            command.env(format!("GIT_CONFIG_VALUE_{number}"), value);
        }
        let output = within(command, LONGEST, self.room)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = without_logins(said.trim());
            let is_redirected = self.login.is_some() && REDIRECTED.iter().any(|c| said.contains(c));
            let error = Error::new(Kind::Network, format!("git said: {said}"));
            let is_denied = self.agent.is_none() && said.contains("Permission denied");
            return Err(if is_denied {
                error.hint("pass --ssh default to log in with your SSH agent")
            } else if is_redirected {
                error.hint("the server leads to another address, which must not get the token: name that address")
            } else {
                error
            });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// What git says of a redirect that it does not follow.
const REDIRECTED: [&str; 5] =
    ["error: 301", "error: 302", "error: 303", "error: 307", "error: 308"];

/// What a command printed, and how it ended.
struct Output {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Runs a command that is killed, with all its processes, after `limit`, or when there is no `room` on the disk.
fn within(
    mut command: Command,
    limit: Duration,
    room: &dyn Fn(u64) -> Result<()>,
) -> Result<Output> {
    let doing = || "cannot run git, which ADD needs for a repository".to_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    room(0)?;
    let child = command.spawn().doing(doing)?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("git".to_owned())
        .spawn(move || sender.send(ended(child)))
        .doing(doing)?;
    let until = Instant::now() + limit;
    let error = loop {
        match receiver.recv_timeout(LOOK) {
            Ok(output) => return output.doing(doing),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                break Error::failed("what git printed was lost");
            }
        }
        if let Err(error) = room(0) {
            break error;
        }
        if Instant::now() >= until {
            let minutes = limit.as_secs() / 60;
            let message = format!("git was not done after {minutes} minutes");
            break Error::new(Kind::Network, message);
        }
    };
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
        // Its files can be removed once it has ended.
        let _ = receiver.recv_timeout(END);
    }
    Err(error)
}

/// Waits for the end of a command. One that prints more than [`MOST_PRINTED`] finds its pipe closed.
fn ended(mut child: Child) -> io::Result<Output> {
    let errors = child.stderr.take();
    let errors = std::thread::Builder::new().name("git".to_owned()).spawn(|| printed(errors))?;
    let stdout = printed(child.stdout.take());
    let status = child.wait()?;
    let stderr = errors.join().map_err(|_| io::Error::other("its errors were lost"))?;
    Ok(Output { status, stdout: stdout?, stderr: stderr? })
}

fn printed(pipe: Option<impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(MOST_PRINTED + 1).read_to_end(&mut bytes)?;
    }
    if bytes.len() as u64 > MOST_PRINTED {
        return Err(io::Error::other(format!("it printed more than {MOST_PRINTED} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_ends_when_the_disk_is_at_its_reserve_or_it_prints_without_end() {
        let begun = Instant::now();
        let looks = std::cell::Cell::new(0);
        let filling = |_: u64| -> Result<()> {
            looks.set(looks.get() + 1);
            if looks.get() < 3 { Ok(()) } else { Err(Error::new(Kind::NoSpace, "it is full")) }
        };
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 300 & wait"]);
        let error = within(command, LONGEST, &filling).err().unwrap();
        assert_eq!((error.kind(), looks.get()), (Kind::NoSpace, 3));

        let error = within(Command::new("yes"), LONGEST, &|_| Ok(())).err().unwrap();
        assert!(error.chain().join(" ").contains("it printed more than"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn everything_that_names_a_repository_is_removed() {
        let printed = Command::new("git").args(["rev-parse", "--local-env-vars"]).output().unwrap();
        let names = String::from_utf8(printed.stdout).unwrap();
        assert!(names.contains("GIT_DIR"), "{names}");
        for name in names.lines() {
            assert!(FOREIGN.contains(&name), "{name}");
        }
    }
}
