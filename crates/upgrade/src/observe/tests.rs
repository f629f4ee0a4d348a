//! Tests of parsing the data from hosts and the API.

use std::{collections::BTreeMap, process::Command};

use serde_json::{Value, json};

use crate::observation::{ApiSeen, HostSeen, NodeAddress, NodeSeen, Observation};
use crate::{
    observe,
    observe::{Question, host, observe},
};
use imgctl_host::agent::protocol::Facts;
use imgctl_kube::testing::stand_in::StandIn;
use imgctl_workflow::pipeline::testing::{
    Behaviour, SimulatedPool, Simulation, hosts, sample_context,
};

fn node(name: &str, address: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name},
            "annotations": {"imgctl.io/upgrade-id": "v1-1", "other": "x"}},
        "spec": {"unschedulable": true, "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "conditions": [{"type": "DiskPressure", "status": "True"},
                {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "no network"}],
            "nodeInfo": {"kubeletVersion": "v1.33.4", "containerRuntimeVersion": "containerd://2.1.0",
                "machineID": "m", "architecture": "arm64"},
        },
    })
}

#[test]
fn hosts_and_api_are_asked_without_a_trace() {
    let directory = tempfile::tempdir().unwrap();
    let context = sample_context("c", hosts(1, 2), directory.path());
    let api = StandIn::new();
    for (number, host) in context.hosts.iter().enumerate() {
        api.add(node(&format!("n{number}"), host.ip()));
    }
    api.add(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web-1", "namespace": "default",
            "ownerReferences": [{"kind": "ReplicaSet", "name": "web", "controller": true}]},
        "spec": {"nodeName": "n1", "containers": [{"name": "web", "image": "web:1"}],
            "volumes": [{"name": "cache", "emptyDir": {}},
                {"name": "source", "gitRepo": {"repository": "https://x/y.git"}}, {"name": "c", "configMap": {}}]},
        "status": {"phase": "Running"}}))
        .add(json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "kubeadm-config", "namespace": "kube-system"},
            "data": {"ClusterConfiguration":
                "kind: ClusterConfiguration\nkubernetesVersion: v1.33.4\netcd:\n  external:\n    endpoints: [https://x:2379]\n"}}))
        .add(json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"replicas": 3}, "status": {"readyReplicas": 1}}));
    let silent = context.hosts[2].ip().to_owned();
    let pool = SimulatedPool(Simulation::new(Behaviour {
        unreachable: vec![silent],
        ..Behaviour::default()
    }));
    let seen = observe(&Question {
        context: &context,
        runtime: "kubeadm",
        pool: &pool,
        parallel: 8,
        api: Some(Ok(&api)),
        containers: true,
        images: BTreeMap::new(),
        key: "look",
    });
    assert_eq!(seen.hosts.len(), 3);
    assert!(seen.hosts[0].unreachable.is_none() && seen.hosts[0].facts.is_some());
    assert!(seen.hosts[2].unreachable.as_ref().unwrap().contains("no route"));
    let nodes: Vec<Option<&str>> = seen.hosts.iter().map(|host| host.node.as_deref()).collect();
    assert_eq!(nodes, [Some("n0"), Some("n1"), Some("n2")]);
    assert!(seen.external_etcd() && seen.etcd.is_none() && seen.etcd_problem.is_none());
    let told = seen.api.as_ref().unwrap();
    let one = &told.nodes[0];
    assert!(!one.ready && one.unschedulable && one.message.contains("no network"));
    assert_eq!(one.pressure, ["DiskPressure"]);
    assert_eq!(one.taints, ["a=b:NoSchedule"]);
    assert_eq!(one.annotations.len(), 1);
    assert_eq!((one.kubelet.as_str(), one.architecture.as_str()), ("v1.33.4", "arm64"));
    let pod = &told.pods[0];
    assert_eq!((pod.owner.as_str(), pod.node.as_str()), ("ReplicaSet/web", "n1"));
    assert_eq!(pod.local_volumes, ["cache"]);
    assert_eq!(pod.git_volumes, ["source"]);
    assert_eq!((told.workloads[0].desired, told.workloads[0].ready), (3, 1));
    assert!(api.writes().is_empty(), "{:?}", api.writes());
    let lists = api.requests().iter().filter(|request| request.verb == "list").count();
    assert!(lists <= 20, "{lists} lists");
    let kept: Observation = serde_json::from_slice(&serde_json::to_vec(&seen).unwrap()).unwrap();
    assert_eq!(kept, seen);
}

#[test]
fn an_api_that_does_not_answer_is_part_of_the_answer() {
    let directory = tempfile::tempdir().unwrap();
    let context = sample_context("c", hosts(1, 0), directory.path());
    let pool = SimulatedPool(Simulation::new(Behaviour::default()));
    let mut question = Question {
        context: &context,
        runtime: "k3s",
        pool: &pool,
        parallel: 8,
        api: Some(Err("refused".to_owned())),
        containers: false,
        images: BTreeMap::new(),
        key: "look",
    };
    let seen = observe(&question);
    assert_eq!((seen.api, seen.api_problem.as_deref()), (None, Some("refused")));
    question.api = None;
    let seen = observe(&question);
    assert!(seen.api.is_none() && seen.api_problem.is_none());
}

/// Maps one host to three Nodes, of which the second is its own.
fn mapped(change: impl FnOnce(&mut HostSeen, &mut Vec<NodeSeen>)) -> (Option<String>, Vec<String>) {
    let mut nodes: Vec<NodeSeen> = (1..=3)
        .map(|at| NodeSeen {
            name: format!("n{at}"),
            hostname: format!("n{at}"),
            machine_id: format!("m{at}"),
            addresses: vec![NodeAddress {
                kind: "InternalIP".into(),
                address: format!("10.0.0.{at}"),
            }],
            ..NodeSeen::default()
        })
        .collect();
    let mut host = HostSeen {
        address: "192.168.7.2".into(),
        facts: Some(Facts::default()),
        ..HostSeen::default()
    };
    change(&mut host, &mut nodes);
    let mut observation = Observation {
        hosts: vec![host],
        api: Some(ApiSeen { nodes, ..ApiSeen::default() }),
        ..Observation::default()
    };
    observe::map_nodes(&mut observation);
    let host = observation.hosts.remove(0);
    (host.node, host.rivals)
}

#[test]
fn hosts_find_their_nodes() {
    let facts = |host: &mut HostSeen, change: fn(&mut Facts)| change(host.facts.as_mut().unwrap());
    type Change<'a> = &'a dyn Fn(&mut HostSeen, &mut Vec<NodeSeen>);
    let cases: [(&str, Change<'_>); 8] = [
        ("address", &|host, _| host.address = "10.0.0.2".into()),
        ("two NICs", &|host, _| {
            facts(host, |it| {
                it.addresses = vec!["192.168.7.2".into(), "10.0.0.2".into()];
            });
        }),
        ("IPv6 only", &|host, nodes| {
            nodes[1].addresses[0].address = "fd00::2".into();
            host.address = "fd00:0:0::0002".into();
        }),
        ("machine-id", &|host, _| {
            facts(host, |it| it.machine_id = "m2".into());
        }),
        ("upper case", &|host, _| {
            facts(host, |it| it.hostname = "N2".into());
        }),
        ("--hostname-override", &|host, _| {
            facts(host, |it| it.hostname = "n3".into());
            host.node_name = Some("n2".into());
        }),
        ("clones with names", &|host, nodes| {
            nodes.iter_mut().for_each(|node| node.machine_id = "same".into());
            facts(host, |it| {
                it.machine_id = "same".into();
                it.hostname = "n2".into();
            });
        }),
        ("a label instead of the name", &|host, nodes| {
            nodes[1].name = "elsewhere.example".into();
            facts(host, |it| it.hostname = "n2".into());
        }),
    ];
    for (name, change) in cases {
        let (node, _) = mapped(|host, nodes| change(host, nodes));
        assert!(matches!(node.as_deref(), Some("n2" | "elsewhere.example")), "{name}: {node:?}");
    }
    assert_eq!(mapped(|_, _| {}), (None, Vec::new()));
    let (node, rivals) = mapped(|host, nodes| {
        nodes.iter_mut().for_each(|node| node.machine_id = "same".into());
        facts(host, |it| it.machine_id = "same".into());
    });
    assert_eq!((node, rivals.len()), (None, 3));
}

#[test]
fn the_probe_runs_here() {
    let done = Command::new("bash").args(["-e", "-c", host::PROBE]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut seen = HostSeen::default();
    host::understand(&String::from_utf8_lossy(&done.stdout), &mut seen);
    assert!(seen.free_bytes.values().all(|free| *free > 0));
}

#[test]
fn what_the_probe_prints_is_understood() {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-days", "3"])
        .args(["-addext", "basicConstraints=critical,CA:TRUE", "-keyout", "/dev/null"])
        .output()
        .unwrap();
    let pem = String::from_utf8(made.stdout).unwrap();
    let text = format!(
        "free\t/var/lib/etcd\t1024\nswap\tyes\nname\tN1\nsandbox\t\"r.io/pause:3.10\"\n\
         word\t/usr/bin/kubelet\nword\t--feature-gates=A=true,B=false\nword\t--node-ip=1\nword\t--feature-gates\nword\tD=true\nword\t--fail-cgroupv1=false\nkubeadm\tKUBELET_KUBEADM_ARGS=\"--node-ip=1\nkubeadm\t--x=2\"\n\
         settings\t\nkind: KubeletConfiguration\nfeatureGates: {{C: true}}\nfailCgroupV1: true\nfailSwapOn: false\nlogging:\n  sanitization: true\n\nend\n\
         manifest\tkube-apiserver\nspec:\n  containers:\n  - name: kube-apiserver\n    command: [kube-apiserver, --a=b]\n    env: [{{name: TOKEN, value: hidden}}]\n    resources: {{limits: {{cpu: 1}}}}\n  volumes: [{{name: v}}]\n\nend\n\
         patch\tetcd\nspec: {{}}\n\nend\n\
         left\t/usr/bin/kubelet.new\ncertificate\t/pki/ca.crt\tno\n{pem}\nend\n\
         certificate\t/pki/torn.crt\tno\n-----BEGIN CERTI\nend\nfree\t/var/lib/kubelet\t2\n"
    );
    let mut seen = HostSeen::default();
    host::understand(&text, &mut seen);
    assert_eq!(seen.free_bytes["/var/lib/etcd"], 1 << 20);
    assert_eq!(seen.free_bytes["/var/lib/kubelet"], 2048);
    assert!(seen.swap && seen.node_name.as_deref() == Some("N1"));
    assert_eq!(seen.sandbox_image.as_deref(), Some("r.io/pause:3.10"));
    assert_eq!(seen.leftovers, ["/usr/bin/kubelet.new"]);
    assert_eq!(seen.certificates.len(), 1);
    let kubelet = &seen.kubelet;
    assert!(kubelet.flags.contains("node-ip") && kubelet.kubeadm_flags.contains("node-ip"));
    assert!(kubelet.kubeadm_flags.contains("x") && !kubelet.flags.contains("x"));
    assert_eq!(kubelet.gates.iter().collect::<Vec<_>>(), ["A", "B", "C", "D"]);
    assert_eq!(kubelet.flag_gates.iter().collect::<Vec<_>>(), ["A", "B", "D"]);
    assert_eq!((kubelet.fail_cgroup_v1_flag, kubelet.fail_cgroup_v1), (Some(false), Some(true)));
    assert_eq!(kubelet.fail_swap_on, Some(false));
    assert!(kubelet.fields.contains("logging.sanitization"));
    let manifest = &seen.manifests["kube-apiserver"];
    assert_eq!(manifest.arguments, ["kube-apiserver", "--a=b"]);
    assert!(manifest.has_limits && manifest.environment == ["TOKEN"]);
    assert_eq!(manifest.volumes, ["v"]);
    assert!(seen.patches.contains_key("etcd"));
    assert!(!serde_json::to_string(&seen).unwrap().contains("hidden"));
    let authority = &seen.certificates[0];
    assert!(authority.authority && !authority.key_is_here && authority.not_after > 0);
}

#[test]
fn members_of_etcd_are_understood() {
    let seen = observe::understand(
        "#members\n{\"header\":{},\"members\":[{\"ID\":10276657743932975437,\"name\":\"a\",\
         \"clientURLs\":[\"https://10.0.0.1:2379\"]},{\"ID\":2,\"name\":\"b\",\"isLearner\":true,\
         \"clientURLs\":[\"https://[fd00::2]:2379\"]}]}\n#status\n[{\"Endpoint\":\"x\",\"Status\":{\
         \"header\":{\"member_id\":10276657743932975437},\"version\":\"3.5.21\",\"dbSize\":4096,\
         \"leader\":10276657743932975437}}]\n#alarms\nmemberID:2 alarm:NOSPACE \n",
    )
    .unwrap();
    assert_eq!(seen.alarms, ["NOSPACE"]);
    let [a, b] = &seen.members[..] else { panic!("{seen:?}") };
    assert!(a.leader && !a.learner && a.db_bytes == 4096 && a.is_at("10.0.0.1"));
    assert_eq!(a.version.as_deref(), Some("3.5.21"));
    assert!(!b.leader && b.learner && b.version.is_none() && b.is_at("fd00::2"));
    assert!(observe::understand("#members\nnothing").is_err());
}

#[test]
fn requests_to_deprecated_apis_are_read_from_metrics() {
    let found = super::api::deprecated(
        "# HELP apiserver_requested_deprecated_apis [STABLE] Gauge\n\
         apiserver_requested_deprecated_apis{group=\"policy\",removed_release=\"1.25\",\
         resource=\"podsecuritypolicies\",subresource=\"\",version=\"v1beta1\"} 1\n\
         apiserver_requested_deprecated_apis{group=\"\",removed_release=\"\",resource=\"x\",\
         subresource=\"\",version=\"v1\"} 1\n\
         apiserver_requested_deprecated_apis{group=\"flowcontrol.apiserver.k8s.io\",\
         removed_release=\"1.32\",resource=\"flowschemas\",subresource=\"status\",version=\"v1beta3\"} 1\n",
    );
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].resource, "podsecuritypolicies");
    assert_eq!(found[1].resource, "flowschemas/status");
    assert_eq!(found[1].removed_release, "1.32");
}

#[test]
fn pods_that_were_to_be_gone_are_told_with_what_holds_them() {
    let stuck = |metadata: Value| {
        let now = "2026-11-22T12:00:00Z".parse().unwrap();
        super::api::stuck(&json!({"metadata": metadata}), now)
    };
    assert_eq!(stuck(json!({"finalizers": ["a/b"]})), None);
    assert_eq!(stuck(json!({"deletionTimestamp": "2026-11-22T11:59:50Z"})), None);
    let late = stuck(json!({"deletionTimestamp": "2026-11-22T11:50:00Z", "finalizers": ["a/b"]}));
    assert!(late.unwrap().contains("a/b"));
    let late = stuck(json!({"deletionTimestamp": "2026-11-22T11:50:00Z"}));
    assert!(late.unwrap().contains("kubelet"));
}
