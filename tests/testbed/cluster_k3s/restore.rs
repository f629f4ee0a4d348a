//! A backup of a cluster of k3s with embedded etcd, and the cluster from it on other hosts, one of which
//! has the name of a former one. Whatever dies on the way, the same command brings it to its end.

use super::{ClusterApi, build, keyed};
use crate::cluster_etcd::support::killed;
use crate::common::testbed::Bed;
use crate::common::{long, needs_root};

const DATA: &str = "/var/lib/rancher/k3s/server";

/// Node names that a server knows.
fn nodes(bed: &Bed, host: usize) -> Vec<String> {
    let text = bed.says(host, "k3s kubectl get nodes -o name | sort");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn etcd_comes_back_on_other_hosts_under_its_token() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(4).with_agent();
    build(&bed);
    let _api = ClusterApi::start(&bed, 1..=4);
    let (servers, others) = (bed.ips(1..=2), bed.ips(3..=4));
    keyed(&bed, &["run", "k3s:v1", "--masters", &servers]).ok();
    bed.says(1, &format!("echo own >{DATA}/manifests/own.yaml"));
    let authority = bed.says(1, &format!("sha256sum <{DATA}/tls/server-ca.crt"));
    let token = bed.says(1, "cat /etc/rancher/k3s/token");

    let place = bed.env.path("backups").display().to_string();
    let backup = ["backup", "--to", &place, "--keep", "1"];
    let records = |short: &[u64], last: u64| {
        if long() { (1..last).collect::<Vec<u64>>() } else { short.to_vec() }
    };
    let mut kills = 0;
    for record in records(&[3, 6, 11], 40) {
        let died = killed(&bed, &backup, record);
        kills += usize::from(died);
        keyed(&bed, &backup).ok();
        assert_eq!(bed.says(1, "ls /var/lib/sealos/data/default/backup"), "", "{record}");
        if !died {
            break;
        }
    }
    assert_eq!(bed.says(1, "systemctl is-active k3s"), "active");

    // The hosts are lost; a new one has the name of the first one.
    bed.kill(1);
    bed.kill(2);
    bed.says(3, "hostname h1; echo h1 >/etc/hostname");
    // The controller that is used has never had the tokens.
    std::fs::remove_dir_all(bed.env.path("clusters/default")).unwrap();
    let restore = ["restore", &place, "--masters", &others];
    for record in records(&[9, 20, 27], 120) {
        let died = killed(&bed, &restore, record);
        kills += usize::from(died);
        if died {
            let again = keyed(&bed, &restore);
            // It died behind its last change.
            let is_over = again.stderr().contains("still is on");
            assert!(again.success() || is_over, "{record}: {}", again.report());
        }
        assert_eq!(nodes(&bed, 3), ["node/h1", "node/h4"], "{record}");
        assert_eq!(bed.says(3, &format!("sha256sum <{DATA}/tls/server-ca.crt")), authority);
        assert_eq!(bed.says(3, "cat /etc/rancher/k3s/token"), token);
        assert_eq!(bed.says(3, &format!("cat {DATA}/manifests/own.yaml")), "own");
        // Data that k3s has worked with is not replaced again.
        let resets =
            bed.says(3, "grep -c cluster-reset /var/log/stand-in-k3s; rm /var/log/stand-in-k3s");
        assert!(["1", "2"].contains(&resets.as_str()), "{record}: {resets}");
        if !died {
            break;
        }
        keyed(&bed, &["reset", "--yes"]).ok();
    }
    println!("{kills} kills");
    assert!(kills > 4);
}
