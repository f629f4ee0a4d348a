//! The authority of a running etcd is rotated under clients; the controller is killed behind records of its
//! journal; the way back works until the former authority is dropped.

use crate::cluster_certificates::client::{Client, etcdctl};
use crate::cluster_etcd::support::{build_etcd, killed, run};
use crate::common::testbed::Bed;
use crate::common::{long, needs_root};

/// A member that restarts refuses clients for a moment.
const RETRIES: u32 = 10;

/// The digest of the authority that the controller keeps.
fn kept(bed: &Bed) -> String {
    let path = bed.env.path("clusters/default/pki/declared/etcd-ca.crt");
    std::fs::read_to_string(path).unwrap()
}

/// The authorities that a host trusts.
fn trusted(bed: &Bed, host: usize) -> String {
    bed.says(host, "cat /etc/etcd/pki/ca.crt")
}

/// All hosts trust exactly this authority, have its key, and certificates that it has signed.
#[track_caller]
fn assert_only(bed: &Bed, authority: &str) {
    for host in 1..=3 {
        assert_eq!(trusted(bed, host).trim(), authority.trim(), "h{host}");
        // The members accept each other and a client with nothing but this authority.
        etcdctl(bed, host, "endpoint health");
        assert_eq!(etcdctl(bed, host, "member list").lines().count(), 3);
    }
    assert_eq!(kept(bed).trim(), authority.trim());
    assert!(!bed.env.path("clusters/default/pki/rotation").exists());
}

#[test]
fn an_authority_is_rotated_under_clients() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3).with_agent();
    if !build_etcd(&bed) {
        return;
    }
    let masters = bed.ips(1..=3);
    run(&bed, &["run", "etcd:v1", "--masters", &masters, "-e", "etcdTLS=true"]).ok();
    let first = kept(&bed);
    let clients: Vec<Client> = [(1, "one"), (2, "two"), (3, "three")]
        .map(|(host, name)| Client::start(&bed, host, &[1, 2, 3], name, RETRIES))
        .into();

    let plan = run(&bed, &["cert", "--rotate-ca", "--dry-run"]).ok().stdout();
    for expected in ["trust", "sign", "drop", "no way back"] {
        assert!(plan.contains(expected), "{expected}: {plan}");
    }
    assert_only(&bed, &first);
    let refused = run(&bed, &["cert", "--rotate-ca", "--undo"]).fails(3);
    assert!(refused.stderr().contains("nothing to undo"), "{}", refused.report());
    run(&bed, &["cert", "--rotate-ca", "kubernetes"]).fails(2);

    // Half of it, and back.
    run(&bed, &["cert", "--rotate-ca", "--keep-old-ca"]).ok();
    for host in 1..=3 {
        let both = trusted(&bed, host);
        assert!(both.contains(first.trim()) && both.matches("BEGIN CERTIFICATE").count() == 2);
    }
    let busy = run(&bed, &["delete", "--masters", &bed.ip(3), "--yes"]).fails(6);
    assert!(busy.stderr().contains("--rotate-ca"), "{}", busy.report());
    run(&bed, &["cert", "--rotate-ca", "--undo", "--yes"]).ok();
    assert_only(&bed, &first);

    // All of it, in two runs.
    run(&bed, &["cert", "--rotate-ca", "--keep-old-ca"]).ok();
    run(&bed, &["cert", "--rotate-ca"]).ok();
    let second = kept(&bed);
    assert_ne!(first, second);
    assert_only(&bed, &second);
    for client in &clients {
        client.goes_on(&bed);
    }

    // Killed behind records, it goes on or back.
    let records: Vec<u64> = if long() { (1..70).collect() } else { vec![11, 24] };
    let mut kills = 0;
    for record in records {
        let before = kept(&bed);
        if !killed(&bed, &["cert", "--rotate-ca"], record) {
            break;
        }
        kills += 1;
        let dropping = bed.env.path("clusters/default/pki/rotation/dropping").exists();
        let open = bed.env.path("clusters/default/pki/rotation/open").exists();
        if record % 2 == 0 && open && !dropping {
            run(&bed, &["cert", "--rotate-ca", "--undo", "--yes"]).ok();
            assert_only(&bed, &before);
        } else {
            run(&bed, &["cert", "--rotate-ca"]).ok();
            let now = kept(&bed);
            assert_ne!(now, before, "record {record}");
            assert_only(&bed, &now);
        }
    }
    assert!(kills > 1, "{kills} kills");
    for client in clients {
        client.goes_on(&bed);
        let (written, failed) = client.stop(&bed);
        println!("{written} writes");
        assert!(failed.is_empty(), "{failed:?}");
    }
    run(&bed, &["cert", "--timer", "off"]).ok();
    run(&bed, &["status"]).ok();
}
