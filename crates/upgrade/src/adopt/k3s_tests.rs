//! Readings of clusters that the installer of get.k3s.io made, and what is found in them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::adopt::clusterfile::clusterfile;
use crate::adopt::findings::findings;
use crate::adopt::reading::{HostReading, K3sReading, Reading};
use crate::adopt::{k3s, read};
use crate::document::Severity;
use crate::observation::{CertificateSeen, NodeSeen};
use crate::testing::kubernetes;
use imgctl_model::clusterfile::Clusterfile;
use imgctl_runtime::k3s::options::{NODE_ARGS, NODE_ENV};

const SERVER: &str = r#"["server","--disable","traefik","--token","********","--cluster-init","--tls-san","k.example"]"#;

/// A healthy cluster of servers with etcd, and one agent.
fn reading(servers: usize) -> Reading {
    let mut observation = kubernetes(servers, 1, "v1.34.1+k3s1");
    observation.at_ms = 1_800_000_000_000;
    let mut hosts = BTreeMap::new();
    for (number, host) in observation.hosts.iter_mut().enumerate() {
        let is_server = host.is_control_plane();
        let role = if is_server { "server" } else { "agent" };
        let mut k3s = K3sReading {
            role: role.into(),
            unit: if is_server { "k3s" } else { "k3s-agent" }.into(),
            data_directory: "/var/lib/rancher/k3s".into(),
            ..K3sReading::default()
        };
        if is_server {
            k3s.store = Some("etcd".into());
            k3s.files.insert("server/token".into());
            host.certificates.push(CertificateSeen {
                path: "/var/lib/rancher/k3s/server/tls/serving-kube-apiserver.crt".into(),
                not_after: 1_800_000_000 + 200 * 86_400,
                ..CertificateSeen::default()
            });
        }
        let mut found = HostReading { k3s: Some(k3s), ..HostReading::default() };
        found.programs.insert("k3s".into(), "/usr/local/bin/k3s".into());
        hosts.insert(host.id.clone(), found);
        let node = &mut observation.api.as_mut().unwrap().nodes[number];
        let (arguments, environment) = if is_server {
            (SERVER, "{}")
        } else {
            (r#"["agent"]"#, r#"{"K3S_URL":"https://10.0.0.1:6443"}"#)
        };
        node.annotations.insert(NODE_ARGS.into(), arguments.into());
        node.annotations.insert(NODE_ENV.into(), environment.into());
    }
    let api = observation.api.as_ref().unwrap();
    let systems = api.nodes.iter().map(|node| (node.name.clone(), "linux".to_owned())).collect();
    Reading { runtime: "k3s".into(), observation, hosts, systems, ..Reading::default() }
}

fn told(reading: &Reading, severity: Severity) -> Vec<String> {
    let all = findings("prod", reading).into_iter();
    all.filter(|finding| finding.severity == severity).map(|finding| finding.check).collect()
}

fn node(reading: &mut Reading, number: usize) -> &mut NodeSeen {
    &mut reading.observation.api.as_mut().unwrap().nodes[number]
}

fn host(reading: &mut Reading, number: usize) -> &mut K3sReading {
    let id = reading.observation.hosts[number].id.clone();
    reading.hosts.get_mut(&id).unwrap().k3s.as_mut().unwrap()
}

fn arguments(reading: &mut Reading, number: usize, text: &str) {
    node(reading, number).annotations.insert(NODE_ARGS.into(), text.into());
}

#[test]
fn a_healthy_cluster_is_adopted_with_the_options_of_its_servers() {
    let reading = reading(3);
    assert_eq!(told(&reading, Severity::Error), Vec::<String>::new());
    assert_eq!(told(&reading, Severity::Warning), Vec::<String>::new());
    let mut named = Clusterfile::default();
    named.cluster.name = "prod".into();
    let made = clusterfile(&reading, &named, "2026-01-01T00:00:00Z");
    assert_eq!(
        made.documents,
        [json!({"apiVersion": "k3s.cattle.io/v1", "kind": "Config",
            "disable": ["traefik"], "tls-san": ["k.example"]})]
    );
    let adopted = made.cluster.status.adopted.as_ref().unwrap();
    assert_eq!((adopted.runtime.as_str(), adopted.version.as_str()), ("k3s", "v1.34.1+k3s1"));
    assert_eq!(adopted.image().distribution(), "k3s");
    let text = made.write().unwrap();
    let read = imgctl_model::clusterfile::read(&text, "f").unwrap().0;
    assert_eq!(read.documents, made.documents, "{text}");
}

#[test]
fn new_hosts_join_where_others_did() {
    let mut reading = reading(1);
    let url = r#"{"K3S_URL":"https://lb.example:6443/"}"#;
    node(&mut reading, 1).annotations.insert(NODE_ENV.into(), url.into());
    arguments(
        &mut reading,
        0,
        r#"["server","--agent-token","********","--bind-address","10.0.0.1"]"#,
    );
    let document = k3s::document(&reading).unwrap();
    assert_eq!(document["server"], "https://lb.example:6443");
    assert_eq!(document["agent-token-file"], "/etc/rancher/k3s/agent-token");
    assert_eq!(document.get("bind-address"), None);
    assert!(!document.to_string().contains("****"), "{document}");
    assert!(told(&reading, Severity::Note).contains(&"endpoint".to_owned()));
}

#[test]
fn what_cannot_be_carried_on_is_an_error() {
    type Change = fn(&mut Reading);
    let errors: [(Change, &str); 13] = [
        (
            |it| arguments(it, 0, r#"["server","--datastore-endpoint","********"]"#),
            "external-datastore",
        ),
        (|it| host(it, 0).store = None, "external-datastore"),
        (|it| arguments(it, 0, r#"["server","--vpn-auth","x"]"#), "k3s-options"),
        (|it| arguments(it, 0, r#"["server","--disable-etcd","true"]"#), "k3s-options"),
        (|it| arguments(it, 1, r#"["agent","--docker"]"#), "k3s-options"),
        (|it| node(it, 1).annotations.clear(), "k3s-options"),
        (|it| arguments(it, 0, r#"["server","--data-dir","/srv/k3s"]"#), "data-directory"),
        (|it| host(it, 0).files.clear(), "token"),
        (|it| host(it, 0).role = "agent".into(), "role"),
        (|it| host(it, 1).role = "server".into(), "role"),
        (
            |it| {
                let id = it.observation.hosts[1].id.clone();
                it.hosts.get_mut(&id).unwrap().k3s = None;
            },
            "role",
        ),
        (
            |it| {
                let id = it.observation.hosts[1].id.clone();
                it.hosts.get_mut(&id).unwrap().programs.clear();
            },
            "programs",
        ),
        (|it| it.observation.hosts[0].certificates[0].not_after = 1_700_000_000, "certificates"),
    ];
    for (change, check) in errors {
        let mut reading = reading(1);
        change(&mut reading);
        let errors = told(&reading, Severity::Error);
        assert_eq!(
            errors.first().map(String::as_str),
            Some(check),
            "{:#?}",
            findings("prod", &reading)
        );
    }
    let mut two = reading(2);
    arguments(&mut two, 1, r#"["server","--disable","x","--flannel-backend","host-gw"]"#);
    assert_eq!(told(&two, Severity::Error), ["k3s-options"]);
}

#[test]
fn what_stays_to_be_done_by_hand_is_a_warning() {
    type Change = fn(&mut Reading);
    let warnings: [(Change, &str); 5] = [
        (|it| host(it, 0).store = Some("sqlite".into()), "datastore"),
        (|it| arguments(it, 0, r#"["server","--flux-capacitor","1.21"]"#), "k3s-options"),
        (|it| arguments(it, 0, r#"["server","--kubelet-config","/etc/k.yaml"]"#), "local-files"),
        (|it| arguments(it, 0, r#"["server","--etcd-s3-access-key","********"]"#), "snapshots"),
        (
            |it| it.observation.hosts[0].certificates[0].not_after = 1_800_000_000 + 86_400,
            "certificates",
        ),
    ];
    for (change, check) in warnings {
        let mut reading = reading(1);
        change(&mut reading);
        assert_eq!(told(&reading, Severity::Error), Vec::<String>::new(), "{check}");
        assert_eq!(told(&reading, Severity::Warning), [check]);
    }
}

#[test]
fn the_probe_of_k3s_is_understood() {
    let text = "k3s-store\tnobody's\nk3s\tserver\tk3s\t/srv/k3s\nk3s-store\tsqlite\nk3s-file\tserver/token\n\
                k3s-drop-in\t/etc/rancher/k3s/config.yaml.d/10.yaml\nrke2\tyes\n";
    let host = read::understand(text);
    let k3s = host.k3s.unwrap();
    assert_eq!((k3s.role.as_str(), k3s.unit.as_str()), ("server", "k3s"));
    assert_eq!((k3s.data_directory.as_str(), k3s.store.as_deref()), ("/srv/k3s", Some("sqlite")));
    assert_eq!((k3s.files.len(), k3s.drop_ins.len(), host.is_rke2), (1, 1, true));
    assert_eq!(k3s::data_directory(&[json!({"data-dir": "/srv/k3s/"})]), "/srv/k3s");
    assert_eq!(k3s::data_directory(&[Value::Null]), "/var/lib/rancher/k3s");
}

#[test]
fn tokens_are_words() {
    assert_eq!(k3s::token(" K10ab::server:pw\n"), Some("K10ab::server:pw"));
    assert_eq!(k3s::token("short"), Some("short"));
    for text in ["", "K10ab::server:", "two words"] {
        assert_eq!(k3s::token(text), None, "{text}");
    }
}
