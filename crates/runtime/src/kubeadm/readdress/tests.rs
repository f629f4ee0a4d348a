//! Files as kubeadm writes them: those of 1.34 by kubeadm itself (`kubeadm init phase … --dry-run`),
//! the older forms by hand.

use serde_json::json;

use super::*;

const ETCD: &str = include_str!("testdata/etcd.yaml");
const ETCD_1_27: &str = include_str!("testdata/etcd-1.27.yaml");
const API: &str = include_str!("testdata/kube-apiserver.yaml");

fn addresses(moves: &[(&str, &str)]) -> Addresses {
    let owned: Vec<(String, String)> =
        moves.iter().map(|(old, new)| ((*old).to_owned(), (*new).to_owned())).collect();
    Addresses::new(&owned).unwrap()
}

fn eleven() -> Addresses {
    addresses(&[("10.0.0.11", "10.9.0.21")])
}

/// Lines that differ, as they are afterwards.
fn changed(before: &str, after: &str) -> Vec<String> {
    assert_eq!(before.lines().count(), after.lines().count());
    let pairs = before.lines().zip(after.lines());
    pairs.filter(|(a, b)| a != b).map(|(_, line)| line.trim().to_owned()).collect()
}

#[test]
fn manifests_of_etcd() {
    assert_eq!(
        changed(ETCD, &eleven().in_text(ETCD)),
        [
            "kubeadm.kubernetes.io/etcd.advertise-client-urls: https://10.9.0.21:2379",
            "- --advertise-client-urls=https://10.9.0.21:2379",
            "- --initial-advertise-peer-urls=https://10.9.0.21:2380",
            "- --initial-cluster=cp-1=https://10.9.0.21:2380",
            "- --listen-client-urls=https://127.0.0.1:2379,https://10.9.0.21:2379",
            "- --listen-peer-urls=https://10.9.0.21:2380",
        ]
    );
    let old = changed(ETCD_1_27, &eleven().in_text(ETCD_1_27));
    let cluster = "- --initial-cluster=cp-3=https://10.0.0.110:2380,cp-1=https://10.9.0.21:2380,\
                   cp-2=https://10.0.0.12:2380";
    assert!(old.contains(&cluster.to_owned()), "{old:#?}");
    assert!(old.contains(&"image: 10.9.0.21:5000/etcd:3.5.12-0".to_owned()), "{old:#?}");
    assert_eq!(old.len(), 7, "{old:#?}");
}

#[test]
fn the_manifest_of_the_api_server() {
    assert_eq!(
        changed(API, &eleven().in_text(API)),
        [
            "kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint: 10.9.0.21:6443",
            "- --advertise-address=10.9.0.21",
            "host: 10.9.0.21",
            "host: 10.9.0.21",
            "host: 10.9.0.21",
        ]
    );
    let back = addresses(&[("10.9.0.21", "10.0.0.11")]);
    assert_eq!(back.in_text(&eleven().in_text(API)), API);
}

#[test]
fn an_address_is_only_replaced_where_it_stands_alone() {
    let same = "110.0.0.11 10.0.0.110 10.0.0.11/24 10.0.0.11.nip.io ip-10.0.0.11 10.0.0.11-10.0.0.13 \
                podSubnet: 10.0.0.11/32 v10.0.0.11 10.0.0.11:port é10.0.0";
    assert_eq!(eleven().in_text(same), same);
    for (before, after) in [
        ("10.0.0.11", "10.9.0.21"),
        (
            "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.11 --x\"",
            "KUBELET_KUBEADM_ARGS=\"--node-ip=10.9.0.21 --x\"",
        ),
        ("no_proxy: 10.0.0.12,10.0.0.11,é", "no_proxy: 10.0.0.12,10.9.0.21,é"),
        ("{\"a\":\"10.0.0.11\"}", "{\"a\":\"10.9.0.21\"}"),
        ("10.0.0.11: at 10.0.0.11.", "10.9.0.21: at 10.9.0.21."),
        ("https://10.0.0.11/path", "https://10.9.0.21/path"),
    ] {
        assert_eq!(eleven().in_text(before), after);
    }
    let six = addresses(&[("fd00::1", "fd00::21")]);
    assert_eq!(
        six.in_text(
            "--listen-peer-urls=https://[fd00::1]:2380,https://[fd00::11]:2380 host: FD00:0::1"
        ),
        "--listen-peer-urls=https://[fd00::21]:2380,https://[fd00::11]:2380 host: fd00::21"
    );
}

#[test]
fn several_hosts_move_at_once_also_in_a_circle() {
    let circle = addresses(&[("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.1")]);
    assert_eq!(circle.in_text("10.0.0.1,10.0.0.2:2379"), "10.0.0.2,10.0.0.1:2379");
    let mixed = [("10.0.0.1".to_owned(), "fd00::1".to_owned())];
    assert!(Addresses::new(&mixed).unwrap_err().to_string().contains("different families"));
    assert!(Addresses::one("cp-1", "10.0.0.2").is_err());
}

#[test]
fn of_a_kubeconfig_only_the_server_changes() {
    let text = "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: MTAuMC4w\n    \
                server: https://10.0.0.11:6443\n  name: 10.0.0.11\ncontexts: []\n";
    let new = eleven().in_kubeconfig(text);
    assert_eq!(changed(text, &new), ["server: https://10.9.0.21:6443"]);
    let flow = "clusters: [{name: 10.0.0.11, cluster: {server: https://10.0.0.11:6443, tls-server-name: 10.0.0.11}}]";
    assert_eq!(
        eleven().in_kubeconfig(flow),
        flow.replace("https://10.0.0.11", "https://10.9.0.21")
    );
    let json = r#"{"cluster":{"server":"https://10.0.0.11:6443","x":"10.0.0.11"}}"#;
    assert_eq!(
        eleven().in_kubeconfig(json),
        json.replace("https://10.0.0.11", "https://10.9.0.21")
    );
    let named = text.replace("https://10.0.0.11", "https://apiserver.cluster.local");
    assert_eq!(eleven().in_kubeconfig(&named), named);
}

#[test]
fn config_maps_of_a_cluster() {
    let map = json!({"metadata": {"name": "kubeadm-config", "resourceVersion": "7"}, "data": {
        "ClusterConfiguration": "apiServer:\n  certSANs:\n  - 10.0.0.11\ncontrolPlaneEndpoint: 10.0.0.11:6443\nnetworking:\n  podSubnet: 10.0.0.11/16\n",
        "ClusterStatus": "apiEndpoints:\n  cp-1:\n    advertiseAddress: 10.0.0.11\n    bindPort: 6443\n",
    }});
    let new = eleven().in_config_map(&map).unwrap();
    let data = &new["data"];
    assert_eq!(
        data["ClusterConfiguration"],
        "apiServer:\n  certSANs:\n  - 10.9.0.21\ncontrolPlaneEndpoint: 10.9.0.21:6443\nnetworking:\n  podSubnet: 10.0.0.11/16\n"
    );
    assert!(data["ClusterStatus"].as_str().unwrap().contains("advertiseAddress: 10.9.0.21\n"));
    assert_eq!(new["metadata"], map["metadata"]);
    assert_eq!(eleven().in_config_map(&new), None);
    assert_eq!(eleven().in_config_map(&json!({"kind": "ConfigMap"})), None);
}

#[test]
fn names_of_certificates() {
    let names = ["cp-1", "10.0.0.11", "10.9.0.21", "127.0.0.1"].map(str::to_owned);
    assert_eq!(eleven().in_names(&names), ["cp-1", "10.9.0.21", "127.0.0.1"]);
}
