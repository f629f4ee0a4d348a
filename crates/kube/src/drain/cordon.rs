//! Cordons and uncordons Nodes, and leaves cordons by other parties unchanged.

use serde_json::{Value, json};

use crate::api::{Api, PatchKind};
use imgctl_base::error::{Context, Error, Result};

/// Annotation on a Node cordoned by imgctl: the id of the upgrade.
pub const MARK: &str = "imgctl.io/upgrade-id";
/// Maximum number of attempts. The kubelet updates its Node every few seconds.
const TRIES: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cordon {
    /// Set by imgctl: [`uncordon`] removes it.
    Ours,
    /// Existed before and stays.
    Others,
}

/// Cordons a Node for the upgrade `id`. Takes over the cordon of an earlier upgrade by imgctl.
pub fn cordon(api: &dyn Api, node: &str, id: &str) -> Result<Cordon> {
    change(api, node, "cordon", |object| {
        let is_cordoned = object["spec"]["unschedulable"] == true;
        let mark = &object["metadata"]["annotations"][MARK];
        match (is_cordoned, mark.is_string()) {
            (true, false) => (Cordon::Others, None),
            (true, true) if *mark == id => (Cordon::Ours, None),
            _ => {
                let patch = json!({
                    "metadata": {"annotations": {MARK: id}},
                    "spec": {"unschedulable": true},
                });
                (Cordon::Ours, Some(patch))
            }
        }
    })
}

/// Removes a cordon set by imgctl for any upgrade; `false` if there is none.
pub fn uncordon(api: &dyn Api, node: &str) -> Result<bool> {
    change(api, node, "uncordon", |object| {
        if object["metadata"]["annotations"][MARK].is_string() {
            let patch = json!({
                "metadata": {"annotations": {MARK: null}},
                "spec": {"unschedulable": null},
            });
            (true, Some(patch))
        } else {
            (false, None)
        }
    })
}

/// Decides based on the state of the Node, and patches only if that state is still current.
fn change<T>(
    api: &dyn Api,
    node: &str,
    verb: &str,
    decide: impl Fn(&Value) -> (T, Option<Value>),
) -> Result<T> {
    let path = format!("/api/v1/nodes/{node}");
    let doing = || format!("cannot {verb} Node {node}");
    for _ in 0..TRIES {
        let object = api.get(&path).context(doing)?;
        let (outcome, patch) = decide(&object);
        let Some(mut patch) = patch else {
            return Ok(outcome);
        };
        patch["metadata"]["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
        match api.patch(&path, PatchKind::Merge, &patch) {
            Ok(_) => return Ok(outcome),
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(Error::from(error)).context(doing),
        }
    }
    Err(Error::busy("another client keeps changing it")).context(doing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ApiError;
    use crate::testing::stand_in::StandIn;
    use imgctl_base::error::Kind;

    const PATH: &str = "/api/v1/nodes/n";

    fn api(spec: &Value, annotations: &Value) -> StandIn {
        let api = StandIn::new();
        api.add(json!({
            "apiVersion": "v1", "kind": "Node", "spec": spec,
            "metadata": {"name": "n", "annotations": annotations},
        }));
        api
    }

    #[test]
    fn our_cordon_goes_and_leaves_nothing() {
        let api = api(&json!({"podCIDR": "x"}), &json!({"a": "b"}));
        assert_eq!(cordon(&api, "n", "u1").unwrap(), Cordon::Ours);
        let node = api.peek(PATH).unwrap();
        assert_eq!(node["spec"], json!({"podCIDR": "x", "unschedulable": true}));
        assert_eq!(node["metadata"]["annotations"], json!({"a": "b", MARK: "u1"}));
        // Repeated, and for the next upgrade: still owned by imgctl.
        assert_eq!(cordon(&api, "n", "u1").unwrap(), Cordon::Ours);
        assert_eq!(api.writes().len(), 1);
        assert_eq!(cordon(&api, "n", "u2").unwrap(), Cordon::Ours);
        assert!(uncordon(&api, "n").unwrap());
        let node = api.peek(PATH).unwrap();
        assert_eq!(node["spec"], json!({"podCIDR": "x"}));
        assert_eq!(node["metadata"]["annotations"], json!({"a": "b"}));
        assert!(!uncordon(&api, "n").unwrap());
    }

    #[test]
    fn an_administrators_cordon_stays() {
        let api = api(&json!({"unschedulable": true}), &Value::Null);
        assert_eq!(cordon(&api, "n", "u1").unwrap(), Cordon::Others);
        assert!(!uncordon(&api, "n").unwrap());
        assert!(api.writes().is_empty());
        assert_eq!(api.peek(PATH).unwrap()["spec"]["unschedulable"], true);
    }

    #[test]
    fn a_node_that_changes_meanwhile_is_looked_at_again() {
        let api = api(&json!({}), &Value::Null);
        // An administrator cordons the Node concurrently.
        let raced = std::sync::atomic::AtomicBool::new(false);
        api.react(move |api, request| {
            if request.verb == "get" && !raced.swap(true, std::sync::atomic::Ordering::SeqCst) {
                api.change(PATH, |node| node["spec"]["unschedulable"] = json!(true));
            }
        });
        assert_eq!(cordon(&api, "n", "u1").unwrap(), Cordon::Others);
        assert!(api.peek(PATH).unwrap()["metadata"]["annotations"][MARK].is_null());
    }

    #[test]
    fn failures_name_the_node() {
        let error = cordon(&StandIn::new(), "n", "u").unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.to_string().starts_with("cannot cordon Node n: "), "{error}");
        let api = api(&json!({}), &Value::Null);
        let conflict = ApiError { code: 409, ..ApiError::default() };
        for _ in 0..TRIES {
            api.fail_next("patch", "nodes", conflict.clone());
        }
        assert_eq!(cordon(&api, "n", "u").unwrap_err().kind(), Kind::Busy);
    }
}
