//! A Node that takes the place of another: it gets the labels, annotations, taints and the provider's ID that people and
//! controllers have given the former.
//!
//! Must not know hosts, or how a Node joins and leaves.

use serde_json::{Map, Value, json};

use crate::api::{Api, PatchKind};
use imgctl_base::error::{Context, Error, Result};

/// Prefixes of annotations that describe the machine, its network or its volumes, or are marks of work in progress.
const OF_A_MACHINE: [&str; 12] = [
    "cluster.x-k8s.io/",
    "csi.volume.kubernetes.io/",
    "etcd.k3s.cattle.io/",
    "flannel.alpha.coreos.com/",
    "imgctl.io/",
    "io.imgctl.",
    "k3s.io/",
    "kubeadm.alpha.kubernetes.io/",
    "kubectl.kubernetes.io/",
    "p2p.k3s.cattle.io/",
    "projectcalico.org/",
    "volumes.kubernetes.io/",
];
/// Prefix of the taints that Kubernetes sets and removes by the state of a Node.
const BY_STATE: &str = "node.kubernetes.io/";
/// Number of attempts while other clients change the Node.
const TRIES: usize = 10;

/// Gives the Node with the address or name `new` what that of `former` has and it lacks; nothing that it has changes.
/// Returns both names, or `None` if one of the two does not exist.
///
/// # Errors
/// If the API does not answer or refuses the change.
pub fn take_over(api: &dyn Api, former: &str, new: &str) -> Result<Option<(String, String)>> {
    let doing = || format!("cannot give the Node of {new} the labels of that of {former}");
    for _ in 0..TRIES {
        let nodes = api.list("/api/v1/nodes").context(doing)?;
        let (Some(former), Some(new)) = (named(&nodes, former), named(&nodes, new)) else {
            return Ok(None);
        };
        let name = |node: &Value| node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let names = (name(former), name(new));
        let Some(mut patch) = lacking(former, new) else {
            return Ok(Some(names));
        };
        patch["metadata"]["resourceVersion"] = new["metadata"]["resourceVersion"].clone();
        match api.patch(&format!("/api/v1/nodes/{}", names.1), PatchKind::Merge, &patch) {
            Ok(_) => return Ok(Some(names)),
            Err(error) if error.code == 409 => {}
            Err(error) => return Err(Error::from(error)).context(doing),
        }
    }
    Err(Error::busy("another client keeps changing it")).context(doing)
}

fn named<'n>(nodes: &'n [Value], host: &str) -> Option<&'n Value> {
    nodes.iter().find(|node| {
        let addresses = node["status"]["addresses"].as_array();
        let mut addresses = addresses.into_iter().flatten();
        node["metadata"]["name"] == host || addresses.any(|one| one["address"] == host)
    })
}

/// Returns the merge patch for `new`; `None` if it lacks nothing.
fn lacking(former: &Value, new: &Value) -> Option<Value> {
    let mut patch = json!({});
    let lacks = |of: &str, is_own: &dyn Fn(&str) -> bool| -> Map<String, Value> {
        let has = &new["metadata"][of];
        let all = former["metadata"][of].as_object().into_iter().flatten();
        all.filter(|(key, _)| has.get(key).is_none() && !is_own(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    let is_own = |key: &str| OF_A_MACHINE.iter().any(|prefix| key.starts_with(prefix));
    for (of, found) in
        [("labels", lacks("labels", &|_| false)), ("annotations", lacks("annotations", &is_own))]
    {
        if !found.is_empty() {
            patch["metadata"][of] = Value::Object(found);
        }
    }
    let taints = |node: &Value| node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let mut all = taints(new);
    let is_there = |taints: &[Value], wanted: &Value| {
        taints.iter().any(|one| one["key"] == wanted["key"] && one["effect"] == wanted["effect"])
    };
    let by_state =
        |taint: &Value| taint["key"].as_str().is_none_or(|key| key.starts_with(BY_STATE));
    let more: Vec<Value> = taints(former)
        .into_iter()
        .filter(|taint| !by_state(taint) && !is_there(&all, taint))
        .collect();
    if !more.is_empty() {
        all.extend(more);
        patch["spec"]["taints"] = Value::Array(all);
    }
    let provider = &former["spec"]["providerID"];
    if provider.is_string() && !new["spec"]["providerID"].is_string() {
        patch["spec"]["providerID"] = provider.clone();
    }
    (patch != json!({})).then_some(patch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::stand_in::StandIn;

    fn node(name: &str, metadata: &Value, spec: &Value) -> Value {
        let mut node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec,
            "status": {"addresses": [{"type": "InternalIP", "address": format!("10.0.0.{name}")}]},
        });
        node["metadata"]["name"] = json!(name);
        node
    }

    #[test]
    fn a_spare_gets_what_it_lacks_and_keeps_what_it_has() {
        let api = StandIn::new();
        api.add(node(
            "2",
            &json!({
                "labels": {"kubernetes.io/hostname": "2", "disk": "ssd", "zone": "a"},
                "annotations": {"team": "x", "flannel.alpha.coreos.com/public-ip": "10.0.0.2"},
            }),
            &json!({
                "providerID": "metal://2",
                "taints": [
                    {"key": "gpu", "effect": "NoSchedule", "value": "yes"},
                    {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
                ],
            }),
        ));
        let own = json!({"key": "own", "effect": "NoExecute"});
        api.add(node(
            "9",
            &json!({"labels": {"kubernetes.io/hostname": "9", "zone": "b"}}),
            &json!({"podCIDR": "x", "taints": [own]}),
        ));
        let names = Some(("2".to_owned(), "9".to_owned()));
        assert_eq!(take_over(&api, "10.0.0.2", "10.0.0.9").unwrap(), names);
        let now = api.peek("/api/v1/nodes/9").unwrap();
        let labels = json!({"kubernetes.io/hostname": "9", "zone": "b", "disk": "ssd"});
        assert_eq!(now["metadata"]["labels"], labels);
        assert_eq!(now["metadata"]["annotations"], json!({"team": "x"}));
        let gpu = json!({"key": "gpu", "effect": "NoSchedule", "value": "yes"});
        let spec = json!({"podCIDR": "x", "taints": [own, gpu], "providerID": "metal://2"});
        assert_eq!(now["spec"], spec);
        // A second call changes nothing, and a missing Node is not a failure.
        assert_eq!(take_over(&api, "10.0.0.2", "10.0.0.9").unwrap(), names);
        assert_eq!(api.writes().len(), 1);
        assert_eq!(take_over(&api, "10.0.0.3", "10.0.0.9").unwrap(), None);
    }
}
