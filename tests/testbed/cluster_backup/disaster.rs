//! All three hosts of an etcd cluster are lost under a writer; the cluster comes back on three others.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;

use crate::cluster_etcd::support::{build_etcd, etcdctl, members, run};
use crate::cluster_upgrade::writer::Writer;
use crate::common::registry::Registry;
use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root, tool};

/// It failed and says all of these words.
#[track_caller]
fn refused(ran: &Ran, words: &[&str]) {
    assert!(!ran.success(), "{}", ran.report());
    for words in words {
        assert!(ran.stderr().contains(words), "{words}: {}", ran.report());
    }
}

/// A new identity of Debian's age, and its recipient.
fn identity(bed: &Bed, name: &str) -> (PathBuf, String) {
    let path = bed.env.path(name);
    Ran::new(tool("age-keygen", ["-o".as_ref(), path.as_path()])).ok();
    let recipient = Ran::new(tool("age-keygen", ["-y".as_ref(), path.as_path()])).ok().stdout();
    (path, recipient)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The entries of a layout, oldest first.
fn tags(layout: &Path) -> Vec<String> {
    let index = crate::common::json(&layout.join("index.json"));
    let entries = index["manifests"].as_array().unwrap();
    let name = |entry: &Value| {
        entry["annotations"]["org.opencontainers.image.ref.name"].as_str().unwrap().to_owned()
    };
    entries.iter().map(name).collect()
}

#[test]
fn a_lost_cluster_comes_back_elsewhere() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(6).with_agent();
    if !build_etcd(&bed) {
        return;
    }
    let old: Vec<String> = (1..=3).map(|host| bed.ip(host)).collect();
    let new: Vec<String> = (4..=6).map(|host| bed.ip(host)).collect();
    run(&bed, &["run", "etcd:v1", "--masters", &bed.ips(1..=3), "--env", "greeting=hello"]).ok();
    let (key, recipient) = identity(&bed, "key.txt");
    let (other_key, _) = identity(&bed, "other.txt");

    let began = Instant::now();
    let before = Writer::start("before", &old);
    // A place in the clear that others may enter is refused; one that is made is closed to them.
    let place = bed.env.path("backups");
    let to = format!("oci:{}", place.display());
    let planned = bed.imgctl(["backup", "--to", &to, "--dry-run"]).ok();
    assert!(planned.stdout().contains("backup.sh"), "{}", planned.report());
    assert!(!place.exists());
    let clear = run(&bed, &["backup", "--to", &to]).ok();
    assert!(clear.stderr().contains("not encrypted"), "{}", clear.report());
    let open = Ran::new(tool("find", [text(&place), "-perm", "/077", "-name", "blobs"])).ok();
    assert_eq!(open.stdout(), "", "others may enter");
    before.goes_on();
    let written = before.stop(began);

    // Everything up to here is in the last backup; what is written during it may be.
    let during = Writer::start("during", &old);
    let encrypted = ["backup", "--to", &to, "--encrypt-to", &recipient, "--keep", "2"];
    run(&bed, &encrypted).ok();
    let made = run(&bed, &[&encrypted[..], &["--json"]].concat()).ok();
    let last: Value = serde_json::from_str(made.stdout().lines().last().unwrap()).unwrap();
    assert_eq!(last["event"], "backup", "{}", made.report());
    let artifact = last["place"].as_str().unwrap().to_owned();
    assert_eq!(tags(&place).len(), 2, "two of three stay");
    bed.imgctl(["status"]).ok();
    by_a_timer(&bed, &recipient);
    let registry = Registry::start();
    let remote = format!("docker://{}/backups/etcd", registry.host);
    let insecure = "--tls-verify=false";
    let kept = ["backup", "--to", &remote, "--encrypt-to", &recipient, "--keep", "1", insecure];
    run(&bed, &kept).ok();
    run(&bed, &kept).ok();
    let left = Ran::new(tool("find", [text(&bed.env.path("clusters/default/backup"))])).ok();
    assert!(!left.stdout().contains("staging"), "{}", left.stdout());
    assert_eq!(bed.says(1, "ls /var/lib/sealos/data/default/backup"), "");
    during.goes_on();

    let onto = bed.ips(4..=6);
    let restore = |artifact: &str, key: &Path| {
        run(&bed, &["restore", artifact, "--identity", text(key), "--masters", &onto])
    };
    refused(&restore(&artifact, &key), &["cluster default still is on", &old[0]]);
    for host in 1..=3 {
        bed.kill(host);
    }
    drop(during);

    refused(&restore(&artifact, &other_key), &["somebody else"]);
    damaged(&bed, &place, &artifact, &|artifact| restore(artifact, &key));
    bed.says(6, "mkdir -p /var/lib/sealos/data/another/rootfs");
    refused(&restore(&artifact, &key), &["another cluster: another", &new[2]]);
    bed.says(6, "rm -r /var/lib/sealos/data/another");
    let planned =
        run(&bed, &["plan", "restore", &artifact, "--identity", text(&key), "--masters", &onto])
            .ok();
    assert!(planned.stdout().contains("restore.sh"), "{}", planned.report());

    let began = Instant::now();
    restore(&artifact, &key).ok();
    println!("restored in {:?}", began.elapsed());
    written.assert_all_there("before", &new);
    assert_eq!(members(&bed, 4).len(), 3);
    etcdctl(&bed, 5, "put after restore");
    assert!(etcdctl(&bed, 6, "get after").contains("restore"));
    bed.imgctl(["status"]).ok();
    let environment = bed.imgctl(["env", "--cluster", "default"]).ok().stdout();
    assert!(environment.contains("hello"), "{environment}");
    assert!(!bed.env.path("clusters/default/restore").exists());
    assert_eq!(bed.says(4, "ls /var/lib/sealos/data/default/backup 2>/dev/null || true"), "");

    // The other copy, on hosts that were cleaned.
    run(&bed, &["reset", "--yes"]).ok();
    let found = bed.imgctl(["tags", "--json", insecure, &remote]).ok().json();
    let tags = found["tags"].as_array().unwrap();
    assert_eq!(tags.len(), 1, "{found}");
    let artifact = format!("{remote}:{}", tags[0].as_str().unwrap());
    let again = ["restore", &artifact, "--identity", text(&key), "--masters", &new[1], insecure];
    run(&bed, &again).ok();
    written.assert_all_there("before", &new[1..2]);
}

/// The first control plane backs the cluster up without a controller.
fn by_a_timer(bed: &Bed, recipient: &str) {
    let to = "/var/lib/kept";
    let timer = |when: &str| {
        run(
            bed,
            &["backup", "--to", to, "--encrypt-to", recipient, "--keep", "1", "--schedule", when],
        )
    };
    refused(&timer("nonsense"), &["systemd-analyze"]);
    timer("*-*-* 02:00:00").ok();
    let unit = "imgctl-backup-default";
    for _ in 0..2 {
        bed.says(
            1,
            &format!("systemctl is-enabled -q {unit}.timer; systemctl start {unit}.service"),
        );
    }
    let status = bed.imgctl(["status"]).ok().stdout();
    let shown = " minute ago, oci:/var/lib/kept:default-";
    assert!(status.contains("last backup: ") && status.contains(shown), "{status}");
    let entries = bed.says(1, "grep -o digest /var/lib/kept/index.json | wc -l");
    assert_eq!(entries.trim(), "1", "one of two stays");
    let open = "find /var/lib/sealos/data/default/schedule -maxdepth 0 ! -perm 700; \
                grep -l age1 /etc/systemd/system/imgctl-backup-* || true";
    assert_eq!(bed.says(1, open), "");
    run(bed, &["backup", "--unschedule"]).ok();
    assert_eq!(bed.says(1, "ls -d /etc/systemd/system/imgctl-backup-* 2>/dev/null || true"), "");
}

/// A backup with a damaged, a truncated or a missing blob is refused before anything happens.
fn damaged(bed: &Bed, place: &Path, artifact: &str, restore: &dyn Fn(&str) -> Ran) {
    let copy = bed.env.path("damaged");
    let tag = artifact.rsplit_once(':').unwrap().1;
    let blobs = |path: &Path| {
        let mut found: Vec<(u64, PathBuf)> = std::fs::read_dir(path.join("blobs/sha256"))
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                (entry.metadata().unwrap().len(), entry.path())
            })
            .collect();
        found.sort();
        found
    };
    let to = format!("oci:{}:{tag}", copy.display());
    let from = format!("oci:{}:{tag}", place.display());
    for what in ["edited", "cut", "gone"] {
        let _ = std::fs::remove_dir_all(&copy);
        bed.imgctl(["copy", &from, &to]).ok();
        // The largest blob is the snapshot.
        let (_, path) = blobs(&copy).pop().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        match what {
            "edited" => bytes[middle] ^= 1,
            _ => bytes.truncate(middle),
        }
        std::fs::write(&path, bytes).unwrap();
        if what == "gone" {
            std::fs::remove_file(&path).unwrap();
        }
        let ran = restore(&to);
        refused(&ran, &["blob sha256:"]);
        assert!(ran.stderr().contains("content") || what == "gone", "{}", ran.report());
    }
    assert!(bed.env.path("clusters/default/Clusterfile").exists(), "nothing has happened");
}
