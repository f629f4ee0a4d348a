//! A large cluster is planned within seconds, with few API requests.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use crate::document::Choices;
use crate::observe::{Question, observe};
use crate::testing::{document, request};
use imgctl_kube::{restart::RunningContainer, testing::stand_in::StandIn};
use imgctl_workflow::pipeline::testing::{
    Behaviour, SimulatedPool, Simulation, hosts, sample_context,
};

const HOSTS: usize = 500;
const PODS: usize = 10;

fn node(number: usize, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": format!("n{number}")},
        "spec": {},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.33.4", "architecture": "amd64",
                "containerRuntimeVersion": "containerd://2.1.0", "machineID": format!("m{number}")}}})
}

fn pod(node: usize, number: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("web-{node}-{number}"), "namespace": "default",
            "uid": format!("uid-{node}-{number}"), "labels": {"app": format!("web-{number}")},
            "ownerReferences": [{"kind": "ReplicaSet", "name": format!("web-{number}"), "controller": true}]},
        "spec": {"nodeName": format!("n{node}"), "containers": [{"name": "web", "image": "web:1",
            "resources": {"limits": {"cpu": "100m"}}, "env": [{"name": "A", "value": "b"}]}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
}

#[test]
fn five_hundred_nodes_are_planned_in_seconds() {
    let directory = tempfile::tempdir().unwrap();
    let context = sample_context("test", hosts(3, HOSTS - 3), directory.path());
    let api = StandIn::new();
    for (number, host) in context.hosts.iter().enumerate() {
        api.add(node(number, host.ip()));
        api.add_all((0..PODS).map(|pod_number| pod(number, pod_number)));
    }
    for number in 0..PODS {
        api.add(json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": format!("web-{number}"), "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": format!("web-{number}")}}},
            "status": {"disruptionsAllowed": 1}}));
    }
    let pool = SimulatedPool(Simulation::new(Behaviour::default()));
    let began = computed();
    let mut seen = observe(&Question {
        context: &context,
        runtime: "k3s",
        pool: &pool,
        parallel: 32,
        api: Some(Ok(&api)),
        containers: true,
        images: BTreeMap::new(),
        key: "look",
    });
    assert_eq!(seen.hosts.len(), HOSTS);
    for (number, host) in seen.hosts.iter_mut().enumerate() {
        assert_eq!(host.node.as_deref(), Some(&*format!("n{number}")));
        host.containers = (0..PODS).map(|pod| running(number, pod)).collect();
    }
    let mut wanted = request("v1.33.4", &["v1.34.2"]);
    wanted.runtime = "k3s";
    wanted.choices = Choices {
        batch: "10%".to_owned(),
        max_unavailable: "10%".to_owned(),
        ..Choices::default()
    };
    let plan = document(&seen, &wanted);
    let took = computed() - began;
    assert_eq!(plan.batches.len(), 11);
    assert_eq!(plan.restarts.len(), HOSTS);
    assert!(took < Duration::from_secs(30), "{took:?}");
    let requests = api.requests();
    let lists = requests
        .iter()
        .filter(|request| request.verb == "list" || request.path.contains("?limit="))
        .count();
    assert!(lists <= 20, "{lists} lists: {requests:?}");
    assert!(requests.len() <= 40, "{} requests", requests.len());
    assert!(api.writes().is_empty());
}

/// CPU time of this process: independent of the machine's load.
fn computed() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let part = |number: i64| u64::try_from(number).unwrap();
    Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
}

fn running(node: usize, pod: usize) -> RunningContainer {
    RunningContainer {
        namespace: "default".into(),
        pod: format!("web-{node}-{pod}"),
        uid: format!("uid-{node}-{pod}"),
        container: "web".into(),
        id: format!("id-{node}-{pod}"),
        running: true,
        hash_annotation: Some("1".into()),
        hash_without_resources: None,
        is_static: false,
    }
}
