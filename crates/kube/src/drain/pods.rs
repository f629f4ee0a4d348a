//! The Pods of a Node, and why a Pod is not removed.

use serde_json::Value;

use crate::api::{Answer, Api, ApiError};
use crate::drain::PodName;

pub(super) fn on_node(api: &dyn Api, node: &str) -> Answer<Vec<Value>> {
    api.list(&format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}"))
}

pub(super) fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap_or_default()
}

pub(super) fn is_terminating(pod: &Value) -> bool {
    !pod["metadata"]["deletionTimestamp"].is_null()
}

/// Returns what a refused eviction is waiting for.
pub(super) fn refusal(error: &ApiError) -> String {
    let cause = error
        .causes
        .iter()
        .find(|(reason, _)| matches!(reason.as_str(), "DisruptionBudget" | "NamespaceTerminating"));
    match cause {
        Some((_, message)) if !message.is_empty() => message.clone(),
        _ => error.message.clone(),
    }
}

/// Returns why a Pod that is being deleted still exists.
pub(super) fn lingering(pod: &Value) -> String {
    let meta = &pod["metadata"];
    let since = meta["deletionTimestamp"].as_str().unwrap_or("some time");
    let finalizers = meta["finalizers"].as_array().into_iter().flatten();
    let finalizers: Vec<&str> = finalizers.filter_map(Value::as_str).collect();
    if !finalizers.is_empty() {
        return format!(
            "it should have terminated by {since}, but finalizers block it: {}",
            finalizers.join(", ")
        );
    }
    let containers = pod["status"]["containerStatuses"].as_array();
    let running: Vec<&str> = containers
        .into_iter()
        .flatten()
        .filter(|one| !one["state"]["running"].is_null())
        .filter_map(|one| one["name"].as_str())
        .collect();
    let what = if running.is_empty() {
        "its volumes or its network cannot be torn down, or its kubelet does not answer".to_owned()
    } else {
        format!("these containers do not stop: {}", running.join(", "))
    };
    format!("it should have terminated by {since}; {what}")
}

/// Describes the budgets of a blocked Pod, like `kubectl get pdb`.
pub(super) fn budgets(api: &dyn Api, policy: &str, pod: &Value) -> Option<String> {
    let name = PodName::of(pod);
    let path = format!("/apis/{policy}/namespaces/{}/poddisruptionbudgets", name.namespace);
    let all = api.list(&path).ok()?;
    let words = |budget: &Value| {
        let number = |name: &str| budget["status"][name].as_i64().unwrap_or(0);
        format!(
            "PodDisruptionBudget {}/{} allows {} disruptions: {} of at least {} Pods are healthy, {} expected",
            name.namespace,
            budget["metadata"]["name"].as_str().unwrap_or_default(),
            number("disruptionsAllowed"),
            number("currentHealthy"),
            number("desiredHealthy"),
            number("expectedPods"),
        )
    };
    let matching = all.iter().filter(|budget| {
        crate::selector::selects(&budget["spec"]["selector"], &pod["metadata"]["labels"])
    });
    let told: Vec<String> = matching.map(words).collect();
    (!told.is_empty()).then(|| told.join("; "))
}
