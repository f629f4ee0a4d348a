//! Other addresses for an agent and for a single server of k3s, whatever kills the controller.

use super::{ClusterApi, api, build, keyed};
use crate::cluster_etcd::support::{killed, wait_for};
use crate::cluster_renumber::support::{give, second, there};
use crate::common::testbed::Bed;
use crate::common::{long, needs_root};
use std::time::Duration;

/// Addresses of the Nodes, as the server has them.
fn addresses(bed: &Bed) -> String {
    bed.says(1, "k3s kubectl get nodes -o jsonpath={.status.addresses} | sort")
}

#[test]
fn a_single_server_and_its_agent_get_other_addresses() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3).with_agent();
    build(&bed);
    let _api = ClusterApi::start(&bed, 1..=3);
    keyed(&bed, &["run", "k3s:v1", "--masters", &bed.ip(1), "--nodes", &bed.ip(2)]).ok();
    give(&bed, 1..=3);
    for host in [2, 1] {
        let renumber = ["renumber", &there(&bed, host)];
        let records = if long() { (1..60).collect() } else { vec![6, 13] };
        for record in records {
            if !killed(&bed, &renumber, record) {
                break;
            }
        }
        keyed(&bed, &renumber).ok();
        keyed(&bed, &["status"]).ok();
    }
    let [one, two] = [second(&bed, 1), second(&bed, 2)];
    assert_eq!(addresses(&bed), format!("h1|{one}\nh2|{two}"));
    let peer = bed.says(1, "cat /var/lib/rancher/k3s/server/db/etcd/member/peer");
    assert_eq!(peer, one);
    wait_for("the agent to reach the server", Duration::from_secs(180), || api(&bed, 2) == "h1");

    // With a second server, etcd knows both by their addresses.
    keyed(&bed, &["add", "--masters", &bed.ip(3)]).ok();
    let told = keyed(&bed, &["renumber", &there(&bed, 3)]).fails(2).report();
    assert!(told.contains("one of several k3s servers"), "{told}");
}
