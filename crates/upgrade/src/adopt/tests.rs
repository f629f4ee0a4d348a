//! Readings of clusters that kubeadm made, and what is found in them. The ConfigMaps are those that
//! kubeadm 1.24 (v1beta3) and 1.34 (v1beta4) upload.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::adopt::clusterfile::clusterfile;
use crate::adopt::findings::findings;
use crate::adopt::reading::{Adoption, HostReading, Reading, Record};
use crate::adopt::{read, steps};
use crate::document::Severity;
use crate::observation::{CertificateSeen, EtcdSeen, ManifestSeen, MemberSeen};
use crate::testing::kubernetes;
use imgctl_kube::testing::stand_in::StandIn;
use imgctl_model::clusterfile::{Adopted, Clusterfile, HostGroup, read as read_clusterfile};
use imgctl_template::yaml;

const V1BETA3: &str = "apiServer:\n  extraArgs:\n    audit-log-path: /var/log/audit/audit.log\n    audit-policy-file: /etc/kubernetes/audit/policy.yaml\n    authorization-mode: Node,RBAC\n  extraVolumes:\n  - hostPath: /etc/kubernetes/audit\n    mountPath: /etc/kubernetes/audit\n    name: audit\n    readOnly: true\n  timeoutForControlPlane: 4m0s\napiVersion: kubeadm.k8s.io/v1beta3\ncertificatesDir: /etc/kubernetes/pki\nclusterName: kubernetes\ncontrolPlaneEndpoint: api.example.com:8443\ncontrollerManager: {}\ndns: {}\netcd:\n  local:\n    dataDir: /var/lib/etcd\nimageRepository: registry.k8s.io\nkind: ClusterConfiguration\nkubernetesVersion: v1.24.17\nnetworking:\n  dnsDomain: cluster.local\n  podSubnet: 10.244.0.0/16\n  serviceSubnet: 10.96.0.0/12\nscheduler: {}\n";
const V1BETA4: &str = "apiServer: {}\napiVersion: kubeadm.k8s.io/v1beta4\ncaCertificateValidityPeriod: 87600h0m0s\ncertificateValidityPeriod: 8760h0m0s\ncertificatesDir: /etc/kubernetes/pki\nclusterName: kubernetes\ncontrollerManager: {}\ndns: {}\nencryptionAlgorithm: RSA-2048\netcd:\n  local:\n    dataDir: /var/lib/etcd\nimageRepository: registry.k8s.io\nkind: ClusterConfiguration\nkubernetesVersion: v1.34.9\nnetworking:\n  dnsDomain: cluster.local\n  podSubnet: 10.244.0.0/16\n  serviceSubnet: 10.96.0.0/12\nproxy: {}\nscheduler: {}\n";

const KEYS: [&str; 4] = ["pki/ca.key", "pki/etcd/ca.key", "pki/front-proxy-ca.key", "pki/sa.key"];

/// A healthy cluster with one control plane and one worker.
fn reading(version: &str, configuration: &str) -> Reading {
    let mut observation = kubernetes(1, 1, version);
    observation.at_ms = 1_800_000_000_000;
    if let Some(api) = &mut observation.api {
        api.cluster_configuration = Some(yaml::parse(configuration).unwrap());
    }
    observation.etcd = Some(EtcdSeen {
        members: vec![MemberSeen {
            name: "node-10-0-0-1".into(),
            version: Some("3.5.24".into()),
            leader: true,
            ..MemberSeen::default()
        }],
        alarms: Vec::new(),
    });
    let mut hosts = BTreeMap::new();
    for host in &mut observation.hosts {
        let mut found = HostReading::default();
        for program in ["kubeadm", "kubelet", "kubectl", "crictl"] {
            found.programs.insert(program.into(), format!("/usr/bin/{program}"));
        }
        if host.is_control_plane() {
            found.files = KEYS.iter().map(|file| (*file).to_owned()).collect();
            found.files.insert("manifests/kube-apiserver.yaml".into());
            host.certificates.push(CertificateSeen {
                path: "/etc/kubernetes/pki/apiserver.crt".into(),
                not_after: 1_800_000_000 + 200 * 86_400,
                ..CertificateSeen::default()
            });
        }
        hosts.insert(host.id.clone(), found);
    }
    let systems = observation.api.as_ref().unwrap().nodes.iter();
    let systems = systems.map(|node| (node.name.clone(), "linux".to_owned())).collect();
    Reading { runtime: "kubeadm".into(), observation, hosts, systems, ..Reading::default() }
}

fn good() -> Reading {
    reading(
        "v1.34.9",
        &V1BETA4.replace("clusterName", "controlPlaneEndpoint: 10.0.0.100:6443\nclusterName"),
    )
}

/// Returns the checks with errors, then those with warnings.
fn told(reading: &Reading) -> (Vec<String>, Vec<String>) {
    let all = findings("prod", reading);
    let of = |severity| {
        let fits = all.iter().filter(|finding| finding.severity == severity);
        fits.map(|finding| finding.check.clone()).collect()
    };
    (of(Severity::Error), of(Severity::Warning))
}

#[test]
fn clusters_of_kubeadm_are_adopted_whatever_its_version() {
    assert_eq!(told(&good()), (vec![], vec![]));
    let reading = reading("v1.24.17", V1BETA3);
    assert_eq!(told(&reading), (vec![], vec![]));
    let named = Clusterfile::default();
    let made = clusterfile(&reading, &named, "2026-01-01T00:00:00Z");
    assert_eq!(made.documents[0]["controlPlaneEndpoint"], "api.example.com:8443");
    let adopted = made.cluster.status.adopted.as_ref().unwrap();
    assert_eq!((adopted.runtime.as_str(), adopted.version.as_str()), ("kubeadm", "v1.24.17"));
    let adoption = Adoption::of("prod", &reading, Vec::new());
    assert_eq!(adoption.endpoint.as_deref(), Some("api.example.com:8443"));
    assert_eq!(adoption.etcd, Some("stacked"));
    assert_eq!(adoption.hosts[0].certificate_days, Some(200));
}

#[test]
fn what_cannot_be_carried_on_is_told() {
    type Change = fn(&mut Reading);
    fn configuration(reading: &mut Reading) -> &mut Value {
        reading.observation.api.as_mut().unwrap().cluster_configuration.as_mut().unwrap()
    }
    fn node(reading: &mut Reading) -> &mut crate::observation::NodeSeen {
        &mut reading.observation.api.as_mut().unwrap().nodes[1]
    }
    let errors: [(Change, &str); 18] = [
        (|it| it.observation.hosts[1].unreachable = Some("no route".into()), "host-unreachable"),
        (
            |it| {
                it.observation.api = None;
                it.observation.api_problem = Some("refused".into());
            },
            "api",
        ),
        (|it| it.observation.hosts[1].node = None, "node-mapping"),
        (|it| it.observation.hosts[1].node = it.observation.hosts[0].node.clone(), "node-mapping"),
        (|it| drop(it.observation.hosts.pop()), "unnamed-node"),
        (|it| node(it).ready = false, "node-not-ready"),
        (|it| node(it).runtime = "docker://20.10.7".into(), "container-runtime"),
        (|it| drop(it.systems.insert("node-10-1-0-1".into(), "windows".into())), "windows"),
        (|it| it.observation.hosts[1].roles = vec!["master".into()], "role"),
        (
            |it| it.hosts.values_mut().for_each(|host| drop(host.programs.remove("kubeadm"))),
            "programs",
        ),
        (
            |it| {
                for host in it.hosts.values_mut() {
                    host.files.remove("pki/ca.key");
                }
            },
            "external-ca",
        ),
        (|it| it.observation.hosts[0].certificates[0].not_after = 1, "certificates"),
        (|it| it.observation.etcd.as_mut().unwrap().alarms.push("NOSPACE".into()), "etcd"),
        (|it| it.observation.etcd.as_mut().unwrap().members[0].version = None, "etcd"),
        (|it| it.observation.etcd = None, "etcd"),
        (|it| it.observation.api.as_mut().unwrap().cluster_configuration = None, "kubeadm-config"),
        (|it| configuration(it)["apiVersion"] = "kubeadm.k8s.io/v1beta9".into(), "kubeadm-config"),
        (|it| configuration(it)["certificatesDir"] = "/srv/pki".into(), "certificates-directory"),
    ];
    for (number, (change, check)) in errors.iter().enumerate() {
        let mut reading = good();
        change(&mut reading);
        let (errors, _) = told(&reading);
        assert!(errors.contains(&(*check).to_owned()), "{number}: {check}: {errors:?}");
    }
    let warnings: [(Change, &str); 7] = [
        (|it| node(it).kubelet = "v1.33.4".into(), "mixed-versions"),
        (|it| node(it).runtime = "cri-o://1.33".into(), "container-runtime"),
        (
            |it| {
                configuration(it)["etcd"] =
                    json!({"external": {"endpoints": ["https://10.9.9.9:2379"]}});
            },
            "external-etcd",
        ),
        (
            |it| it.observation.hosts[0].certificates[0].not_after = 1_800_000_000 + 86_400,
            "certificates",
        ),
        (
            |it| {
                configuration(it).as_object_mut().unwrap().shift_remove("controlPlaneEndpoint");
            },
            "endpoint",
        ),
        (
            |it| {
                it.observation.hosts[1].kubelet.flags.insert("cloud-provider".to_owned());
            },
            "cloud-provider",
        ),
        (
            |it| {
                let arguments = vec!["--encryption-provider-config=/etc/k8s-enc.yaml".to_owned()];
                let server = ManifestSeen { arguments, ..ManifestSeen::default() };
                it.observation.hosts[0].manifests.insert("kube-apiserver".into(), server);
            },
            "local-files",
        ),
    ];
    for (change, check) in warnings {
        let mut reading = good();
        change(&mut reading);
        let (errors, warnings) = told(&reading);
        assert!(errors.is_empty(), "{check}: {errors:?}");
        assert!(warnings.contains(&check.to_owned()), "{check}: {warnings:?}");
    }
}

#[test]
fn ports_and_patches_are_carried_on() {
    let mut reading = good();
    let first = reading.observation.hosts[0].id.clone();
    reading.hosts.get_mut(&first).unwrap().files.insert("patches".into());
    let arguments = vec!["--secure-port=7443".to_owned()];
    let server = ManifestSeen { arguments, ..ManifestSeen::default() };
    reading.observation.hosts[0].manifests.insert("kube-apiserver".into(), server);
    reading.kubelet = Some(json!({"kind": "KubeletConfiguration", "failCgroupV1": false}));
    let made = clusterfile(&reading, &Clusterfile::default(), "now");
    let init = made.documents.iter().find(|one| one["kind"] == "InitConfiguration").unwrap();
    assert_eq!(init["localAPIEndpoint"]["bindPort"], 7443);
    assert_eq!(init["patches"]["directory"], "/etc/kubernetes/patches");
    assert_eq!(made.documents[2]["failCgroupV1"], false);
}

#[test]
fn a_record_goes_on_under_its_name_with_new_logins() {
    let mut recorded = Clusterfile::default();
    recorded.cluster.name = "prod".into();
    recorded.cluster.created = Some("2024-01-01T00:00:00Z".into());
    recorded.cluster.images = vec!["kubernetes:v1.34.9".into()];
    recorded.cluster.status.adopted =
        Some(Adopted { cluster_id: "uid-1".into(), ..Adopted::default() });
    recorded.cluster.hosts =
        vec![HostGroup { ips: vec!["10.0.0.1".into()], ..HostGroup::default() }];
    let mut reading = good();
    let record =
        Record { source: "Secret kube-system/imgctl-cluster".into(), clusterfile: recorded };
    record.check_name("prod").unwrap();
    let error = record.check_name("other").unwrap_err();
    assert_eq!(error.hints(), ["pass -c prod"]);
    assert!(error.to_string().contains("`prod` (Secret kube-system/imgctl-cluster)"), "{error}");
    reading.record = Some(record);
    assert_eq!(told(&reading), (vec![], vec![]));
    reading.observation.api.as_mut().unwrap().kube_system = Some("uid-2".into());
    assert_eq!(told(&reading).0, ["record"]);

    let mut named = Clusterfile::default();
    named.cluster.ssh.user = Some("ops".into());
    let record = reading.record.as_mut().unwrap();
    record.clusterfile.cluster.ssh.keys = vec!["/etc/shadow".into()];
    record.clusterfile.cluster.ssh.port = Some(2222);
    let made = clusterfile(&reading, &named, "now");
    assert_eq!(made.cluster.created.as_deref(), Some("2024-01-01T00:00:00Z"));
    assert_eq!(made.cluster.images, ["kubernetes:v1.34.9"]);
    assert_eq!(made.cluster.ssh.user.as_deref(), Some("ops"));
    assert_eq!(made.cluster.ssh.port, Some(2222));
    assert!(made.cluster.ssh.keys.is_empty(), "a record names no files of this machine");
}

#[test]
fn an_adopted_cluster_is_read_as_it_was_written() {
    let reading = good();
    let mut named = Clusterfile::default();
    named.cluster.name = "prod".into();
    named.cluster.hosts = vec![HostGroup {
        ips: vec!["10.0.0.1:22".into()],
        roles: vec!["master".into()],
        ..HostGroup::default()
    }];
    let made = clusterfile(&reading, &named, "2026-01-01T00:00:00Z");
    let text = made.write().unwrap();
    assert_eq!(read_clusterfile(&text, "f").unwrap().0, made, "{text}");
    assert!(!made.is_of_sealos());
}

#[test]
fn the_probe_is_understood_and_its_noise_is_not() {
    let text = "file\tpki/ca.key\nprogram\tkubelet\t/usr/bin/kubelet\npackage\tkubelet\n\
                record\t/var/lib/sealos/data/default/state/Clusterfile\nk3s\tserver\tk3s\t/var/lib/rancher/k3s\nfile\nnoise\n\
                cluster\tprod\ncluster\t*\nupgrade\tyes\n";
    let host = read::understand(text);
    assert_eq!(host.files, BTreeSet::from(["pki/ca.key".to_owned()]));
    assert_eq!(host.programs["kubelet"], "/usr/bin/kubelet");
    assert_eq!(host.k3s.unwrap().role, "server");
    assert_eq!(host.records.len(), 1);
    assert_eq!(host.clusters, ["prod"]);
    assert!(host.has_upgrade && !host.is_rke2 && host.package.as_deref() == Some("kubelet"));
}

#[test]
fn the_record_in_the_api_is_written_once() {
    let api = StandIn::new();
    steps::put_secret(&api, "one").unwrap();
    steps::put_secret(&api, "one").unwrap();
    assert_eq!(api.writes().len(), 1);
    steps::put_secret(&api, "two").unwrap();
    let secret = api.peek("/api/v1/namespaces/kube-system/secrets/imgctl-cluster").unwrap();
    assert_eq!(secret["data"]["Clusterfile"], "dHdv");
}
