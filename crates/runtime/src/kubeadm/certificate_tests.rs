//! Renewal by the timer and rotation of authorities on a "host" with the stand-ins of tests/kubeadm (fakes:
//! no Pod runs), and an API in memory. Certificates and files are real.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::Runtime as _;
use crate::certificates::rotation::{Signs, Trust};
use crate::certificates::{again, control_plane, inspect, validity, validity::Validity};
use crate::kubeadm::Kubeadm;
use crate::kubeadm::stand_in_tests::{Hosts, Namespace};
use crate::kubeadm::tests::{NoFiles, context, host};
use crate::renewal::host::{World, run};
use crate::renewal::record::State;
use crate::renewal::settings::Settings;
use crate::rotation::{Rotator as _, Which};
use imgctl_base::error::Error;
use imgctl_host::agent::Agent as _;
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_kube::api::Api;
use imgctl_kube::lease::Times;
use imgctl_kube::testing::stand_in::StandIn;
use imgctl_model::context::{ClusterContext, Host, MASTER, NODE};
use imgctl_model::state_files::StateFiles;

const FIRST: &str = "10.0.0.11";
const SECOND: &str = "10.0.0.12";
const PKI: &str = "/etc/kubernetes/pki";

struct Cluster {
    hosts: Hosts,
    context: ClusterContext,
    first: Host,
    _directory: tempfile::TempDir,
}

impl Cluster {
    fn up(validity: Validity) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut context = context(
            "v1.34.1",
            vec![host(FIRST, MASTER), host("10.0.0.21", NODE)],
            vec![json!({
                "apiVersion": "kubeadm.k8s.io/v1beta4",
                "kind": "ClusterConfiguration",
                "encryptionAlgorithm": "ECDSA-P256",
            })],
        );
        context.state = StateFiles::plain(directory.path().join("cluster"));
        let socket = "/run/containerd/containerd.sock".to_owned();
        context.flag_environment.insert("SEALOS_SYS_CRI_ENDPOINT".to_owned(), socket);
        let hosts = Hosts(vec![Arc::new(Namespace::new(FIRST, "cp-1", directory.path()))]);
        let first = context.hosts[0].clone();
        let kubeadm = Kubeadm::new(&NoFiles, validity);
        hosts
            .run(&context, &first, "prepare", &kubeadm.prepare(&context, &first).unwrap())
            .unwrap();
        hosts.run(&context, &first, "init", &kubeadm.init(&context, &first).unwrap()).unwrap();
        Self { hosts, context, first, _directory: directory }
    }

    fn read(&self, path: &str) -> String {
        let bytes = self.hosts.of(FIRST).read_file(path, 1 << 20).unwrap();
        String::from_utf8(bytes.unwrap_or_default()).unwrap()
    }

    fn expiry(&self, name: &str) -> i64 {
        inspect::read(&self.read(&format!("{PKI}/{name}.crt"))).unwrap().not_after
    }
}

/// An API with two control planes; whether the second is Ready.
fn api(second: bool) -> StandIn {
    let api = StandIn::new();
    for (name, address, ready) in [("cp-1", FIRST, true), ("cp-2", SECOND, second)] {
        let ready = if ready { "True" } else { "False" };
        api.add(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"node-role.kubernetes.io/control-plane": ""}},
            "status": {"addresses": [{"type": "InternalIP", "address": address}],
                "conditions": [{"type": "Ready", "status": ready}]}}));
        api.add(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("etcd-{name}"), "namespace": "kube-system",
                "labels": {"tier": "control-plane"}},
            "spec": {"nodeName": name, "containers": [{"name": "etcd", "image": "etcd"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
    }
    api
}

#[test]
fn the_timer_renews_one_host_when_the_others_are_well() {
    let validity = Validity::of_leaves(Duration::from_secs(600)).unwrap();
    let cluster = Cluster::up(validity);
    let settings = Settings::of(&cluster.context, &cluster.first, "kubeadm", None).unwrap();
    let agent = cluster.hosts.of(FIRST);
    // What servers show: the new certificate, as soon as it is there.
    let follows = |port: u16| {
        let name = match port {
            6443 => "apiserver",
            2379 => "etcd/server",
            _ => "etcd/peer",
        };
        Ok(inspect::read(&cluster.read(&format!("{PKI}/{name}.crt")))?.der)
    };
    let stale = |_: u16| Ok(Vec::new());
    let told = Mutex::new(Vec::new());
    let tell = |text: &str| told.lock().unwrap().push(text.to_owned());
    let times = Times { renew: Duration::from_millis(50), ttl: Duration::from_secs(1) };
    let begun = i64::try_from(validity::now()).unwrap();
    let world = |api: &dyn Fn() -> imgctl_base::error::Result<Arc<dyn Api>>, shows: bool, now| {
        let presented: &dyn Fn(u16) -> _ = if shows { &follows } else { &stale };
        let patience = Duration::from_millis(300);
        run(&settings, &World { agent, api, presented, patience, times, now, tell: &tell }).unwrap()
    };
    let well = || -> imgctl_base::error::Result<Arc<dyn Api>> { Ok(Arc::new(api(true))) };
    let ill = || -> imgctl_base::error::Result<Arc<dyn Api>> { Ok(Arc::new(api(false))) };
    let away = || -> imgctl_base::error::Result<Arc<dyn Api>> { Err(Error::network("away")) };

    // Nothing is due yet.
    let record = world(&well, true, begun + 200);
    assert_eq!((record.state, record.renewed.len()), (State::Well, 0), "{record:?}");
    let before = cluster.read(&format!("{PKI}/etcd/server.crt"));
    // Another control plane is down, or nobody answers: it waits.
    for api in [&ill as &dyn Fn() -> _, &away] {
        let record = world(api, true, begun + 450);
        assert_eq!(record.state, State::Waiting, "{record:?}");
        assert_eq!(cluster.read(&format!("{PKI}/etcd/server.crt")), before);
    }
    // A server does not show the new one, also after a restart: everything is put back.
    let record = world(&well, false, begun + 450);
    assert_eq!(record.state, State::Failed);
    assert!(record.reason.contains("the former certificates are back"), "{record:?}");
    assert_eq!(cluster.read(&format!("{PKI}/etcd/server.crt")), before);
    assert!(agent.calls("crictl stop") > 0);

    let key = cluster.read(&format!("{PKI}/apiserver.key"));
    let admin = cluster.read("/etc/kubernetes/admin.conf");
    std::thread::sleep(Duration::from_secs(2));
    let record = world(&well, true, begun + 450);
    assert_eq!(record.state, State::Well, "{record:?}");
    let files: Vec<&str> = record.renewed.iter().map(|one| one.file.as_str()).collect();
    for file in
        ["pki/apiserver.crt", "pki/etcd/peer.crt", "pki/front-proxy-client.crt", "admin.conf"]
    {
        assert!(files.contains(&&*format!("/etc/kubernetes/{file}")), "{file}: {files:?}");
    }
    assert!(cluster.expiry("apiserver") > inspect::read(&before).unwrap().not_after);
    assert_eq!(cluster.read(&format!("{PKI}/apiserver.key")), key, "keys stay");
    assert_ne!(cluster.read("/etc/kubernetes/admin.conf"), admin);
    assert!(
        !agent.exists(&settings.path("pending.json")) && !agent.exists(&settings.path("before"))
    );

    // Everything has expired, and no API server answers: there is nothing to lose.
    let before = cluster.expiry("etcd/server");
    std::thread::sleep(Duration::from_secs(2));
    world(&away, true, begun + 5000);
    assert!(cluster.expiry("etcd/server") > before);
}

#[test]
fn authorities_go_forth_and_back() {
    let cluster = Cluster::up(Validity::default());
    let kubeadm = Kubeadm::new(&NoFiles, Validity::default());
    let (context, first) = (&cluster.context, &cluster.first);
    let which = [Which::Kubernetes, Which::Etcd, Which::FrontProxy];
    assert_eq!(kubeadm.authorities(context).len(), 3);
    // A kubelet that has joined.
    let own = cluster.read(&format!("{PKI}/ca.crt"));
    let client =
        control_plane::read_kubeconfig(&cluster.read("/etc/kubernetes/admin.conf")).unwrap();
    let pem = "/var/lib/kubelet/pki/kubelet-client-1.pem";
    let content = client.certificate.unwrap().into_bytes();
    let agent = cluster.hosts.of(FIRST);
    agent.write_file(&FileToWrite { path: pem.to_owned(), mode: 0o600, content }).unwrap();
    let link = format!("ln -s {pem} /var/lib/kubelet/pki/kubelet-client-current.pem");
    assert!(agent.shell(&link, &[], b"").status.success());

    let mut number = 0;
    let mut act = |actions: Vec<crate::Action>| {
        number += 1;
        cluster.hosts.run(context, first, &format!("r{number}"), &actions).unwrap();
    };
    let all_by = |authority: &str| {
        let of_cluster = ["apiserver", "apiserver-kubelet-client"];
        for name in of_cluster {
            let one = cluster.read(&format!("{PKI}/{name}.crt"));
            assert!(inspect::signed_by(&one, authority), "{name}");
        }
        for name in ["admin.conf", "scheduler.conf", "controller-manager.conf"] {
            let text = cluster.read(&format!("/etc/kubernetes/{name}"));
            let read = control_plane::read_kubeconfig(&text).unwrap();
            assert!(inspect::signed_by(&read.certificate.unwrap(), authority), "{name}");
        }
        let pem = cluster.read("/var/lib/kubelet/pki/kubelet-client-current.pem");
        assert!(inspect::signed_by(&pem, authority));
    };
    for back in [true, false] {
        act(vec![kubeadm.begin(&which)]);
        act(kubeadm.trust(context, first, &which, Trust::Both).unwrap());
        for file in ["ca", "etcd/ca", "front-proxy-ca"] {
            let both = again::certificates_of(&cluster.read(&format!("{PKI}/{file}.crt")));
            assert_eq!(both.len(), 2, "{file}");
        }
        let admin = control_plane::read_kubeconfig(&cluster.read("/etc/kubernetes/admin.conf"));
        assert_eq!(again::certificates_of(&admin.unwrap().authority).len(), 2);
        all_by(&own);
        let key = cluster.read(&format!("{PKI}/ca.key"));
        act(kubeadm.sign(context, first, &which, Signs::New).unwrap());
        let new = again::certificates_of(&cluster.read(&format!("{PKI}/ca.crt")))[0].clone();
        assert_ne!(new.trim(), own.trim());
        all_by(&new);
        assert_ne!(cluster.read(&format!("{PKI}/ca.key")), key);
        if back {
            act(kubeadm.sign(context, first, &which, Signs::Former).unwrap());
            act(kubeadm.trust(context, first, &which, Trust::Former).unwrap());
            act(vec![kubeadm.end(&which, Signs::Former)]);
            assert_eq!(cluster.read(&format!("{PKI}/ca.crt")).trim(), own.trim());
            assert_eq!(cluster.read(&format!("{PKI}/ca.key")), key);
            all_by(&own);
        } else {
            act(kubeadm.trust(context, first, &which, Trust::New).unwrap());
            act(vec![kubeadm.end(&which, Signs::New)]);
            assert_eq!(cluster.read(&format!("{PKI}/ca.crt")).trim(), new.trim());
            let kept = context.state.read("pki/ca.crt", 1 << 20).unwrap().unwrap();
            assert_eq!(kept.trim(), new.trim());
            all_by(&new);
            let etcd = cluster.read(&format!("{PKI}/etcd/ca.crt"));
            let peer = cluster.read(&format!("{PKI}/etcd/peer.crt"));
            assert!(inspect::signed_by(&peer, &etcd));
        }
    }
}
