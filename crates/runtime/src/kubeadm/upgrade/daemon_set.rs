//! Rollout of a DaemonSet while Nodes are unreachable.
//!
//! The DaemonSet controller counts every unavailable Pod against `maxUnavailable`, whatever its
//! Node. The Pod of an unreachable Node stays unavailable until the Node is back, so with the usual
//! `maxUnavailable: 1` one such Node prevents the replacement of any other Pod
//! (pkg/controller/daemon/update.go). In that case this module replaces Pods on Ready Nodes, within
//! the same limit.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{action::Site, kubectl::Kubectl};
use imgctl_base::error::Result;

/// Annotation with the template's generation; each Pod carries the generation that it was created
/// from.
const GENERATION: &str = "deprecated.daemonset.template.generation";
const READY_NODES: &str = r#"jsonpath={range .items[*]}{.metadata.name}|{.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}"#;
const PODS: &str = r#"jsonpath={range .items[*]}{.metadata.name}|{.spec.nodeName}|{.metadata.labels.pod-template-generation}|{.metadata.deletionTimestamp}|{.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}"#;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pod {
    name: String,
    node: String,
    generation: String,
    is_leaving: bool,
    is_ready: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Rolls {
    /// All Ready Nodes have a new Pod, and it is Ready.
    Out,
    /// The rollout continues by itself; the text names what it waits for.
    Waits(String),
    /// Unreachable Nodes block the rollout; this Pod is the next to replace.
    Stuck { pod: String, why: String },
}

/// Returns why `object` is not rolled out on all Ready Nodes. Replaces a Pod if the controller
/// cannot.
pub(super) fn complaint(
    site: &Site<'_>,
    kubectl: &Kubectl<'_>,
    object: &Value,
) -> Result<Option<String>> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = object["metadata"]["namespace"].as_str();
    let namespace = namespace.unwrap_or("kube-system");
    let labels = object["spec"]["selector"]["matchLabels"].as_object();
    let selector: Vec<String> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)))
        .collect();
    let selector = selector.join(",");
    let nodes = kubectl.run(&["get", "nodes", "-o", READY_NODES])?;
    let pods = kubectl.run(&["get", "pods", "-n", namespace, "-l", &selector, "-o", PODS])?;
    let nodes: BTreeMap<&str, bool> = nodes.lines().filter_map(read_node).collect();
    let pods: Vec<Pod> = pods.lines().filter_map(read_pod).collect();
    match rolls(object, &nodes, &pods) {
        Rolls::Out => Ok(None),
        Rolls::Waits(why) => Ok(Some(format!("{name}: {why}"))),
        Rolls::Stuck { pod, why } => {
            site.say(&format!("{name}: {why}: Pod {pod} is deleted to be recreated"));
            kubectl.run(&["delete", "pod", &pod, "-n", namespace, "--wait=false"])?;
            Ok(Some(format!("{name}: {why}; Pod {pod} is being replaced")))
        }
    }
}

fn read_node(line: &str) -> Option<(&str, bool)> {
    let (name, ready) = line.split_once('|')?;
    Some((name, ready == "True"))
}

fn read_pod(line: &str) -> Option<Pod> {
    let fields: Vec<&str> = line.split('|').collect();
    let [name, node, generation, leaves, ready] = fields[..] else {
        return None;
    };
    Some(Pod {
        name: name.to_owned(),
        node: node.to_owned(),
        generation: generation.to_owned(),
        is_leaving: !leaves.is_empty(),
        is_ready: ready == "True",
    })
}

fn rolls(object: &Value, nodes: &BTreeMap<&str, bool>, pods: &[Pod]) -> Rolls {
    let generation = object["metadata"]["annotations"][GENERATION].as_str();
    let is_new = |pod: &Pod| generation.is_none_or(|generation| generation == pod.generation);
    let is_away = |node: &str| nodes.get(node) == Some(&false);
    let mut on: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod.node.is_empty()) {
        on.entry(&pod.node).or_default().push(pod);
    }
    let away: Vec<&str> = on.keys().filter(|node| is_away(node)).copied().collect();
    let well = |pods: &[&Pod]| {
        let mut staying = pods.iter().filter(|pod| !pod.is_leaving);
        staying.any(|pod| is_new(pod) && pod.is_ready)
    };
    // Old Pods that are Ready: the next ones to replace.
    let mut old: Vec<&Pod> = Vec::new();
    let mut moving: BTreeSet<String> = BTreeSet::new();
    let mut new = 0;
    for (node, pods) in on.iter().filter(|(node, _)| !is_away(node)) {
        match &pods[..] {
            pods if well(pods) => new += 1,
            [pod] if pod.is_ready && !pod.is_leaving => old.push(pod),
            _ => {
                moving.insert(format!("its Pod on Node {node} is not Ready"));
            }
        }
    }
    let desired = number(&object["status"]["desiredNumberScheduled"]);
    let without = nodes.iter().filter(|(node, ready)| !**ready && !on.contains_key(*node)).count();
    if desired > on.len() + without {
        moving.insert(format!("Pods to be created: {}", desired - on.len() - without));
    }
    if old.is_empty() && moving.is_empty() {
        return Rolls::Out;
    }
    let total = on.len() - away.len();
    let mut why = format!("{new} of {total} Pods on Ready Nodes are new");
    let strategy = &object["spec"]["updateStrategy"];
    let limit = most_unavailable(strategy, desired);
    if strategy["type"] == "OnDelete" {
        why.push_str("; its updateStrategy is OnDelete: delete its old Pods yourself");
        return Rolls::Waits(why);
    }
    let Some(limit) = limit else {
        // The DaemonSet creates new Pods beside the old ones, so unreachable Nodes do not block it.
        return Rolls::Waits(with(why, &moving));
    };
    if away.len() < limit {
        return Rolls::Waits(with(why, &moving));
    }
    why.push_str(&format!(
        "; {} cannot be reached and {} up its maxUnavailable ({limit})",
        away.join(", "),
        if away.len() == 1 { "uses" } else { "use" },
    ));
    match old.first() {
        Some(pod) if moving.len() < limit => Rolls::Stuck { pod: pod.name.clone(), why },
        _ => Rolls::Waits(with(why, &moving)),
    }
}

fn with(mut why: String, moving: &BTreeSet<String>) -> String {
    for one in moving {
        why.push_str("; ");
        why.push_str(one);
    }
    why
}

fn number(value: &Value) -> usize {
    let number = value.as_u64().unwrap_or(0);
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Returns `maxUnavailable`, with percentages rounded up as in the controller; `None` if the
/// DaemonSet surges.
fn most_unavailable(strategy: &Value, desired: usize) -> Option<usize> {
    let rolling = &strategy["rollingUpdate"];
    let surge = &rolling["maxSurge"];
    if !(surge.is_null() || *surge == 0 || *surge == "0%" || *surge == "0") {
        return None;
    }
    let most = &rolling["maxUnavailable"];
    let percent = most.as_str().and_then(|text| text.strip_suffix('%'));
    let most = match percent.and_then(|text| text.parse::<usize>().ok()) {
        Some(percent) => desired.saturating_mul(percent).div_ceil(100),
        None if most.is_null() => 1,
        None => number(most),
    };
    Some(most.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Returns a DaemonSet of generation 2 with `desired` Pods.
    fn object(desired: usize, strategy: &Value) -> Value {
        json!({
            "metadata": {"name": "kube-proxy", "annotations": {GENERATION: "2"}},
            "spec": {"updateStrategy": strategy},
            "status": {"desiredNumberScheduled": desired},
        })
    }

    /// Evaluates Pods given as `NAME|NODE|GENERATION|DELETED|READY`, the format that kubectl
    /// prints.
    fn ask(object: &Value, nodes: &[&str], pods: &[&str]) -> Rolls {
        let nodes = nodes.iter().filter_map(|line| read_node(line)).collect();
        let pods: Vec<Pod> = pods.iter().filter_map(|line| read_pod(line)).collect();
        rolls(object, &nodes, &pods)
    }

    #[test]
    fn nodes_that_are_away_neither_count_nor_block() {
        let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}});
        let three = object(3, &rolling);
        let nodes = ["a|True", "b|True", "c|Unknown"];
        let next = |pods: &[&str]| match ask(&three, &nodes, pods) {
            Rolls::Stuck { pod, why } => {
                assert!(why.contains("c cannot be reached"), "{why}");
                pod
            }
            other => format!("{other:?}"),
        };
        // The Pod of the unreachable Node is being deleted, and no other has been replaced yet.
        let pods = ["p1|a|1||True", "p2|b|1||True", "p3|c|1|2026-01-01T00:00:00Z|False"];
        assert_eq!(next(&pods), "p1");
        // The same result if the controller has not reacted yet, or a new Pod waits for the Node.
        assert_eq!(next(&["p1|a|2||True", "p2|b|1||True", "p3|c|1||False"]), "p2");
        assert_eq!(next(&["p1|a|2||True", "p2|b|1||True", "p9|c|2||False"]), "p2");
        // Pods are replaced one at a time.
        let waits = ask(&three, &nodes, &["p4|a|2||False", "p2|b|1||True", pods[2]]);
        let Rolls::Waits(why) = waits else { panic!("{waits:?}") };
        assert!(why.contains("on Node a is not Ready"), "{why}");
        let waits = ask(&three, &nodes, &["p2|b|1||True", pods[2]]);
        let Rolls::Waits(why) = waits else { panic!("{waits:?}") };
        assert!(why.contains("Pods to be created: 1"), "{why}");
        let out = ask(&three, &nodes, &["p4|a|2||True", "p5|b|2||True", pods[2]]);
        assert_eq!(out, Rolls::Out);
    }

    #[test]
    fn what_the_controller_does_itself_is_left_to_it() {
        let nodes = ["a|True", "b|True", "c|False", "d|True"];
        let pods = ["p1|a|1||True", "p2|b|2||True", "p3|c|1||False", "p4|d|1||True"];
        for strategy in [
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}),
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "30%"}}),
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}),
            json!({"type": "OnDelete"}),
        ] {
            let waits = ask(&object(4, &strategy), &nodes, &pods);
            assert!(matches!(waits, Rolls::Waits(_)), "{strategy}: {waits:?}");
        }
        let quarter = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%"}});
        let stuck = ask(&object(4, &quarter), &nodes, &pods);
        assert!(matches!(stuck, Rolls::Stuck { .. }), "{stuck:?}");
    }
}
