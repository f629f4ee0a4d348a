//! A cluster whose state on the controller is encrypted from the first command on: everything works
//! with the identity, nothing without it, and nothing of it is on the controller's disk in plain text.

use std::path::{Path, PathBuf};

use crate::cluster_etcd::support::{etcdctl, keyed, members, run};
use crate::cluster_upgrade::rolling;
use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root, tool};

/// Values that are in the Clusterfile, and on hosts.
const PASSWORD: &str = "Xq7-only-in-the-Clusterfile";
const TOKEN: &str = "tk-of-an-application-4711";
/// The exit code of docs/cli.md.
const NOT_FOUND: i32 = 3;
const DENIED: i32 = 5;

/// A new identity of Debian's age, and its recipient.
fn identity(bed: &Bed, name: &str) -> (PathBuf, String) {
    let path = bed.env.path(name);
    Ran::new(tool("age-keygen", ["-o".as_ref(), path.as_path()])).ok();
    let recipient = Ran::new(tool("age-keygen", ["-y".as_ref(), path.as_path()])).ok().stdout();
    (path, recipient.trim().to_owned())
}

/// Runs imgctl with an identity in the environment.
fn with(bed: &Bed, key: &Path, arguments: &[&str]) -> Ran {
    let mut command = keyed(bed, arguments);
    command.env("IMGCTL_STATE_IDENTITY", key);
    Ran::new(command)
}

/// Nothing below the controller's directories has a secret in plain text.
#[track_caller]
fn assert_sealed(bed: &Bed) {
    for words in [PASSWORD, TOKEN, "PRIVATE KEY-----"] {
        for directory in ["clusters", "imgctl", ".local"] {
            let at = bed.env.path(directory);
            if !at.exists() {
                continue;
            }
            let found = Ran::new(tool("grep", ["-rlF", "--", words, at.to_str().unwrap()]));
            assert_eq!(found.stdout(), "", "`{words}` is in plain text");
        }
    }
}

#[test]
fn a_cluster_lives_with_its_state_encrypted() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3).with_agent();
    for version in ["3.5.0", "3.5.1"] {
        if !rolling::build(&bed, version) {
            return;
        }
    }
    let (key, recipient) = identity(&bed, "key.txt");
    let (recovery, second) = identity(&bed, "recovery.txt");
    let recipients = bed.env.write("recipients.txt", format!("# of the team\n{recipient}\n"));
    let (two, third) = (bed.ips(1..=2), bed.ip(3));
    let token = format!("apiToken={TOKEN}");
    let made = [
        "run",
        "etcd:v3.5.0",
        "--masters",
        &two,
        "--passwd",
        PASSWORD,
        "--env",
        &token,
        "--encrypt-state",
        recipients.to_str().unwrap(),
    ];
    // Without the identity it would not be able to go on with what it wrote.
    let refused = run(&bed, &made).fails(DENIED);
    assert!(refused.stderr().contains(&recipient), "{}", refused.report());
    assert!(!bed.env.path("clusters/default/recipients").exists());
    with(&bed, &key, &[&made[..], &["--dry-run"]].concat()).ok();
    assert!(!bed.env.path("clusters/default/recipients").exists());
    with(&bed, &key, &made).ok();
    assert_eq!(members(&bed, 1), ["h1", "h2"]);
    assert_sealed(&bed);
    // It is the password that is stored, and age alone shows it.
    let stored = bed.env.path("clusters/default/Clusterfile");
    let opened = ["-d".as_ref(), "-i".as_ref(), key.as_path(), stored.as_path()];
    let opened = Ran::new(tool("age", opened)).ok().stdout();
    assert!(opened.contains(PASSWORD) && opened.contains(TOKEN), "{opened}");

    let sealed: [&[&str]; 6] = [
        &["run", "etcd:v3.5.0"],
        &["add", "--masters", &third],
        &["upgrade", "etcd:v3.5.1"],
        &["delete", "--masters", &third, "--yes"],
        &["status"],
        &["reset", "--yes"],
    ];
    for command in sealed {
        let refused = run(&bed, command).fails(DENIED);
        let said = refused.stderr();
        let words = format!("the state of cluster default is encrypted to {recipient}");
        assert!(said.contains(&words) && said.contains("--state-identity"), "{}", refused.report());
    }
    let wrong = with(&bed, &recovery, &["status"]).fails(DENIED);
    assert!(wrong.stderr().contains("the identity of none of them"), "{}", wrong.report());
    // What asks for no secret works.
    bed.imgctl(["journal"]).ok();
    bed.imgctl(["upgrade", "status"]).ok();
    let shown = bed.imgctl(["state", "show", "--json"]).ok().json();
    assert_eq!(shown["recipients"][0], recipient);
    assert_eq!(shown["files"]["plain"], 0, "{shown}");

    with(&bed, &key, &["add", "--masters", &third]).ok();
    assert_eq!(members(&bed, 3), ["h1", "h2", "h3"]);
    assert_sealed(&bed);
    // Somebody else can go on with it when the key is lost.
    let rotate = ["state", "encrypt", "--to", &recipient, "--to", &second, "--state-identity"];
    bed.imgctl([&rotate[..], &[key.to_str().unwrap()]].concat()).ok();

    with(&bed, &recovery, &["upgrade", "etcd:v3.5.1", "--yes"]).ok();
    assert_sealed(&bed);
    etcdctl(&bed, 1, "put fruit pear");
    let snapshot = snapshot(&bed);
    let back = ["rollback", "--from-snapshot", &snapshot, "--i-understand-data-loss", "--yes"];
    bed.imgctl(back).fails(DENIED);
    with(&bed, &key, &back).ok();
    assert_eq!(members(&bed, 1), ["h1", "h2", "h3"]);
    assert_eq!(etcdctl(&bed, 1, "get fruit --print-value-only"), "", "the snapshot is older");
    assert_sealed(&bed);

    etcdctl(&bed, 1, &format!("put token {TOKEN}"));
    backed_up(&bed, &key, &recovery);
    with(&bed, &key, &["delete", "--masters", &third, "--yes"]).ok();
    assert_eq!(members(&bed, 1), ["h1", "h2"]);
    with(&bed, &key, &["reset", "--yes"]).ok();
    assert_sealed(&bed);
    restored(&bed, &key, &recovery);
    unreadable(&bed, &recovery, &second);
}

/// The restore dies on the way: what it left is encrypted, too. The same command ends it.
fn restored(bed: &Bed, key: &Path, recovery: &Path) {
    let place = bed.env.path("clusters/default/backup/oci");
    let identity = recovery.to_str().unwrap();
    let two = bed.ips(1..=2);
    let from = ["restore", place.to_str().unwrap(), "--identity", identity, "--masters", &two];
    let mut dying = keyed(bed, &from);
    dying.env("IMGCTL_STATE_IDENTITY", key).env("IMGCTL_DIE_AFTER", "12");
    let died = Ran::new(dying);
    assert!(died.report().contains("signal: 9"), "{}", died.report());
    assert!(bed.env.path("clusters/default/restore/files/snapshot.db.zst").exists());
    assert_sealed(bed);
    with(bed, key, &from).ok();
    assert_eq!(members(bed, 1), ["h1", "h2"]);
    assert_eq!(etcdctl(bed, 2, "get token --print-value-only"), TOKEN);
    assert_sealed(bed);
}

/// Nobody has the identity any more: the state is made again from the cluster.
fn unreadable(bed: &Bed, other: &Path, recipient: &str) {
    std::fs::rename(bed.env.path("clusters/default"), bed.env.path("unreadable")).unwrap();
    let first = bed.ip(1);
    let hosts = format!("{first},{}", bed.ip(2));
    let adopt = ["adopt", "--masters", &hosts, "--encrypt-state", recipient, "--yes"];
    run(bed, &adopt).fails(DENIED);
    let misnamed = run(bed, &["adopt", "-c", "other", "--masters", &first]).fails(NOT_FOUND);
    assert!(misnamed.stderr().contains("-c default"), "{}", misnamed.report());
    with(bed, other, &adopt).ok();
    assert_sealed(bed);
    let shown = bed.imgctl(["state", "show", "--json"]).ok().json();
    assert_eq!(shown["recipients"], serde_json::json!([recipient]));
    run(bed, &["status"]).fails(DENIED);
    with(bed, other, &["status"]).ok();
    with(bed, other, &["reset", "--yes"]).ok();
    assert_sealed(bed);
}

/// The snapshot that the controller keeps of the only upgrade: age's format.
fn snapshot(bed: &Bed) -> String {
    let found = bed.env.path("clusters/default/backup");
    let mut found = std::fs::read_dir(found).unwrap().flatten();
    let file =
        found.find_map(|entry| Some(entry.path().join("snapshot.db")).filter(|p| p.exists()));
    let file = file.expect("the upgrade left a snapshot");
    assert!(std::fs::read(&file).unwrap().starts_with(b"age-encryption.org/v1\n"));
    file.to_str().unwrap().to_owned()
}

/// A backup in the default place is encrypted to those of the state, and comes back as a state that is
/// encrypted.
fn backed_up(bed: &Bed, key: &Path, recovery: &Path) {
    let made = with(bed, key, &["backup"]).ok();
    assert!(!made.stderr().contains("not encrypted"), "{}", made.report());
    assert_sealed(bed);
    let place = bed.env.path("clusters/default/backup/oci");
    let onto = bed.ip(1);
    let from = ["restore", place.to_str().unwrap(), "--masters", &onto];
    let refused = with(bed, key, &from);
    assert!(refused.stderr().contains("it is encrypted"), "{}", refused.report());
    let identity = ["--identity", recovery.to_str().unwrap()];
    let refused = with(bed, key, &[&from[..], &identity].concat());
    assert!(refused.stderr().contains("still is on"), "{}", refused.report());
}
