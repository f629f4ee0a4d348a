//! Tests of plans and refusals.

use crate::document::{Direction, Document, Finding, HopMode, KubeletSwap, Severity, Strategy};
use crate::observation::{EtcdSeen, MemberSeen, PodSeen};
use crate::plan::{Planned, plan};
use crate::request::Request;
use crate::testing::{document, kubernetes, request, script, target};
use imgctl_base::error::{Error, Kind};
use imgctl_runtime::version::minors_between;

fn errors(document: &Document) -> Vec<&Finding> {
    document.blockers().collect()
}

/// Allows one minor at a time, like kubeadm.
fn by_minor(from: &str, to: &str) -> imgctl_base::error::Result<()> {
    match minors_between(from, to) {
        Some(0 | 1) => Ok(()),
        _ => Err(Error::usage(format!("kubeadm does not go from {from} to {to}"))),
    }
}

#[test]
fn what_is_there_already_is_nothing_to_do() {
    let cluster = kubernetes(1, 2, "v1.34.2");
    let planned = plan(&cluster, &request("v1.34.2", &["v1.34.2"])).unwrap();
    assert!(matches!(planned, Planned::Nothing(_)), "{planned:?}");
    let planned = plan(&script(3, 0), &{
        let mut request = request("3.5.1", &["3.5.1"]);
        request.runtime = "script";
        request
    });
    assert!(matches!(planned.unwrap(), Planned::Nothing(_)));
}

#[test]
fn the_same_version_in_another_image_is_an_upgrade() {
    let cluster = kubernetes(1, 2, "v1.34.2");
    let mut request = request("v1.34.2", &["v1.34.2"]);
    request.permits = &|_, _| panic!("nothing to permit");
    let other = target("v1.34.2-rebuilt").images;
    request.targets[0].images = other;
    let plan = document(&cluster, &request);
    assert_eq!(plan.control_planes.len() + plan.canary.len() + plan.batches.len(), 3);
}

#[test]
fn hosts_that_were_left_behind_are_fetched_with_the_same_image() {
    let mut cluster = kubernetes(1, 3, "v1.34.2");
    cluster.api.as_mut().unwrap().nodes[2].kubelet = "v1.33.4".into();
    let plan = document(&cluster, &request("v1.34.2", &["v1.34.2"]));
    assert!(plan.control_planes.is_empty() && plan.canary.is_empty());
    assert_eq!(plan.batches, [["10.1.0.2"]]);
    assert!(plan.hosts["10.1.0.1"].skipped.as_ref().unwrap().contains("already"));
}

#[test]
fn two_minors_need_the_image_between() {
    let cluster = kubernetes(3, 4, "v1.32.1");
    let mut one = request("v1.32.1", &["v1.34.2"]);
    one.permits = &by_minor;
    let error = plan(&cluster, &one).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
    let hints = error.hints().join("\n");
    assert!(hints.contains("v1.32.1 → v1.33 → v1.34") && hints.contains("--hop auto"), "{hints}");

    let mut two = request("v1.32.1", &["v1.33.5", "v1.34.2"]);
    two.permits = &by_minor;
    assert!(plan(&cluster, &two).unwrap_err().hints().join("").contains("--hop auto"));
    two.choices.hop = HopMode::Auto;
    let plan = document(&cluster, &two);
    let hops: Vec<(&str, bool)> =
        plan.hops.iter().map(|hop| (hop.version.as_str(), hop.workers)).collect();
    assert_eq!(hops, [("v1.33.5", false), ("v1.34.2", true)]);
    assert_eq!(plan.target().version, "v1.34.2");
    assert!(errors(&plan).is_empty(), "{:?}", errors(&plan));
}

#[test]
fn workers_go_between_when_they_could_not_stay_behind() {
    let cluster = kubernetes(1, 2, "v1.24.1");
    let mut request = request("v1.24.1", &["v1.25.5", "v1.26.2", "v1.27.1", "v1.28.0"]);
    request.permits = &by_minor;
    request.choices.hop = HopMode::Auto;
    let plan = document(&cluster, &request);
    let workers: Vec<bool> = plan.hops.iter().map(|hop| hop.workers).collect();
    assert_eq!(workers, [false, true, false, true]);
    request.runtime = "script";
    let plan = document(&script(1, 2), &request);
    assert!(plan.hops.iter().all(|hop| hop.workers));
}

#[test]
fn down_is_no_upgrade_and_up_is_no_rollback() {
    let cluster = kubernetes(1, 1, "v1.34.2");
    for older in ["v1.33.9", "v1.34.1"] {
        let error = plan(&cluster, &request("v1.34.2", &[older])).unwrap_err();
        assert!(error.hints().join("").contains("imgctl rollback"), "{error}");
    }
    let mut up = request("v1.34.2", &["v1.34.3"]);
    up.direction = Direction::Back;
    let error = plan(&cluster, &up).unwrap_err();
    assert!(error.hints().join("").contains("imgctl upgrade"), "{error}");
    let mut no_version = request("v1.34.2", &["latest"]);
    no_version.targets[0].version = "latest".into();
    assert!(plan(&cluster, &no_version).unwrap_err().to_string().contains("not a version"));
}

#[test]
fn a_kubelet_that_is_newer_than_an_api_server_is_named() {
    let mut cluster = kubernetes(3, 2, "v1.33.4");
    cluster.api.as_mut().unwrap().nodes[4].kubelet = "v1.34.2".into();
    let plan = document(&cluster, &request("v1.33.4", &["v1.34.2"]));
    let found = errors(&plan);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].check, "kubelet-newer");
    assert_eq!(found[0].host.as_deref(), Some("10.1.0.2"));

    // A control plane with a manually installed kubelet package.
    let mut cluster = kubernetes(3, 2, "v1.33.4");
    cluster.api.as_mut().unwrap().nodes[1].kubelet = "v1.34.2".into();
    let plan = document(&cluster, &request("v1.33.4", &["v1.34.2"]));
    assert_eq!(errors(&plan)[0].host.as_deref(), Some("10.0.0.2"));
}

#[test]
fn kubelets_too_far_behind_are_named() {
    for (kubelet, from, to, is_error) in [
        ("v1.22.3", "v1.24.1", "v1.25.0", true),
        ("v1.23.3", "v1.24.1", "v1.25.0", false),
        ("v1.25.3", "v1.27.1", "v1.28.0", false),
        ("v1.25.3", "v1.28.1", "v1.29.0", true),
    ] {
        let mut cluster = kubernetes(1, 2, from);
        cluster.api.as_mut().unwrap().nodes[2].kubelet = kubelet.into();
        let plan = document(&cluster, &request(from, &[to]));
        let skew: Vec<&Finding> =
            plan.findings.iter().filter(|one| one.check == "kubelet-skew").collect();
        assert_eq!(!skew.is_empty(), is_error, "{kubelet} {from} {to}");
        if let Some(one) = skew.first() {
            assert_eq!(one.host.as_deref(), Some("10.1.0.2"));
            assert!(one.what.contains(kubelet), "{}", one.what);
        }
    }
}

#[test]
fn an_architecture_that_the_image_lacks_is_refused() {
    let mut cluster = kubernetes(1, 3, "v1.33.4");
    for at in [2, 3] {
        cluster.hosts[at].facts.as_mut().unwrap().architecture = "arm64".into();
    }
    let mut request = request("v1.33.4", &["v1.34.2"]);
    document(&cluster, &request);
    request.targets[0].images.remove("arm64");
    let error = plan(&cluster, &request).unwrap_err().to_string();
    assert!(error.contains("no arm64") && error.contains("10.1.0.2, 10.1.0.3"), "{error}");
}

#[test]
fn control_planes_have_an_order() {
    let mut cluster = kubernetes(4, 0, "v1.33.4");
    let member = |at: usize| MemberSeen {
        name: cluster.hosts[at].node.clone().unwrap(),
        endpoint: format!("https://{}:2379", cluster.hosts[at].address),
        version: Some("3.5.26".into()),
        leader: at == 1,
        ..MemberSeen::default()
    };
    cluster.etcd = Some(EtcdSeen { members: (0..4).map(member).collect(), ..EtcdSeen::default() });
    let forward = request("v1.33.4", &["v1.34.2"]);
    let order = document(&cluster, &forward).control_planes;
    assert_eq!(order, ["10.0.0.1", "10.0.0.3", "10.0.0.4", "10.0.0.2"]);
    let mut back = request("v1.33.4", &["v1.33.1"]);
    back.direction = Direction::Back;
    let order = document(&cluster, &back).control_planes;
    assert_eq!(order, ["10.0.0.2", "10.0.0.4", "10.0.0.3", "10.0.0.1"]);
}

#[test]
fn batches_come_from_the_choices() {
    for (workers, batch, budget, no_canary, sizes) in [
        (3, "10%", "1", true, &[1, 1, 1][..]),
        (0, "10%", "1", true, &[]),
        (5, "100%", "100%", true, &[5]),
        (5, "2", "3", true, &[2, 2, 1]),
        (5, "100%", "100%", false, &[4]),
        (1, "1", "1", false, &[1]),
    ] {
        let mut request = request("v1.33.4", &["v1.34.2"]);
        request.choices.batch = batch.into();
        request.choices.max_unavailable = budget.into();
        request.choices.no_canary = no_canary;
        let plan = document(&kubernetes(1, workers, "v1.33.4"), &request);
        let of: Vec<usize> = plan.batches.iter().map(Vec::len).collect();
        assert_eq!(of, sizes, "{workers} {batch} {budget}");
    }
    let mut request = request("v1.33.4", &["v1.34.2"]);
    request.choices.batch = "none".into();
    assert_eq!(plan(&kubernetes(1, 1, "v1.33.4"), &request).unwrap_err().kind(), Kind::Usage);
}

#[test]
fn ill_workers_use_up_the_budget_and_go_last() {
    let mut cluster = kubernetes(1, 5, "v1.33.4");
    cluster.api.as_mut().unwrap().nodes[1].ready = false;
    let mut request = request("v1.33.4", &["v1.34.2"]);
    request.choices.no_canary = true;
    request.choices.batch = "3".into();
    request.choices.max_unavailable = "3".into();
    let plan = document(&cluster, &request);
    let of: Vec<usize> = plan.batches.iter().map(Vec::len).collect();
    assert_eq!(of, [2, 2, 1]);
    assert_eq!(plan.batches[2], ["10.1.0.1"]);
    assert!(errors(&plan).is_empty());
    request.choices.max_unavailable = "1".into();
    let plan = document(&cluster, &request);
    assert_eq!(errors(&plan)[0].check, "unavailable-budget");
    let what = &errors(&plan)[0].what;
    assert!(what.contains("10.1.0.1 (Node "), "{what}");
    request.choices.skip_checks = vec!["unavailable-budget".into()];
    assert!(errors(&document(&cluster, &request)).is_empty());
}

#[test]
fn the_canary_is_the_worker_whose_loss_hurts_least() {
    let mut cluster = kubernetes(1, 3, "v1.33.4");
    let pod = |at: usize, owner: &str| PodSeen {
        namespace: "default".into(),
        node: cluster.hosts[at].node.clone().unwrap(),
        owner: owner.into(),
        ..PodSeen::default()
    };
    let pods = [
        pod(1, "ReplicaSet/db"),
        pod(2, "ReplicaSet/web"),
        pod(3, "ReplicaSet/web"),
        pod(2, "StatefulSet/one"),
        pod(3, "DaemonSet/net"),
    ];
    cluster.api.as_mut().unwrap().pods.extend(pods);
    let mut request = request("v1.33.4", &["v1.34.2"]);
    assert_eq!(document(&cluster, &request).canary, ["10.1.0.3"]);
    request.choices.canary = vec!["2".into()];
    assert_eq!(document(&cluster, &request).canary, ["10.1.0.3", "10.1.0.1"]);
    request.choices.canary = vec!["NODE-10-1-0-2".into()];
    let plan_two = document(&cluster, &request);
    assert_eq!(plan_two.canary, ["10.1.0.2"]);
    assert_eq!(plan_two.batches.concat(), ["10.1.0.1", "10.1.0.3"]);
    for word in ["10.0.0.1", "elsewhere"] {
        request.choices.canary = vec![word.into()];
        assert_eq!(plan(&cluster, &request).unwrap_err().kind(), Kind::Usage, "{word}");
    }
}

#[test]
fn workers_that_do_not_answer_are_left_out_and_control_planes_may_not_be() {
    let mut cluster = kubernetes(3, 3, "v1.33.4");
    cluster.hosts[4].unreachable = Some("no route to host".into());
    let request = request("v1.33.4", &["v1.34.2"]);
    let plan_one = document(&cluster, &request);
    assert!(errors(&plan_one).is_empty());
    assert!(plan_one.hosts["10.1.0.2"].skipped.is_some());
    assert!(!plan_one.batches.concat().contains(&"10.1.0.2".to_owned()));
    let told = plan_one.findings.iter().find(|one| one.check == "worker-unreachable").unwrap();
    assert_eq!(told.severity, Severity::Warning);
    cluster.hosts[1].unreachable = Some("no route to host".into());
    assert_eq!(errors(&document(&cluster, &request))[0].check, "control-plane-unreachable");
    for host in &mut cluster.hosts {
        host.unreachable = Some("no route to host".into());
    }
    assert_eq!(plan(&cluster, &request).unwrap_err().kind(), Kind::Network);
}

#[test]
fn a_way_back_has_its_own_rules() {
    let cluster = kubernetes(3, 3, "v1.34.2");
    let mut request = request("v1.34.2", &["v1.33.4"]);
    request.direction = Direction::Back;
    let whole = document(&cluster, &request);
    assert!(errors(&whole).is_empty(), "{:?}", errors(&whole));
    assert!(whole.canary.is_empty());
    // Upgrading only control planes would leave workers newer than their API servers.
    request.only = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(str::to_owned).into();
    let found = document(&cluster, &request);
    assert_eq!(errors(&found).len(), 3);
    assert!(errors(&found).iter().all(|one| one.check == "kubelet-newer"));
    request.only = vec!["10.1.0.2".into()];
    let one = document(&cluster, &request);
    assert!(one.control_planes.is_empty() && errors(&one).is_empty());
    assert_eq!(one.batches, [["10.1.0.2"]]);
    request.only = vec!["elsewhere".into()];
    assert_eq!(plan(&cluster, &request).unwrap_err().kind(), Kind::Usage);
}

#[test]
fn options_that_mean_nothing_are_refused() {
    let cluster = kubernetes(1, 1, "v1.33.4");
    type Change = fn(&mut Request<'static>);
    let cases: [(Change, &str); 7] = [
        (|it| it.targets.clear(), "no target image"),
        (|it| it.choices.skip_checks = vec!["luck".into()], "`luck`"),
        (|it| it.choices.skip_checks = vec!["kubelet-newer".into()], "cannot be skipped"),
        (|it| it.id = Some("../x".into()), "not a valid upgrade name"),
        (|it| it.choices.strategy = Strategy::Replace, "needs replacement hosts"),
        (|it| it.choices.spares = vec!["10.9.9.9".into()], "no host is replaced"),
        (
            |it| {
                it.choices.strategy = Strategy::Replace;
                it.choices.spares = vec!["10.1.0.1".into()];
            },
            "already a host of cluster test",
        ),
    ];
    for (change, expected) in cases {
        let mut request = request("v1.33.4", &["v1.34.2"]);
        change(&mut request);
        let error = plan(&cluster, &request).unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        assert_eq!(error.kind(), Kind::Usage);
    }
}

#[test]
fn ids_name_what_was_decided() {
    let cluster = kubernetes(1, 2, "v1.33.4+k3s1");
    let mut request = request("v1.33.4+k3s1", &["v1.34.2+k3s1"]);
    request.runtime = "k3s";
    let one = document(&cluster, &request);
    assert!(one.id.starts_with("v1.34.2-k3s1-") && one.id.len() == 21, "{}", one.id);
    assert_eq!(one, document(&cluster, &request));
    let again = Document::parse(one.to_json().unwrap().as_bytes(), "plan").unwrap();
    assert_eq!(one, again);
    request.choices.kubelet_swap = KubeletSwap::InPlace;
    assert_ne!(one.id, document(&cluster, &request).id);
    request.id = Some("summer".into());
    assert_eq!(document(&cluster, &request).id, "summer");
}

#[test]
fn five_hundred_hosts_are_planned_at_once() {
    let mut cluster = kubernetes(5, 495, "v1.33.4");
    let nodes: Vec<String> = cluster.hosts.iter().filter_map(|host| host.node.clone()).collect();
    let pods = (0..30_000).map(|at| PodSeen {
        namespace: format!("ns{}", at % 40),
        name: format!("pod-{at}"),
        node: nodes[at % nodes.len()].clone(),
        owner: format!("ReplicaSet/web-{}", at / 3),
        ..PodSeen::default()
    });
    cluster.api.as_mut().unwrap().pods.extend(pods);
    let mut request = request("v1.32.4", &["v1.33.4", "v1.34.2"]);
    request.choices.hop = HopMode::Auto;
    request.choices.batch = "10%".into();
    request.choices.max_unavailable = "10%".into();
    let begin = std::time::Instant::now();
    let plan = document(&cluster, &request);
    let took = begin.elapsed();
    assert_eq!(plan.batches.concat().len() + plan.canary.len(), 495);
    assert!(took.as_secs() < 10, "{took:?}");
}

#[test]
fn workers_alone_do_not_take_the_api_away() {
    let mut cluster = kubernetes(1, 2, "v1.33.4");
    cluster.etcd = Some(EtcdSeen {
        members: vec![MemberSeen {
            name: cluster.hosts[0].node.clone().unwrap(),
            version: Some("3.5.24".into()),
            ..MemberSeen::default()
        }],
        ..EtcdSeen::default()
    });
    let mut request = request("v1.33.4", &["v1.34.2"]);
    let is_told = |request: &Request<'_>| {
        let found = document(&cluster, request).findings;
        found.iter().any(|one| one.check == "single-control-plane")
    };
    assert!(is_told(&request));
    request.only = vec![cluster.hosts[1].id.clone()];
    assert!(!is_told(&request));
}

#[test]
fn any_file_is_a_plan_or_refused() {
    let valid = document(&kubernetes(1, 1, "v1.33.4"), &request("v1.33.4", &["v1.34.1"]));
    let valid = valid.to_json().unwrap();
    bolero::check!().for_each(|input: &[u8]| {
        for text in [input.to_vec(), imgctl_base::testing::damaged(valid.as_bytes(), input)] {
            let Ok(read) = Document::parse(&text, "p") else { continue };
            let again = Document::parse(read.to_json().unwrap().as_bytes(), "p").unwrap();
            assert_eq!(again.digest().unwrap(), read.digest().unwrap());
        }
    });
}
