//! What the containers of a Pod did while it was changed: how often each restarted. Pure: compares two
//! states of a Pod.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::marks::Before;
use crate::object::{ContainerStatus, Pod};

/// A container after the change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct After {
    /// Number of restarts since before the change.
    pub restarts: u64,
    /// Whether it runs, rather than waiting for its image or for its next start.
    #[serde(rename = "running")]
    pub is_running: bool,
    /// The running image, as reported by the kubelet.
    #[serde(rename = "imageID")]
    pub image_id: String,
}

/// The containers of a Pod before it was changed, by name: ID and number of restarts.
pub(super) type Counts = BTreeMap<String, (String, u64)>;

/// Returns the containers of a Pod. Init containers do not run while it is changed.
pub(super) fn counts(pod: &Pod) -> Counts {
    let count = |status: &ContainerStatus| {
        (status.name.clone(), (status.container_id.clone(), status.restart_count))
    };
    pod.status.container_statuses.iter().map(count).collect()
}

/// Compares the containers of `pod` with their former states: those that the run changed are in `changed`,
/// the others in `others`.
pub(super) fn after(
    changed: &BTreeMap<String, Before>,
    others: &Counts,
    pod: &Pod,
) -> BTreeMap<String, After> {
    let mut found = BTreeMap::new();
    for status in &pod.status.container_statuses {
        let before = match changed.get(&status.name) {
            Some(before) => Some((before.container_id.as_str(), before.restart_count)),
            None => others.get(&status.name).map(|(id, count)| (id.as_str(), *count)),
        };
        let Some((id, count)) = before else { continue };
        let restarts = match status.restart_count.saturating_sub(count) {
            // The kubelet may have lost count: another container ID is a restart as well.
            0 if status.container_id != id => 1,
            restarts => restarts,
        };
        let after = After {
            restarts,
            is_running: status.state.running.is_some(),
            image_id: status.image_id.clone(),
        };
        found.insert(status.name.clone(), after);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn restarts_are_counted_since_before_the_change() {
        let pod = |app: (u64, &str), side: (u64, &str)| -> Pod {
            let status = |name: &str, (count, id): (u64, &str)| json!({"name": name, "restartCount": count, "containerID": id, "imageID": "i"});
            serde_json::from_value(json!({"status": {"containerStatuses": [
                status("app", app), status("side", side), status("new", (0, "n"))]}}))
            .unwrap()
        };
        let mut others = counts(&pod((7, "a"), (2, "s")));
        others.remove("new");
        let before = Before { container_id: "a".to_owned(), restart_count: 3, ..Before::default() };
        let changed = BTreeMap::from([("app".to_owned(), before)]);
        let restarts = |now: &Pod| -> Vec<(String, u64)> {
            let all = after(&changed, &others, now);
            all.into_iter().map(|(name, one)| (name, one.restarts)).collect()
        };
        let told = |app, side| vec![("app".to_owned(), app), ("side".to_owned(), side)];
        assert_eq!(restarts(&pod((4, "b"), (2, "s"))), told(1, 0));
        assert_eq!(restarts(&pod((3, "b"), (3, "t"))), told(1, 1));
    }
}
