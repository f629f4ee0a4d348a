//! Passwords, sudo, IPv6 and lost links on the hosts of the test bed, which have users of every kind.

use std::time::{Duration, Instant};

use crate::common::{Ran, TestEnv, needs_root, repository, tool};
use serde_json::Value;

/// One host and where imgctl runs.
struct Bed {
    name: String,
    env: TestEnv,
    known: Value,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let ran = self.testbed(&["down"]);
        if !ran.success() {
            println!("{}", ran.report());
        }
    }
}

impl Bed {
    fn up(name: &str) -> Self {
        let pid = std::process::id().to_string();
        let mut bed =
            Self { name: format!("login{pid}-{name}"), env: TestEnv::new(), known: Value::Null };
        bed.testbed(&["up", "1", "--owner", &pid]).ok();
        bed.known = bed.testbed(&["list", "--json"]).ok().json();
        bed
    }

    fn testbed(&self, arguments: &[&str]) -> Ran {
        let script = repository().join("scripts/testbed");
        let mut command = tool(script.to_str().unwrap(), ["--name", &self.name]);
        command.args(arguments);
        Ran::new(command)
    }

    fn host(&self, key: &str) -> &str {
        self.known["hosts"][0][key].as_str().unwrap()
    }

    fn key(&self) -> &str {
        self.known["key"].as_str().unwrap()
    }

    /// `imgctl exec` with a clean home.
    fn exec(&self, arguments: &[&str], command: &str) -> Ran {
        let known = self.env.path("known_hosts");
        let list = self.host("ip").to_owned();
        let mut all = vec!["exec", "--ssh-config", "none"];
        all.extend(["--known-hosts", known.to_str().unwrap()]);
        if !arguments.contains(&"--ips") {
            all.extend(["--ips", &list]);
        }
        all.extend(arguments);
        all.push(command);
        Ran::new(self.env.command(all))
    }
}

#[test]
fn users_of_every_kind_become_root_or_are_told_why_not() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up("sudo");
    let pass = bed.env.write("pass", "test\n");
    let wrong = bed.env.write("wrong", "nope\n");
    let (pass, wrong) = (pass.to_str().unwrap(), wrong.to_str().unwrap());
    let key = bed.key().to_owned();

    // By password, of root and of a user whose sudo asks for it.
    assert_eq!(bed.exec(&["--passwd-file", pass], "id -u").ok().stdout(), "0");
    let ops = bed.exec(&["-u", "ops", "--passwd-file", pass], "id -u; cat | wc -c").ok();
    assert_eq!(ops.stdout(), "0\n0", "the password is no input of the command");
    let user = bed.exec(&["-u", "ops", "--passwd-file", pass, "--as-user"], "id -un").ok();
    assert_eq!(user.stdout(), "ops");
    // By key, with the password only for sudo.
    let arguments = ["-u", "ops", "-i", &key, "--sudo-passwd-file", pass];
    assert_eq!(bed.exec(&arguments, "id -u; echo $HOME").ok().stdout(), "0\n/root");
    // Without any password, and bytes of all kinds both ways.
    let all = "printf '\\000\\377\\r\\n\\003' | od -An -tx1 | tr -d ' \\n'";
    assert_eq!(bed.exec(&["-u", "deploy", "-i", &key], all).ok().stdout(), "00ff0d0a03");
    let source = bed.env.write("all", (0..=255u8).cycle().take(1 << 20).collect::<Vec<_>>());
    let known = bed.env.path("known_hosts");
    let scp = [
        "scp",
        "--ssh-config",
        "none",
        "--known-hosts",
        known.to_str().unwrap(),
        "--ips",
        bed.host("ip"),
    ];
    let rest = ["-u", "ops", "--passwd-file", pass, source.to_str().unwrap(), "/root/all"];
    Ran::new(bed.env.command(scp.into_iter().chain(rest))).ok();
    let sum = bed.testbed(&["exec", "1", "sha256sum < /root/all"]).ok().stdout();
    let ours = Ran::new(tool("sha256sum", [source.to_str().unwrap()])).ok().stdout();
    assert_eq!(sum.split(' ').next(), ours.split(' ').next());

    for (arguments, part) in [
        (["-u", "root", "--passwd-file", wrong], "does not let root log in"),
        (["-u", "nosudo", "--passwd-file", pass], "may not use sudo"),
        (["-u", "ops", "-i", key.as_str()], "asks for a password, and none was given"),
    ] {
        let ran = bed.exec(&arguments, "true").fails(5);
        assert!(ran.stderr().contains(part), "{}", ran.stderr());
        assert!(ran.stderr().contains(bed.host("ip")) && !ran.stderr().contains("nope"));
    }
    let ran = bed.exec(&["-u", "ops", "-i", &key, "--sudo-passwd-file", wrong], "true").fails(5);
    assert!(ran.stderr().contains("rejects the password"), "{}", ran.stderr());
    let line = "echo 'Defaults:ops requiretty' > /etc/sudoers.d/tty";
    bed.testbed(&["exec", "1", line]).ok();
    let ran = bed.exec(&["-u", "ops", "--passwd-file", pass], "true").fails(5);
    assert!(ran.stderr().contains("requiretty"), "{}", ran.stderr());
    bed.testbed(&["exec", "1", "rm /etc/sudoers.d/tty; mv /usr/bin/sudo /usr/bin/sudo.off"]).ok();
    let ran = bed.exec(&["-u", "ops", "--passwd-file", pass], "true").fails(5);
    assert!(ran.stderr().contains("there is no sudo"), "{}", ran.stderr());
}

#[test]
fn keyboard_interactive_ipv6_and_a_link_that_is_cut() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up("link");
    let pass = bed.env.write("pass", "test\n");
    let pass = pass.to_str().unwrap();
    let line = "printf 'PasswordAuthentication no\\nKbdInteractiveAuthentication yes\\nUsePAM yes\\n' > /tmp/x && cat /etc/ssh/sshd_config >> /tmp/x && cp /tmp/x /etc/ssh/sshd_config && systemctl restart ssh";
    bed.testbed(&["exec", "1", line]).ok();
    assert_eq!(bed.exec(&["--passwd-file", pass], "echo in").ok().stdout(), "in");
    let v6 = format!("[{}]:22", bed.host("ip6"));
    let by_key = ["--ips", &v6, "-i", bed.key()];
    assert_eq!(bed.exec(&by_key, "echo in").ok().stdout(), "in");

    bed.testbed(&["cut", "1"]).ok();
    let begun = Instant::now();
    let ran = bed.exec(&["-i", bed.key()], "true").fails(7);
    assert!(ran.stderr().contains("no answer within"), "{}", ran.stderr());
    assert!(begun.elapsed() < Duration::from_secs(240));
}
