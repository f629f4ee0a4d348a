//! Commands outside of the login session. systemd-logind may end all processes of a session with the
//! connection (`KillUserProcesses=yes`), also those that have detached themselves, and root's, too
//! (`KillExcludeUsers=`); a scope of its own is not part of the session. Must not know the commands.

use std::path::Path;
use std::process::Command;

use crate::agent::facts::program;

/// Returns a command that runs `agent`, with the arguments that are added, outside of the session that
/// this process is in; `None` if it is in none that ends.
pub(super) fn outside(agent: &Path) -> Option<Command> {
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    if !may_end(&cgroup) || !Path::new("/run/systemd/system").is_dir() {
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
fn may_end(cgroup: &str) -> bool {
    // Whom logind spares is spread over its settings and their drop-ins, and may change meanwhile.
    cgroup.lines().any(|line| line.contains("/session-") && line.contains(".scope"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end_and_services_do_not() {
        for (cgroup, expected) in [
            ("0::/user.slice/user-1000.slice/session-4.scope\n", true),
            ("12:cpu:/\n1:name=systemd:/user.slice/user-1000.slice/session-c2.scope\n", true),
            ("0::/user.slice/user-0.slice/session-4.scope\n", true),
            ("0::/system.slice/ssh.service\n", false),
            ("0::/system.slice/run-r1.scope\n", false),
            ("", false),
        ] {
            assert_eq!(may_end(cgroup), expected, "{cgroup}");
        }
    }
}
