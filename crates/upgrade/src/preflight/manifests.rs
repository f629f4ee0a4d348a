//! Checks for settings that an upgrade would lose or refuse: compares static Pods with their
//! kubeadm-config, because `kubeadm upgrade` rewrites them without manual changes, and kubelets' flags
//! and configuration with what the new ones accept.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::document::{Finding, few};
use crate::finding::{error, note, warning};
use crate::hazards::{KUBEADM_REMOVES, REMOVALS};
use crate::observation::{HostSeen, ManifestSeen};
use crate::preflight::look::Look;
use crate::static_pods::{COMPONENTS, Component, Edit, edits};

const CHECK: &str = "static-manifests";
const HINT: &str = "add them to the ConfigMap kube-system/kubeadm-config (extraArgs, extraVolumes, \
                    extraEnvs) or to patches, which `kubeadm upgrade` applies; or pass \
                    --skip-check static-manifests to drop them or to rely on patches/ of the new \
                    image, which is not on the hosts yet";

pub(super) fn edited(look: &Look<'_>) -> Vec<Finding> {
    let configuration = look.api().and_then(|api| api.cluster_configuration.as_ref());
    let (Some(configuration), true) = (configuration, look.is_kubeadm() && look.is_forward())
    else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for host in look.hosts().filter(|host| host.is_control_plane()) {
        for component in &COMPONENTS {
            if let Some(manifest) = host.manifests.get(component.name) {
                findings(host, component, manifest, configuration, &mut found);
            }
        }
    }
    found
}

fn findings(
    host: &HostSeen,
    component: &Component,
    manifest: &ManifestSeen,
    configuration: &Value,
    found: &mut Vec<Finding>,
) {
    let file = format!("{}.yaml", component.name);
    let patched =
        |edit: &Edit| host.patches.get(component.name).is_some_and(|text| text.contains(&edit.key));
    let (kept, edits): (Vec<Edit>, Vec<Edit>) =
        edits(component, manifest, configuration).into_iter().partition(patched);
    let (lost, missing): (Vec<Edit>, Vec<Edit>) = edits.into_iter().partition(|edit| edit.is_lost);
    let texts = |edits: &[Edit]| {
        let texts: Vec<&str> = edits.iter().map(|edit| edit.text.as_str()).collect();
        texts.join("; ")
    };
    if !lost.is_empty() {
        let what = format!(
            "{file} was edited manually, and kubeadm rewrites it without these edits: {}",
            texts(&lost)
        );
        found.push(error(CHECK, what).on(host).hint(HINT));
    }
    if !missing.is_empty() {
        let what = format!(
            "{file} does not match kubeadm-config yet, and will after the upgrade: {}",
            texts(&missing)
        );
        found.push(warning(CHECK, what).on(host));
    }
    if !kept.is_empty() {
        let keys: Vec<&str> = kept.iter().map(|edit| edit.key.as_str()).collect();
        let what = format!("{file}: patches keep {}", few(&keys));
        found.push(note(CHECK, what).on(host));
    }
}

/// Whether a configuration of the kubelet or of kube-proxy sets a feature gate.
pub(super) fn sets(configuration: &Value, gate: &str) -> bool {
    configuration["featureGates"].get(gate).is_some()
}

const CONFIGURATION: &str = "kubelet-configuration";

pub(super) fn kubelet_settings(look: &Look<'_>) -> Vec<Finding> {
    if !look.is_kubeadm() || !look.is_forward() {
        return Vec::new();
    }
    let new = look.new_minors();
    let written = look.written_by_kubeadm();
    let mut found = Vec::new();
    for removal in REMOVALS.iter().filter(|one| new.contains(&one.minor)) {
        let has = |names: &'static [&'static str], has: &BTreeSet<String>| -> Vec<&'static str> {
            let names = names.iter().copied();
            names.filter(|name| has.contains(*name)).collect()
        };
        let of = |what: &str| format!("{what}, which v1.{} removes", removal.minor);
        for gate in removal.gates.iter().filter(|gate| written.is_some_and(|it| sets(it, gate))) {
            let what = of(&format!("the ConfigMap kubelet-config sets the feature gate {gate}"));
            found.push(error(CONFIGURATION, what).hint(
                "the new kubelets would not start: remove it from the KubeletConfiguration of the \
                 Clusterfile (`imgctl apply`) or from the ConfigMap",
            ));
        }
        for host in look.hosts() {
            let kubelet = &host.kubelet;
            for flag in has(removal.flags, &kubelet.flags) {
                if kubelet.kubeadm_flags.contains(flag) && KUBEADM_REMOVES.contains(&flag) {
                    continue;
                }
                let what = of(&format!("its kubelet runs with --{flag}"));
                found.push(error(CONFIGURATION, what).on(host).hint(
                    "the new kubelet would not start: remove the flag from the unit, its drop-ins \
                     or /etc/default/kubelet, and restart the kubelet",
                ));
            }
            for gate in has(removal.gates, &kubelet.gates) {
                let what = of(&format!("its kubelet sets the feature gate {gate}"));
                if kubelet.flag_gates.contains(gate) || written.is_none() {
                    found.push(error(CONFIGURATION, what).on(host).hint(
                        "the new kubelet would not start: remove it from the kubelet's flags and \
                         from /var/lib/kubelet/config.yaml",
                    ));
                } else if !written.is_some_and(|written| sets(written, gate)) {
                    found.push(warning(CONFIGURATION, what).on(host).hint(
                        "it is in /var/lib/kubelet/config.yaml only on this host: `kubeadm upgrade` \
                         overwrites that file from the ConfigMap kube-system/kubelet-config",
                    ));
                }
            }
            for field in has(removal.fields, &kubelet.fields) {
                let what = of(&format!("its kubelet's configuration sets {field}"));
                found.push(warning(CONFIGURATION, what).on(host).hint(
                    "it has no effect from then on: remove it from the ConfigMap \
                     kube-system/kubelet-config",
                ));
            }
        }
    }
    found
}
