//! State that a Node reports: its version, readiness and last heartbeat.

use serde_json::Value;

const PRESSURES: [&str; 3] = ["MemoryPressure", "DiskPressure", "PIDPressure"];

/// Reports whether the versions match. Vendor builds append to the version: `v1.34.1-vendor.2`,
/// `v1.34.1+k3s1`.
pub(crate) fn is_version(found: &str, wanted: &str) -> bool {
    found.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', '-']))
}

/// Reports whether a condition of a Node or Pod is True.
pub(crate) fn is_true(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .is_some_and(|all| all.iter().any(|one| one["type"] == kind && one["status"] == "True"))
}

/// Returns why the Node is not healthy after its kubelet was started at `started`: in UTC by the
/// host's clock, like the times in the Node and its Lease (`2026-11-22T08:15:00`).
pub(crate) fn complaint(
    name: &str,
    node: &Value,
    lease: &Value,
    wanted: &str,
    started: Option<&str>,
) -> Option<String> {
    let version = node["status"]["nodeInfo"]["kubeletVersion"].as_str();
    let version = version.unwrap_or("unknown");
    if !is_version(version, wanted) {
        return Some(format!("the kubelet of Node {name} is {version} instead of {wanted}"));
    }
    if !is_true(node, "Ready") {
        return Some(format!("Node {name} is not Ready"));
    }
    if let Some(started) = started.map(str::trim) {
        let conditions = node["status"]["conditions"].as_array();
        let beats = conditions
            .into_iter()
            .flatten()
            .map(|condition| &condition["lastHeartbeatTime"])
            .chain([&lease["spec"]["renewTime"]]);
        // All times have the same format, so that text order is time order.
        let heard = beats
            .filter_map(Value::as_str)
            .any(|beat| beat.get(..19).is_some_and(|beat| beat > started));
        if !heard {
            return Some(format!(
                "Node {name} has not reported since its kubelet was started at {started}"
            ));
        }
    }
    let pressure = PRESSURES.into_iter().find(|kind| is_true(node, kind))?;
    Some(format!("Node {name} is under {pressure}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn versions_of_vendors_count() {
        assert!(is_version("v1.34.9", "v1.34.9"));
        assert!(is_version("v1.34.9-vendor.2", "v1.34.9"));
        assert!(!is_version("v1.34.91", "v1.34.9"));
        assert!(!is_version("v1.33.9", "v1.34.9"));
    }

    #[test]
    fn a_node_must_be_whole() {
        let node = |version: &str, ready: &str, pressure: &str| {
            json!({"status": {
                "nodeInfo": {"kubeletVersion": version},
                "conditions": [
                    {"type": "DiskPressure", "status": pressure, "lastHeartbeatTime": "2026-11-22T08:00:00Z"},
                    {"type": "Ready", "status": ready, "lastHeartbeatTime": "2026-11-22T08:00:00Z"},
                ],
            }})
        };
        let lease = |time: &str| json!({"spec": {"renewTime": time}});
        let fresh = lease("2026-11-22T08:15:31.000000Z");
        let started = Some("2026-11-22T08:15:00\n");
        let say = |node: &Value, lease: &Value| {
            complaint("w", node, lease, "v1.34.9", started).unwrap_or_default()
        };
        assert_eq!(say(&node("v1.34.9", "True", "False"), &fresh), "");
        assert!(say(&node("v1.33.1", "True", "False"), &fresh).contains("v1.33.1"));
        assert!(say(&node("v1.34.9", "False", "False"), &fresh).contains("not Ready"));
        assert!(say(&node("v1.34.9", "True", "True"), &fresh).contains("DiskPressure"));
        let stale = lease("2026-11-22T08:14:59.000000Z");
        assert!(say(&node("v1.34.9", "True", "False"), &stale).contains("has not reported"));
    }
}
