//! The probe Pod: its manifest, and what its status says.

use std::time::Duration;

use serde_json::{Value, json};

use crate::probe::{LABEL, NAMESPACE, Phase, Probe, Seen};
use imgctl_base::image::Digest;

/// What runs in an image with a shell.
pub(super) const SCRIPT: &str = include_str!("script.sh");
/// An unprivileged user.
const NOBODY: u32 = 65534;

/// Returns the name of the probe Pod of a Node: the same in every run, so that one that was left is
/// found.
pub(super) fn name(node: &str) -> String {
    format!("imgctl-probe-{}", &Digest::of(node.as_bytes()).hex()[..10])
}

/// Returns the Pod. The scheduler places it, as a Pod of a DaemonSet: its Node may be cordoned.
pub(super) fn manifest(probe: &Probe, name: &str, limit: Duration) -> Value {
    let mut container = json!({
        "name": "probe",
        "image": probe.image,
        // The registry is asked even for an image that the Node has.
        "imagePullPolicy": "Always",
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "runAsNonRoot": true,
            "runAsUser": NOBODY,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
    });
    if probe.has_shell {
        container["command"] = json!(["sh", "-c", SCRIPT]);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": { LABEL: "node", "app.kubernetes.io/managed-by": "imgctl" },
        },
        "spec": {
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{ "matchFields": [
                    { "key": "metadata.name", "operator": "In", "values": [probe.node] },
                ]}],
            }}},
            "tolerations": [{ "operator": "Exists" }],
            "restartPolicy": "Never",
            // If this run is killed and nobody resumes it, the container ends nevertheless.
            "activeDeadlineSeconds": limit.as_secs().max(1),
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": [container],
        },
    })
}

/// Returns how far the Pod is.
pub(super) fn read(pod: &Value, has_shell: bool) -> Seen {
    let status = &pod["status"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let container = &status["containerStatuses"][0];
    let (waiting, ended) = (&container["state"]["waiting"], &container["state"]["terminated"]);
    if ended.is_object() {
        return read_ended(ended, has_shell);
    }
    if text(&status["phase"]) == "Failed" {
        let why = format!("{} {}", text(&status["reason"]), text(&status["message"]));
        return Seen::Failed(last(status), why.trim().to_owned());
    }
    if container["state"]["running"].is_object() {
        return if has_shell {
            Seen::In(Phase::Resolve, String::new())
        } else {
            Seen::Done(vec![
                "whether Pods resolve names and reach the API: the image has no shell".to_owned(),
            ])
        };
    }
    let why = |value: &Value| {
        let text = format!("{}: {}", text(&value["reason"]), text(&value["message"]));
        text.trim_matches([':', ' ']).to_owned()
    };
    match waiting["reason"].as_str() {
        Some("ErrImagePull" | "ImagePullBackOff" | "RegistryUnavailable") => {
            return Seen::In(Phase::Pull, why(waiting));
        }
        Some("InvalidImageName" | "ErrImageNeverPull") => {
            return Seen::Failed(Phase::Pull, why(waiting));
        }
        Some("CreateContainerError" | "CreateContainerConfigError" | "RunContainerError") => {
            return Seen::In(Phase::Start, why(waiting));
        }
        _ => {}
    }
    let is_scheduled = condition(status, "PodScheduled").is_some_and(|one| one["status"] == "True");
    if !is_scheduled && pod["spec"]["nodeName"].as_str().is_none_or(str::is_empty) {
        let why = condition(status, "PodScheduled").map(|one| text(&one["message"]));
        return Seen::In(Phase::Schedule, why.unwrap_or_default());
    }
    let has_network = !text(&status["podIP"]).is_empty()
        || condition(status, "PodReadyToStartContainers").is_some_and(|it| it["status"] == "True");
    if has_network {
        Seen::In(Phase::Pull, String::new())
    } else {
        Seen::In(Phase::Network, String::new())
    }
}

/// The last phase that a Pod without a container's state has begun.
fn last(status: &Value) -> Phase {
    let is_scheduled = condition(status, "PodScheduled").is_some_and(|one| one["status"] == "True");
    if is_scheduled { Phase::Network } else { Phase::Schedule }
}

fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    status["conditions"].as_array()?.iter().find(|one| one["type"] == kind)
}

/// Reads a container that has ended: [`SCRIPT`] says which phases it went through.
fn read_ended(ended: &Value, has_shell: bool) -> Seen {
    let message = ended["message"].as_str().unwrap_or_default();
    let code = ended["exitCode"].as_i64().unwrap_or(-1);
    let mut unchecked = Vec::new();
    let mut checked = 0;
    for line in message.lines().filter(|_| has_shell) {
        let mut words = line.splitn(3, ' ');
        let phase = match words.next() {
            Some("resolve") => Phase::Resolve,
            Some("reach") => Phase::Reach,
            _ => continue,
        };
        let (result, rest) = (words.next(), words.next().unwrap_or_default().to_owned());
        match result {
            Some("failed") => return Seen::Failed(phase, rest),
            Some("skipped") => unchecked.push(format!("whether {phase}: {rest}")),
            _ => {}
        }
        checked += 1;
    }
    if has_shell && code == 0 && checked == 2 {
        return Seen::Done(unchecked);
    }
    let reason = ended["reason"].as_str().unwrap_or_default();
    let why = format!("its container ended with {code}: {reason} {message}");
    Seen::Failed(Phase::Start, why.trim_end().to_owned())
}
