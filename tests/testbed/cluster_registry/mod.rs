//! The embedded registry on three hosts, under pulls of a real containerd on a fourth: two of the three
//! stop in the middle of pulls, the password changes, a registry host leaves.

mod image;
mod kills;
mod lost;
mod peers;

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root};
use image::APP;

/// The host that pulls.
const CLIENT: usize = 4;
const HOSTS_TOML: &str = "/etc/containerd/certs.d/sealos.hub:5000/hosts.toml";
/// Long: the machine may be busy. Only a fault takes that long.
const PATIENCE: Duration = Duration::from_secs(240);

/// Pulls, forgets and pulls again, until it is told to stop; writes down each failure.
const PULLS: &str = r#"cat >/root/pulls <<'EOT'
#!/bin/bash
name=sealos.hub:5000/APP
for ((n = 1; ; n++)); do
  [ ! -e /run/stop-pulls ] || exit 0
  if ! ctr -n k8s.io images pull --hosts-dir /etc/containerd/certs.d $name >/run/pull.log 2>&1; then
    { echo "pull $n:"; tail -n 5 /run/pull.log; } >>/run/pulls-failed
  fi
  # The CRI plugin names the image by its config, too.
  ctr -n k8s.io images rm --sync $(ctr -n k8s.io images ls -q) >/dev/null 2>&1
  echo $n >/run/pulls-done
done
EOT
chmod +x /root/pulls; echo 0 >/run/pulls-done; touch /run/pulls-failed
systemd-run --quiet --unit pulls /root/pulls"#;

/// Puts the cluster's files on a disk of their own and fills it.
const FULL: &str = "mkdir /run/small && mount -t tmpfs \
    -o size=$(($(du -sm /var/lib/sealos | cut -f1) + 100))m small /run/small && \
    cp -a /var/lib/sealos/. /run/small/ && mount --bind /run/small /var/lib/sealos && \
    systemctl restart registry && \
    ! dd if=/dev/zero of=/var/lib/sealos/fill bs=64k 2>/run/dd && grep -q 'No space' /run/dd";

fn run(bed: &Bed, arguments: &[&str], die_after: Option<u64>) -> Ran {
    let mut command: Command = bed.command(arguments);
    command.arg("--pk").arg(bed.key());
    if let Some(record) = die_after {
        command.env("IMGCTL_DIE_AFTER", record.to_string());
    }
    Ran::new(command)
}

fn wait(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn pulls(bed: &Bed) -> u64 {
    bed.says(CLIENT, "cat /run/pulls-done").trim().parse().unwrap_or(0)
}

/// Waits for `count` more pulls; none may have failed.
#[track_caller]
fn more_pulls(bed: &Bed, count: u64) {
    let from = pulls(bed);
    wait("the next pull", || pulls(bed) >= from + count);
    assert_eq!(bed.says(CLIENT, "cat /run/pulls-failed"), "");
}

/// Waits until a layer is arriving from `host` and stops its registry.
fn stop_in_the_middle(bed: &Bed, host: usize, how: &str) {
    let from = format!("ss -Htn state established dst {}:5000 | grep -q .", bed.ip(host));
    let arriving = format!(
        "{from} && ctr -n k8s.io content active | awk 'NR > 1 && $2 !~ /^0/ {{ found = 1 }} END {{ exit !found }}'"
    );
    wait("a layer on its way", || bed.exec(CLIENT, &arriving).success());
    bed.says(host, how);
}

fn registry_of(status: &Value, host: usize) -> bool {
    status["hosts"][host - 1]["registry"].as_bool().unwrap()
}

/// The status line of the answer to a request with this login.
fn answer(bed: &Bed, host: usize, login: &str) -> String {
    answer_for(bed, host, login, "/v2/")
}

fn answer_for(bed: &Bed, host: usize, login: &str, path: &str) -> String {
    let line = format!(
        "login=$(printf %s '{login}' | base64 -w0); exec 3<>/dev/tcp/127.0.0.1/5000; \
         printf 'GET {path} HTTP/1.0\\r\\nAuthorization: Basic %s\\r\\nAccept: application/vnd.oci.image.manifest.v1+json\\r\\n\\r\\n' \"$login\" >&3; head -n 1 <&3"
    );
    bed.says(host, &format!("bash -c '{}'", line.replace('\'', r"'\''"))).trim().to_owned()
}

fn password(bed: &Bed) -> String {
    std::fs::read_to_string(bed.env.path("clusters/default/etc/registry_password")).unwrap()
}

#[test]
fn pulls_survive_two_of_three_registry_hosts_and_another_password() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up_with(4, &["--with", "containerd"]).with_agent();
    image::build(&bed);
    let (master, nodes, serving) = (bed.ip(1), bed.ips(2..=4), bed.ips(1..=3));
    let words = ["run", "cluster:v1", "--masters", &master, "--nodes", &nodes];
    run(&bed, &[&words[..], &["--registry-hosts", &serving]].concat(), None).ok();

    // Every host knows all registry hosts, itself first.
    let known = |host: usize| -> Vec<String> {
        let text = bed.says(host, &format!("grep -o '^.host.\"http://[0-9.]*' {HOSTS_TOML}"));
        text.lines().map(|line| line.rsplit('/').next().unwrap().to_owned()).collect()
    };
    assert_eq!(known(2), [bed.ip(2), bed.ip(3), bed.ip(1)]);
    assert_eq!(known(CLIENT), [bed.ip(1), bed.ip(2), bed.ip(3)]);
    assert_eq!(bed.says(CLIENT, &format!("stat -c %a {HOSTS_TOML}")).trim(), "600");
    let names = bed.says(3, "grep sealos.hub /etc/hosts");
    assert!(names.starts_with(&format!("{} sealos.hub\n", bed.ip(3))), "{names}");
    assert_eq!(names.lines().count(), 3);
    let status = run(&bed, &["status", "--json"], None).ok().json();
    assert!((1..=3).all(|host| registry_of(&status, host)), "{status:#}");

    // 60 Mbit/s: a pull takes some seconds.
    bed.testbed(["rate", "4", "60"]).ok();
    bed.says(CLIENT, &PULLS.replace("APP", APP));
    more_pulls(&bed, 1);
    stop_in_the_middle(&bed, 1, "systemctl kill -s KILL registry");
    stop_in_the_middle(&bed, 2, "systemctl stop registry");
    more_pulls(&bed, 1);
    let status = run(&bed, &["status", "--json"], None).fails(10).json();
    assert_eq!([1, 2, 3].map(|host| registry_of(&status, host)), [false, false, true]);
    for host in [1, 2] {
        bed.says(host, "systemctl start registry");
    }

    // Another password under pulls, killed on the way and finished by the same command.
    let old = password(&bed);
    let passwd = ["registry", "passwd", "--cluster", "default", "--generate"];
    let killed = run(&bed, &passwd, Some(20)).report();
    assert!(killed.contains("signal: 9"), "{killed}");
    let busy = run(&bed, &["add", "--nodes", "192.0.2.1"], None).report();
    assert!(busy.contains("registry passwd --cluster"), "{busy}");
    let begun = pulls(&bed);
    let ran = run(&bed, &passwd, None).ok();
    let new = password(&bed);
    assert!(old != new && !ran.report().contains(&new) && !ran.report().contains(&old));
    more_pulls(&bed, 1);
    assert!(pulls(&bed) > begun);
    for host in 1..=3 {
        assert!(answer(&bed, host, &format!("admin:{new}")).contains("200"), "h{host}");
        for login in [format!("admin:{old}"), format!("admin-next:{new}")] {
            assert!(answer(&bed, host, &login).contains("401"), "h{host}");
        }
    }
    for file in ["/etc/containerd/config.toml", "/etc/image-cri-shim.yaml"] {
        let text = bed.says(CLIENT, &format!("cat {file}"));
        assert!(text.contains(&new) && !text.contains(&old), "{file}: {text}");
    }
    let tree = bed.says(CLIENT, "cat /var/lib/sealos/data/default/rootfs/etc/registry.yml");
    assert!(tree.contains(&new), "{tree}");

    kills::of_passwd(&bed);
    let new = password(&bed);
    more_pulls(&bed, 1);

    collection(&bed, &format!("admin:{new}"));
    kills::of_gc(&bed, &format!("admin:{new}"));

    // The pulls end before, and begin again afterwards.
    bed.says(CLIENT, "touch /run/stop-pulls");
    wait("the end of pulls", || !bed.exec(CLIENT, "systemctl is-active pulls").success());
    bed.testbed(["rate", "4", "0"]).ok();
    peers::come_from_each_other(&bed);
    bed.says(CLIENT, "rm /run/stop-pulls");
    bed.says(CLIENT, &PULLS.replace("APP", APP));

    // A registry host leaves under pulls.
    run(&bed, &["delete", "--yes", "--nodes", &bed.ip(3)], None).ok();
    assert_eq!(known(CLIENT), [bed.ip(1), bed.ip(2)]);
    bed.exec(3, "systemctl is-active registry").fails(3);
    more_pulls(&bed, 1);

    bed.says(CLIENT, "touch /run/stop-pulls");

    run(&bed, &["reset", "--yes"], None).ok();
    let left = bed.says(CLIENT, &format!("cat {HOSTS_TOML}; grep sealos.hub /etc/hosts || true"));
    assert!(left.contains("skip_verify") && !left.contains("Authorization"), "{left}");
}

/// An application brings an image and goes; then its image goes too, and nothing else, under pulls.
fn collection(bed: &Bed, login: &str) {
    image::build_extra(bed);
    run(bed, &["run", "extra:v1"], None).ok();
    let path = format!("/v2/{}/manifests/v1", image::EXTRA);
    let there = |host: usize| answer_for(bed, host, login, &path).contains("200");
    assert!((1..=3).all(there));
    let gc = ["registry", "gc", "--cluster", "default", "--grace", "0s"];
    let nothing = run(bed, &[&gc[..], &["--dry-run"]].concat(), None).ok().report();
    assert!(!nothing.contains("remove team/"), "{nothing}");
    run(bed, &["uninstall", "extra:v1", "--yes"], None).ok();
    let plan = run(bed, &[&gc[..], &["--dry-run"]].concat(), None).ok().report();
    let removed = format!("remove {}@sha256:", image::EXTRA);
    // The same on all hosts, so it is said once.
    assert_eq!(plan.matches(&removed).count(), 1, "{plan}");
    let hosts = (1..=3).map(|host| bed.ip(host)).collect::<Vec<_>>().join(", ");
    assert!(plan.contains(&hosts), "{plan}");
    assert!(!plan.contains(&format!("remove {}", APP.trim_end_matches(":v1"))), "{plan}");
    // An upload is open: nothing goes.
    let upload = "/var/lib/registry/docker/registry/v2/repositories/team/other/_uploads/0123abcd";
    bed.says(2, &format!("mkdir -p {upload} && touch {upload}/data"));
    let open = [&gc[..3], &["default", "--yes"]].concat();
    let busy = run(bed, &open, None).report();
    assert!(busy.contains("an upload to team/other is open"), "{busy}");
    bed.says(2, &format!("rm -r {upload}"));
    // The disk of a registry host is full: a collection only deletes.
    bed.says(2, FULL);
    run(bed, &[&gc[..], &["--yes"]].concat(), None).ok();
    bed.says(2, "rm /var/lib/sealos/fill && mount -o remount,size=2g /var/lib/sealos");
    assert!((1..=3).all(|host| answer_for(bed, host, login, &path).contains("404")));
    more_pulls(bed, 1);
}
