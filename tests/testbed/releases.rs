//! Clusters on hosts that others set up: every release of Debian that the test bed has, and hosts that are hardened as
//! the benchmarks of CIS and STIG want it. Bookworm as it comes is what all other tests have.

use std::path::PathBuf;

use imgctl_base::testing::skip;

use crate::cluster_etcd::support::{assert_untouched, etcdctl, members, surface};
use crate::cluster_upgrade::rolling;
use crate::common::testbed::{Bed, PASSWORD};
use crate::common::{Ran, long, needs_root, repository};

/// The program as releases have it, which needs nothing of a host; made by `scripts/build`.
const STATIC: &str = "target/imgctl";

/// A bed and the way to log in to its hosts.
struct Hosts {
    bed: Bed,
    login: Vec<String>,
    /// The agent, where the usual one does not start.
    agent: Option<PathBuf>,
}

impl Hosts {
    /// Three hosts of a release. Root cannot log in to hardened ones; sudo asks for the password there.
    fn up(release: &str, hardened: bool, agent: Option<PathBuf>) -> Self {
        let flags = ["--release", release, "--hardened"];
        let bed = Bed::up_with(3, &flags[..if hardened { 3 } else { 2 }]);
        let login = if hardened {
            ["--user", "ops", "--passwd", PASSWORD].map(str::to_owned).to_vec()
        } else {
            vec!["--pk".to_owned(), bed.key().display().to_string()]
        };
        Self { bed, login, agent }
    }

    /// Runs a command of a cluster.
    fn imgctl(&self, arguments: &[&str]) -> Ran {
        let mut command = self.bed.command(arguments);
        command.envs(self.agent.iter().map(|agent| ("IMGCTL_AGENT", agent)));
        Ran::new(command)
    }

    /// Runs a command that logs in to hosts which no cluster has yet.
    fn login(&self, arguments: &[&str]) -> Ran {
        let login = self.login.iter().map(String::as_str);
        self.imgctl(&arguments.iter().copied().chain(login).collect::<Vec<_>>())
    }

    /// What a cluster of pages answers on a host.
    fn version(&self, host: usize) -> String {
        self.bed.says(host, "curl -sS http://127.0.0.1:8080/cgi-bin/state")
    }
}

/// Pages on three hosts, from the first host to an upgrade and back; a reboot between.
fn pages(hosts: &Hosts) {
    let bed = &hosts.bed;
    let folder = repository().join("Kubefile.examples/demo");
    bed.env.build("demo:v1", &folder);
    let newer = ["build", "-t", "demo:v2", "--build-arg", "VERSION=2.0.0"];
    hosts.imgctl(&[&newer[..], &[folder.to_str().unwrap()]].concat()).ok();

    hosts.login(&["run", "demo:v1", "--masters", &bed.ip(1), "--nodes", &bed.ip(2)]).ok();
    hosts.login(&["add", "--nodes", &bed.ip(3)]).ok();
    hosts.imgctl(&["status"]).ok();
    hosts.imgctl(&["upgrade", "demo:v2", "--yes"]).ok();
    for host in 1..=3 {
        assert!(hosts.version(host).contains("v2.0.0"), "{}", hosts.version(host));
    }
    bed.reboot(2);
    hosts.imgctl(&["status"]).ok();
    hosts.imgctl(&["rollback", "--yes"]).ok();
    for host in 1..=3 {
        assert!(hosts.version(host).contains("v1.0.0"), "{}", hosts.version(host));
    }
    hosts.imgctl(&["exec", "--cluster", "default", "id -u"]).ok();
    let note = bed.env.write("note", "a note\n");
    hosts.imgctl(&["scp", "--cluster", "default", note.to_str().unwrap(), "/tmp/note"]).ok();
    assert_eq!(bed.says(3, "cat /tmp/note; rm /tmp/note"), "a note");
    hosts.imgctl(&["reset", "--yes"]).ok();
}

/// Members on three hosts that need each other's ports, one of which leaves.
fn members_of_etcd(hosts: &Hosts) {
    let bed = &hosts.bed;
    // Debian's own wants the C library of Debian 12.
    if !rolling::build(bed, "3.5.1") {
        return;
    }
    hosts.login(&["run", "etcd:v3.5.1", "--masters", &bed.ips(1..=3)]).ok();
    assert_eq!(members(bed, 1), ["h1", "h2", "h3"]);
    etcdctl(bed, 2, "put fruit pear");
    hosts.imgctl(&["delete", "--masters", &bed.ip(3), "--yes"]).ok();
    assert_eq!(members(bed, 1), ["h1", "h2"]);
    assert_eq!(etcdctl(bed, 1, "get fruit --print-value-only"), "pear");
    hosts.imgctl(&["status"]).ok();
    hosts.imgctl(&["reset", "--yes"]).ok();
}

fn life(release: &str, hardened: bool, agent: Option<PathBuf>) {
    if !needs_root() {
        return;
    }
    let hosts = Hosts::up(release, hardened, agent);
    let bed = &hosts.bed;
    assert!(bed.says(1, "cat /etc/os-release").contains(release));
    assert_eq!(bed.says(1, "systemctl is-system-running --wait || systemctl --failed"), "running");
    let before: Vec<String> = (1..=3).map(|host| surface(bed, host)).collect();
    pages(&hosts);
    members_of_etcd(&hosts);
    for host in 1..=3 {
        assert_untouched(bed, host, &before[host - 1]);
    }
}

#[test]
fn hardened_hosts_have_a_whole_life() {
    if long() {
        life("bookworm", true, None);
    }
}

#[test]
fn the_next_release_has_a_whole_life() {
    if long() {
        life("trixie", false, None);
        life("trixie", true, None);
    }
}

#[test]
fn the_former_release_has_a_whole_life() {
    if !long() {
        return;
    }
    // What this compiler links wants the C library of the machine that it runs on.
    let agent = repository().join(STATIC);
    if !agent.exists() {
        skip(&format!("{STATIC} does not exist: scripts/build --quick"));
        return;
    }
    life("bullseye", false, Some(agent));
}

#[test]
fn the_newest_release_has_a_whole_life() {
    if long() {
        life("forky", false, None);
        life("forky", true, None);
    }
}
