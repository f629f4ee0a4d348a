//! A cluster of k3s as the installer of get.k3s.io leaves it, with SQLite: adopted, grown, backed up,
//! removed, and restored elsewhere. k3s and the uninstall scripts are stand-ins.

use super::{ClusterApi, build, keyed, keyed_command, nodes};
use crate::common::testbed::Bed;
use crate::common::{Ran, long, needs_root};
use imgctl_kube::testing::stand_in::StandIn;
use serde_json::{Value, json};

const SECRET: &str = "/api/v1/namespaces/kube-system/secrets/imgctl-cluster";
const NODES: &str = "/api/v1/nodes";
const STAND_IN: &str = include_str!("stand-in-k3s");

/// Makes what the installer leaves: the program, the unit with the options, the file of variables, and
/// the script that removes all. `unit` is `k3s` or `k3s-agent`.
fn install(bed: &Bed, host: usize, unit: &str, words: &str, variables: &str) {
    let kind = if unit == "k3s" { "notify" } else { "exec" };
    let line = format!(
        "set -eu\n\
         cat >/usr/local/bin/k3s <<'STAND-IN'\n{STAND_IN}STAND-IN\n\
         chmod 0755 /usr/local/bin/k3s; ln -s k3s /usr/local/bin/kubectl\n\
         printf '%s\\n' {variables} >/etc/systemd/system/{unit}.service.env; chmod 0600 /etc/systemd/system/{unit}.service.env\n\
         cat >/etc/systemd/system/{unit}.service <<'UNIT'\n\
         [Unit]\nDescription=Lightweight Kubernetes\n[Install]\nWantedBy=multi-user.target\n\
         [Service]\nType={kind}\nEnvironmentFile=-/etc/systemd/system/{unit}.service.env\nKillMode=process\nDelegate=yes\n\
         TimeoutStartSec=0\nRestart=always\nRestartSec=5s\nExecStart=/usr/local/bin/k3s \\\n    {words}\nUNIT\n\
         cat >/usr/local/bin/{unit}-uninstall.sh <<'SCRIPT'\n\
         #!/bin/sh\nsystemctl disable --now {unit}; rm -rf /etc/rancher /var/lib/rancher /usr/local/bin/k3s /usr/local/bin/kubectl /etc/systemd/system/{unit}.service*\n\
         systemctl daemon-reload; touch /root/uninstalled; rm -f /usr/local/bin/{unit}-uninstall.sh\nSCRIPT\n\
         chmod 0755 /usr/local/bin/{unit}-uninstall.sh\n\
         systemctl daemon-reload; systemctl enable --quiet {unit}; systemctl start {unit}"
    );
    bed.says(host, &line);
}

fn node(bed: &Bed, host: usize, arguments: &str, environment: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
    "metadata": {"name": format!("h{host}"), "annotations": {
        "k3s.io/node-args": arguments, "k3s.io/node-env": environment}},
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": bed.ip(host)}],
        "nodeInfo": {"kubeletVersion": "v1.34.1+k3s1", "operatingSystem": "linux",
            "containerRuntimeVersion": "containerd://2.1.4-k3s1", "architecture": "amd64"},
    }})
}

/// A server and an agent, installed by another program.
fn installed(bed: &Bed) -> ClusterApi {
    let cluster = ClusterApi::start(bed, [1, 4]);
    let api: &StandIn = &cluster.api;
    api.add(json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "kube-system", "uid": "uid-of-the-cluster"}}));
    let url = format!("https://{}:6443", bed.ip(1));
    api.add(node(bed, 1, r#"["server","--disable","traefik"]"#, "{}"));
    let variables = format!(r#"{{"K3S_TOKEN":"********","K3S_URL":"{url}"}}"#);
    api.add(node(bed, 2, r#"["agent"]"#, &variables));
    install(bed, 1, "k3s", "server '--disable' 'traefik'", "''");
    let token = bed.says(1, "cat /var/lib/rancher/k3s/server/node-token");
    install(bed, 2, "k3s-agent", "agent", &format!("K3S_TOKEN={token} K3S_URL={url}"));
    bed.says(2, "until test -e /var/lib/rancher/k3s/stand-in/primary; do sleep 0.2; done");
    (1..=2).for_each(|host| drop(bed.says(host, "sleep 0.1; touch /run/marked")));
    cluster
}

/// Files that are new or changed on a host since it was installed.
fn changed(bed: &Bed, host: usize) -> String {
    bed.says(
        host,
        "find /etc /root /usr/local /var/lib -xdev -newer /run/marked ! -path '/var/lib/imgctl*' \
         ! -path '/var/lib/systemd/*' ! -path '/root/.ssh*' ! -path '/var/lib/rancher/k3s/server/db*' ! -type d",
    )
}

fn findings(bed: &Bed, words: &[&str]) -> String {
    let all = [&["adopt", "-c", "prod", "--yes", "--json"], words].concat();
    let shown = keyed(bed, &all).fails(10).stdout();
    let mut values = serde_json::Deserializer::from_str(&shown).into_iter::<Value>();
    values.next().unwrap().unwrap()["findings"].to_string()
}

/// What is wrong is told, and nothing is written.
fn refusals(bed: &Bed, cluster: &ClusterApi, server: &str, agent: &str) {
    let told = findings(bed, &["--masters", server]);
    assert!(told.contains("Nodes without a host") && told.contains(agent), "{told}");
    let told = findings(bed, &["--masters", &format!("{server},{agent}")]);
    assert!(told.contains("runs no k3s server"), "{told}");
    let path = format!("{NODES}/h1");
    for (arguments, part) in [
        (r#"["server","--datastore-endpoint","********"]"#, "external-datastore"),
        (r#"["server","--disable-apiserver","true"]"#, "disable-apiserver"),
        (r#"["server","--data-dir","/srv/k3s"]"#, "data-directory"),
        ("none", "k3s-options"),
    ] {
        cluster.api.change(&path, |one| {
            one["metadata"]["annotations"]["k3s.io/node-args"] = arguments.into();
        });
        let told = findings(bed, &["--masters", server, "--nodes", agent]);
        assert!(told.contains(part), "{arguments}: {told}");
    }
    cluster.api.change(&path, |one| {
        one["metadata"]["annotations"]["k3s.io/node-args"] =
            r#"["server","--disable","traefik"]"#.into();
    });
    assert!(!bed.env.path("clusters/prod/Clusterfile").exists());
    assert!(cluster.api.writes().is_empty());
}

#[test]
fn a_cluster_that_others_installed_is_adopted_and_moves_elsewhere() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(4).with_agent();
    build(&bed);
    let cluster = installed(&bed);
    let (server, agent) = (bed.ip(1), bed.ip(2));
    refusals(&bed, &cluster, &server, &agent);

    // Killed after any record, the same command goes on.
    let adopt = ["adopt", "-c", "prod", "--masters", &server, "--nodes", &agent, "--yes"];
    let state = bed.env.path("clusters/prod");
    let mut kills = 0;
    let records = if long() { (1..40).collect() } else { vec![2, 4, 7, 9] };
    for record in records {
        let mut command = keyed_command(&bed, &adopt);
        command.env("IMGCTL_DIE_AFTER", u64::to_string(&record));
        if Ran::new(command).success() {
            break;
        }
        kills += 1;
        keyed(&bed, &adopt).ok();
        for name in ["Clusterfile", "etc/token", "etc/agent-token", "etc/admin.conf"] {
            assert!(state.join(name).exists(), "{record}: {name}");
        }
        std::fs::remove_dir_all(&state).unwrap();
        cluster.api.remove(SECRET);
    }
    assert!(kills >= 3, "{kills}");
    keyed(&bed, &adopt).ok();
    for host in 1..=2 {
        assert_eq!(changed(&bed, host), "", "h{host}");
    }
    let token = bed.says(1, "cat /var/lib/rancher/k3s/server/token");
    assert_eq!(std::fs::read_to_string(state.join("etc/token")).unwrap(), token);
    let clusterfile = std::fs::read_to_string(state.join("Clusterfile")).unwrap();
    assert!(clusterfile.contains("traefik") && clusterfile.contains("adopted:"), "{clusterfile}");
    for text in [clusterfile, cluster.api.peek(SECRET).unwrap().to_string()] {
        assert!(!text.contains("K10"), "{text}");
    }

    // A new host gets its options.
    let new = bed.ip(3);
    keyed(&bed, &["add", "-c", "prod", "--nodes", &new, "--image", "k3s:v1"]).ok();
    assert_eq!(nodes(&bed), ["h1", "h2", "h3"]);
    let config = bed.says(3, "cat /etc/rancher/k3s/config.yaml");
    assert!(config.contains(&format!("https://{server}:6443")), "{config}");
    assert!(!config.contains("apiserver.cluster.local"), "{config}");
    assert!(!bed.exec(3, "systemctl cat imgctl-api-prod").success());

    // SQLite has no place for a second server.
    let second = ["--masters", &bed.ip(4)];
    let refused = keyed(&bed, &[&["add", "-c", "prod"], &second[..]].concat());
    let told = refused.report();
    assert!(!refused.success() && told.contains("--cluster-init"), "{told}");
    keyed(&bed, &[&["delete", "-c", "prod", "--yes"], &second[..]].concat()).ok();

    // A backup stops k3s for a moment; a killed one leaves it running.
    let place = bed.env.path("backups").display().to_string();
    let backup = ["backup", "-c", "prod", "--to", &place, "--keep", "1"];
    for record in [4, 6] {
        let mut command = keyed_command(&bed, &backup);
        command.env("IMGCTL_DIE_AFTER", record.to_string());
        assert!(!Ran::new(command).success(), "{record}");
    }
    keyed(&bed, &backup).ok();
    let left =
        "systemctl is-active k3s; systemctl list-timers --all | grep -c imgctl-start || true";
    assert_eq!(bed.says(1, left), "active\n0");
    let authority = bed.says(1, "sha256sum </var/lib/rancher/k3s/server/tls/server-ca.crt");

    keyed(&bed, &["reset", "-c", "prod", "--yes"]).ok();
    for host in 1..=2 {
        bed.says(host, "test -e /root/uninstalled; test ! -e /var/lib/rancher");
    }
    // It has the authority and the password of the first one, and etcd in place of SQLite.
    let last = bed.ip(4);
    keyed(&bed, &["restore", &place, "--masters", &last]).ok();
    let nodes = bed.says(4, "k3s kubectl get nodes -o name");
    assert_eq!(nodes, "node/h4");
    bed.says(4, "test -d /var/lib/rancher/k3s/server/db/etcd");
    assert_eq!(bed.says(4, "sha256sum </var/lib/rancher/k3s/server/tls/server-ca.crt"), authority);
    assert!(token.ends_with(&bed.says(4, "cat /etc/rancher/k3s/token")), "{token}");
    keyed(&bed, &["status", "-c", "prod"]).ok();
}
