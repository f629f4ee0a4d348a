//! Login shells that do not run commands, and hosts that say why nobody may log in.

use crate::common::{Ran, TestEnv};
use imgctl_host::host::testing::{Sshd, keygen};

/// Runs a command on a host with these lines in sshd_config.
fn exec(lines: &str, flags: &[&str]) -> Ran {
    let (env, host) = (TestEnv::new(), Sshd::start(lines));
    let (key, known) = (host.path("id"), env.path("known_hosts"));
    keygen(&host.path("other"), &["-t", "ed25519"], "");
    let other = host.path("other").display().to_string();
    let list = format!("127.0.0.1:{}", host.port);
    let mut words = vec!["exec", "--ssh-config", "none", "--ips", &list];
    words.extend(["--known-hosts", known.to_str().unwrap()]);
    match flags {
        ["other"] => words.extend(["-i", &other]),
        _ => words.extend(["-i", key.to_str().unwrap()].iter().chain(flags)),
    }
    env.imgctl([&words[..], &["echo done"]].concat())
}

/// The forced command is what the user's shell does with any command.
#[test]
fn a_shell_that_runs_no_command_is_named_with_its_words() {
    for (shell, part) in [
        ("/usr/sbin/nologin", "This account is currently not available"),
        ("exit 0", "ended with exit code 0 and without a message"),
        ("echo hello; exit 1", "it says: hello"),
        ("bash -r -c \"$SSH_ORIGINAL_COMMAND\"", "restricted"),
    ] {
        for flags in [&[][..], &["--as-user"]] {
            let ran = exec(&format!("ForceCommand {shell}"), flags).fails(5);
            let said = ran.stderr();
            assert!(said.contains("login shell of root") && said.contains(part), "{said}");
            assert!(said.contains(".bashrc") && !said.contains("sudo"), "{said}");
        }
    }
    // A file that waits a moment for input gets none, and does not eat that of the command.
    let waits = "read -t 1 word; eval \"$SSH_ORIGINAL_COMMAND\"";
    let ran = exec(&format!("ForceCommand {waits}"), &[]).ok();
    assert!(ran.stdout().ends_with("done"), "{}", ran.stdout());
    // Noise of start-up files, and what they leave behind, is no refusal.
    let noise = "seq 3000; sleep 30 & eval \"$SSH_ORIGINAL_COMMAND\"";
    let ran = exec(&format!("ForceCommand {noise}"), &[]).ok();
    assert!(ran.stdout().ends_with("done"), "{}", ran.stdout());
}

#[test]
fn a_host_that_turns_users_away_is_quoted() {
    let env = TestEnv::new();
    let banner = env.write("banner", "********\nmaintenance until \u{1b}[31mfive\n");
    let banner = format!("Banner {}", banner.display());
    let said = exec(&banner, &["other"]).fails(5).stderr();
    assert!(said.contains("it says: maintenance until") && !said.contains("****"), "{said}");
    assert!(!said.contains('\u{1b}'), "{said}");
    let ran = exec(&banner, &[]).ok();
    assert!(!ran.stderr().contains("maintenance"), "{}", ran.stderr());
}
