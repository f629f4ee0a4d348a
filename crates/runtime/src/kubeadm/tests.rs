//! Tests of configurations by version, and of rejected input.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::kubeadm::config::{Config, Inputs};
use crate::kubeadm::documents::{Documents, at, merge};
use crate::kubeadm::{host_state::HostState, version::Version};
use imgctl_base::image::Digest;
use imgctl_host::host::{address::Address, login::Login};
use imgctl_model::context::{MASTER, NODE, Paths};
use imgctl_model::image::ClusterImage;
use imgctl_model::state_files::StateFiles;

pub(super) fn host(ip: &str, role: &str) -> Host {
    Host {
        address: Address { name: ip.to_owned(), port: 22 },
        roles: vec![role.to_owned()],
        environment: BTreeMap::new(),
        login: Login::default(),
        local: false,
    }
}

fn rootfs(labels: &[(&str, &str)]) -> ClusterImage {
    ClusterImage {
        name: "kubernetes:v1".to_owned(),
        mount_name: "default-0123456789".to_owned(),
        kind: ImageKind::Rootfs,
        digest: Digest::of(b"image"),
        labels: labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        environment: [(
            "SEALOS_SYS_IMAGE_ENDPOINT".to_owned(),
            "/var/run/image-cri-shim.sock".to_owned(),
        )]
        .into(),
        entrypoint: Vec::new(),
        command: Vec::new(),
        layers: Vec::new(),
    }
}

pub(super) fn context(version: &str, hosts: Vec<Host>, documents: Vec<Value>) -> ClusterContext {
    ClusterContext {
        name: "default".to_owned(),
        hosts,
        images: vec![rootfs(&[("version", version), ("image", "ghcr.io/labring/lvscare:v5.0.1")])],
        paths: Paths::new("/var/lib/sealos", "default"),
        state: StateFiles::plain("/nonexistent"),
        registry: None,
        vip: Some("10.103.97.2".to_owned()),
        documents,
        ..imgctl_model::testing::context(&[])
    }
}

fn three() -> Vec<Host> {
    vec![host("10.0.0.11", MASTER), host("10.0.0.12", MASTER), host("10.0.0.21", NODE)]
}

pub(super) struct NoFiles;

impl ImageFiles for NoFiles {
    fn read(&self, _image: &ClusterImage, _path: &str) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }
}

fn build(context: &ClusterContext, at: usize, image: Option<&str>) -> Result<Config> {
    let host = &context.hosts[at];
    Config::build(
        context,
        host,
        &HostState::expected(context, host),
        &Inputs {
            version: &Version::of(context)?,
            image,
            kubelet: None,
            alt_names: &[],
            validity: Validity::default(),
        },
    )
}

/// Returns the documents of a text by kind.
fn parts(text: &str) -> BTreeMap<String, Value> {
    text.split("---\n")
        .map(|part| {
            let value = imgctl_template::yaml::parse(part).unwrap();
            (value["kind"].as_str().unwrap().to_owned(), value)
        })
        .collect()
}

#[test]
fn the_first_control_plane_by_version() {
    for version in ["v1.22.17", "v1.25.16", "v1.28.15", "v1.30.14", "v1.31.1", "v1.34.1", "v1.36.0"]
    {
        let context = context(version, three(), Vec::new());
        let config = build(&context, 0, None).unwrap();
        let minor = version.split('.').nth(1).unwrap();
        let text = config.init_text().unwrap();
        assert_eq!(text, build(&context, 0, None).unwrap().init_text().unwrap());
        insta::assert_snapshot!(format!("init_1_{minor}"), text);
        let join = config
            .join_text(true, "10.0.0.11:6443", "abcdef.0123456789abcdef", "sha256:00")
            .unwrap();
        insta::assert_snapshot!(format!("join_1_{minor}"), join);
    }
}

#[test]
fn one_host_has_no_taints_unless_it_is_asked_for() {
    let alone = vec![host("10.0.0.11", MASTER)];
    let config = build(&context("v1.34.1", alone.clone(), Vec::new()), 0, None).unwrap();
    let init = &parts(&config.init_text().unwrap())["InitConfiguration"];
    assert_eq!(init["nodeRegistration"]["taints"], json!([]));

    let taints = json!([{"key": "kubeadmNode", "value": "theValue", "effect": "NoSchedule"}]);
    let document = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta3",
        "kind": "InitConfiguration",
        "nodeRegistration": {"taints": taints},
    });
    let config = build(&context("v1.34.1", alone, vec![document]), 0, None).unwrap();
    let init = &parts(&config.init_text().unwrap())["InitConfiguration"];
    assert_eq!(init["nodeRegistration"]["taints"], taints);

    let config = build(&context("v1.34.1", three(), Vec::new()), 0, None).unwrap();
    let init = &parts(&config.init_text().unwrap())["InitConfiguration"];
    assert!(init["nodeRegistration"]["taints"].is_null());
}

#[test]
fn the_clusterfile_beats_the_image_and_old_documents_are_read() {
    let image = "apiVersion: kubeadm.k8s.io/v1beta2\nkind: ClusterConfiguration\n\
        networking:\n  podSubnet: 10.160.0.0/12\n  serviceSubnet: 100.56.0.0/16\n\
        dns:\n  type: CoreDNS\nuseHyperKubeImage: false\n\
        apiServer:\n  timeoutForControlPlane: 6m0s\n  extraArgs:\n    v: 4\n    audit-log-maxage: 30\n\
        ---\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n";
    let own = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "networking": {"serviceSubnet": "100.55.0.0/16"},
        "apiServer": {
            "certSANs": ["192.168.72.100"],
            "extraArgs": [{"name": "v", "value": "5"}],
        },
    });
    let join = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta3",
        "kind": "JoinConfiguration",
        "discovery": {"timeout": "9m0s"},
        "nodeRegistration": {"kubeletExtraArgs": {"max-pods": 250}},
    });
    for (version, lists) in [("v1.28.0", false), ("v1.34.1", true)] {
        let context = context(version, three(), vec![own.clone(), join.clone()]);
        let config = build(&context, 0, Some(image)).unwrap();
        let all = parts(&config.init_text().unwrap());
        let cluster = &all["ClusterConfiguration"];
        assert_eq!(cluster["networking"]["podSubnet"], "10.160.0.0/12");
        assert_eq!(cluster["networking"]["serviceSubnet"], "100.55.0.0/16");
        assert_eq!(
            cluster["apiServer"]["certSANs"],
            json!([
                "127.0.0.1",
                "apiserver.cluster.local",
                "10.103.97.2",
                "10.0.0.11",
                "10.0.0.12",
                "192.168.72.100"
            ])
        );
        assert!(
            cluster.get("useHyperKubeImage").is_none()
                && cluster.get("dns").is_none_or(|dns| dns == &json!({}))
        );
        assert_eq!(all["KubeProxyConfiguration"]["mode"], "iptables");
        assert!(all["KubeProxyConfiguration"].get("ipvs").is_none());
        let value = |component: &str, name: &str| -> Value {
            let arguments = &cluster[component]["extraArgs"];
            if lists {
                arguments
                    .as_array()
                    .unwrap()
                    .iter()
                    .find(|argument| argument["name"] == name)
                    .map_or(Value::Null, |argument| argument["value"].clone())
            } else {
                arguments[name].clone()
            }
        };
        assert_eq!(value("apiServer", "v"), "5");
        assert_eq!(value("apiServer", "audit-log-maxage"), "30");
        assert_eq!(value("controllerManager", "cluster-signing-duration"), "8760h0m0s");
        let joined = config.join_text(false, "10.0.0.11:6443", "t", "p").unwrap();
        let joined = &parts(&joined)["JoinConfiguration"];
        assert!(joined.get("controlPlane").is_none());
        if lists {
            assert_eq!(
                all["InitConfiguration"]["timeouts"]["controlPlaneComponentHealthCheck"],
                "6m0s"
            );
            assert_eq!(joined["timeouts"]["discovery"], "9m0s");
            assert_eq!(
                joined["nodeRegistration"]["kubeletExtraArgs"],
                json!([{"name": "max-pods", "value": "250"}, {"name": "node-ip", "value": "10.0.0.11"}])
            );
        } else {
            assert_eq!(cluster["apiServer"]["timeoutForControlPlane"], "6m0s");
            assert_eq!(joined["discovery"]["timeout"], "9m0s");
            assert_eq!(joined["nodeRegistration"]["kubeletExtraArgs"]["max-pods"], "250");
        }
        assert_eq!(config.member(true, "CP-1").unwrap().service_addresses, ["100.55.0.1"]);
        assert_eq!(config.node_name(true, "CP-1"), "cp-1");
    }
}

#[test]
fn etcd_elsewhere() {
    let external = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta3",
        "kind": "ClusterConfiguration",
        "etcd": {"external": {"endpoints": ["https://10.9.9.9:2379"]}},
    });
    let config = build(&context("v1.34.1", three(), vec![external]), 0, None).unwrap();
    assert!(!config.has_local_etcd());
    let cluster = &parts(&config.init_text().unwrap())["ClusterConfiguration"];
    assert!(cluster["etcd"].get("local").is_none());
    assert_eq!(config.member(true, "cp").unwrap().etcd, None);
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_done() {
    let error = |context: &ClusterContext| {
        let kubeadm = Kubeadm::new(&NoFiles, Validity::default());
        kubeadm.check(context).unwrap_err().to_string()
    };
    assert!(error(&context("v1.21.0", three(), Vec::new())).contains("too old"));
    assert!(
        error(&context("v1.34.1", vec![host("10.0.0.2", NODE)], Vec::new()))
            .contains("no control plane")
    );

    let mut inside = context("v1.34.1", three(), Vec::new());
    inside.vip = Some("100.100.1.1".to_owned());
    assert!(error(&inside).contains("100.100.1.1 is in the subnet of Pods 100.64.0.0/10"));
    let services = context("v1.34.1", vec![host("10.96.1.1", MASTER)], Vec::new());
    assert!(error(&services).contains("host 10.96.1.1 is in the subnet of Services"));

    let document = |kind: &str, api: &str, fields: Value| {
        let mut document = json!({"apiVersion": api, "kind": kind});
        merge(&mut document, fields);
        document
    };
    let beta4 = "kubeadm.k8s.io/v1beta4";
    let with = |version: &str, document: Value| error(&context(version, three(), vec![document]));
    let overlapping = json!({"networking": {"podSubnet": "10.96.0.0/16"}});
    assert!(
        with("v1.34.1", document("ClusterConfiguration", beta4, overlapping)).contains("overlap")
    );
    let typo = json!({"networkin": {}});
    assert!(with("v1.34.1", document("ClusterConfiguration", beta4, typo)).contains("networkin"));
    assert!(
        with("v1.34.1", document("InitConfiguration", "kubeadm.k8s.io/v1", json!({})))
            .contains("`v1`")
    );
    let disabled = json!({"proxy": {"disabled": true}});
    assert!(
        with("v1.30.0", document("ClusterConfiguration", beta4, disabled.clone()))
            .contains("proxy.disabled")
    );
    let fine = context("v1.31.0", three(), vec![document("ClusterConfiguration", beta4, disabled)]);
    Kubeadm::new(&NoFiles, Validity::default()).check(&fine).unwrap();
    // Wrong types are errors of imgctl or kubeadm and never cause a panic.
    let kubeadm = Kubeadm::new(&NoFiles, Validity::default());
    for (kind, fields, ours) in [
        ("ClusterConfiguration", json!({"apiServer": "x"}), true),
        ("ClusterConfiguration", json!({"networking": []}), true),
        ("ClusterConfiguration", json!({"etcd": 5}), false),
        ("ClusterConfiguration", json!({"scheduler": {"extraArgs": 3}}), true),
        ("ClusterConfiguration", json!({"encryptionAlgorithm": "DES"}), true),
        ("JoinConfiguration", json!({"nodeRegistration": 1}), true),
        ("JoinConfiguration", json!({"timeouts": []}), false),
        ("JoinConfiguration", json!({"discovery": "x"}), true),
        ("InitConfiguration", json!({"localAPIEndpoint": []}), true),
    ] {
        let context = context("v1.34.1", three(), vec![document(kind, beta4, fields.clone())]);
        assert_eq!(kubeadm.check(&context).is_err(), ours, "{kind} {fields}");
    }
}

#[test]
fn the_kubelet_of_a_host_with_old_control_groups() {
    let config =
        |version: &str, documents| build(&context(version, three(), documents), 0, None).unwrap();
    config("v1.34.1", Vec::new()).check_cgroups(false, "h", None).unwrap();
    config("v1.35.0", Vec::new()).check_cgroups(true, "h", None).unwrap();
    let error = config("v1.35.0", Vec::new()).check_cgroups(false, "h", None).unwrap_err();
    assert!(error.hints()[0].contains("failCgroupV1"), "{error}");
    let allowed = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
    });
    let own = config("v1.35.0", vec![allowed.clone()]);
    own.check_cgroups(false, "h", None).unwrap();
    // A host that joins gets what the cluster has.
    let error = own.check_cgroups(false, "h", Some(&json!({}))).unwrap_err();
    assert!(error.hints()[0].contains("imgctl apply"), "{error}");
    let bare = config("v1.35.0", Vec::new());
    bare.check_cgroups(false, "h", Some(&json!({"failCgroupV1": false}))).unwrap();

    let kubeadm = Kubeadm::new(&NoFiles, Validity::default());
    let facts = |cgroup_v2| Facts { cgroup_v2, ..Facts::default() };
    let fits = |documents, cgroup_v2| {
        let context = context("v1.35.0", three(), documents);
        kubeadm.fits(&context, &context.hosts[2], &facts(cgroup_v2))
    };
    fits(Vec::new(), true).unwrap();
    fits(vec![allowed], false).unwrap();
    let error = fits(Vec::new(), false).unwrap_err();
    assert!(error.to_string().contains("control groups v1"), "{error}");
}

#[test]
fn kube_proxy_uses_ipvs_only_where_the_kernel_has_it_and_before_1_35() {
    for (version, ipvs, expected) in
        [("v1.34.1", true, Some("ipvs")), ("v1.34.1", false, None), ("v1.35.0", true, None)]
    {
        let context = context(version, three(), Vec::new());
        let host = &context.hosts[0];
        let state = HostState { ipvs, ..HostState::expected(&context, host) };
        let version = &Version::of(&context).unwrap();
        let inputs = Inputs {
            version,
            image: None,
            kubelet: None,
            alt_names: &[],
            validity: Validity::default(),
        };
        let config = Config::build(&context, host, &state, &inputs).unwrap();
        let proxy = &config.documents().proxy;
        assert_eq!(proxy["mode"].as_str(), expected, "{proxy}");
        assert_eq!(proxy["ipvs"].is_null(), expected.is_none(), "{proxy}");
    }
}

#[test]
fn without_lvscare_workers_have_a_balancer_of_their_own() {
    let mut context = context("v1.34.1", three(), Vec::new());
    let kubeadm = Kubeadm::new(&NoFiles, Validity::default());
    let worker = context.hosts[2].clone();
    assert_eq!(
        kubeadm.hosts_entries(&context, &worker),
        [
            ("10.103.97.2".to_owned(), "apiserver.cluster.local".to_owned()),
            ("10.0.0.21".to_owned(), "lvscare.node.ip".to_owned())
        ]
    );
    let names = |context: &ClusterContext| -> Vec<String> {
        let actions = kubeadm.join_worker(context, &worker).unwrap();
        actions.into_iter().map(|action| action.name).collect()
    };
    assert_eq!(names(&context), ["virtual-address", "image-pull", "kubeadm-join", "lvscare"]);
    context.images[0].labels.remove("image");
    assert_eq!(
        kubeadm.hosts_entries(&context, &worker),
        [("127.0.0.1".to_owned(), "apiserver.cluster.local".to_owned())]
    );
    assert_eq!(names(&context).last().unwrap(), "kubeadm-join");
    let text = kubeadm.default_documents(&context).unwrap();
    assert!(parts(&text)["KubeProxyConfiguration"].get("mode").is_none());
}

#[test]
fn generated_documents_change_nothing() {
    for version in ["v1.25.16", "v1.34.1"] {
        let kubeadm = Kubeadm::new(&NoFiles, Validity::default());
        let plain = context(version, three(), Vec::new());
        let documents = kubeadm.default_documents(&plain).unwrap();
        let documents: Vec<Value> = parts(&documents).into_values().collect();
        assert_eq!(documents.len(), 5);
        let generated = context(version, three(), documents);
        for at in [0, 1, 2] {
            let texts = |context: &ClusterContext| {
                let config = build(context, at, None).unwrap();
                (config.init_text().unwrap(), config.join_defaults().unwrap())
            };
            assert_eq!(texts(&generated), texts(&plain), "host {at} of {version}");
        }
    }
}

#[test]
fn plans_show_documents_without_secrets() {
    let secret = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "InitConfiguration",
        "certificateKey": "5ec2e7",
        "bootstrapTokens": [{"token": "abcdef.0123456789abcdef"}],
    });
    let context = context("v1.34.1", three(), vec![secret]);
    let kubeadm = Kubeadm::new(&NoFiles, Validity::default());
    let mut said = String::new();
    for action in kubeadm.init(&context, &context.hosts[0]).unwrap() {
        said.push_str(&format!("{}:\n{}\n", action.name, action.says.join("\n")));
    }
    assert!(said.contains("kubernetesVersion: v1.34.1"), "{said}");
    assert!(
        said.contains("kubeadm init --config /var/lib/sealos/data/default/etc/kubeadm-init.yaml")
    );
    assert!(!said.contains("5ec2e7") && !said.contains("0123456789abcdef"), "{said}");
}

#[test]
fn documents_of_others_are_passed_over() {
    let documents = Documents::read("kind: Cluster\nmetadata: {}\n---\n# nothing\n---\n").unwrap();
    assert_eq!(documents, Documents::default());
    assert!(at(&documents.init, &["a", "b"]).is_null());
}

/// The fingerprint of the pull step changes if the same names refer to different content.
#[test]
fn container_images_that_were_embedded_again_are_pulled_again() {
    let kubeadm = Kubeadm::new(&NoFiles, Validity::default());
    let fingerprint = |content: &[u8]| {
        let mut context = context("v1.34.1", three(), Vec::new());
        context.images[0].layers = vec![imgctl_model::image::ImageLayer {
            descriptor: imgctl_base::image::Descriptor::new("layer", Digest::of(content), 0),
            diff_id: Digest::of(content),
            registry: true,
        }];
        let actions = kubeadm.prepare(&context, &context.hosts[0]).unwrap();
        let images = actions.into_iter().find(|one| one.name == "images");
        images.unwrap().fingerprint
    };
    assert_eq!(fingerprint(b"one"), fingerprint(b"one"));
    assert_ne!(fingerprint(b"one"), fingerprint(b"other"));
}

#[test]
fn an_adopted_cluster_keeps_its_endpoint_and_settings() {
    let document = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta3",
        "kind": "ClusterConfiguration",
        "kubernetesVersion": "v1.30.1",
        "controlPlaneEndpoint": "api.example.com:8443",
        "networking": {"podSubnet": "10.244.0.0/16", "serviceSubnet": "10.96.0.0/12"},
        "apiServer": {"certSANs": ["api.example.com"], "extraArgs": {"v": "2"}},
        "etcd": {"local": {"dataDir": "/data/etcd"}},
    });
    let mut context = context("v1.30.1", three(), vec![document]);
    let adopted = imgctl_model::clusterfile::Adopted {
        runtime: "kubeadm".into(),
        version: "v1.30.1".into(),
        cluster_id: "uid".into(),
    };
    context.adopted = Some(adopted.image());
    // With an image and without one.
    for images in [context.images.clone(), Vec::new()] {
        context.images = images;
        let image = "apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\napiServer: {extraArgs: {anonymous-auth: \"false\"}}\n";
        let config = build(&context, 2, Some(image)).unwrap();
        let cluster = &parts(&config.cluster_text().unwrap())["ClusterConfiguration"];
        assert_eq!(cluster["controlPlaneEndpoint"], "api.example.com:8443");
        assert_eq!(cluster["apiServer"]["extraArgs"], json!({"v": "2"}));
        assert_eq!(cluster["apiServer"]["certSANs"], json!(["api.example.com"]));
        assert_eq!(config.etcd_data(), "/data/etcd");
        let join = config.join_text(false, "10.0.0.11:6443", "t", "sha256:00").unwrap();
        let join = &parts(&join)["JoinConfiguration"];
        assert!(join["nodeRegistration"]["imagePullPolicy"].is_null(), "{join}");
        let member = config.member(false, "h").unwrap();
        assert_eq!(member.endpoint, "api.example.com:8443");
        assert_eq!(member.service_addresses, ["10.96.0.1"]);

        let kubeadm = Kubeadm::new(&NoFiles, Validity::default());
        kubeadm.check(&context).unwrap();
        let worker = &context.hosts[2];
        assert!(kubeadm.hosts_entries(&context, worker).is_empty());
        assert!(kubeadm.settle(&context, worker).unwrap().is_empty());
        let joined = kubeadm.join_worker(&context, worker).unwrap();
        let names: Vec<&str> = joined.iter().map(|action| action.name.as_str()).collect();
        assert_eq!(names, ["endpoint", "image-pull", "kubeadm-join"]);
    }
}
