//! Predicts the behaviour of the containers of each host from the observation and the plan.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::document::{Document, KeepContainers, KubeletSwap};
use crate::observation::{HostSeen, Observation};
use crate::request::{Request, SCRIPT};
use crate::{kubeadm_restarts, settings};
use imgctl_kube::hash::{Minor, Pod, pods};
use imgctl_kube::restart::{BothWays, KubeletChange, Prediction, RunningContainer, predict_both};
use imgctl_runtime::version::minor;

/// Releases whose hashes the image's kubelet accepts in addition to its own: `1.12,1.15`.
const COMPATIBLE: &str = "imgctl.io/kubelet-hash-compat";

/// The runtime that updates add-ons and static Pods with each release.
const KUBEADM: &str = "kubeadm";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HostRestarts {
    /// Containers that stay on the host while its kubelet is swapped, for the upgrade and the
    /// rollback.
    #[serde(flatten)]
    pub ways: BothWays,
    /// Number of containers that a drain moves to other hosts first.
    pub moved: usize,
}

/// Predicts restarts for each host whose containers are known.
pub(crate) fn foretell(
    document: &Document,
    observation: &Observation,
    request: &Request<'_>,
) -> BTreeMap<String, HostRestarts> {
    let Some(api) = observation.api.as_ref().filter(|_| document.runtime != SCRIPT) else {
        return BTreeMap::new();
    };
    let mut by_node: BTreeMap<&str, Vec<Pod>> = BTreeMap::new();
    let places: BTreeMap<(&str, &str), &str> = api
        .pods
        .iter()
        .map(|pod| ((pod.namespace.as_str(), pod.name.as_str()), pod.node.as_str()))
        .collect();
    for page in &api.raw_pods {
        // An unreadable page is skipped; its containers count as unknown.
        for pod in pods(page.as_bytes()).unwrap_or_default() {
            if let Some(node) = places.get(&(pod.namespace.as_str(), pod.name.as_str())) {
                by_node.entry(node).or_default().push(pod);
            }
        }
    }
    let hosts = observation.hosts.iter().filter(|host| {
        let before = document.hosts.get(&host.id);
        before.is_some_and(|before| before.skipped.is_none()) && !host.containers.is_empty()
    });
    hosts
        .filter_map(|host| {
            let node = host.node.as_deref().unwrap_or_default();
            let pods = by_node.get(node).map_or(&[][..], Vec::as_slice);
            let one = of_host(document, observation, request, host, pods)?;
            Some((host.id.clone(), one))
        })
        .collect()
}

fn of_host(
    document: &Document,
    observation: &Observation,
    request: &Request<'_>,
    host: &HostSeen,
    pods: &[Pod],
) -> Option<HostRestarts> {
    let number = |text: &str| Some(Minor(u32::try_from(minor(text)?).ok()?));
    let target = number(&document.target().version)?;
    let mut change = KubeletChange::new(number(&observation.version_of(host)?)?, target);
    let server = observation.hosts.iter().find_map(|one| observation.server_version(one));
    change.server = server.as_ref().and_then(|version| Some((number(version)?, target)));
    let declared = request.targets.last().and_then(|target| target.label(COMPATIBLE));
    change.compatible =
        declared.unwrap_or_default().split(',').filter_map(|word| number(word.trim())).collect();
    let (gone, staying) = match document.choices.kubelet_swap {
        KubeletSwap::InPlace => (Vec::new(), host.containers.clone()),
        KubeletSwap::Drain => {
            let all = host.containers.iter().cloned();
            all.partition::<Vec<_>, _>(|container| is_drained(container, pods))
        }
    };
    let mut ways = predict_both(&staying, pods, &change);
    if document.is_reconfiguration() {
        settings::correct(&mut ways, document, host);
    } else if document.runtime == KUBEADM {
        if document.choices.keep_containers == KeepContainers::Rehash {
            ways.rehash(&staying, pods, &change);
        }
        kubeadm_restarts::correct(&mut ways, document, observation, request, host);
    }
    Some(HostRestarts { ways, moved: gone.iter().filter(|container| container.running).count() })
}

/// Static Pods and those of DaemonSets are not drained. A Pod that the API does not list might not
/// be drained either.
fn is_drained(container: &RunningContainer, pods: &[Pod]) -> bool {
    if container.is_static {
        return false;
    }
    let pod = pods.iter().find(|pod| pod.uid == container.uid);
    pod.is_some_and(|pod| {
        let owner = pod.owner.as_deref().unwrap_or_default();
        pod.mirror_of.is_none() && !owner.starts_with("DaemonSet/")
    })
}

/// Returns the document's prediction for a host; `None` if it has another format.
pub fn forward(document: &Document, host: &str) -> Option<Prediction> {
    let value = document.restarts.get(host)?;
    let kept: HostRestarts = serde_json::from_value(value.clone()).ok()?;
    Some(kept.ways.forward)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::document::{Finding, Severity};
    use crate::observation::PodSeen;
    use crate::testing::{document, kubernetes, request};
    use imgctl_kube::hash::container_hash;

    /// A worker with one Pod of a Deployment and one of a DaemonSet.
    fn cluster(version: &str) -> Observation {
        let mut cluster = kubernetes(1, 1, version);
        let node = cluster.hosts[1].node.clone().unwrap();
        let container = json!({"name": "main", "image": "web:1", "resources": {}});
        let number = Minor(u32::try_from(minor(version).unwrap()).unwrap());
        let hash = container_hash(container.as_object().unwrap(), number).unwrap();
        let mut items = Vec::new();
        for (name, owner) in [("web", "ReplicaSet"), ("net", "DaemonSet")] {
            let uid = format!("00000000-0000-4000-8000-{name:0>12}");
            items.push(json!({
                "metadata": {"namespace": "default", "name": name, "uid": uid,
                    "ownerReferences": [{"kind": owner, "name": name, "controller": true}]},
                "spec": {"nodeName": node, "containers": [container]},
            }));
            cluster.api.as_mut().unwrap().pods.push(PodSeen {
                namespace: "default".into(),
                name: name.into(),
                node: node.clone(),
                owner: format!("{owner}/{name}"),
                ..PodSeen::default()
            });
            cluster.hosts[1].containers.push(RunningContainer {
                namespace: "default".into(),
                pod: name.into(),
                uid,
                container: "main".into(),
                id: format!("id-{name}"),
                running: true,
                hash_annotation: Some(hash.to_string()),
                hash_without_resources: None,
                is_static: false,
            });
        }
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items});
        cluster.api.as_mut().unwrap().raw_pods = vec![list.to_string()];
        cluster
    }

    fn restarts(document: &Document) -> Vec<&Finding> {
        let all = document.findings.iter();
        all.filter(|one| one.check == "restarts").collect()
    }

    #[test]
    fn the_boundary_restarts_what_is_not_drained() {
        let mut request = request("v1.30.4", &["v1.31.2"]);
        let plan = document(&cluster("v1.30.4"), &request);
        assert_eq!(plan.restarts["10.1.0.1"]["moved"], 1);
        let told = forward(&plan, "10.1.0.1").unwrap();
        assert_eq!((told.counts.restart, told.counts.keep), (1, 0));
        request.choices.kubelet_swap = KubeletSwap::InPlace;
        let plan = document(&cluster("v1.30.4"), &request);
        let told = forward(&plan, "10.1.0.1").unwrap();
        assert_eq!((told.counts.restart, told.counts.keep), (2, 0));
        let kept = HostRestarts::deserialize(&plan.restarts["10.1.0.1"]).unwrap();
        assert_eq!((kept.moved, kept.ways.back.counts.restart), (0, 2));
        assert!(forward(&plan, "10.0.0.1").is_none());
    }

    #[test]
    fn records_are_changed_only_where_the_operator_wants_it() {
        let mut request = request("v1.30.4", &["v1.31.2"]);
        request.choices.kubelet_swap = KubeletSwap::InPlace;
        request.choices.max_restarts = Some(0);
        request.choices.keep_containers = KeepContainers::Rehash;
        let mut seen = cluster("v1.30.4");
        // The control plane runs nothing.
        seen.hosts[0].containers = seen.hosts[1].containers.clone();
        seen.hosts[0].containers.iter_mut().for_each(|one| one.running = false);
        for node in &mut seen.api.as_mut().unwrap().nodes {
            node.runtime = "containerd://1.7.27".into();
        }
        let plan = document(&seen, &request);
        let told = forward(&plan, "10.1.0.1").unwrap();
        assert_eq!((told.counts.keep, told.counts.disturbed()), (2, 0));
        assert_eq!(told.rehashed().count(), 2);
        assert!(restarts(&plan).is_empty());
        let named = |text: &str| plan.notes.iter().any(|note| note.contains(text));
        assert!(
            named("experimental") && named("default/web main keeps running"),
            "{:?}",
            plan.notes
        );
        // One whose definition is another one restarts, and the limit holds.
        let pages = &mut seen.api.as_mut().unwrap().raw_pods;
        pages[0] = pages[0].replacen("web:1", "web:2", 1);
        let plan = document(&seen, &request);
        let told = forward(&plan, "10.1.0.1").unwrap();
        assert_eq!((told.counts.keep, told.counts.restart), (1, 1));
        assert_eq!(restarts(&plan)[0].severity, Severity::Error);
        // A runtime whose records are not known.
        for (runtime, word) in
            [("containerd://1.5.18", "1.5.18"), ("cri-o://1.30.0", "containerd alone")]
        {
            seen.api.as_mut().unwrap().nodes[1].runtime = runtime.into();
            let plan = document(&seen, &request);
            let mut found = plan.findings.iter();
            let found = found.find(|one| one.check == "container-runtime").unwrap();
            assert!(found.what.contains(word) && found.severity == Severity::Error, "{found:?}");
        }
        request.runtime = "k3s";
        let error = crate::plan::plan(&seen, &request).unwrap_err().to_string();
        assert!(error.contains("clusters of kubeadm"), "{error}");
        let mut request = crate::testing::request("v1.30.4", &["v1.31.2", "v1.32.1"]);
        request.choices.keep_containers = KeepContainers::Rehash;
        let error = crate::plan::plan(&seen, &request).unwrap_err().to_string();
        assert!(error.contains("one image at a time"), "{error}");
    }

    #[test]
    fn what_kubeadm_brings_anew_is_no_matter_of_hashes() {
        let request = request("v1.34.1", &["v1.34.9"]);
        let mut seen = cluster("v1.34.1");
        for pod in &mut seen.api.as_mut().unwrap().pods {
            pod.namespace = "kube-system".into();
        }
        let pages = &mut seen.api.as_mut().unwrap().raw_pods;
        pages[0] = pages[0].replace("\"default\"", "\"kube-system\"").replace(
            "\"kind\":\"DaemonSet\",\"name\":\"net\"",
            "\"kind\":\"DaemonSet\",\"name\":\"kube-proxy\"",
        );
        let mut still = seen.hosts[1].containers[1].clone();
        for container in &mut seen.hosts[1].containers {
            container.namespace = "kube-system".into();
        }
        still.is_static = true;
        still.namespace = "kube-system".into();
        still.container = "kube-scheduler".into();
        seen.hosts[1].containers.push(still);
        let plan = document(&seen, &request);
        let told = HostRestarts::deserialize(&plan.restarts["10.1.0.1"]).unwrap();
        let counts = told.ways.forward.counts;
        assert_eq!((counts.recreate, counts.disturbed()), (2, 2), "{told:?}");
        // kube-proxy stays as the upgrade left it.
        assert_eq!(told.ways.back.counts.recreate, 1, "{told:?}");
    }

    /// Regression, from an in-place upgrade from 1.33 to 1.34: CoreDNS was predicted to stay but
    /// was rolled out.
    #[test]
    fn coredns_may_be_rolled_out_with_another_minor() {
        let of = |from: &str, to: &str| {
            let mut request = request(from, &[to]);
            request.choices.kubelet_swap = KubeletSwap::InPlace;
            let mut seen = cluster(from);
            for pod in &mut seen.api.as_mut().unwrap().pods {
                pod.namespace = "kube-system".into();
            }
            for container in &mut seen.hosts[1].containers {
                container.namespace = "kube-system".into();
            }
            let pages = &mut seen.api.as_mut().unwrap().raw_pods;
            pages[0] = pages[0].replace("\"default\"", "\"kube-system\"").replace(
                "\"kind\":\"ReplicaSet\",\"name\":\"web\"",
                "\"kind\":\"ReplicaSet\",\"name\":\"coredns-7d\"",
            );
            let plan = document(&seen, &request);
            let told = HostRestarts::deserialize(&plan.restarts["10.1.0.1"]).unwrap();
            (told.ways.forward.counts.keep, told.ways.forward.counts.unknown)
        };
        assert_eq!(of("v1.33.1", "v1.34.9"), (1, 1));
        assert_eq!(of("v1.34.1", "v1.34.9"), (2, 0));
    }

    #[test]
    fn limits_on_restarts_are_kept() {
        let mut request = request("v1.30.4", &["v1.31.2"]);
        request.choices.kubelet_swap = KubeletSwap::InPlace;
        request.choices.max_restarts = Some(0);
        let mut seen = cluster("v1.30.4");
        seen.hosts[0].containers = seen.hosts[1].containers.clone();
        seen.hosts[0].containers.iter_mut().for_each(|one| one.running = false);
        let plan = document(&seen, &request);
        assert_eq!(restarts(&plan)[0].severity, Severity::Error);
        assert!(restarts(&plan)[0].what.starts_with("2 containers"));
        request.choices.max_restarts = Some(2);
        assert!(restarts(&document(&seen, &request)).is_empty());
        // A host without a prediction exceeds any limit.
        seen.hosts[0].containers.clear();
        let plan = document(&seen, &request);
        assert_eq!(restarts(&plan)[0].host.as_deref(), Some("10.0.0.1"));
        // For a host that failed to list its containers, the finding gives the reason, with or
        // without a limit.
        seen.hosts[0].containers_problem = Some("crictl: no such socket".into());
        let plan = document(&seen, &request);
        assert_eq!(restarts(&plan)[0].severity, Severity::Error);
        assert!(restarts(&plan)[0].what.contains("no such socket"));
        request.choices.max_restarts = None;
        let plan = document(&seen, &request);
        assert_eq!(restarts(&plan)[0].severity, Severity::Warning);
        assert!(restarts(&plan)[0].what.contains("no such socket"));
        assert_eq!(restarts(&plan)[0].host.as_deref(), Some("10.0.0.1"));
    }
}
