//! Runs a change of settings and its way back on "hosts" with the stand-ins of tests/kubeadm.

use serde_json::{Value, json};

use crate::Action;
use crate::certificates::validity::Validity;
use crate::kubeadm::Kubeadm;
use crate::kubeadm::tests::NoFiles;
use crate::kubeadm::upgrade::reconfigure::settings_of;
use crate::kubeadm::upgrade::stand_in_tests::{Bed, FIRST, OLD, context_of, text};
use crate::setting::Component;
use crate::upgrade::{Move, Place, Renewal, Upgrader as _};
use imgctl_model::context::{ClusterContext, Host};

const SECOND: &str = "10.0.0.12";
const WORKER: &str = "10.0.0.21";
const BACKUP: &str = "/var/lib/sealos/data/default/backup/settings-1";

fn with(directory: &std::path::Path, more: &Value) -> ClusterContext {
    let mut context = context_of(OLD, directory);
    context.documents.extend(more.as_array().unwrap().iter().cloned());
    context
}

fn cluster(flags: &Value) -> Value {
    json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration",
        "apiServer": {"extraArgs": flags},
    })
}

fn kubelet(fields: &Value) -> Value {
    let mut document = fields.clone();
    document["apiVersion"] = "kubelet.config.k8s.io/v1beta1".into();
    document["kind"] = "KubeletConfiguration".into();
    document
}

fn step<'a>(from: &'a ClusterContext, to: &'a ClusterContext, ip: &str, back: bool) -> Move<'a> {
    Move {
        from,
        to,
        host: to.hosts.iter().find(|host| host.ip() == ip).unwrap(),
        tree: format!("/var/lib/sealos/data/default/rootfs.{OLD}"),
        place: match ip {
            FIRST => Place::First,
            SECOND => Place::ControlPlane,
            _ => Place::Worker,
        },
        id: if back { "settings-1-back-1" } else { "settings-1" },
        renewal: Renewal::Auto,
        external_etcd: false,
        keeps_corefile: false,
        back,
    }
}

fn run(bed: &Bed, context: &ClusterContext, host: &Host, key: &str, actions: &[Action]) {
    let key = format!("{key}-{}", host.ip());
    bed.hosts
        .run(context, host, &key, actions)
        .unwrap_or_else(|error| panic!("{key}: {:?}", error.chain()));
}

/// The kubelet's files as kubeadm leaves them, and a kubelet that says what it gets.
fn dress(bed: &Bed) {
    for ip in [FIRST, SECOND, WORKER] {
        let line = format!(
            "mkdir -p /var/lib/kubelet; printf 'kind: KubeletConfiguration\\nmaxPods: 110\\nbyHand: 1\\n' >/var/lib/kubelet/config.yaml\n\
             printf 'KUBELET_KUBEADM_ARGS=\"--node-ip={ip} --v=2\"\\n' >/var/lib/kubelet/kubeadm-flags.env"
        );
        let done = bed.hosts.of(ip).shell(&line, &[], b"");
        assert!(done.status.success(), "{done:?}");
    }
    let live = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 110\nbyHand: 1\n";
    let map = json!({"metadata": {"name": "kubelet-config", "namespace": "kube-system"}, "data": {"kubelet": live}});
    std::fs::write(bed.hosts.of(FIRST).log.join("configmap-kubelet-config.json"), map.to_string())
        .unwrap();
}

#[test]
fn settings_change_and_go_back_and_what_others_changed_stays() {
    let directory = tempfile::tempdir().unwrap();
    let kubeadm = Kubeadm::new(&NoFiles, Validity::sealos());
    let bed = Bed::up(directory.path(), &kubeadm);
    dress(&bed);
    let old = with(directory.path(), &json!([]));
    let new = with(
        directory.path(),
        &json!([
            cluster(&json!([{"name": "audit-log-maxage", "value": "30"}])),
            kubelet(&json!({"maxPods": 50})),
        ]),
    );
    let settings = settings_of(&kubeadm, &old, &new).unwrap();
    let shown: Vec<String> = settings
        .iter()
        .map(|one| {
            format!(
                "{} {:?} {:?} {:?} {}",
                one.name,
                one.old,
                one.new,
                one.component,
                one.hosts.len()
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            r#"apiServer.extraArgs.audit-log-maxage Some(String("7")) Some(String("30")) KubeApiserver 2"#,
            "maxPods Some(Number(110)) Some(Number(50)) Kubelet 3",
        ]
    );
    let other = kubeadm.reconfigurer(&settings).unwrap();
    assert!(other.drains(), "Nodes take no Pods while their kubelet restarts");
    let config = |ip: &str| text(bed.hosts.of(ip), "/var/lib/kubelet/config.yaml");
    let manifest =
        |ip: &str| text(bed.hosts.of(ip), "/etc/kubernetes/manifests/kube-apiserver.yaml");
    let scheduler = text(bed.hosts.of(FIRST), "/etc/kubernetes/manifests/kube-scheduler.yaml");
    let before = manifest(FIRST);
    for ip in [FIRST, SECOND, WORKER] {
        let step = step(&old, &new, ip, false);
        run(&bed, &new, step.host, "try", &other.pull(&step).unwrap());
        run(&bed, &new, step.host, "backup", &other.backup(&step).unwrap());
    }
    assert_eq!(bed.hosts.of(FIRST).calls("systemctl stop"), 0);
    assert_eq!(manifest(FIRST), before);
    for ip in [FIRST, SECOND, WORKER] {
        let step = step(&old, &new, ip, false);
        run(&bed, &new, step.host, "before", &other.before(&step).unwrap());
        run(&bed, &new, step.host, "apply", &other.apply(&step).unwrap());
        // Once more, as a resumed run may.
        run(&bed, &new, step.host, "again", &other.apply(&step).unwrap());
        run(&bed, &new, step.host, "gate", &other.gate(&step).unwrap());
        run(&bed, &new, step.host, "service", &other.back_in_service(&step).unwrap());
        let told = config(ip);
        assert!(told.contains("maxPods: 50") && told.contains("byHand: 1"), "{told}");
        assert_eq!(bed.hosts.of(ip).calls("systemctl stop kubelet"), 1, "{ip}");
        assert!(bed.hosts.of(ip).exists(&format!("{BACKUP}/touched")));
    }
    for ip in [FIRST, SECOND] {
        assert!(manifest(ip).contains("--audit-log-maxage=30"), "{}", manifest(ip));
    }
    assert_eq!(
        text(bed.hosts.of(FIRST), "/etc/kubernetes/manifests/kube-scheduler.yaml"),
        scheduler
    );
    let first = step(&old, &new, FIRST, false);
    run(&bed, &new, first.host, "finish", &other.finish(&first).unwrap());
    let objects = || {
        let read =
            |name: &str| std::fs::read_to_string(bed.hosts.of(FIRST).log.join(name)).unwrap();
        (read("uploaded-config"), read("configmap-kubelet-config.json"))
    };
    assert!(objects().0.contains("audit-log-maxage"), "{}", objects().0);
    assert!(objects().1.contains("maxPods: 50") && objects().1.contains("byHand: 1"));

    for (round, ip) in [WORKER, SECOND, FIRST, FIRST].into_iter().enumerate() {
        let step = step(&new, &old, ip, true);
        assert!(other.pull(&step).unwrap().is_empty());
        run(&bed, &old, step.host, &format!("back-{round}"), &other.restore(&step).unwrap());
        run(&bed, &old, step.host, &format!("gate-{round}"), &other.gate(&step).unwrap());
        assert!(config(ip).contains("maxPods: 110"), "{}", config(ip));
        assert!(!bed.hosts.of(ip).exists(&format!("{BACKUP}/touched")));
    }
    assert_eq!(manifest(FIRST), before);
    // What the record had before, which a cluster of somebody else's may not have had.
    assert!(objects().0.contains("value: \"7\""), "{}", objects().0);
    assert!(objects().1.contains("maxPods: 110"));
}

#[test]
fn what_the_programs_refuse_is_told_before_anything_changes() {
    let directory = tempfile::tempdir().unwrap();
    let kubeadm = Kubeadm::new(&NoFiles, Validity::sealos());
    let bed = Bed::up(directory.path(), &kubeadm);
    dress(&bed);
    let old = with(directory.path(), &json!([]));
    let attempt = |documents: &Value, ip: &str, key: &str| {
        let new = with(directory.path(), documents);
        let settings = settings_of(&kubeadm, &old, &new).unwrap();
        let other = kubeadm.reconfigurer(&settings).unwrap();
        let step = step(&old, &new, ip, false);
        let result = bed.hosts.run(&new, step.host, key, &other.pull(&step).unwrap());
        result.map_err(|error| format!("{:?}", error.chain()))
    };
    let flag = json!([cluster(&json!([{"name": "unknown-flag", "value": "1"}]))]);
    let told = attempt(&flag, FIRST, "flag").unwrap_err();
    for words in ["unknown flag: --unknown-flag", "nothing was changed"] {
        assert!(told.contains(words), "{told}");
    }
    let says = |what: &str| {
        let line = format!(
            "printf '#!/bin/sh\\necho \"%s\" >&2; exit 1\\n' '{what}' >/mnt/bin/new; chmod +x /mnt/bin/new; mv -f /mnt/bin/new /mnt/bin/kubelet"
        );
        assert!(bed.hosts.of(WORKER).shell(&line, &[], b"").status.success());
    };
    let pods = || json!([kubelet(&json!({"maxPods": -5}))]);
    says("failed to validate kubelet configuration, error: invalid configuration: maxPods -5");
    let told = attempt(&pods(), WORKER, "value").unwrap_err();
    assert!(told.contains("invalid configuration: maxPods -5"), "{told}");
    says("unknown field \\\\\"maxPods\\\\\"; kubeconfig: stat /none");
    let told = attempt(&pods(), WORKER, "field").unwrap_err();
    assert!(told.contains("does not know the field maxPods"), "{told}");
    says("unable to load kubeconfig: stat /x/none: no such file");
    attempt(&pods(), WORKER, "good").unwrap();
    for ip in [FIRST, WORKER] {
        assert_eq!(bed.hosts.of(ip).calls("systemctl stop"), 0);
    }
}

#[test]
fn what_cannot_change_is_named_and_what_nothing_reads_is_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let kubeadm = Kubeadm::new(&NoFiles, Validity::sealos());
    let old = with(directory.path(), &json!([]));
    let of = |documents: &Value| settings_of(&kubeadm, &old, &with(directory.path(), documents));
    let networks = json!([{
        "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration",
        "networking": {"podSubnet": "10.244.0.0/16", "dnsDomain": "other.local"},
    }]);
    let error = of(&networks).unwrap_err();
    let told = format!("{:?}", error.chain());
    for words in [
        "settings cannot change while the cluster runs",
        "networking.podSubnet: \"100.64.0.0/10\" → \"10.244.0.0/16\"",
        "networking.dnsDomain",
        "clusterDomain",
    ] {
        assert!(told.replace("\\\"", "\"").contains(words), "{words}: {told}");
    }
    assert_eq!(error.kind(), imgctl_base::error::Kind::Usage);
    let later = json!([{
        "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "JoinConfiguration",
        "nodeRegistration": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
    }]);
    let settings = of(&later).unwrap();
    assert_eq!(settings[0].component, Component::Later);
    assert!(of(&json!([])).unwrap().is_empty());
}
