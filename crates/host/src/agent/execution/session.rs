//! Commands outside of the login session. systemd-logind may end all processes of a session with the
//! connection (`KillUserProcesses=yes`), also those that have detached themselves; a scope of its own
//! is not part of the session. Must not know the commands.

use std::path::Path;
use std::process::Command;

use crate::agent::facts::program;

/// Settings of logind, with which sessions of root may end, too.
const LOGIND: &str = "/etc/systemd/logind.conf";

/// Returns a command that runs `agent`, with the arguments that are added, outside of the session that
/// this process is in; `None` if it is in none that ends.
pub(super) fn outside(agent: &Path) -> Option<Command> {
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let logind = std::fs::read_to_string(LOGIND).unwrap_or_default();
    if !may_end(&cgroup, &logind) || !Path::new("/run/systemd/system").is_dir() {
        return None;
    }
    // systemd-run becomes the command itself: its process, streams and identity stay. The path of this
    // process counts there as well.
    let agent = if agent == Path::new("/proc/self/exe") {
        Path::new("/proc").join(std::process::id().to_string()).join("exe")
    } else {
        agent.to_owned()
    };
    let mut command = Command::new(program("systemd-run")?);
    command.args(["--scope", "--quiet", "--slice=system.slice", "--"]).arg(agent);
    Some(command)
}

/// Whether processes in `cgroup` (`/proc/self/cgroup`) may end with their session.
fn may_end(cgroup: &str, logind: &str) -> bool {
    let exempts_others = || logind.lines().any(|line| line.trim().starts_with("KillExcludeUsers="));
    cgroup.lines().any(|line| {
        let is_session = line.contains("/session-") && line.contains(".scope");
        // root is exempt by default.
        is_session && (!line.contains("/user-0.slice/") || exempts_others())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sessions_of_users_end() {
        for (cgroup, logind, expected) in [
            ("0::/user.slice/user-1000.slice/session-4.scope\n", "", true),
            ("12:cpu:/\n1:name=systemd:/user.slice/user-1000.slice/session-c2.scope\n", "", true),
            ("0::/user.slice/user-0.slice/session-4.scope\n", "#KillExcludeUsers=root\n", false),
            ("0::/user.slice/user-0.slice/session-4.scope\n", "[Login]\nKillExcludeUsers=\n", true),
            ("0::/system.slice/ssh.service\n", "KillExcludeUsers=\n", false),
            ("0::/system.slice/run-r1.scope\n", "", false),
            ("", "", false),
        ] {
            assert_eq!(may_end(cgroup, logind), expected, "{cgroup}");
        }
    }
}
