//! Tests of what checks report and what they accept.

use std::collections::BTreeSet;

use crate::document::{Direction, Finding, KubeletSwap, Severity};
use crate::observation::{
    CertificateSeen, DeprecatedSeen, EtcdSeen, HostSeen, InstalledSeen, MemberSeen, NodeSeen,
    Observation, PodSeen, WebhookSeen, WorkloadSeen,
};
use crate::testing::{document, kubernetes, request, script};
use crate::{preflight::table::CHECKS, request::Request};
use imgctl_kube::drain::{PdbProblem, PodName};
use imgctl_runtime::upgrade::Renewal;

fn findings(observation: &Observation, request: &Request<'_>) -> Vec<Finding> {
    document(observation, request).findings
}

fn of<'a>(findings: &'a [Finding], check: &str) -> Vec<&'a Finding> {
    findings.iter().filter(|one| one.check == check).collect()
}

fn label(request: &mut Request<'_>, name: &str, value: &str) {
    for image in request.targets[0].images.values_mut() {
        image.labels.insert(name.into(), value.into());
    }
}

fn node(observation: &mut Observation, at: usize) -> &mut NodeSeen {
    &mut observation.api.as_mut().unwrap().nodes[at]
}

fn host(observation: &mut Observation, at: usize) -> &mut HostSeen {
    &mut observation.hosts[at]
}

fn pod(observation: &Observation, name: &str, owner: &str) -> PodSeen {
    PodSeen {
        namespace: "default".into(),
        name: name.into(),
        node: observation.hosts[1].node.clone().unwrap(),
        owner: owner.into(),
        ..PodSeen::default()
    }
}

#[test]
fn ids_are_unique_and_can_be_written() {
    let ids: BTreeSet<&str> = CHECKS.iter().map(|check| check.id).collect();
    assert_eq!(ids.len(), CHECKS.len());
    for check in CHECKS {
        let good = |c: char| c.is_ascii_lowercase() || c == '-';
        assert!(check.id.chars().all(good), "{}", check.id);
        assert!(!check.about.ends_with('.'), "{}", check.about);
    }
}

#[test]
fn the_manual_names_every_check() {
    let manual = include_str!("../../../../docs/upgrade.md");
    for check in CHECKS {
        let id = if check.may_be_skipped {
            format!("| `{}` |", check.id)
        } else {
            format!("| `{}` (must hold) |", check.id)
        };
        let line = format!("{id} {} |", check.about);
        assert!(manual.contains(&line), "docs/upgrade.md lacks: {line}");
    }
}

#[test]
fn a_cluster_that_is_well_has_nothing_in_the_way() {
    let found = findings(&kubernetes(3, 3, "v1.32.4"), &request("v1.32.4", &["v1.33.2"]));
    assert_eq!(found, []);
    let mut request = request("3.4.23", &["3.5.0"]);
    request.runtime = "script";
    assert_eq!(findings(&script(3, 0), &request), []);
}

/// Each case breaks a cluster of one control plane and two workers in one way.
#[test]
fn each_illness_is_found() {
    type Change = fn(&mut Observation, &mut Request<'static>);
    use Severity::{Error, Note, Warning};
    let cases: [(&str, Severity, &str, Change); 41] = [
        ("api", Error, "refused", |it, _| {
            it.api = None;
            it.api_problem = Some("refused".into());
        }),
        ("api", Warning, "Pods", |it, _| {
            let api = it.api.as_mut().unwrap();
            api.unknown.insert("Pods".into(), "forbidden".into());
        }),
        ("lock", Error, "somebody", |it, _| {
            it.api.as_mut().unwrap().lease_holder = Some("somebody".into());
        }),
        ("installed-anew", Error, "it has nothing", |it, _| {
            host(it, 1).lost = Some("it has nothing of the cluster".into());
        }),
        ("same-machine", Error, "10.0.0.1, 10.1.0.1", |it, _| {
            let id = it.hosts[0].facts.as_ref().unwrap().machine_id.clone();
            host(it, 1).facts.as_mut().unwrap().machine_id = id;
        }),
        ("node-mapping", Error, "no Node", |it, _| {
            host(it, 1).node = None;
        }),
        ("node-mapping", Error, "several Nodes", |it, _| {
            host(it, 1).node = None;
            host(it, 1).rivals = vec!["a".into(), "b".into()];
        }),
        ("node-mapping", Error, "several hosts", |it, _| {
            let name = it.hosts[2].node.clone();
            host(it, 1).node = name;
        }),
        ("unknown-node", Warning, "guest", |it, _| {
            let mut node = node(it, 1).clone();
            node.name = "guest".into();
            it.api.as_mut().unwrap().nodes.push(node);
        }),
        ("mixed-versions", Warning, "v1.31.9", |it, _| {
            node(it, 1).kubelet = "v1.31.9".into();
        }),
        ("upgrade-from", Error, ">=1.33", |_, request| {
            label(request, "imgctl.io/upgrade-from", ">=1.33");
        }),
        ("upgrade-from", Warning, "version range", |_, request| {
            label(request, "imgctl.io/upgrade-from", "new");
        }),
        ("kubeadm-config", Error, "cannot read ConfigMap", |it, _| {
            it.api.as_mut().unwrap().cluster_configuration = None;
        }),
        ("kubeadm-config", Warning, "v1.30.0", |it, _| {
            let api = it.api.as_mut().unwrap();
            api.cluster_configuration = Some(serde_json::json!({"kubernetesVersion": "v1.30.0"}));
        }),
        ("sandbox-image", Warning, "pause:3.9", |it, request| {
            label(request, "imgctl.io/sandbox-image", "registry.k8s.io/pause:3.10");
            host(it, 1).sandbox_image = Some("sealos.hub:5000/pause:3.9".into());
        }),
        ("container-runtime", Note, "2.3.0", |_, request| {
            label(request, "imgctl.io/cri-version", "2.3.0");
        }),
        ("clock-skew", Error, "300.0 s ahead", |it, _| {
            host(it, 1).facts.as_mut().unwrap().skew_ms = 300_000;
        }),
        ("free-space", Error, "not writable", |it, _| {
            host(it, 1).facts.as_mut().unwrap().writable = false;
        }),
        ("free-space", Warning, "/var/lib/etcd", |it, _| {
            host(it, 0).free_bytes.insert("/var/lib/etcd".into(), 1 << 20);
        }),
        ("kernel", Error, "6.1.0-28-amd64", |_, request| {
            label(request, "imgctl.io/min-kernel", "6.6");
        }),
        ("cgroup", Error, "supports v2", |it, request| {
            label(request, "imgctl.io/cgroup", "v2");
            host(it, 1).facts.as_mut().unwrap().cgroup_v2 = false;
        }),
        ("swap", Warning, "swap", |it, _| host(it, 1).swap = true),
        ("leftovers", Warning, "kubelet.new", |it, _| {
            host(it, 1).leftovers = vec!["/usr/bin/kubelet.new".into()];
        }),
        ("controller-is-member", Note, "tmux", |it, _| {
            host(it, 0).local = true;
        }),
        ("node-not-ready", Error, "no network", |it, _| {
            node(it, 0).ready = false;
            node(it, 0).message = "no network".into();
        }),
        ("node-not-ready", Warning, "not ready", |it, _| {
            node(it, 1).ready = false;
        }),
        ("node-pressure", Error, "DiskPressure", |it, _| {
            node(it, 1).pressure = vec!["DiskPressure".into()];
        }),
        ("cordoned", Note, "stays cordoned", |it, _| {
            node(it, 1).unschedulable = true;
        }),
        ("cordoned", Warning, "v1.33.1-aa", |it, _| {
            let annotations = &mut node(it, 1).annotations;
            annotations.insert("imgctl.io/upgrade-id".into(), "v1.33.1-aa".into());
        }),
        ("unavailable-budget", Note, "--max-unavailable 1", |_, request| {
            request.choices.batch = "100%".into();
        }),
        ("certificates", Error, "expired 2 days ago", |it, _| {
            let not_after = it.at_ms / 1000 - 2 * 86_400 - 9;
            host(it, 0)
                .certificates
                .push(CertificateSeen { not_after, ..CertificateSeen::default() });
        }),
        ("certificates", Error, "cannot be renewed", |it, _| {
            let not_after = it.at_ms / 1000 + 999 * 86_400;
            host(it, 0).certificates.push(CertificateSeen {
                not_after,
                authority: true,
                ..CertificateSeen::default()
            });
        }),
        ("certificates", Note, "they are kept", |it, _| {
            let not_after = it.at_ms / 1000 + 36_500 * 86_400;
            host(it, 0)
                .certificates
                .push(CertificateSeen { not_after, ..CertificateSeen::default() });
        }),
        ("removed-apis", Error, "flowschemas of flowcontrol/v1beta3", |it, _| {
            it.api.as_mut().unwrap().deprecated = vec![DeprecatedSeen {
                group: "flowcontrol".into(),
                version: "v1beta3".into(),
                resource: "flowschemas".into(),
                removed_release: "1.33".into(),
            }];
        }),
        ("webhooks", Error, "default/policy", |it, _| {
            it.api.as_mut().unwrap().webhooks =
                vec![WebhookSeen { service: "default/policy".into(), ..WebhookSeen::default() }];
        }),
        ("api-services", Warning, "v1beta1.metrics", |it, _| {
            let api = it.api.as_mut().unwrap();
            api.unavailable_services.insert("v1beta1.metrics".into(), "gone".into());
        }),
        ("application-versions", Error, "helm:v1 supports Kubernetes <1.33", |it, _| {
            it.installed =
                vec![InstalledSeen { name: "helm:v1".into(), supports: Some("<1.33".into()) }];
        }),
        ("pod-disruption-budgets", Warning, "default/db allows no eviction", |it, _| {
            let pod = pod(it, "db-0", "StatefulSet/db");
            let api = it.api.as_mut().unwrap();
            api.pods.push(pod);
            api.budgets = vec![PdbProblem::NoneAllowed {
                budget: "default/db".into(),
                pods: vec![named("db-0")],
                healthy: 1,
                desired: 1,
                expected: 2,
                never: false,
            }];
        }),
        ("unmanaged-pods", Error, "default/bare", |it, _| {
            let pod = pod(it, "bare", "");
            it.api.as_mut().unwrap().pods.push(pod);
        }),
        ("local-data", Error, "default/cache", |it, request| {
            request.choices.delete_emptydir_data = false;
            let mut pod = pod(it, "cache", "ReplicaSet/cache");
            pod.local_volumes = vec!["tmp".into()];
            it.api.as_mut().unwrap().pods.push(pod);
        }),
        ("unhealthy-workloads", Warning, "Deployment default/web (1 of 3)", |it, _| {
            it.api.as_mut().unwrap().workloads = vec![WorkloadSeen {
                kind: "Deployment".into(),
                namespace: "default".into(),
                name: "web".into(),
                desired: 3,
                ready: 1,
            }];
        }),
    ];
    for (check, severity, word, change) in cases {
        let mut cluster = kubernetes(1, 2, "v1.32.4");
        let mut request = request("v1.32.4", &["v1.33.2"]);
        change(&mut cluster, &mut request);
        let found = findings(&cluster, &request);
        let told = of(&found, check).into_iter().any(|one| {
            let hint = one.hint.clone().unwrap_or_default();
            one.severity == severity && (one.what.contains(word) || hint.contains(word))
        });
        assert!(told, "{check} {word}: {found:?}");
    }
}

#[test]
fn what_was_known_before_is_let_pass_by_name() {
    let mut cluster = kubernetes(1, 2, "v1.29.4");
    cluster.installed =
        vec![InstalledSeen { name: "helm:v1".into(), supports: Some("<1.30".into()) }];
    let mut request = request("v1.29.4", &["v1.30.2"]);
    let plan = document(&cluster, &request);
    let blockers: Vec<&str> = plan.blockers().map(|one| one.check.as_str()).collect();
    assert_eq!(blockers, ["application-versions"]);
    request.choices.skip_checks = vec!["application-versions".into()];
    let plan = document(&cluster, &request);
    assert_eq!(plan.blockers().count(), 0);
    assert!(of(&plan.findings, "application-versions")[0].skipped);
}

#[test]
fn only_apis_that_the_way_removes_are_told() {
    let mut cluster = kubernetes(1, 2, "v1.24.4");
    let used = |release: &str| DeprecatedSeen {
        resource: "x".into(),
        removed_release: release.into(),
        ..DeprecatedSeen::default()
    };
    cluster.api.as_mut().unwrap().deprecated = vec![used("1.22"), used("1.25"), used("1.26")];
    let found = findings(&cluster, &request("v1.24.4", &["v1.25.2"]));
    let told = of(&found, "removed-apis");
    assert_eq!(told.len(), 1);
    assert!(told[0].what.contains("v1.25"));
}

#[test]
fn clocks_of_control_planes_are_compared_with_each_other() {
    let mut cluster = kubernetes(3, 1, "v1.32.4");
    for (at, skew) in [(0, -1_500), (2, 1_000), (3, -20_000)] {
        host(&mut cluster, at).facts.as_mut().unwrap().skew_ms = skew;
    }
    let found = findings(&cluster, &request("v1.32.4", &["v1.33.2"]));
    let told = of(&found, "clock-skew");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].what.contains("10.0.0.1 and 10.0.0.3 are 2.5 s apart"), "{}", told[0].what);
}

#[test]
fn etcd_is_looked_at() {
    let member = |at: usize| MemberSeen {
        name: format!("m{at}"),
        endpoint: format!("https://10.0.0.{at}:2379"),
        version: Some("3.5.26".into()),
        ..MemberSeen::default()
    };
    let with = |from: &str, to: &str, change: fn(&mut EtcdSeen)| {
        let mut cluster = kubernetes(3, 0, from);
        let mut etcd = EtcdSeen { members: (1..=3).map(member).collect(), ..EtcdSeen::default() };
        change(&mut etcd);
        cluster.etcd = Some(etcd);
        findings(&cluster, &request(from, &[to]))
    };
    assert_eq!(with("v1.33.1", "v1.34.2", |_| {}), []);
    type Case = (&'static str, &'static str, fn(&mut EtcdSeen));
    let cases: [Case; 6] = [
        ("etcd", "does not answer", |etcd| {
            etcd.members[1].version = None;
        }),
        ("etcd", "is a learner", |etcd| {
            etcd.members[1].learner = true;
        }),
        ("etcd", "2 members", |etcd| drop(etcd.members.pop())),
        ("etcd", "NOSPACE", |etcd| {
            etcd.alarms = vec!["NOSPACE".into()];
        }),
        ("etcd-size", "1800 MiB", |etcd| {
            etcd.members[0].db_bytes = 1_800 << 20;
        }),
        ("etcd-version", "3.5.9", |etcd| {
            etcd.members[0].version = Some("3.5.9".into());
        }),
    ];
    for (check, word, change) in cases {
        let found = with("v1.33.1", "v1.34.2", change);
        assert!(of(&found, check).iter().any(|one| one.what.contains(word)), "{word}: {found:?}");
    }
    // Only an upgrade to etcd 3.6 requires a recent 3.5.
    let old: fn(&mut EtcdSeen) = |etcd| etcd.members[0].version = Some("3.5.9".into());
    assert_eq!(with("v1.32.1", "v1.33.2", old), []);
    let better: fn(&mut EtcdSeen) = |etcd| etcd.members[0].version = Some("3.5.21".into());
    assert_eq!(with("v1.33.1", "v1.34.2", better)[0].severity, Severity::Warning);

    let mut cluster = kubernetes(1, 0, "v1.32.1");
    cluster.etcd_problem = Some("refused".into());
    let found = findings(&cluster, &request("v1.32.1", &["v1.33.2"]));
    assert_eq!(of(&found, "etcd")[0].severity, Severity::Error);
}

#[test]
fn container_runtimes_have_their_limits() {
    for (runtime, from, to, severity) in [
        ("docker://20.10.7", "v1.23.1", "v1.24.1", Some(Severity::Error)),
        ("containerd://1.5.2", "v1.25.1", "v1.26.1", Some(Severity::Error)),
        ("containerd://1.7.27", "v1.33.1", "v1.34.1", None),
        ("containerd://1.7.27", "v1.34.1", "v1.35.1", Some(Severity::Warning)),
        ("containerd://1.7.27", "v1.35.1", "v1.36.1", Some(Severity::Error)),
        ("containerd://2.1.4", "v1.35.1", "v1.36.1", None),
    ] {
        let mut cluster = kubernetes(1, 1, from);
        node(&mut cluster, 1).runtime = runtime.into();
        let found = findings(&cluster, &request(from, &[to]));
        let told = of(&found, "container-runtime");
        assert_eq!(told.first().map(|one| one.severity), severity, "{runtime} {to}");
    }
    let mut cluster = kubernetes(1, 1, "v1.34.1");
    host(&mut cluster, 1).facts.as_mut().unwrap().cgroup_v2 = false;
    let found = findings(&cluster, &request("v1.34.1", &["v1.35.1"]));
    assert_eq!(of(&found, "cgroup")[0].host.as_deref(), Some("10.1.0.1"));
    assert!(of(&findings(&cluster, &request("v1.34.1", &["v1.34.2"])), "cgroup").is_empty());
}

/// What counts is the configuration that kubeadm will write, not the one that lies on the host.
#[test]
fn kubelets_that_will_start_on_cgroup_v1_or_with_swap_are_no_complaint() {
    type Change = fn(&mut Observation);
    fn written(it: &mut Observation, document: serde_json::Value) {
        it.api.as_mut().unwrap().kubelet_configuration = Some(document);
    }
    let told = |change: Change| {
        let mut cluster = kubernetes(1, 1, "v1.34.1");
        let one = host(&mut cluster, 1);
        one.facts.as_mut().unwrap().cgroup_v2 = false;
        one.swap = true;
        change(&mut cluster);
        let found = findings(&cluster, &request("v1.34.1", &["v1.35.1"]));
        ["cgroup", "swap"].map(|check| of(&found, check).first().map(|one| one.what.clone()))
    };
    assert!(told(|_| {}).iter().all(Option::is_some));
    // Without the ConfigMap, the host's own file is all that is known.
    let own: Change = |it| {
        host(it, 1).kubelet.fail_cgroup_v1 = Some(false);
        host(it, 1).kubelet.fail_swap_on = Some(false);
    };
    assert_eq!(told(own), [None, None]);
    let [cgroup, swap] = told(|it| {
        host(it, 1).kubelet.fail_cgroup_v1 = Some(false);
        host(it, 1).kubelet.fail_swap_on = Some(false);
        written(it, serde_json::json!({"failSwapOn": true}));
    });
    assert!(cgroup.unwrap().contains("ConfigMap kubelet-config") && swap.is_some());
    let both =
        told(|it| written(it, serde_json::json!({"failCgroupV1": false, "failSwapOn": false})));
    assert_eq!(both, [None, None]);
    let [cgroup, _] = told(|it| {
        written(it, serde_json::json!({}));
        host(it, 1).kubelet.fail_cgroup_v1_flag = Some(false);
    });
    assert_eq!(cgroup, None);
    let [cgroup, _] = told(|it| {
        written(it, serde_json::json!({"failCgroupV1": false}));
        host(it, 1).kubelet.fail_cgroup_v1_flag = Some(true);
    });
    assert!(cgroup.is_some(), "a flag comes first");
    for (patch, is_well) in [("failCgroupV1: false\n", true), ("{\"failCgroupV1\": true}", false)] {
        let mut cluster = kubernetes(1, 1, "v1.34.1");
        written(&mut cluster, serde_json::json!({}));
        let one = host(&mut cluster, 1);
        one.facts.as_mut().unwrap().cgroup_v2 = false;
        one.patches.insert("kubeletconfiguration".into(), patch.into());
        let found = findings(&cluster, &request("v1.34.1", &["v1.35.1"]));
        assert_eq!(of(&found, "cgroup").is_empty(), is_well, "{patch}");
    }
}

fn named(pod: &str) -> PodName {
    PodName { namespace: "default".into(), name: pod.into() }
}

#[test]
fn pods_matter_where_nodes_are_drained() {
    let mut cluster = kubernetes(1, 2, "v1.32.4");
    let selected = pod(&cluster, "twice", "ReplicaSet/twice");
    let bare = pod(&cluster, "bare", "");
    let net = pod(&cluster, "net", "DaemonSet/net");
    let api = cluster.api.as_mut().unwrap();
    api.pods.extend([selected, bare, net]);
    api.budgets = vec![
        PdbProblem::Several { pod: named("twice"), budgets: vec!["a".into(), "b".into()] },
        // Its Pods are not drained.
        PdbProblem::Several { pod: named("net"), budgets: vec!["a".into(), "b".into()] },
    ];
    let mut request = request("v1.32.4", &["v1.33.2"]);
    let found = findings(&cluster, &request);
    let told = &of(&found, "pod-disruption-budgets")[0].what;
    assert!(told.contains("more than one"), "{told}");
    assert!(of(&found, "single-replicas")[0].what.starts_with("2 Pods"));
    assert_eq!(of(&found, "unmanaged-pods")[0].severity, Severity::Error);
    request.choices.force_unmanaged = true;
    assert_eq!(of(&findings(&cluster, &request), "unmanaged-pods")[0].severity, Severity::Note);
    request.choices.kubelet_swap = KubeletSwap::InPlace;
    let found = findings(&cluster, &request);
    for check in ["pod-disruption-budgets", "single-replicas", "unmanaged-pods"] {
        assert!(of(&found, check).is_empty(), "{check}");
    }
}

#[test]
fn certificates_that_others_sign_are_let_be_when_told_so() {
    let mut cluster = kubernetes(1, 0, "v1.32.4");
    let not_after = cluster.at_ms / 1000 + 20 * 86_400;
    for authority in [true, false] {
        host(&mut cluster, 0).certificates.push(CertificateSeen {
            path: format!("/etc/kubernetes/pki/{authority}.crt"),
            not_after,
            authority,
            key_is_here: false,
        });
    }
    let mut request = request("v1.32.4", &["v1.33.2"]);
    request.choices.certificate_renewal = Renewal::False;
    let found = findings(&cluster, &request);
    let told = of(&found, "certificates");
    assert_eq!(told.len(), 2);
    assert!(told.iter().all(|one| one.severity == Severity::Warning));
}

#[test]
fn notes_say_what_cannot_be_taken_back() {
    let cluster = kubernetes(1, 1, "v1.33.1");
    let notes = document(&cluster, &request("v1.33.1", &["v1.34.2"])).notes.join("\n");
    for word in [
        "etcd 3.6",
        "--from-snapshot",
        "workers roll back before",
        "snapshot can roll back the control planes",
    ] {
        assert!(notes.contains(word), "{word}: {notes}");
    }
    let notes = document(&cluster, &request("v1.33.1", &["v1.33.2"])).notes.join("\n");
    assert!(!notes.contains("etcd"), "{notes}");
    let mut back = request("v1.33.1", &["v1.32.2"]);
    back.direction = Direction::Back;
    assert!(document(&cluster, &back).notes.join("\n").contains("cannot read them"));
    let mut newer = kubernetes(1, 1, "v1.34.2");
    newer.etcd = Some(EtcdSeen {
        members: vec![MemberSeen { version: Some("3.6.4".into()), ..MemberSeen::default() }],
        ..EtcdSeen::default()
    });
    let mut back = request("v1.34.2", &["v1.33.1"]);
    back.direction = Direction::Back;
    let notes = document(&newer, &back).notes.join("\n");
    assert!(
        notes.contains("etcd stays at 3.6.4") && notes.contains("RBAC are not changed"),
        "{notes}"
    );
    let mut bare = request("3.4.23", &["3.5.0"]);
    bare.runtime = "script";
    let notes = document(&script(3, 0), &bare).notes.join("\n");
    assert!(notes.contains("label rollback") && notes.contains("label backup"), "{notes}");
    label(&mut bare, "backup", "scripts/backup.sh");
    let image = bare.from.images.get_mut("amd64").unwrap();
    image.labels.insert("rollback".into(), "x".into());
    assert!(document(&script(3, 0), &bare).notes.is_empty());
}
