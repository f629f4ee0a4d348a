//! A control plane and a worker get other addresses, on "hosts" with the stand-ins of tests/kubeadm
//! (fakes: no Pod runs). What the files say is that of kubeadm's; the agent runs lines with nsenter.

use std::path::Path;
use std::sync::Arc;

use crate::certificates::{inspect, validity::Validity};
use crate::kubeadm::Kubeadm;
use crate::kubeadm::stand_in_tests::{Hosts, Namespace};
use crate::kubeadm::tests::{NoFiles, context, host};
use crate::{HostPool, Runtime};
use imgctl_host::agent::{Agent as _, protocol::FileToWrite, protocol::HostsBlock};
use imgctl_model::context::{ClusterContext, Host, MASTER, NODE};
use imgctl_model::state_files::StateFiles;

const FIRST: &str = "10.0.0.11";
const SECOND: &str = "10.0.0.12";
const WORKER: &str = "10.0.0.21";
const NEW_FIRST: &str = "10.0.9.11";
const NEW_WORKER: &str = "10.0.9.21";

struct Cluster {
    hosts: Hosts,
    context: ClusterContext,
}

impl Cluster {
    fn up(directory: &Path) -> Self {
        let mut context = context(
            "v1.34.1",
            vec![host(FIRST, MASTER), host(SECOND, MASTER), host(WORKER, NODE)],
            // RSA keys would take most of the test's time.
            vec![serde_json::json!({
                "apiVersion": "kubeadm.k8s.io/v1beta4",
                "kind": "ClusterConfiguration",
                "encryptionAlgorithm": "ECDSA-P256",
            })],
        );
        context.state = StateFiles::plain(directory.join("cluster"));
        let socket = "/run/containerd/containerd.sock".to_owned();
        context.flag_environment.insert("SEALOS_SYS_CRI_ENDPOINT".to_owned(), socket);
        let spaces = [(FIRST, "CP-1"), (SECOND, "cp-2"), (WORKER, "worker-1")];
        let spaces = spaces.map(|(ip, name)| Arc::new(Namespace::new(ip, name, directory)));
        let own = Self { hosts: Hosts(spaces.to_vec()), context };
        let sealctl = FileToWrite {
            path: format!("{}/opt/sealctl", own.context.paths.rootfs()),
            mode: 0o755,
            content: b"#!/bin/sh\n".to_vec(),
        };
        own.hosts.of(WORKER).write_file(&sealctl).unwrap();
        let kubeadm = Kubeadm::new(&NoFiles, Validity::default());
        let [first, second, worker] = [0, 1, 2].map(|at| own.context.hosts[at].clone());
        own.run(&first, "prepare", kubeadm.prepare(&own.context, &first));
        own.run(&first, "init", kubeadm.init(&own.context, &first));
        own.run(&second, "prepare", kubeadm.prepare(&own.context, &second));
        own.run(&second, "join", kubeadm.join_control_plane(&own.context, &second));
        let block = HostsBlock {
            cluster: own.context.name.clone(),
            entries: kubeadm.hosts_entries(&own.context, &worker),
        };
        own.hosts.of(WORKER).set_hosts(&block).unwrap();
        own.run(&worker, "join", kubeadm.join_worker(&own.context, &worker));
        own
    }

    #[track_caller]
    fn run(&self, host: &Host, key: &str, actions: imgctl_base::error::Result<Vec<crate::Action>>) {
        self.hosts.run(&self.context, host, key, &actions.unwrap()).unwrap();
    }

    fn api(&self, words: &str) -> String {
        let ended = self.hosts.of(SECOND).shell(&format!("stand-in-api ask {words}"), &[], b"");
        String::from_utf8(ended.stdout).unwrap()
    }

    fn read(&self, ip: &str, path: &str) -> String {
        let agent = self.hosts.agent(&host(ip, MASTER)).unwrap();
        let bytes = agent.read_file(path, 1 << 20).unwrap();
        String::from_utf8(bytes.unwrap_or_else(|| panic!("{ip} has no {path}"))).unwrap()
    }

    fn names(&self, ip: &str, certificate: &str) -> Vec<String> {
        let path = format!("/etc/kubernetes/pki/{certificate}.crt");
        inspect::read(&self.read(ip, &path)).unwrap().names
    }

    /// The host has the new address, as the Clusterfile lists it.
    fn renumber(&mut self, old: &str, new: &str) -> Host {
        let host = self.context.hosts.iter_mut().find(|host| host.ip() == old).unwrap();
        new.clone_into(&mut host.address.name);
        host.clone()
    }
}

#[test]
fn a_control_plane_and_a_worker_move_and_go_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::up(directory.path());
    let kubeadm = Kubeadm::new(&NoFiles, Validity::default());
    // Kubeconfigs of a cluster that plain kubeadm made name the first control plane.
    let first = cluster.hosts.of(FIRST).log.clone();
    let map = |name: &str, key: &str| {
        let text = format!(
            r#"{{"metadata":{{"name":"{name}"}},"data":{{"{key}":"server: https://{FIRST}:6443\\n"}}}}"#
        );
        std::fs::write(first.join(format!("configmap-{name}.json")), text).unwrap();
    };
    map("kube-proxy", "kubeconfig.conf");
    map("cluster-info", "kubeconfig");
    let worker_conf = "/etc/kubernetes/kubelet.conf";
    let text = cluster.read(WORKER, worker_conf).replace("apiserver.cluster.local", FIRST);
    let file =
        FileToWrite { path: worker_conf.to_owned(), mode: 0o600, content: text.into_bytes() };
    cluster.hosts.of(WORKER).write_file(&file).unwrap();

    *cluster.hosts.of(FIRST).also.lock().unwrap() = vec![NEW_FIRST.to_owned()];
    let before = cluster.names(FIRST, "apiserver");
    let moved = cluster.renumber(FIRST, NEW_FIRST);
    let actions = kubeadm.renumber(&cluster.context, &moved, FIRST).unwrap();
    let shown: Vec<&str> = actions.iter().map(|action| action.name.as_str()).collect();
    assert_eq!(shown[..4], ["certificates", "api-name", "etcd-others", "etcd-member"]);
    // Every action may run again, and all of them after any of them.
    for (at, action) in actions.iter().enumerate() {
        let one = std::slice::from_ref(action);
        for time in ["once", "twice"] {
            let key = format!("{time}-{at}");
            cluster.hosts.run(&cluster.context, &moved, &key, one).unwrap();
        }
    }
    cluster.run(&moved, "again", Ok(actions));
    for other in cluster.context.hosts.clone() {
        cluster.run(&other, "follow", kubeadm.follow(&cluster.context, &other, &moved, FIRST));
    }
    cluster.run(&moved, "health", kubeadm.health(&cluster.context, &moved));

    for name in ["etcd", "kube-apiserver"] {
        let manifest = cluster.read(FIRST, &format!("/etc/kubernetes/manifests/{name}.yaml"));
        assert!(manifest.contains(NEW_FIRST) && !manifest.contains(FIRST), "{manifest}");
    }
    for name in ["controller-manager", "scheduler"] {
        let conf = cluster.read(FIRST, &format!("/etc/kubernetes/{name}.conf"));
        assert!(conf.contains(&format!("server: https://{NEW_FIRST}:6443")), "{conf}");
    }
    // The host has both addresses still, and its certificates name both.
    for name in ["apiserver", "etcd/server", "etcd/peer"] {
        let names = cluster.names(FIRST, name);
        assert!(names.iter().any(|one| one == NEW_FIRST), "{name}: {names:?}");
        assert!(names.iter().any(|one| one == FIRST), "{name}: {names:?}");
    }
    let kept = cluster.names(FIRST, "apiserver");
    assert!(before.iter().all(|name| kept.contains(name)), "{before:?} {kept:?}");
    let members = cluster.api("members");
    assert!(members.contains(NEW_FIRST) && !members.contains(FIRST), "{members}");
    assert!(cluster.api("addresses").contains(&format!("cp-1|{NEW_FIRST} ")));
    assert!(
        cluster.read(FIRST, "/etc/hosts").contains(&format!("{NEW_FIRST} apiserver.cluster.local"))
    );
    for name in ["kube-proxy", "cluster-info"] {
        let text = std::fs::read_to_string(first.join(format!("configmap-{name}.json"))).unwrap();
        assert!(text.contains(NEW_FIRST) && !text.contains(FIRST), "{text}");
    }
    assert!(
        cluster
            .hosts
            .of(FIRST)
            .calls("kubectl --kubeconfig /etc/kubernetes/admin.conf patch daemonset kube-proxy")
            > 0
    );
    assert!(
        cluster.read(WORKER, worker_conf).contains(&format!("server: https://{NEW_FIRST}:6443"))
    );
    assert_eq!(cluster.hosts.of(WORKER).calls("systemctl restart kubelet"), 1);
    assert!(cluster.read(WORKER, crate::kubeadm::lvscare::MANIFEST).contains(NEW_FIRST));

    // The worker; its old address is gone already.
    let moved = cluster.renumber(WORKER, NEW_WORKER);
    *cluster.hosts.of(WORKER).also.lock().unwrap() = vec![NEW_WORKER.to_owned()];
    cluster.run(&moved, "worker", kubeadm.renumber(&cluster.context, &moved, WORKER));
    cluster.run(&moved, "worker-follow", kubeadm.follow(&cluster.context, &moved, &moved, WORKER));
    assert!(cluster.api("addresses").contains(&format!("worker-1|{NEW_WORKER} ")));
    assert!(cluster.read(NEW_WORKER, crate::kubeadm::lvscare::MANIFEST).contains(NEW_WORKER));

    // Back again: what was there before is there again.
    let back = cluster.renumber(NEW_FIRST, FIRST);
    cluster.run(&back, "back", kubeadm.renumber(&cluster.context, &back, NEW_FIRST));
    let manifest = cluster.read(FIRST, "/etc/kubernetes/manifests/etcd.yaml");
    assert!(manifest.contains(FIRST) && !manifest.contains(NEW_FIRST), "{manifest}");
    assert!(!cluster.api("members").contains(NEW_FIRST));
}

#[test]
fn a_member_stays_where_it_is_while_others_are_ill() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::up(directory.path());
    let kubeadm = Kubeadm::new(&NoFiles, Validity::default());
    let third = host("10.0.0.13", MASTER);
    cluster.context.hosts.push(third);
    *cluster.hosts.of(FIRST).also.lock().unwrap() = vec![NEW_FIRST.to_owned()];
    let moved = cluster.renumber(FIRST, NEW_FIRST);
    let actions = kubeadm.renumber(&cluster.context, &moved, FIRST).unwrap();
    // Of three members one cannot be reached.
    let error = cluster.hosts.run(&cluster.context, &moved, "ill", &actions).unwrap_err();
    let told = error.chain().join(": ");
    assert!(told.contains("etcd-others") && told.contains("cannot be reached"), "{told}");
    let manifest = cluster.read(FIRST, "/etc/kubernetes/manifests/etcd.yaml");
    assert!(manifest.contains(FIRST) && !manifest.contains(NEW_FIRST), "{manifest}");
}

/// Workers with load balancers of imgctl no longer use the API server when it stops, and know it by its
/// old address until they follow.
#[test]
fn an_api_server_leaves_the_balancers_before_it_moves() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::up(directory.path());
    cluster.context.images[0].labels.remove("image");
    let kubeadm = Kubeadm::new(&NoFiles, Validity::default());
    let list = format!("{}/api-servers", cluster.context.paths.etc());
    let text = format!("{FIRST}:6443\n{SECOND}:6443\n");
    let file = FileToWrite { path: list.clone(), mode: 0o644, content: text.into_bytes() };
    cluster.hosts.of(WORKER).write_file(&file).unwrap();
    *cluster.hosts.of(FIRST).also.lock().unwrap() = vec![NEW_FIRST.to_owned()];
    let moved = cluster.renumber(FIRST, NEW_FIRST);
    let only = |actions: imgctl_base::error::Result<Vec<crate::Action>>, name: &str| {
        actions.map(|mut actions| {
            actions.retain(|action| action.name == name);
            assert_eq!(actions.len(), 1, "{name}");
            actions
        })
    };
    let actions = kubeadm.renumber(&cluster.context, &moved, FIRST);
    cluster.run(&moved, "move", only(actions, "manifests"));
    assert_eq!(cluster.read(WORKER, &list), format!("#out {FIRST}:6443 900\n{SECOND}:6443\n"));
    let worker = cluster.context.hosts[2].clone();
    let actions = kubeadm.follow(&cluster.context, &worker, &moved, FIRST);
    cluster.run(&worker, "follow", only(actions, "lb-servers"));
    assert_eq!(cluster.read(WORKER, &list), format!("{NEW_FIRST}:6443\n{SECOND}:6443\n"));
}
