//! The Node of the host that an action runs on, and the Node's Pods.

use serde_json::Value;

use crate::runtime::action::Site;
use crate::runtime::kubeadm::init::hostname;
use crate::runtime::kubectl::Kubectl;
use imgctl_base::error::{Error, Result};

/// Relevant fields of one Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    /// `namespace/name`.
    pub(super) name: String,
    pub(super) owner: String,
    pub(super) priority: String,
    pub(super) is_mirror: bool,
    pub(super) phase: String,
    pub(super) is_ready: bool,
}

pub(super) fn own_name(site: &Site<'_>, kubectl: &Kubectl<'_>) -> Result<String> {
    match kubectl.own_node()? {
        Some(name) => Ok(name),
        None => Ok(hostname(site)?.to_lowercase()),
    }
}

/// Returns the host's Node from the API.
pub(super) fn own(site: &Site<'_>, kubectl: &Kubectl<'_>) -> Result<(String, Value)> {
    let name = own_name(site, kubectl)?;
    let node = kubectl
        .find(&["node", &name])?
        .ok_or_else(|| Error::not_found(format!("there is no Node {name}")))?;
    Ok((name, node))
}

/// Returns all Pods of one Node; queries only a few fields, because there can be hundreds.
pub(super) fn pods(kubectl: &Kubectl<'_>, node: &str) -> Result<Vec<Pod>> {
    let selector = format!("spec.nodeName={node}");
    let text = kubectl.run(&[
        "get",
        "pods",
        "-A",
        "--field-selector",
        &selector,
        "-o",
        "jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}|{.metadata.ownerReferences[0].kind}|{.spec.priorityClassName}|{.metadata.annotations.kubernetes\\.io/config\\.mirror}|{.status.phase}|{.status.conditions[?(@.type==\"Ready\")].status}{\"\\n\"}{end}",
    ])?;
    Ok(text.lines().filter_map(read).collect())
}

fn read(line: &str) -> Option<Pod> {
    let fields: Vec<&str> = line.split('|').collect();
    let [name, owner, priority, mirror, phase, ready] = fields[..] else {
        return None;
    };
    Some(Pod {
        name: name.to_owned(),
        owner: owner.to_owned(),
        priority: priority.to_owned(),
        is_mirror: !mirror.is_empty(),
        phase: phase.to_owned(),
        is_ready: ready == "True",
    })
}

/// Returns the Pods that a drain would have evicted.
pub(super) fn evictable(site: &Site<'_>) -> Result<Vec<String>> {
    let kubectl = Kubectl::anywhere(site)?;
    let node = own_name(site, &kubectl)?;
    let pods = pods(&kubectl, &node)?;
    let left = pods.into_iter().filter(|pod| {
        !pod.is_mirror
            && pod.owner != "DaemonSet"
            && !["Succeeded", "Failed"].contains(&pod.phase.as_str())
    });
    Ok(left.map(|pod| pod.name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_read() {
        let pod = read("kube-system/kube-proxy-x|DaemonSet|system-node-critical||Running|True");
        let pod = pod.unwrap();
        assert_eq!(pod.owner, "DaemonSet");
        assert!(pod.is_ready && !pod.is_mirror);
        let pod = read("kube-system/etcd-cp-1|Node|system-node-critical|0a1b|Running|False");
        let pod = pod.unwrap();
        assert!(pod.is_mirror && !pod.is_ready);
        assert_eq!(read("half a line"), None);
    }
}
