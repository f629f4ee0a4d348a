//! `exec` and `scp` over a real sshd.

mod logins;
mod shells;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Ran, TestEnv};
use imgctl_host::host::testing::{self as sshd, Sshd, keygen};

/// Two sshds that let the same key in, and a place for known_hosts.
struct Fleet {
    env: TestEnv,
    hosts: Vec<Sshd>,
}

impl Fleet {
    fn new(count: usize) -> Self {
        let hosts: Vec<Sshd> = (0..count).map(|_| Sshd::start("")).collect();
        for host in &hosts[1..] {
            std::fs::copy(hosts[0].path("authorized"), host.path("authorized")).unwrap();
        }
        Self { env: TestEnv::new(), hosts }
    }

    fn list(&self) -> String {
        let name = |host: &Sshd| format!("127.0.0.1:{}", host.port);
        self.hosts.iter().map(name).collect::<Vec<_>>().join(",")
    }

    fn command(&self, verb: &str, arguments: &[&str]) -> Command {
        let (key, known) = (self.hosts[0].path("id"), self.env.path("known_hosts"));
        let mut all = vec![verb, "--ssh-config", "none", "-i", key.to_str().unwrap()];
        all.extend(["--known-hosts", known.to_str().unwrap()]);
        let list = self.list();
        if !arguments.contains(&"--ips") {
            all.extend(["--ips", &list]);
        }
        all.extend(arguments);
        self.env.command(all)
    }

    fn run(&self, verb: &str, arguments: &[&str]) -> Ran {
        Ran::new(self.command(verb, arguments))
    }
}

#[test]
fn output_comes_in_the_order_of_the_hosts_with_their_names() {
    let fleet = Fleet::new(2);
    let (a, b) = (fleet.hosts[0].port, fleet.hosts[1].port);
    // The first one takes longer.
    let line = format!(
        "[ $(echo $SSH_CONNECTION | cut -d' ' -f4) != {a} ] || sleep 0.5; echo one; printf two; echo three >&2"
    );
    let ran = fleet.run("exec", &[&line]).ok();
    assert_eq!(
        ran.stdout(),
        format!("127.0.0.1:{a}: one\n127.0.0.1:{a}: two\n127.0.0.1:{b}: one\n127.0.0.1:{b}: two")
    );
    assert!(ran.stderr().contains(&format!("127.0.0.1:{b}: three")));
    // Of one host it is as it is.
    let one = format!("127.0.0.1:{a}");
    let ran = fleet.run("exec", &["--ips", &one, "echo", "$((1 + 1))", "'a  b'"]).ok();
    assert_eq!(ran.stdout(), "2 a  b");
}

#[test]
fn a_command_that_fails_somewhere_is_named_with_its_host_and_code() {
    let fleet = Fleet::new(2);
    let b = fleet.hosts[1].port;
    let line = format!("echo out; [ $(echo $SSH_CONNECTION | cut -d' ' -f4) != {b} ] || exit 3");
    let ran = fleet.run("exec", &[&line]).fails(9);
    assert!(ran.stderr().contains(&format!("127.0.0.1:{b}: exit code 3")), "{}", ran.stderr());
    let ran = fleet.run("exec", &["--json", &line]).fails(9);
    let views = ran.json();
    assert_eq!((views[0]["exitCode"].as_i64(), views[1]["exitCode"].as_i64()), (Some(0), Some(3)));
    assert_eq!(views[0]["stdout"], "out\n");
}

#[test]
fn a_host_that_is_down_does_not_keep_the_others_from_working() {
    let fleet = Fleet::new(1);
    let list = format!("127.0.0.1:1,{}", fleet.list());
    let ran = fleet.run("exec", &["--ips", &list, "echo here"]).fails(7);
    assert!(ran.stdout().contains(": here"));
    assert!(ran.stderr().contains("cannot connect to 127.0.0.1:1"), "{}", ran.stderr());
}

#[test]
fn a_reader_that_goes_away_ends_an_endless_command() {
    let fleet = Fleet::new(1);
    let begun = Instant::now();
    let mut child = fleet.command("exec", &["yes"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 4];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    drop(child.stdout.take());
    child.wait().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(120));
}

#[test]
fn a_strict_look_refuses_an_unknown_host_and_says_what_to_do() {
    let fleet = Fleet::new(1);
    let ran = fleet.run("exec", &["--strict-host-key", "true"]).fails(5);
    assert!(ran.stderr().contains("ssh-keyscan"), "{}", ran.stderr());
    fleet.run("exec", &["true"]).ok();
    fleet.run("exec", &["--strict-host-key", "true"]).ok();
}

#[test]
fn a_passphrase_comes_from_a_file_and_is_never_shown() {
    let fleet = Fleet::new(1);
    let key = fleet.hosts[0].path("locked");
    keygen(&key, &["-t", "ed25519"], "very secret");
    std::fs::copy(key.with_added_extension("pub"), fleet.hosts[0].path("authorized")).unwrap();
    std::fs::remove_file(fleet.hosts[0].path("id")).unwrap();
    let key = key.to_str().unwrap();
    let pass = fleet.env.write("pass", "very secret\n");
    fleet.run("exec", &["-i", key, "--pk-passwd-file", pass.to_str().unwrap(), "true"]).ok();
    let wrong = fleet.env.write("wrong", "quite wrong\n");
    let ran = fleet
        .run("exec", &["-vv", "-i", key, "--pk-passwd-file", wrong.to_str().unwrap(), "true"])
        .fails(5);
    assert!(ran.stderr().contains("is the passphrase right"), "{}", ran.stderr());
    assert!(!ran.stderr().contains("quite wrong"));
}

#[test]
fn a_file_arrives_whole_with_mode_and_time_or_not_at_all() {
    let fleet = Fleet::new(2);
    let source = fleet.env.write("file", vec![7; 3 << 20]);
    std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o751)).unwrap();
    sshd::tool("touch", &["-d", "@1600000000", source.to_str().unwrap()]);
    let target = fleet.env.path("there/it's here");
    let (from, to) = (source.to_str().unwrap(), target.to_str().unwrap());
    let first = format!("127.0.0.1:{}", fleet.hosts[0].port);
    fleet.run("scp", &["--ips", &first, from, to]).ok();
    let data = std::fs::metadata(&target).unwrap();
    assert_eq!((data.mode() & 0o7777, data.mtime(), data.len()), (0o751, 1_600_000_000, 3 << 20));
    // Into a directory, by its own name; from two hosts at once.
    let into = fleet.env.path("there");
    fleet.run("scp", &[from, into.to_str().unwrap()]).ok();
    assert!(into.join("file").exists());
    assert_eq!(std::fs::read_dir(&into).unwrap().count(), 2);
    let ran = fleet.run("scp", &["--ips", &first, from, "/proc/nothing/here"]).fails(9);
    assert!(ran.stderr().contains("/proc/nothing"), "{}", ran.stderr());
}

#[test]
fn a_directory_arrives_with_modes_times_and_links() {
    let fleet = Fleet::new(1);
    let source = fleet.env.path("tree");
    fleet.env.write("tree/a b/c", "content");
    fleet.env.write("tree/lib/more", "x");
    symlink("a b/c", source.join("link")).unwrap();
    std::fs::set_permissions(source.join("a b"), std::fs::Permissions::from_mode(0o711)).unwrap();
    sshd::tool("touch", &["-d", "@1500000000", source.join("a b/c").to_str().unwrap()]);
    sshd::tool("mkfifo", &[source.join("fifo").to_str().unwrap()]);
    let target = fleet.env.path("copy");
    // A symlink to a directory stays one.
    std::fs::create_dir_all(target.join("usr/lib")).unwrap();
    symlink("usr/lib", target.join("lib")).unwrap();
    std::fs::write(target.join("kept"), "kept").unwrap();
    let ran = fleet.run("scp", &[source.to_str().unwrap(), target.to_str().unwrap()]).ok();
    assert!(ran.stderr().contains("fifo was skipped"), "{}", ran.stderr());
    let file = std::fs::metadata(target.join("a b/c")).unwrap();
    assert_eq!(file.mtime(), 1_500_000_000);
    assert_eq!(std::fs::metadata(target.join("a b")).unwrap().mode() & 0o777, 0o711);
    assert_eq!(std::fs::read_link(target.join("link")).unwrap(), Path::new("a b/c"));
    assert!(target.join("kept").exists() && target.join("usr/lib/more").exists());
    assert!(std::fs::symlink_metadata(target.join("lib")).unwrap().is_symlink());
}

#[test]
fn a_path_begins_at_the_home_directory_of_the_login_user() {
    let fleet = Fleet::new(1);
    let source = fleet.env.write("file", "7");
    let home = fleet.run("exec", &["--as-user", "printf %s ~"]).ok().stdout();
    let name = format!("imgctl-test-{}", std::process::id());
    let made = Path::new(&home).join(&name);
    let run = |to: &str| fleet.run("scp", &[source.to_str().unwrap(), to]);
    run(&format!("~/{name}/a b")).ok();
    run(&format!("~root/{name}/second")).ok();
    let tree = fleet.env.write("tree/inner", "x");
    let tree = tree.parent().unwrap().to_str().unwrap();
    fleet.run("scp", &[tree, &format!("~/{name}/tree")]).ok();
    let arrived = ["a b", "second", "tree/inner"].map(|file| made.join(file).is_file());
    std::fs::remove_dir_all(&made).unwrap();
    assert_eq!(arrived, [true; 3]);
    let ran = run("~no-such-user-here/x").fails(3);
    assert!(ran.stderr().contains("./~no-such-user-here/x"), "{}", ran.stderr());
}

#[test]
fn files_of_flags_begin_at_home_as_in_ssh() {
    let fleet = Fleet::new(1);
    let key = std::fs::read(fleet.hosts[0].path("id")).unwrap();
    let own = fleet.env.write("own-key", key);
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o600)).unwrap();
    let list = fleet.list();
    let words = ["exec", "--ssh-config", "none", "--ips", &list, "--known-hosts=~/known"];
    let run = |key: &str| fleet.env.imgctl([&words[..], &[key, "echo in"]].concat());
    assert_eq!(run("--pk=~/own-key").ok().stdout(), "in");
    assert!(fleet.env.path("known").is_file());
    let ran = run("--pk=./~/own-key").fails(2);
    assert!(ran.stderr().contains("./~/own-key: there is no such file"), "{}", ran.stderr());
}

/// As in sealos: addresses of the default cluster's hosts need no login flags.
#[test]
fn a_host_of_the_default_cluster_is_reached_with_its_login() {
    let fleet = Fleet::new(1);
    let (key, known) = (fleet.hosts[0].path("id"), fleet.env.path("known_hosts"));
    let list = fleet.list();
    let run = |list: &str| {
        let known = known.to_str().unwrap();
        let words =
            ["exec", "--ssh-config", "none", "--known-hosts", known, "--ips", list, "echo in"];
        fleet.env.imgctl(words)
    };
    assert!(!run(&list).success());
    let clusterfile = format!(
        "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata:\n  name: default\nspec:\n  image: [localhost/x:v1]\n  ssh:\n    pk: {}\n  hosts:\n  - ips: ['{list}']\n    roles: [master, amd64]\n",
        key.display()
    );
    fleet.env.write(".sealos/default/Clusterfile", clusterfile);
    assert_eq!(run(&list).ok().stdout(), "in");
    // Others are strangers still.
    assert!(!run("127.0.0.1:1").success());
}
