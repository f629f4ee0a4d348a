//! Settings of the programs on a host: flags and configuration of its kubelet, manifests of its
//! static Pods. Keeps the names, and of the values only those that a plan reports.

use serde_json::Value;

use crate::upgrade::observation::{KubeletSeen, ManifestSeen};
use imgctl_template::yaml;

/// Parses one word of the kubelet's command line.
pub(super) fn flag(word: &str, seen: &mut KubeletSeen) {
    let Some(word) = word.strip_prefix("--") else {
        return;
    };
    let (flag, value) = word.split_once('=').unwrap_or((word, ""));
    if flag == "feature-gates" {
        let gates = value.split(',').filter_map(|gate| gate.split('=').next());
        let gates = gates.filter(|gate| !gate.is_empty());
        seen.gates.extend(gates.map(str::to_owned));
    }
    seen.flags.insert(flag.to_owned());
}

/// Parses one word of `kubeadm-flags.env`.
pub(super) fn kubeadm_flag(word: &str, seen: &mut KubeletSeen) {
    let word = word.trim_start_matches("KUBELET_KUBEADM_ARGS=");
    if let Some(word) = word.trim_matches(['"', '\'']).strip_prefix("--") {
        let flag = word.split('=').next().unwrap_or_default();
        seen.kubeadm_flags.insert(flag.to_owned());
    }
}

/// Parses a `KubeletConfiguration`; a malformed one is ignored.
pub(super) fn configuration(text: &str, seen: &mut KubeletSeen) {
    let Ok(Value::Object(fields)) = yaml::parse(text) else {
        return;
    };
    for (name, value) in &fields {
        let inner = value.as_object();
        if name == "featureGates" {
            seen.gates.extend(inner.into_iter().flatten().map(|(gate, _)| gate.clone()));
            continue;
        }
        seen.fields.insert(name.clone());
        let names = inner.into_iter().flatten();
        seen.fields.extend(names.map(|(inner, _)| format!("{name}.{inner}")));
    }
}

/// Parses a static Pod's manifest.
pub(super) fn manifest(text: &str) -> Option<ManifestSeen> {
    let pod = yaml::parse(text).ok()?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let names = |value: &Value| -> Vec<String> {
        let all = list(value).into_iter();
        all.filter_map(|one| Some(one["name"].as_str()?.to_owned())).collect()
    };
    let spec = &pod["spec"];
    let first = &spec["containers"][0];
    let words = [&first["command"], &first["args"]];
    Some(ManifestSeen {
        containers: names(&spec["containers"]),
        image: first["image"].as_str().map(str::to_owned),
        arguments: words
            .into_iter()
            .flat_map(list)
            .filter_map(|word| Some(word.as_str()?.to_owned()))
            .collect(),
        environment: names(&first["env"]),
        has_limits: first["resources"]["limits"].is_object(),
        volumes: names(&spec["volumes"]),
    })
}
