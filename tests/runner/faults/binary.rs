//! What the binary needs of its surroundings: hardly anything. It loads no name service of the
//! host, builds as a user who owns nothing, and in a root where there is nothing else.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{IMGCTL, Ran, TestEnv, needs_root, tool};
use crate::faults::support::Nobody;

#[test]
fn no_command_opens_the_hosts_name_services() {
    let env = TestEnv::new();
    env.context(
        "context",
        "FROM scratch\nCOPY etc /etc\nCOPY --chown=root file /file\nUSER nobody\nWORKDIR /home/x\n",
        &[("file", "x"), ("etc/passwd", "root:x:0:0::/:/bin/sh\n")],
    );
    let trace = env.path("trace");
    let mut all = String::new();
    for arguments in [
        &["build", "-t", "app", "context"][..],
        &["images"],
        &["ls", "app:/"],
        &["save", "app", "-o", "app.tar"],
        &["load", "-i", "app.tar"],
        &["export", "app", "-o", "out"],
        &["prune"],
    ] {
        let mut command = tool("strace", ["-f", "-e", "trace=open,openat,openat2,connect", "-o"]);
        command.arg(&trace).arg(IMGCTL).arg("--root").arg(env.root());
        command.args(arguments).current_dir(env.path(""));
        Ran::new(command).ok();
        all.push_str(&std::fs::read_to_string(&trace).unwrap());
    }
    assert!(all.contains("index.json"), "the trace is empty");
    for forbidden in ["nsswitch", "libnss", "nscd", "/etc/passwd\"", "/etc/group\""] {
        let line = all.lines().find(|line| line.contains(forbidden));
        assert_eq!(line, None, "{forbidden}");
    }
}

#[test]
fn an_ordinary_user_with_an_empty_home_builds() {
    if !needs_root() {
        return;
    }
    let env = TestEnv::new();
    env.context("context", "FROM scratch\nCOPY . /\nWORKDIR /w\n", &[("a/b", "x")]);
    let nobody = Nobody::new(&env);
    nobody.imgctl(["build", "-t", "app", "../context"]).ok();
    nobody.imgctl(["ls", "app:/a"]).ok();
    nobody.imgctl(["export", "app", "-o", "out"]).ok();
    assert_eq!(std::fs::read(nobody.home().join("out/a/b")).unwrap(), b"x");
    nobody.imgctl(["scrub"]).ok();
    // No HOME at all: it says what to give.
    let mut command = nobody.command(["images"]);
    command.env_remove("HOME");
    let ran = Ran::new(command).fails(2);
    assert!(ran.stderr().contains("--root"), "{}", ran.report());
}

#[test]
fn a_root_with_nothing_but_the_binary_is_enough() {
    if !needs_root() {
        return;
    }
    let env = TestEnv::new();
    let root = env.path("root-directory");
    install(&root);
    std::fs::create_dir_all(root.join("context")).unwrap();
    std::fs::write(root.join("context/Kubefile"), "FROM scratch\nCOPY . /\nUSER 1\n").unwrap();
    for arguments in [
        &["build", "-t", "app", "/context"][..],
        &["images"],
        &["save", "app", "-o", "/app.tar"],
        &["load", "-i", "/app.tar", "--tag", "again"],
        &["export", "app", "-o", "/out"],
        &["export", "app", "-o", "/out.tar"],
        &["scrub", "--deep"],
        &["rmi", "app"],
        &["prune", "--all"],
    ] {
        // There is no /proc, /dev, /etc or /tmp.
        let mut command = Command::new("/usr/sbin/chroot");
        command.arg(&root).arg("/imgctl").args(["--root", "/store"]).args(arguments);
        command.env_clear();
        Ran::new(command).ok();
    }
    assert!(root.join("out/Kubefile").exists());
}

/// Copies the binary to `/imgctl` below `root`; one that is not static brings its libraries.
fn install(root: &Path) {
    std::fs::create_dir(root).unwrap();
    std::fs::copy(IMGCTL, root.join("imgctl")).unwrap();
    let output = tool("ldd", [IMGCTL]).output().unwrap();
    for word in String::from_utf8(output.stdout).unwrap().split_whitespace() {
        if !word.starts_with('/') {
            continue;
        }
        let to: PathBuf = root.join(word.trim_start_matches('/'));
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(word, to).unwrap();
    }
}
