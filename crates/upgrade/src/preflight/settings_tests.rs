//! Tests of settings that `kubeadm upgrade` would lose, settings that new kubelets and CoreDNS
//! reject, etcd versions that stay, and unmanaged Pods that drains would meet.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::document::{Direction, Finding, Severity};
use crate::observation::{EtcdSeen, ManifestSeen, MemberSeen, Observation, PodSeen, WorkloadSeen};
use crate::testing::{document, kubernetes, request};

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// One control plane with the API server manifest written by kubeadm v1.33.
fn cluster() -> Observation {
    let mut it = kubernetes(1, 1, "v1.33.13");
    let apiserver = ManifestSeen {
        image: None,
        containers: words("kube-apiserver"),
        arguments: words(
            "kube-apiserver --advertise-address=10.0.0.1 --allow-privileged=true \
             --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
             --enable-bootstrap-token-auth=true --requestheader-allowed-names=front-proxy-client \
             --service-cluster-ip-range=10.96.0.0/22 --audit-log-maxage=7",
        ),
        environment: words("https_proxy NO_PROXY"),
        has_limits: false,
        volumes: words("ca-certs k8s-certs usr-local-share-ca-certificates audit"),
    };
    it.hosts[0].manifests = BTreeMap::from([("kube-apiserver".to_owned(), apiserver)]);
    it.api.as_mut().unwrap().cluster_configuration = Some(json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4", "kubernetesVersion": "v1.33.13",
        "networking": {"serviceSubnet": "10.96.0.0/22", "podSubnet": "100.64.0.0/10"},
        "apiServer": {
            "extraArgs": [{"name": "audit-log-maxage", "value": "7"}],
            "extraVolumes": [{"name": "audit", "hostPath": "/etc/kubernetes"}],
        },
    }));
    it
}

fn found(observation: &Observation, check: &str) -> Vec<Finding> {
    let mut findings = document(observation, &request("v1.33.13", &["v1.34.9"])).findings;
    findings.retain(|finding| finding.check == check);
    findings
}

fn apiserver(it: &mut Observation) -> &mut ManifestSeen {
    it.hosts[0].manifests.get_mut("kube-apiserver").unwrap()
}

#[test]
fn manifests_edited_by_hand_are_told() {
    let check = "static-manifests";
    assert_eq!(found(&cluster(), check), []);

    let mut it = cluster();
    let api = apiserver(&mut it);
    api.arguments.extend(words("--audit-log-path=/var/log/a.log --profiling=false"));
    api.arguments[3] = "--authorization-mode=AlwaysAllow".into();
    api.environment.push("GODEBUG".into());
    api.volumes.push("logs".into());
    api.containers.push("proxy".into());
    api.has_limits = true;
    let [all] = &found(&it, check)[..] else { panic!("{:?}", found(&it, check)) };
    assert_eq!((all.severity, all.host.as_deref()), (Severity::Error, Some("10.0.0.1")));
    for part in [
        "kube-apiserver.yaml",
        "--audit-log-path=/var/log/a.log",
        "--profiling=false",
        "--authorization-mode=AlwaysAllow (kubeadm: Node,RBAC)",
        "environment variable GODEBUG",
        "volume logs",
        "limits",
        "container proxy",
    ] {
        assert!(all.what.contains(part), "{part}: {}", all.what);
    }

    let mut it = cluster();
    apiserver(&mut it).arguments.push("--profiling=false".into());
    let patch = "spec: {containers: [{name: kube-apiserver, command: [--profiling=false]}]}";
    it.hosts[0].patches.insert("kube-apiserver".into(), patch.into());
    let [kept] = &found(&it, check)[..] else { panic!("{:?}", found(&it, check)) };
    assert_eq!(kept.severity, Severity::Note);
    assert!(kept.what.contains("patches keep profiling"), "{}", kept.what);
}

#[test]
fn what_kubeadm_config_says_and_manifests_lack_is_told() {
    let mut it = cluster();
    apiserver(&mut it).arguments.retain(|word| !word.starts_with("--audit"));
    let [one] = &found(&it, "static-manifests")[..] else {
        panic!("{:?}", found(&it, "static-manifests"))
    };
    assert_eq!(one.severity, Severity::Warning);
    assert!(one.what.contains("--audit-log-maxage=7 is missing"), "{}", one.what);

    // The kubeadm.k8s.io/v1beta3 form, with a different value.
    let mut it = cluster();
    it.api.as_mut().unwrap().cluster_configuration.as_mut().unwrap()["apiServer"]["extraArgs"] =
        json!({"audit-log-maxage": "30"});
    let [one] = &found(&it, "static-manifests")[..] else {
        panic!("{:?}", found(&it, "static-manifests"))
    };
    assert_eq!(one.severity, Severity::Error);
    assert!(one.what.contains("--audit-log-maxage=7 (kubeadm: 30)"), "{}", one.what);
}

#[test]
fn settings_that_new_kubelets_lack_are_told() {
    let check = "kubelet-configuration";
    let names =
        |names: &[&str]| -> BTreeSet<String> { names.iter().map(ToString::to_string).collect() };
    let mut it = cluster();
    it.hosts[1].kubelet.flags = names(&["config", "register-schedulable", "node-ip"]);
    let [one] = &found(&it, check)[..] else { panic!("{:?}", found(&it, check)) };
    assert_eq!((one.severity, one.host.as_deref()), (Severity::Error, Some("10.1.0.1")));
    assert!(one.what.contains("--register-schedulable, which v1.34"), "{}", one.what);

    let of = |from: &str, to: &str, it: &Observation| {
        let mut findings = document(it, &request(from, &[to])).findings;
        findings.retain(|finding| finding.check == check);
        findings
    };
    let mut it = kubernetes(1, 1, "v1.26.3");
    it.hosts[1].kubelet.flags = names(&["container-runtime"]);
    it.hosts[1].kubelet.gates = names(&["EphemeralContainers"]);
    assert_eq!(of("v1.26.3", "v1.27.1", &it).len(), 2);
    // kubeadm removes flags that it has written.
    it.hosts[1].kubelet.kubeadm_flags = names(&["container-runtime"]);
    let [gate] = &of("v1.26.3", "v1.27.1", &it)[..] else { panic!("the gate alone") };
    assert!(gate.what.contains("EphemeralContainers"));
    let mut it = kubernetes(1, 1, "v1.23.3");
    it.hosts[1].kubelet.fields = names(&["logging.sanitization", "logging"]);
    let [field] = &of("v1.23.3", "v1.24.1", &it)[..] else { panic!("the field alone") };
    assert_eq!(field.severity, Severity::Warning);
}

#[test]
fn feature_gates_that_the_new_release_lacks_are_told() {
    type Change = fn(&mut Observation);
    let told = |to: &str, change: Change| {
        let from = if to.starts_with("v1.36") { "v1.35.6" } else { "v1.34.9" };
        let mut it = kubernetes(1, 1, from);
        let api = it.api.as_mut().unwrap();
        api.kubelet_configuration = Some(json!({}));
        change(&mut it);
        let mut findings = document(&it, &request(from, &[to])).findings;
        let checks = ["feature-gates", "kubelet-configuration"];
        findings.retain(|finding| checks.contains(&finding.check.as_str()));
        let shown = |one: Finding| (one.severity, one.what);
        findings.into_iter().map(shown).collect::<Vec<_>>()
    };
    fn cluster(it: &mut Observation, more: &serde_json::Value) {
        let api = it.api.as_mut().unwrap();
        let document = api.cluster_configuration.as_mut().unwrap().as_object_mut().unwrap();
        document.extend(more.as_object().unwrap().clone());
    }
    let gate = "SizeMemoryBackedVolumes";
    let cases: [(&str, Severity, Change); 7] = [
        ("kube-apiserver", Severity::Error, |it| {
            let gates = "PodLevelResources=true, SizeMemoryBackedVolumes=true";
            cluster(
                it,
                &json!({"apiServer": {"extraArgs": [{"name": "feature-gates", "value": gates}]}}),
            );
        }),
        ("kube-controller-manager", Severity::Error, |it| {
            let gates = "SizeMemoryBackedVolumes=true";
            cluster(it, &json!({"controllerManager": {"extraArgs": {"feature-gates": gates}}}));
        }),
        ("kube-scheduler", Severity::Error, |it| {
            let gates = "SizeMemoryBackedVolumes=false";
            cluster(
                it,
                &json!({"scheduler": {"extraArgs": [{"name": "feature-gates", "value": gates}]}}),
            );
        }),
        ("kube-proxy", Severity::Error, |it| {
            it.api.as_mut().unwrap().proxy_configuration =
                Some(json!({"featureGates": {"SizeMemoryBackedVolumes": true}}));
        }),
        ("the ConfigMap kubelet-config", Severity::Error, |it| {
            it.hosts[1].kubelet.gates.insert("SizeMemoryBackedVolumes".into());
            it.api.as_mut().unwrap().kubelet_configuration =
                Some(json!({"featureGates": {"SizeMemoryBackedVolumes": true}}));
        }),
        ("its kubelet", Severity::Error, |it| {
            it.hosts[1].kubelet.gates.insert("SizeMemoryBackedVolumes".into());
            it.hosts[1].kubelet.flag_gates.insert("SizeMemoryBackedVolumes".into());
        }),
        // kubeadm writes the file anew.
        ("its kubelet", Severity::Warning, |it| {
            it.hosts[1].kubelet.gates.insert("SizeMemoryBackedVolumes".into());
        }),
    ];
    for (who, severity, change) in cases {
        let found = told("v1.35.6", change);
        let [(is, what)] = &found[..] else { panic!("{who}: {found:?}") };
        assert_eq!(*is, severity, "{what}");
        assert!(what.starts_with(who) && what.contains(gate) && what.contains("v1.35"), "{what}");
        assert_eq!(told("v1.34.10", change), []);
    }
    let own: Change =
        |it| cluster(it, &json!({"featureGates": {"WaitForAllControlPlaneComponents": true}}));
    assert!(told("v1.35.6", own)[0].1.contains("ClusterConfiguration"));
    let later: Change = |it| {
        let gates = "MemoryManager=true,SizeMemoryBackedVolumes=true";
        cluster(
            it,
            &json!({"apiServer": {"extraArgs": [{"name": "feature-gates", "value": gates}]}}),
        );
    };
    assert!(told("v1.36.1", later)[0].1.contains("MemoryManager, which v1.36"));
    assert_eq!(told("v1.35.6", |_| {}), []);
}

#[test]
fn no_feature_gate_is_removed_twice() {
    let mut all: Vec<&str> =
        crate::hazards::REMOVALS.iter().flat_map(|one| one.gates).copied().collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn corefiles_that_kubeadm_does_not_take_along_are_told() {
    let with = |plugin: &str| {
        let mut it = cluster();
        let text = format!(
            ".:53 {{\n    errors\n    {plugin}\n    kubernetes cluster.local {{\n       ttl 30\n    }}\n    forward . /etc/resolv.conf\n}}\n"
        );
        it.api.as_mut().unwrap().corefile = Some(text);
        it
    };
    assert_eq!(found(&with("cache 30"), "corefile"), []);
    let [one] = &found(&with("etcd example.org"), "corefile")[..] else { panic!("one") };
    assert_eq!(one.severity, Severity::Error);
    assert!(one.what.ends_with(": etcd"), "{}", one.what);
    let mut it = kubernetes(1, 0, "v1.18.3");
    it.api.as_mut().unwrap().corefile = with("federation x y").api.unwrap().corefile;
    let mut findings = document(&it, &request("v1.18.3", &["v1.19.1"])).findings;
    findings.retain(|finding| finding.check == "corefile");
    assert!(findings.len() == 1 && findings[0].severity == Severity::Note, "{findings:?}");
}

#[test]
fn control_planes_go_back_over_several_minors_together() {
    let mut request = request("v1.33.9", &["v1.30.14"]);
    request.direction = Direction::Back;
    let of = |request: &crate::request::Request<'_>| {
        let mut findings = document(&kubernetes(3, 1, "v1.33.9"), request).findings;
        findings.retain(|finding| finding.check == "server-skew");
        findings
    };
    // One after the other, they would be three minors apart.
    assert_eq!(of(&request).len(), 1);
    request.to_snapshot = true;
    assert_eq!(of(&request), []);
}

#[test]
fn a_newer_etcd_goes_back_with_its_data_only() {
    let member =
        |version: &str| MemberSeen { version: Some(version.into()), ..MemberSeen::default() };
    let mut it = kubernetes(2, 1, "v1.34.9");
    let mut request = request("v1.34.9", &["v1.33.13"]);
    request.direction = Direction::Back;
    let of = |it: &Observation, request: &crate::request::Request<'_>| {
        let mut findings = document(it, request).findings;
        findings.retain(|finding| finding.check == "etcd-downgrade");
        findings
    };
    let etcd = |versions: [&str; 2]| EtcdSeen {
        members: versions.map(member).to_vec(),
        ..EtcdSeen::default()
    };
    it.etcd = Some(etcd(["3.6.4", "3.6.4"]));
    let [one] = &of(&it, &request)[..] else { panic!("one") };
    assert_eq!(one.severity, Severity::Error);
    assert!(one.hint.as_ref().unwrap().contains("--from-snapshot"));
    request.to_snapshot = true;
    assert_eq!(of(&it, &request), []);
    let notes = document(&it, &request).notes.join("\n");
    assert!(!notes.contains("etcd stays") && notes.contains("the snapshot replaces"), "{notes}");
    request.to_snapshot = false;
    // The cluster version is that of its oldest member.
    it.etcd = Some(etcd(["3.6.4", "3.5.21"]));
    assert_eq!(of(&it, &request), []);
    // Only workers are rolled back.
    it.etcd = Some(etcd(["3.6.4", "3.6.4"]));
    request.only = vec!["10.1.0.1".into()];
    assert_eq!(of(&it, &request), []);
}

#[test]
fn pods_of_daemon_sets_that_are_gone_and_pods_that_do_not_go_are_told() {
    let mut it = cluster();
    let node = it.hosts[1].node.clone().unwrap();
    let pod = |name: &str, owner: &str| PodSeen {
        namespace: "default".into(),
        name: name.into(),
        node: node.clone(),
        owner: owner.into(),
        ..PodSeen::default()
    };
    let api = it.api.as_mut().unwrap();
    api.workloads.push(WorkloadSeen {
        kind: "DaemonSet".into(),
        namespace: "default".into(),
        name: "there".into(),
        ..WorkloadSeen::default()
    });
    api.pods.push(pod("there-1", "DaemonSet/there"));
    assert_eq!(found(&it, "unmanaged-pods"), []);
    let api = it.api.as_mut().unwrap();
    api.pods.push(pod("gone-1", "DaemonSet/gone"));
    let mut late = pod("late-1", "ReplicaSet/late");
    late.stuck = Some("finalizers hold it: a/b".into());
    api.pods.push(late);
    let orphans = found(&it, "unmanaged-pods");
    assert!(orphans.len() == 1 && orphans[0].what.ends_with(": default/gone-1"), "{orphans:?}");
    let late = found(&it, "terminating-pods");
    assert!(late.len() == 1 && late[0].what.contains("default/late-1"), "{late:?}");
}

/// Findings of one check for an upgrade of one control plane and a worker.
fn between(from: &str, to: &str, check: &str, change: fn(&mut Observation)) -> Vec<Finding> {
    let mut it = kubernetes(1, 1, from);
    change(&mut it);
    let mut findings = document(&it, &request(from, &[to])).findings;
    findings.retain(|finding| finding.check == check);
    findings
}

#[test]
fn volumes_that_new_kubelets_refuse_are_told() {
    fn clones(it: &mut Observation) {
        let node = it.hosts[1].node.clone().unwrap();
        it.api.as_mut().unwrap().pods.push(PodSeen {
            namespace: "default".into(),
            name: "site".into(),
            node,
            owner: "ReplicaSet/site".into(),
            git_volumes: words("source"),
            ..PodSeen::default()
        });
    }
    let of = |from, to| between(from, to, "git-volumes", clones);
    let refused = of("v1.35.6", "v1.36.3");
    assert!(refused.len() == 1 && refused[0].what.contains("default/site"), "{refused:?}");
    assert_eq!(refused[0].severity, Severity::Error);
    assert_eq!(of("v1.32.4", "v1.33.2")[0].severity, Severity::Warning);
    assert_eq!(of("v1.34.9", "v1.35.6"), []);
    assert_eq!(between("v1.35.6", "v1.36.3", "git-volumes", |_| {}), []);
}

#[test]
fn flags_of_cadvisor_are_told_before_1_37() {
    fn sets(it: &mut Observation) {
        it.hosts[1].kubelet.flags.insert("global-housekeeping-interval".into());
    }
    let found = between("v1.36.3", "v1.37.1", "kubelet-configuration", sets);
    assert!(found.len() == 1 && found[0].what.contains("--global-housekeeping-interval"));
    assert_eq!(between("v1.35.6", "v1.36.3", "kubelet-configuration", sets), []);
}

#[test]
fn etcd_3_7_is_known() {
    fn member(it: &mut Observation, version: &str) {
        it.etcd = Some(EtcdSeen {
            members: vec![MemberSeen {
                name: "a".into(),
                version: Some(version.into()),
                ..MemberSeen::default()
            }],
            alarms: Vec::new(),
        });
    }
    let found =
        |version: fn(&mut Observation)| between("v1.36.3", "v1.37.1", "etcd-version", version);
    assert_eq!(found(|it| member(it, "3.6.8")), []);
    let old = found(|it| member(it, "3.5.26"));
    assert!(old.len() == 1 && old[0].what.contains("one minor at a time"), "{old:?}");

    let mut it = kubernetes(1, 1, "v1.37.1");
    member(&mut it, "3.7.0");
    let mut back = request("v1.37.1", &["v1.36.3"]);
    back.direction = Direction::Back;
    let findings = document(&it, &back).findings;
    assert!(findings.iter().any(|one| one.check == "etcd-downgrade"), "{findings:?}");
}
