//! Waits briefly for new Nodes, in a cluster that was created or upgraded seconds ago.
//!
//! A Node that has been unready for longer is part of the cluster's state, which the checks judge.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;

use crate::observation::Observation;
use imgctl_kube::api::Api;
use imgctl_runtime::kubectl::is_true;

/// Maximum time to wait.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(2);
/// Nodes that became unready more than this many seconds ago are not waited for.
const RECENT: i64 = 180;

/// Waits up to a minute for workers whose Nodes recently became unready, or were recently created,
/// to become Ready. Returns `true` if it waited: the cluster must then be observed again.
pub fn settle(observation: &Observation, api: &dyn Api, tell: &dyn Fn(&str)) -> bool {
    let workers: BTreeSet<&str> = observation
        .hosts
        .iter()
        .filter(|host| !host.is_control_plane() && host.unreachable.is_none())
        .filter(|host| !observation.is_healthy(host))
        .filter_map(|host| host.node.as_deref())
        .collect();
    if workers.is_empty() {
        return false;
    }
    let end = Instant::now() + PATIENCE;
    let mut waits = false;
    loop {
        let Ok(nodes) = api.list("/api/v1/nodes") else {
            return waits;
        };
        let now = Timestamp::now().as_second();
        let coming: Vec<String> = nodes
            .iter()
            .filter_map(|node| Some((node["metadata"]["name"].as_str()?, node)))
            .filter(|(name, node)| workers.contains(name) && !is_true(node, "Ready"))
            // After the first wait, all of them are waited for until the end.
            .filter(|(_, node)| waits || since(node).is_some_and(|since| now - since <= RECENT))
            .map(|(name, node)| match message(node) {
                Some(message) => format!("{name} ({message})"),
                None => name.to_owned(),
            })
            .collect();
        if coming.is_empty() || Instant::now() + PAUSE >= end {
            return waits;
        }
        if !waits {
            tell(&format!(
                "waiting up to {} s for Nodes that are not Ready yet: {}",
                PATIENCE.as_secs(),
                crate::document::few(&coming)
            ));
            waits = true;
        }
        std::thread::sleep(PAUSE);
    }
}

fn ready(node: &Value) -> Option<&Value> {
    let conditions = node["status"]["conditions"].as_array()?;
    conditions.iter().find(|one| one["type"] == "Ready")
}

fn message(node: &Value) -> Option<&str> {
    ready(node)?["message"].as_str()
}

/// When the Node became unready, or was created.
fn since(node: &Value) -> Option<i64> {
    let changed = ready(node).and_then(|ready| ready["lastTransitionTime"].as_str());
    let time = changed.or_else(|| node["metadata"]["creationTimestamp"].as_str())?;
    Some(time.parse::<Timestamp>().ok()?.as_second())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::json;

    use super::*;
    use crate::testing::kubernetes;
    use imgctl_kube::testing::stand_in::StandIn;

    fn node(name: &str, ready: &str, seconds_ago: i64) -> Value {
        let changed = Timestamp::from_second(Timestamp::now().as_second() - seconds_ago).unwrap();
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {"conditions": [{
                "type": "Ready", "status": ready, "reason": "KubeletNotReady",
                "message": "cni plugin not initialized", "lastTransitionTime": changed.to_string(),
            }]},
        })
    }

    /// Returns the message, and whether there was a wait; the Node becomes Ready during the wait.
    fn settled(ready: &str, seconds_ago: i64) -> (bool, String) {
        let mut cluster = kubernetes(1, 2, "v1.33.4");
        let name = cluster.hosts[1].node.clone().unwrap();
        cluster.api.as_mut().unwrap().nodes[1].ready = false;
        let api = StandIn::new();
        api.add(node(&name, ready, seconds_ago));
        let told = RefCell::new(String::new());
        let waited = settle(&cluster, &api, &|what| {
            told.borrow_mut().push_str(what);
            assert!(api.change(&format!("/api/v1/nodes/{name}"), |node| {
                node["status"]["conditions"][0]["status"] = json!("True");
            }));
        });
        (waited, told.into_inner())
    }

    #[test]
    fn a_node_that_only_just_came_is_waited_for_and_one_that_is_ill_is_not() {
        let (waited, told) = settled("False", 5);
        assert!(waited);
        assert!(told.contains("(cni plugin not initialized)"), "{told}");
        // The Node is already Ready when it is checked.
        assert_eq!(settled("True", 5), (false, String::new()));
        assert_eq!(settled("False", 600), (false, String::new()));
    }
}
