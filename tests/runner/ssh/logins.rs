//! The login of commands on a cluster: that of their flags, or the recorded one.

use std::collections::BTreeSet;

use crate::common::{Ran, TestEnv};
use imgctl_host::host::testing::Sshd;

const RECORDED: &str = "imgctl-recorded";
const GIVEN: &str = "imgctl-given";

/// A recorded cluster of one host, whose sshd lets nobody in.
struct Site {
    env: TestEnv,
    host: Sshd,
}

impl Site {
    fn new() -> Self {
        let site = Self { env: TestEnv::new(), host: Sshd::start("") };
        let kubefile = "FROM scratch\nLABEL sealos.io.type=rootfs sealos.io.version=v1beta1 version=v1.31.4\nCOPY a /a\n";
        for (name, text) in [("localhost/demo:v1", "1"), ("localhost/demo:v2", "2")] {
            let context = site.env.context("demo", kubefile, &[("a", text)]);
            site.env.build(name, &context);
        }
        let app = site.env.context("app", "FROM scratch\nCOPY a /a\n", &[("a", "app")]);
        site.env.build("localhost/app:v1", &app);
        let clusterfile = format!(
            "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata:\n  name: t\n  creationTimestamp: \"2026-01-01T00:00:00Z\"\nspec:\n  image: [localhost/demo:v1]\n  ssh:\n    user: {RECORDED}\n    pk: {}\n  hosts:\n  - ips: ['127.0.0.1:{}']\n    roles: [master, amd64]\nstatus:\n  phase: ClusterSuccess\n  mounts:\n  - name: t-1\n    type: rootfs\n    imageName: localhost/demo:v1\n    mountPoint: \"\"\n",
            site.key(),
            site.host.port
        );
        site.env.write(".sealos/t/Clusterfile", clusterfile);
        site
    }

    fn key(&self) -> String {
        self.host.path("id").display().to_string()
    }

    /// Runs a command with a login of its own, and returns the users that the host has refused since then.
    fn run(&self, words: &[&str]) -> (Ran, BTreeSet<&'static str>) {
        let before = self.host.log().len();
        let (key, known) = (self.key(), self.env.path("known_hosts"));
        let login = ["--ssh-config", "none", "-u", GIVEN, "-i", &key, "--known-hosts"];
        let ran = self.env.imgctl([words, &login[..], &[known.to_str().unwrap()]].concat());
        (ran, refused(&self.host.log()[before..]))
    }
}

/// Returns the users of these tests that sshd has refused.
fn refused(log: &str) -> BTreeSet<&'static str> {
    let is_in = |user: &&str| log.contains(&format!("Invalid user {user} "));
    [RECORDED, GIVEN].into_iter().filter(is_in).collect()
}

/// What is recorded counts from any directory, that of a run and that of a Clusterfile.
#[test]
fn relative_keys_are_recorded_as_absolute_paths() {
    let site = Site::new();
    let key = std::fs::read(site.key()).unwrap();
    site.env.write("work/key", key);
    let work = site.env.path("work");
    let host = format!("127.0.0.1:{}", site.host.port);
    let clusterfile = format!(
        "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata:\n  name: file\nspec:\n  image: [localhost/demo:v1]\n  ssh: {{user: {GIVEN}, pk: key, sudoPasswdFrom: {{file: ../pw}}}}\n  hosts: [{{ips: ['{host}'], roles: [master]}}]\n"
    );
    site.env.write("pw", "secret\n");
    site.env.write("work/Clusterfile", clusterfile);
    let mut run = vec!["run", "localhost/demo:v1", "-c", "flag", "--masters", &host];
    run.extend(["--pk", "key", "-u", GIVEN]);
    for words in [&run[..], &["apply", "-f", "Clusterfile"]] {
        let mut command = site.env.command(words);
        command.args(["--ssh-config", "none", "--known-hosts", "known"]).current_dir(&work);
        // The host lets nobody in, and the error names the key as it is recorded.
        let ran = Ran::new(command).fails(5);
        assert!(ran.stderr().contains(&work.join("key").display().to_string()), "{}", ran.report());
    }
}

#[test]
fn removing_an_image_names_the_clusters_that_have_it() {
    let site = Site::new();
    let ran = site.env.imgctl(["rmi", "localhost/demo:v2"]).ok();
    assert!(!ran.stderr().contains("cluster"), "{}", ran.stderr());
    let ran = site.env.imgctl(["rmi", "localhost/demo:v1"]).ok();
    let said = ran.stderr();
    assert!(said.contains("cluster t has localhost/demo:v1"), "{said}");
}

#[test]
fn flags_log_in_instead_of_the_record() {
    let site = Site::new();
    for words in [
        &["status", "-c", "t"][..],
        &["upgrade", "localhost/demo:v2", "-c", "t", "--plan"],
        &["inplace", "status", "-c", "t"],
        &["support-bundle", "-c", "t"],
        &["cert", "-c", "t"],
    ] {
        let (ran, users) = site.run(words);
        assert_eq!(users, BTreeSet::from([GIVEN]), "{}", ran.report());
        assert!(!ran.success(), "{}", ran.report());
    }
}

#[test]
fn flags_of_commands_with_new_hosts_are_for_those_alone() {
    let site = Site::new();
    for words in
        [&["run", "localhost/app:v1", "-c", "t"][..], &["add", "-c", "t", "--nodes", "127.0.0.1:1"]]
    {
        let (ran, users) = site.run(words);
        assert_eq!(users, BTreeSet::from([RECORDED]), "{}", ran.report());
        let said = ran.fails(7).stderr();
        assert!(said.contains("imgctl state cat Clusterfile"), "{said}");
        assert!(!said.contains("--user") && !said.contains("--pk"), "{said}");
    }
    let new = format!("127.0.0.1:{}", site.host.port);
    let (ran, users) = site.run(&["run", "localhost/demo:v1", "-c", "new", "--masters", &new]);
    assert_eq!(users, BTreeSet::from([GIVEN]), "{}", ran.report());
    let said = ran.fails(5).stderr();
    assert!(said.contains("check the user (--user)") && !said.contains("state cat"), "{said}");
}
