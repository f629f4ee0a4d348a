//! Hosts for a test: a bed of `scripts/testbed` that goes when the value goes, and also when the test
//! is killed. Needs root; a test that has hosts belongs to the nextest group `testbed`
//! (.config/nextest.toml).
//!
//! Hosts count from 1, as `scripts/testbed` does: `bed.exec(1, …)` is on h1. A host takes about a
//! second to boot, so let a test do what belongs together on one bed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use imgctl_base::image::Digest;
use serde_json::Value;

use super::{IMGCTL, Ran, TestEnv, repository, tool};

/// The password of every user of every host.
pub(crate) const PASSWORD: &str = "test";

/// A running test bed with a home, a store and a runtime root of its own.
pub(crate) struct Bed {
    /// What `--name` calls it.
    pub(crate) name: String,
    /// Where imgctl runs: HOME, store, files of the test.
    pub(crate) env: TestEnv,
    known: Value,
    ways: Mutex<HashMap<usize, Way>>,
}

/// The command prefix that enters a host without its network. It takes milliseconds, `scripts/testbed exec` many times
/// that, and tests run thousands of commands on hosts.
struct Way {
    /// The words before a command.
    words: Vec<String>,
    /// The state of the host's first process, opened when the words were made. Once that process has ended, it is
    /// unreadable, even if another process gets the PID.
    first_process: File,
}

impl Way {
    /// Takes the prefix from `list --json`; `None` while the host is off.
    fn of(host: &Value) -> Option<Self> {
        let words: Vec<String> = serde_json::from_value(host["way_in"].clone()).ok()?;
        let first_process = File::open(format!("/proc/{}/stat", host["pid"])).ok()?;
        Some(Self { words, first_process })
    }

    fn is_open(&self) -> bool {
        self.first_process.read_at(&mut [0], 0).is_ok_and(|read| read == 1)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let ran = self.testbed(["down"]);
        if !ran.success() {
            // A second panic would hide the first; the warden tries again when this process ends.
            println!("{}", ran.report());
        }
    }
}

impl Bed {
    /// A bed of `hosts` hosts that have booted.
    pub(crate) fn up(hosts: usize) -> Self {
        Self::up_with(hosts, &[])
    }

    /// The same with further arguments of `scripts/testbed up`, such as `--disk 300`.
    pub(crate) fn up_with(hosts: usize, arguments: &[&str]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let pid = std::process::id();
        let name = format!("t{pid}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let mut bed =
            Self { name, env: TestEnv::new(), known: Value::Null, ways: Mutex::default() };
        bed.grow(hosts, &[&["--owner", &pid.to_string()], arguments].concat());
        bed
    }

    /// Puts the agent on all hosts, so that the first command need not send it over the network. For tests that do not
    /// examine how it gets there: it is large, and most tests have several hosts.
    pub(crate) fn with_agent(self) -> Self {
        let (agent, digest) = agent_and_digest();
        for host in self.known["hosts"].as_array().unwrap() {
            let place = Path::new(host["var_lib"].as_str().unwrap()).join("imgctl/agent");
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&place).unwrap();
            let name = place.join(format!("imgctl-agent-{digest}"));
            // The test bed may lie on another file system.
            if std::fs::hard_link(agent, &name).is_err() {
                std::fs::copy(agent, &name).unwrap();
            }
        }
        self
    }

    /// Adds hosts until there are `hosts`; those that are off are switched on.
    pub(crate) fn grow(&mut self, hosts: usize, arguments: &[&str]) {
        let count = hosts.to_string();
        self.testbed([&["up", &count], arguments].concat()).ok();
        self.known = self.list();
    }

    /// Runs `scripts/testbed --name … ARGUMENTS`.
    pub(crate) fn testbed<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Ran {
        let script = repository().join("scripts/testbed");
        let mut command = tool(script.to_str().unwrap(), ["--name", &self.name]);
        command.args(arguments);
        Ran::new(command)
    }

    /// What `list --json` says now.
    pub(crate) fn list(&self) -> Value {
        self.testbed(["list", "--json"]).ok().json()
    }

    /// How many hosts there are.
    pub(crate) fn len(&self) -> usize {
        self.known["hosts"].as_array().unwrap().len()
    }

    /// The IPv4 address of a host.
    pub(crate) fn ip(&self, host: usize) -> String {
        self.text(&self.known["hosts"][host - 1]["ip"])
    }

    /// The IPv6 address of a host.
    pub(crate) fn ip6(&self, host: usize) -> String {
        self.text(&self.known["hosts"][host - 1]["ip6"])
    }

    /// The addresses of these hosts, as `--masters` and `--nodes` take them.
    pub(crate) fn ips(&self, hosts: impl IntoIterator<Item = usize>) -> String {
        let ips: Vec<String> = hosts.into_iter().map(|host| self.ip(host)).collect();
        ips.join(",")
    }

    /// This machine's address on the bed's network.
    pub(crate) fn controller_ip(&self) -> String {
        self.text(&self.known["controller"]["ip"])
    }

    /// The private key that every user of every host accepts.
    pub(crate) fn key(&self) -> PathBuf {
        self.text(&self.known["key"]).into()
    }

    /// A known_hosts file with the keys of all hosts.
    pub(crate) fn known_hosts(&self) -> PathBuf {
        self.text(&self.known["known_hosts"]).into()
    }

    fn text(&self, value: &Value) -> String {
        let found = value.as_str();
        found.unwrap_or_else(|| panic!("not there: {:#}", self.known)).to_owned()
    }

    /// Runs a shell line as root in a host, not over its network.
    pub(crate) fn exec(&self, host: usize, line: &str) -> Ran {
        let Some(words) = self.way_in(host) else {
            return self.testbed(["exec", &host.to_string(), line]);
        };
        let command =
            tool(&words[0], words[1..].iter().map(String::as_str).chain(["bash", "-c", line]));
        Ran::named(format!("exec {host} {line}"), command)
    }

    fn way_in(&self, host: usize) -> Option<Vec<String>> {
        let mut ways = self.ways.lock().unwrap();
        if !ways.get(&host).is_some_and(Way::is_open) {
            ways.remove(&host);
            let way = Way::of(&self.list()["hosts"][host - 1])?;
            ways.insert(host, way);
        }
        ways.get(&host).map(|way| way.words.clone())
    }

    /// The same, which must succeed; gives what it printed.
    #[track_caller]
    pub(crate) fn says(&self, host: usize, line: &str) -> String {
        self.exec(host, line).ok().stdout()
    }

    /// Runs a command over ssh with the bed's key.
    pub(crate) fn ssh(&self, host: usize, user: &str, line: &str) -> Ran {
        self.testbed(["ssh", &format!("{user}@{host}"), line])
    }

    /// Nothing passes to or from the host any more; it does not see that its link is dead.
    #[track_caller]
    pub(crate) fn cut(&self, host: usize) {
        self.testbed(["cut", &host.to_string()]).ok();
    }

    /// Nothing passes between the two hosts any more.
    #[track_caller]
    pub(crate) fn cut_apart(&self, one: usize, other: usize) {
        self.testbed(["cut", &one.to_string(), &other.to_string()]).ok();
    }

    /// Nothing passes between this machine and the hosts any more.
    #[track_caller]
    pub(crate) fn cut_controller(&self) {
        self.testbed(["cut", "controller"]).ok();
    }

    /// Undoes all cuts.
    #[track_caller]
    pub(crate) fn heal(&self) {
        self.testbed(["heal"]).ok();
    }

    /// Limits a host's link in both directions, in Mbit/s; 0 is no limit.
    #[track_caller]
    pub(crate) fn rate(&self, host: usize, mbit: u32) {
        self.testbed(["rate", &host.to_string(), &mbit.to_string()]).ok();
    }

    /// Limits this machine's link in both directions, in Mbit/s; 0 is no limit.
    #[track_caller]
    pub(crate) fn rate_controller(&self, mbit: u32) {
        self.testbed(["rate", "controller", &mbit.to_string()]).ok();
    }

    /// The host is lost: its link and then all its processes go at once.
    #[track_caller]
    pub(crate) fn kill(&self, host: usize) {
        self.testbed(["kill", &host.to_string()]).ok();
    }

    /// Switches a host on and waits for it.
    #[track_caller]
    pub(crate) fn start(&self, host: usize) {
        self.testbed(["start", &host.to_string()]).ok();
    }

    /// Switches a host off in good order.
    #[track_caller]
    pub(crate) fn stop(&self, host: usize) {
        self.testbed(["stop", &host.to_string()]).ok();
    }

    /// Reboots a host in good order and waits for it.
    #[track_caller]
    pub(crate) fn reboot(&self, host: usize) {
        self.testbed(["reboot", &host.to_string()]).ok();
    }

    /// Gives the host's /var/lib a size in MB; 0 is this machine's disk.
    #[track_caller]
    pub(crate) fn disk(&self, host: usize, megabytes: u32) {
        self.testbed(["disk", &host.to_string(), &megabytes.to_string()]).ok();
    }

    /// `imgctl ARGUMENTS`, not yet run, with the bed's home, store and runtime root, and a stripped
    /// binary for the hosts. How to log in is the test's business ([`Bed::key`]).
    pub(crate) fn command<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = self.env.command(arguments);
        command.env("SEALOS_RUNTIME_ROOT", self.env.path("clusters")).env("IMGCTL_AGENT", agent());
        // Whoever writes a test knows what it removes.
        command.env("IMGCTL_YES", "true");
        command
    }

    /// Runs `imgctl ARGUMENTS`.
    pub(crate) fn imgctl<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Ran {
        Ran::new(self.command(arguments))
    }
}

/// The binary under test without what only a debugger reads, which is half of a debug build: what
/// goes to hosts. Made once per build, beside it.
pub(crate) fn agent() -> &'static Path {
    agent_and_digest().0
}

/// Returns the program and its SHA-256 digest in hex.
fn agent_and_digest() -> (&'static Path, &'static str) {
    static AGENT: OnceLock<(PathBuf, String)> = OnceLock::new();
    let (path, digest) = AGENT.get_or_init(|| {
        let built = std::fs::metadata(IMGCTL).unwrap();
        let place = Path::new(IMGCTL).parent().unwrap();
        let prefix = "imgctl-stripped-";
        let name = format!("{prefix}{}-{}", built.mtime(), built.mtime_nsec());
        let stripped = place.join(&name);
        if !stripped.exists() {
            let unfinished = place.join(format!(".{name}.{}", std::process::id()));
            let mut strip = tool("strip", ["-o"]);
            strip.arg(&unfinished).arg(IMGCTL);
            Ran::new(strip).ok();
            for entry in std::fs::read_dir(place).unwrap().flatten() {
                let other = entry.file_name();
                // Another process may have finished the same file in the meantime, and use it.
                if other.to_string_lossy().starts_with(prefix) && *other != *name {
                    let _ = std::fs::remove_file(entry.path());
                }
            }
            std::fs::rename(&unfinished, &stripped).unwrap();
        }
        let digest = Digest::of(&std::fs::read(&stripped).unwrap());
        (stripped, digest.hex().to_owned())
    });
    (path, digest)
}
