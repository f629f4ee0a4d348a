//! The sandbox of a user who is not root: in a user namespace, with one id.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::common::needs_root;
use crate::sandbox::harness::{Ran, Root, chmod, imgctl, run_by};

const NOBODY: u32 = 65_534;

/// A root that belongs to nobody, and the binary where nobody can execute it.
fn root() -> (Root, PathBuf) {
    let root = Root::new();
    let status = Command::new("chown").args(["-R", "65534:65534"]).arg(&root.path).status();
    assert!(status.unwrap().success());
    let binary = root.beside().join("imgctl");
    std::fs::copy(imgctl().get_program(), &binary).unwrap();
    chmod(&binary, 0o755);
    chown(root.beside(), Some(NOBODY), Some(NOBODY)).unwrap();
    (root, binary)
}

fn run(spec: &serde_json::Value, binary: &Path) -> Ran {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(binary);
    run_by(spec, &mut command)
}

#[test]
fn root_inside_is_the_user_outside() {
    if !needs_root() {
        return;
    }
    let (root, binary) = root();
    let script = "id -u; echo $$; touch /made; cat /etc/hosts; test -c /dev/null && echo >/dev/null; \
        grep -E '^(CapEff|Seccomp:)' /proc/self/status; ls /sys/class/net; \
        mount -t tmpfs t /tmp 2>/dev/null && echo mounted; \
        echo 1 2>/dev/null >/proc/sys/vm/swappiness && echo wrote; true";
    let ran = run(&root.script(script), &binary);
    let expected = "0\n1\n127.0.0.1 localhost\nCapEff:\t00000000a80425fb\nSeccomp:\t2\nlo\n";
    assert_eq!(ran.ok(), expected);
    assert!(ran.answer["Ended"]["notes"].to_string().contains("/etc/subuid"));
    let made =
        std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(root.path.join("made")).unwrap());
    assert_eq!(made, NOBODY);
}

#[test]
fn networks_and_mounts_work_as_for_root() {
    if !needs_root() {
        return;
    }
    let (root, binary) = root();
    std::fs::remove_dir(root.path.join("dev")).unwrap();
    let before = root.listing();
    for network in ["Host", "Default"] {
        let mut spec = root.script("ls -d /sys/class/net/lo; cat /s; stat -c %u:%a /s; touch /t/x");
        spec["network"] = json!(network);
        spec["mounts"] = json!([
            {"target": "/s", "kind": {"File": {"content": "secret\n", "mode": 0o400, "uid": 0, "gid": 0}}},
            {"target": "/t", "kind": {"Tmpfs": {"size": 4096, "mode": 0o700}}},
        ]);
        let ran = run(&spec, &binary);
        assert_eq!(ran.ok(), "/sys/class/net/lo\nsecret\n0:400\n", "{network}");
        assert_eq!(root.listing(), before);
    }
}

#[test]
fn other_ids_need_ranges_and_the_error_says_so() {
    if !needs_root() {
        return;
    }
    let (root, binary) = root();
    let mut spec = root.script("true");
    spec["user"] = json!({"uid": 5, "gid": 5, "groups": []});
    let ran = run(&spec, &binary);
    assert!(ran.failure().contains("cannot become user 5:5"));
    assert!(ran.answer["Failed"]["hints"].to_string().contains("/etc/subuid"));
}

/// `/etc/subuid` and `/etc/subgid` as a test wants them, in a mount namespace of its own.
#[test]
fn with_ranges_there_are_other_ids() {
    if !needs_root() {
        return;
    }
    let (root, binary) = root();
    for name in ["subuid", "subgid"] {
        std::fs::write(root.beside().join(name), "nobody:200000:65536\n").unwrap();
    }
    let mut spec = root.script("id -u; id -g; id -G; touch /tmp/made");
    spec["user"] = json!({"uid": 1000, "gid": 1001, "groups": [7]});
    chmod(&root.path.join("tmp"), 0o777);
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec"]).arg(
        "mount --bind \"$1/subuid\" /etc/subuid; mount --bind \"$1/subgid\" /etc/subgid; \
         exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$0\" __sandbox",
    );
    command.arg(&binary).arg(root.beside());
    let ran = run_by(&spec, &mut command);
    assert_eq!(ran.ok(), "1000\n1001\n1001 7\n");
    assert_eq!(ran.answer["Ended"]["notes"], json!([]));
    let made = std::fs::metadata(root.path.join("tmp/made")).unwrap();
    let owner =
        (std::os::unix::fs::MetadataExt::uid(&made), std::os::unix::fs::MetadataExt::gid(&made));
    assert_eq!(owner, (200_999, 201_000));
}

#[test]
fn without_user_namespaces_the_error_says_what_to_enable() {
    if !needs_root() {
        return;
    }
    let (root, binary) = root();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-ec"]).arg(
        "echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all --inh-caps=-all \"$0\" __sandbox",
    );
    command.arg(&binary);
    let ran = run_by(&root.script("true"), &mut command);
    assert!(ran.failure().contains("cannot create a user namespace"));
    assert!(ran.answer["Failed"]["hints"].to_string().contains("max_user_namespaces"));
}
