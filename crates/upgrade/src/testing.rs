//! Made-up clusters for unit tests of plans and checks.

use std::collections::BTreeMap;

use crate::document::{Choices, Direction, Document};
use crate::observation::{ApiSeen, HostSeen, NodeAddress, NodeSeen, Observation, PodSeen};
use crate::plan::{Planned, plan};
use crate::request::{Request, Target};
use imgctl_base::{error::Result, image::Digest};
use imgctl_host::agent::protocol::Facts;
use imgctl_model::{image::ImageKind, testing::image};

/// A healthy Kubernetes cluster at one version.
pub fn kubernetes(masters: usize, workers: usize, version: &str) -> Observation {
    let mut observation = script(masters, workers);
    let mut nodes = Vec::new();
    let mut pods = Vec::new();
    for host in &mut observation.hosts {
        let name = format!("node-{}", host.address.replace('.', "-"));
        nodes.push(NodeSeen {
            name: name.clone(),
            ready: true,
            kubelet: version.to_owned(),
            runtime: "containerd://2.1.0".into(),
            architecture: "amd64".into(),
            addresses: vec![NodeAddress {
                kind: "InternalIP".into(),
                address: host.address.clone(),
            }],
            ..NodeSeen::default()
        });
        if host.is_control_plane() {
            pods.push(PodSeen {
                namespace: "kube-system".into(),
                name: format!("kube-apiserver-{name}"),
                node: name.clone(),
                mirror: true,
                images: BTreeMap::from([(
                    "kube-apiserver".to_owned(),
                    format!("registry.k8s.io/kube-apiserver:{version}"),
                )]),
                ..PodSeen::default()
            });
        }
        host.node = Some(name);
    }
    observation.api = Some(ApiSeen {
        version: Some(version.to_owned()),
        kube_system: Some("uid-1".into()),
        nodes,
        pods,
        cluster_configuration: Some(serde_json::json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4", "kubernetesVersion": version,
        })),
        ..ApiSeen::default()
    });
    observation
}

/// Hosts without an API: masters start at 10.0.0.1, workers at 10.1.0.1.
pub fn script(masters: usize, workers: usize) -> Observation {
    let host = |role: &str, network: usize, at: usize| {
        let address = format!("10.{network}.{}.{}", at / 250, at % 250 + 1);
        HostSeen {
            id: address.clone(),
            roles: vec![role.to_owned()],
            facts: Some(Facts {
                hostname: format!("h{network}-{at}"),
                architecture: "amd64".into(),
                machine_id: format!("m{network}-{at}"),
                kernel: "6.1.0-28-amd64".into(),
                free_bytes: 1 << 40,
                writable: true,
                cgroup_v2: true,
                ..Facts::default()
            }),
            address,
            ..HostSeen::default()
        }
    };
    let masters = (0..masters).map(|at| host("master", 0, at));
    let workers = (0..workers).map(|at| host("node", 1, at));
    Observation {
        at_ms: 1_760_000_000_000,
        hosts: masters.chain(workers).collect(),
        ..Observation::default()
    }
}

/// An image for amd64 and arm64.
pub fn target(version: &str) -> Target {
    let of = |architecture: &str| {
        let mut image = image(&format!("kubernetes:{version}"), ImageKind::Rootfs);
        image.digest = Digest::of(format!("{version} {architecture}").as_bytes());
        (architecture.to_owned(), image)
    };
    Target {
        name: format!("kubernetes:{version}"),
        version: version.to_owned(),
        images: BTreeMap::from([of("amd64"), of("arm64")]),
        patches: None,
    }
}

pub fn yes(_: &str, _: &str) -> Result<()> {
    Ok(())
}

/// A request to upgrade from one version to others.
pub fn request(from: &str, to: &[&str]) -> Request<'static> {
    Request {
        cluster: "test",
        runtime: "kubeadm",
        from: target(from),
        targets: to.iter().map(|version| target(version)).collect(),
        choices: Choices::default(),
        direction: Direction::Forward,
        id: None,
        only: Vec::new(),
        to_snapshot: false,
        settings: Vec::new(),
        refused: Vec::new(),
        permits: &yes,
    }
}

/// The document of a plan that must not be empty.
pub fn document(observation: &Observation, request: &Request<'_>) -> Document {
    match plan(observation, request).unwrap() {
        Planned::Upgrade(document) => *document,
        Planned::Nothing(findings) => panic!("nothing to do: {findings:?}"),
    }
}
