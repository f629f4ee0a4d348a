//! Second addresses, and what the cluster says of its members.

use std::net::Ipv4Addr;

use crate::common::testbed::Bed;

/// The second address of a host.
pub(crate) fn second(bed: &Bed, host: usize) -> String {
    let [a, b, c, d] = bed.ip(host).parse::<Ipv4Addr>().unwrap().octets();
    Ipv4Addr::new(a, b, c, d + 100).to_string()
}

/// Gives hosts their second addresses, beside the first.
pub(crate) fn give(bed: &Bed, hosts: impl IntoIterator<Item = usize>) {
    for host in hosts {
        let line = format!("ip address replace {}/24 dev eth0", second(bed, host));
        bed.says(host, &line);
    }
}

/// Takes an address away and restarts what has connections from it: they do not notice.
pub(crate) fn take_from_member(bed: &Bed, host: usize, address: &str) {
    take(bed, host, address);
    bed.says(host, "systemctl restart etcd");
}

/// Takes an address away.
pub(crate) fn take(bed: &Bed, host: usize, address: &str) {
    // With the primary address the kernel takes the others of its subnet away, unless told otherwise.
    bed.says(
        host,
        &format!(
            "sysctl -q -w net.ipv4.conf.eth0.promote_secondaries=1 || true; \
             ip address delete {address}/24 dev eth0"
        ),
    );
}

/// `OLD=NEW` for a host that goes to its second address.
pub(crate) fn there(bed: &Bed, host: usize) -> String {
    format!("{}={}", bed.ip(host), second(bed, host))
}

/// `OLD=NEW` for a host that goes back.
pub(crate) fn back(bed: &Bed, host: usize) -> String {
    format!("{}={}", second(bed, host), bed.ip(host))
}

/// `NAME PEER-URL CLIENT-URL` of each member that has started, as the member at `address` has them,
/// sorted.
pub(crate) fn members_at(bed: &Bed, host: usize, address: &str) -> Vec<String> {
    let list = bed.says(
        host,
        &format!("ETCDCTL_API=3 etcdctl --endpoints=http://{address}:2379 member list"),
    );
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(", ").collect();
        assert_eq!(fields[1], "started", "{list}");
        fields[2..5].join(" ")
    };
    let mut all: Vec<String> = list.lines().map(line).collect();
    all.sort();
    all
}

/// What [`members_at`] says when host N is at `addresses[N - 1]`.
pub(crate) fn expected(addresses: &[String]) -> Vec<String> {
    let line = |(at, address): (usize, &String)| {
        format!("h{} http://{address}:2380 http://{address}:2379", at + 1)
    };
    addresses.iter().enumerate().map(line).collect()
}

/// The addresses of the first three hosts as the controller's Clusterfile lists them.
pub(crate) fn listed(bed: &Bed) -> Vec<String> {
    let text = std::fs::read_to_string(bed.env.path("clusters/default/Clusterfile")).unwrap();
    let one = |host: usize| {
        let own = [bed.ip(host), second(bed, host)];
        let mut named = own.into_iter().filter(|own| text.contains(&format!("{own}:22")));
        let found = named.next().unwrap_or_default();
        assert!(named.next().is_none(), "{text}");
        found
    };
    (1..=3).map(one).collect()
}
