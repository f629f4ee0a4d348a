//! The journal away from the controller: control planes tell how far an upgrade is, and another
//! controller goes on with it when the first is lost.

use std::process::Stdio;
use std::time::Duration;

use crate::cluster_etcd::support::{run, signal, wait_for};
use crate::cluster_upgrade::counting::{all_counted, build, refused, trees, upgrade, versions};
use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root, tool};

const LIMIT: Duration = Duration::from_secs(240);
const STATE: &str = "/var/lib/sealos/data/default/state";

#[test]
fn a_lost_controller_is_replaced_in_the_middle() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3).with_agent();
    for version in ["1.0.0", "1.1.0", "1.2.0"] {
        build(&bed, version, "");
    }
    let masters = bed.ips(1..=2);
    let command = ["run", "counting:1.0.0", "--masters", &masters, "--nodes", &bed.ip(3)];
    run(&bed, &command).ok();
    all_counted(&bed);

    killed_on_the_second_host(&bed);
    told_by_control_planes(&bed);
    taken_over(&bed);
    one_host_back_while_another_is_away(&bed);
}

/// While the script of the second host runs, which goes on by itself.
fn killed_on_the_second_host(bed: &Bed) {
    bed.says(2, "echo 4 >/run/slow");
    let mut command = bed.command(["upgrade", "counting:1.1.0", "--yes"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = command.spawn().unwrap();
    wait_for("the script", LIMIT, || bed.exec(2, "grep -q upgrade /run/begun").success());
    signal(&running, "-KILL");
    running.wait().unwrap();
    bed.says(2, "rm /run/slow");
}

/// imgctl on a host, as it was sent there.
fn imgctl_on(bed: &Bed, host: usize, arguments: &str) -> Ran {
    let line = "HOME=/root exec $(ls -t /var/lib/imgctl/agent/imgctl-agent-* | head -n 1)";
    bed.exec(host, &format!("{line} {arguments}"))
}

fn told_by_control_planes(bed: &Bed) {
    let home = bed.imgctl(["upgrade", "status", "--json"]).ok().json();
    for host in 1..=2 {
        let told = imgctl_on(bed, host, "upgrade status --json").ok().json();
        assert_eq!(told["open"]["id"], home["open"]["id"]);
        assert_eq!(told["open"]["state"], "running");
        assert_eq!(told["open"]["journal"], home["open"]["journal"]);
        assert!(told["copy"]["controller"].is_string(), "{told:#}");
        // What is known of the first host is known there.
        let steps = |of: &serde_json::Value, host: &str| -> Vec<String> {
            let all = of["open"]["steps"].as_array().unwrap().iter();
            let own = all.filter(|step| step["step"].as_str().unwrap().contains(host));
            own.map(ToString::to_string).collect()
        };
        let first = format!("/{}/", bed.ip(1));
        assert_eq!(steps(&told, &first), steps(&home, &first));
        let text = imgctl_on(bed, host, "upgrade status").ok();
        assert!(text.stdout().contains("to v1.1.0: running"), "{}", text.report());
        assert!(text.stderr().contains("copy as of"), "{}", text.report());
        let open =
            bed.says(host, &format!("find {STATE} -type f ! -perm 600; find {STATE} ! -uid 0"));
        assert_eq!(open, "");
        let secret = bed.exec(host, &format!("grep -rlE 'PRIVATE KEY|passwd: *[^ ]' {STATE}"));
        assert!(!secret.success(), "{}", secret.report());
        // Nothing is done on a copy, but it is said how it can be taken over.
        for verb in ["upgrade resume", "upgrade abort", "upgrade pause", "rollback"] {
            let only = imgctl_on(bed, host, &format!("{verb} --yes")).fails(3);
            refused(&only, &format!("cp -a {STATE}/. /root/.sealos/default/"));
        }
    }
    assert!(!imgctl_on(bed, 3, "upgrade status").success());
}

fn taken_over(bed: &Bed) {
    let home = bed.env.path("clusters/default");
    std::fs::remove_dir_all(&home).unwrap();
    bed.imgctl(["upgrade", "status"]).fails(3);
    std::fs::create_dir(&home).unwrap();
    let copy = bed.exec(1, &format!("tar -C {STATE} -cf - .")).ok();
    let archive = bed.env.write("copy.tar", copy.bytes());
    Ran::new(tool("tar", ["-C", home.to_str().unwrap(), "-xpf", archive.to_str().unwrap()])).ok();
    run(bed, &["upgrade", "resume", "--yes"]).ok();
    assert_eq!(versions(bed), ["1.1.0"; 3]);
    assert_eq!(trees(bed), ["1.1.0"; 3]);
    assert_eq!(all_counted(bed), ["backup upgrade", "upgrade", "upgrade"]);
    for host in 1..=2 {
        let told = imgctl_on(bed, host, "upgrade status").ok();
        assert!(told.stdout().contains("no upgrade is open"), "{}", told.report());
        assert!(told.stdout().contains("committed"), "{}", told.report());
    }
    // The way back is known, too, and who logs in.
    bed.imgctl(["rollback", "--yes"]).ok();
    assert_eq!(versions(bed), ["1.0.0"; 3]);
    assert_eq!(all_counted(bed), ["rollback"; 3]);
}

/// A rollback of one host asks nobody else; that a control plane has no up-to-date copy is told.
fn one_host_back_while_another_is_away(bed: &Bed) {
    upgrade(bed, &["counting:1.1.0"]).ok();
    all_counted(bed);
    bed.kill(2);
    let scope = format!("node={}", bed.ip(3));
    let planned = bed.imgctl(["rollback", "--scope", &scope, "--plan"]).ok();
    let left_out = "it is not in the scope, and cannot be reached";
    assert!(planned.stdout().contains(left_out), "{}", planned.report());
    let back = bed.imgctl(["rollback", "--scope", &scope, "--yes"]).ok();
    assert!(
        back.stderr().contains(&format!("{} has no up-to-date copy", bed.ip(2))),
        "{}",
        back.report()
    );
    bed.start(2);
    assert_eq!(versions(bed), ["1.1.0", "1.1.0", "1.0.0"]);
    // Whole again.
    bed.imgctl(["rollback", "--yes"]).ok();
    assert_eq!(versions(bed), ["1.0.0"; 3]);
}
