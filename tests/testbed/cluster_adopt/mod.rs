//! Adoption on hosts of the test bed. The hosts carry what kubeadm leaves behind, with stand-ins for
//! its programs and for etcd; the API of the cluster is in memory, in this process.

use std::process::Command;

use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root};
use crate::served_api::ServedApi;
use imgctl_kube::testing::stand_in::StandIn;
use serde_json::{Value, json};

const SECRET: &str = "/api/v1/namespaces/kube-system/secrets/imgctl-cluster";
const LEASES: &str = "/kube-system/leases";

/// What `kubeadm init` of 1.34 uploads.
const CONFIGURATION: &str = "apiServer: {}\napiVersion: kubeadm.k8s.io/v1beta4\ncaCertificateValidityPeriod: 87600h0m0s\ncertificateValidityPeriod: 8760h0m0s\ncertificatesDir: /etc/kubernetes/pki\nclusterName: kubernetes\ncontrolPlaneEndpoint: api.example.com:6443\ncontrollerManager: {}\ndns: {}\nencryptionAlgorithm: RSA-2048\netcd:\n  local:\n    dataDir: /var/lib/etcd\nimageRepository: registry.k8s.io\nkind: ClusterConfiguration\nkubernetesVersion: v1.34.9\nnetworking:\n  dnsDomain: cluster.local\n  serviceSubnet: 10.96.0.0/12\nproxy: {}\nscheduler: {}\n";

/// Makes what kubeadm leaves on a control plane. `etcdctl` answers as one healthy member does.
const CONTROL_PLANE: &str = r#"
set -eu
mkdir -p /etc/kubernetes/pki/etcd /etc/kubernetes/manifests
cd /etc/kubernetes/pki
for ca in ca etcd/ca front-proxy-ca; do
  openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj "/CN=${ca%/ca}-ca" -keyout $ca.key -out $ca.crt \
    -addext basicConstraints=critical,CA:TRUE 2>/dev/null
done
openssl genrsa -out sa.key 2048 2>/dev/null; openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=kube-apiserver -keyout apiserver.key \
  -out apiserver.crt -addext basicConstraints=critical,CA:FALSE 2>/dev/null
printf 'apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - name: kube-apiserver\n    image: registry.k8s.io/kube-apiserver:v1.34.9\n    command: [kube-apiserver, --secure-port=6443]\n' >/etc/kubernetes/manifests/kube-apiserver.yaml
cat >/usr/local/bin/etcdctl <<'EOT'
#!/bin/bash
case "$*" in
*"member list"*) echo '{"header":{"member_id":2},"members":[{"ID":2,"name":"h1","clientURLs":["https://127.0.0.1:2379"]}]}' ;;
*"endpoint status"*) echo '[{"Status":{"header":{"member_id":2},"version":"3.6.5","dbSize":20480,"leader":2}}]' ;;
esac
EOT
chmod +x /usr/local/bin/etcdctl
"#;

const PROGRAMS: &str = r#"
for name in kubeadm kubelet kubectl crictl; do printf '#!/bin/bash\nexit 0\n' >/usr/local/bin/$name; chmod +x /usr/local/bin/$name; done
"#;

fn imgctl(bed: &Bed, arguments: &[&str], set: &[(&str, &str)]) -> Ran {
    let mut command: Command = bed.command(arguments);
    command.arg("--pk").arg(bed.key()).envs(set.iter().copied());
    Ran::new(command)
}

/// The API of the cluster; the control plane listens on its own port 6443 for it.
struct Cluster {
    api: StandIn,
    _served: ServedApi,
}

impl Cluster {
    fn start(bed: &Bed) -> Self {
        let api = StandIn::new();
        api.add(json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "kube-system", "uid": "uid-of-the-cluster"}}));
        api.add(json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "kubeadm-config", "namespace": "kube-system"},
            "data": {"ClusterConfiguration": CONFIGURATION}}));
        let kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        api.add(json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "kubelet-config", "namespace": "kube-system"},
            "data": {"kubelet": kubelet}}));
        for (host, name) in [(1, "h1"), (2, "h2")] {
            api.add(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": bed.ip(host)}],
                "nodeInfo": {"kubeletVersion": "v1.34.9", "operatingSystem": "linux",
                    "containerRuntimeVersion": "containerd://2.1.0", "architecture": "amd64"},
            }}));
        }
        let served = ServedApi::start(bed, &api);
        let ServedApi { kubeconfig, address, .. } = &served;
        let port = served.port;
        bed.says(1, CONTROL_PLANE);
        let here = kubeconfig.replace(&format!("127.0.0.1:{port}"), "127.0.0.1:6443");
        bed.says(
            1,
            &format!(
                "cat >/etc/kubernetes/admin.conf <<'EOT'\n{here}EOT\n\
             systemd-run --quiet --unit api socat TCP-LISTEN:6443,fork,reuseaddr TCP:{address}"
            ),
        );
        for host in 1..=2 {
            bed.says(host, PROGRAMS);
        }
        Self { api, _served: served }
    }
}

/// What an adoption must not change on a host.
fn surface(bed: &Bed, host: usize) -> String {
    bed.says(
        host,
        "find /etc /root /usr/local /var/lib -xdev -newer /run/marked ! -path '/var/lib/imgctl*' \
         ! -path '/var/lib/systemd/*' ! -path '/root/.ssh*' ! -type d; ls /run | grep imgctl; true",
    )
}

fn files(bed: &Bed, cluster: &str) -> Vec<(String, Vec<u8>)> {
    let root = bed.env.path(format!("clusters/{cluster}"));
    let mut all = Vec::new();
    for name in [
        "Clusterfile",
        "pki/ca.crt",
        "pki/ca.key",
        "pki/etcd/ca.key",
        "pki/front-proxy-ca.key",
        "pki/sa.key",
        "etc/admin.conf",
    ] {
        if let Ok(content) = std::fs::read(root.join(name)) {
            all.push((name.to_owned(), content));
        }
    }
    all
}

#[test]
fn a_cluster_of_kubeadm_is_adopted_and_its_controller_may_be_lost() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3).with_agent();
    let cluster = Cluster::start(&bed);
    (1..=3).for_each(|host| drop(bed.says(host, "touch /run/marked")));
    let (master, node) = (bed.ip(1), bed.ip(2));
    let adopt = ["adopt", "-c", "prod", "--masters", &master, "--nodes", &node];

    refusals(&bed, &cluster, &master, &node);

    let plan = imgctl(&bed, &[&adopt[..], &["--dry-run", "--json"]].concat(), &[]).ok().json();
    assert_eq!(
        (&plan["version"], &plan["endpoint"]),
        (&json!("v1.34.9"), &json!("api.example.com:6443"))
    );
    assert_eq!(plan["steps"]["phases"].as_array().unwrap().len(), 2, "{plan:#}");
    assert!(files(&bed, "prod").is_empty());
    assert!(cluster.api.writes().is_empty(), "{:?}", cluster.api.writes());

    // Killed after any record, the same command goes on.
    let adopt = [&adopt[..], &["--yes"]].concat();
    let mut kills = 0;
    for record in 1.. {
        let count = record.to_string();
        let ran = imgctl(&bed, &adopt, &[("IMGCTL_DIE_AFTER", &count)]);
        if ran.success() {
            break;
        }
        kills += 1;
        let complete = files(&bed, "prod").iter().any(|(name, _)| name == "Clusterfile");
        imgctl(&bed, &adopt, &[]).ok();
        assert_eq!(files(&bed, "prod").len(), 7, "after {record}, complete: {complete}");
        std::fs::remove_dir_all(bed.env.path("clusters/prod")).unwrap();
        cluster.api.remove(SECRET);
    }
    assert!(kills >= 6, "{kills}");
    for host in 1..=2 {
        assert_eq!(surface(&bed, host), "", "h{host}");
    }
    let written = cluster.api.writes();
    assert!(
        written.iter().all(|one| one.path.contains(LEASES) || one.path.contains("/secrets")),
        "{written:?}"
    );
    let kept = files(&bed, "prod");
    let clusterfile = String::from_utf8(kept[0].1.clone()).unwrap();
    assert!(clusterfile.contains("adopted:") && !clusterfile.contains("image:"), "{clusterfile}");
    let secret = cluster.api.peek(SECRET).unwrap();
    assert!(!secret.to_string().contains("PRIVATE"), "{secret}");

    // Again: nothing. As something else: refused.
    let again = imgctl(&bed, &adopt, &[]).ok().report();
    assert!(again.contains("nothing to do"), "{again}");
    assert_eq!(files(&bed, "prod"), kept);
    cluster.api.change("/api/v1/namespaces/kube-system", |one| {
        one["metadata"]["uid"] = "another".into();
    });
    let other = imgctl(&bed, &adopt, &[]).fails(2).report();
    assert!(other.contains("already manages a cluster prod"), "{other}");
    cluster.api.change("/api/v1/namespaces/kube-system", |one| {
        one["metadata"]["uid"] = "uid-of-the-cluster".into();
    });

    // New hosts need an image.
    let add = ["add", "-c", "prod", "--nodes", &bed.ip(3)];
    let refused = imgctl(&bed, &add, &[]).fails(2).report();
    assert!(refused.contains("pass --image with a rootfs image of v1.34.9"), "{refused}");

    // The controller is lost. The record names the other hosts, and only hosts that the user names get a
    // login: not even --yes answers for others.
    std::fs::remove_dir_all(bed.env.path("clusters/prod")).unwrap();
    let alone = ["adopt", "-c", "prod", "--masters", &master];
    let refused = imgctl(&bed, &[&alone[..], &["--yes"]].concat(), &[]).fails(2).report();
    assert!(refused.contains(&format!("--masters {master} --nodes {node}")), "{refused}");
    let dry = imgctl(&bed, &[&alone[..], &["--dry-run"]].concat(), &[]).fails(10).report();
    assert!(dry.contains(&node) && dry.contains("has not logged in to it"), "{dry}");
    let other = ["adopt", "-c", "else", "--masters", &master];
    let renamed = imgctl(&bed, &other, &[]).fails(10).report();
    assert!(renamed.contains("pass -c prod") && !renamed.contains(&node), "{renamed}");
    imgctl(&bed, &[&alone[..], &["--nodes", &node, "--yes"]].concat(), &[]).ok();
    let back = files(&bed, "prod");
    assert_eq!(back[1..], kept[1..]);
    let again = String::from_utf8(back[0].1.clone()).unwrap();
    assert!(again.contains(&node) && again.contains("clusterID: uid-of-the-cluster"), "{again}");
}

/// What is wrong is said before anything is written.
fn refusals(bed: &Bed, cluster: &Cluster, master: &str, node: &str) {
    let adopt = |nodes: &str| {
        let words =
            ["adopt", "-c", "prod", "--masters", master, "--nodes", nodes, "--yes", "--json"];
        let ran = imgctl(bed, &words, &[]).fails(10);
        let shown = ran.stdout();
        let mut values = serde_json::Deserializer::from_str(&shown).into_iter::<Value>();
        values.next().unwrap().unwrap()["findings"].to_string()
    };
    let third = bed.ip(3);
    let told = adopt(&format!("{node},{third}"));
    assert!(told.contains("it is no Node of the cluster"), "{told}");
    let words = ["adopt", "-c", "prod", "--masters", master, "--yes"];
    let told = imgctl(bed, &words, &[]).fails(10).report();
    assert!(told.contains("Nodes without a host") && told.contains(node), "{told}");
    bed.says(1, "mv /etc/kubernetes/pki/ca.key /root/");
    assert!(adopt(node).contains("pki/ca.key"));
    bed.says(1, "mv /root/ca.key /etc/kubernetes/pki/");
    let path = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config";
    for broken in ["apiVersion: kubeadm.k8s.io/v9\nkind: ClusterConfiguration\n", "a: [b", "[]"] {
        cluster.api.change(path, |map| map["data"]["ClusterConfiguration"] = broken.into());
        assert!(adopt(node).contains("kubeadm-config"), "{broken}");
    }
    cluster.api.change(path, |map| map["data"]["ClusterConfiguration"] = CONFIGURATION.into());
    assert!(files(bed, "prod").is_empty());
    assert!(cluster.api.writes().is_empty());
}
