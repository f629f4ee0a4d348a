//! Checks that the target's kubelets start with the flags and configuration on the hosts.

use std::collections::BTreeSet;

use super::look::{Look, error, warning};
use crate::upgrade::document::Finding;
use crate::upgrade::kubelet_removals::{KUBEADM_REMOVES, REMOVALS};

const CHECK: &str = "kubelet-configuration";

pub(super) fn settings(look: &Look<'_>) -> Vec<Finding> {
    if !look.is_kubeadm() || !look.is_forward() {
        return Vec::new();
    }
    let new = look.new_minors();
    let mut found = Vec::new();
    for removal in REMOVALS.iter().filter(|one| new.contains(&one.minor)) {
        let has = |names: &'static [&'static str], has: &BTreeSet<String>| -> Vec<&'static str> {
            let names = names.iter().copied();
            names.filter(|name| has.contains(*name)).collect()
        };
        let of = |what: &str| format!("{what}, which v1.{} removes", removal.minor);
        for host in look.hosts() {
            let kubelet = &host.kubelet;
            for flag in has(removal.flags, &kubelet.flags) {
                if kubelet.kubeadm_flags.contains(flag) && KUBEADM_REMOVES.contains(&flag) {
                    continue;
                }
                let what = of(&format!("its kubelet runs with --{flag}"));
                found.push(error(CHECK, what).on(host).hint(
                    "the new kubelet would not start: remove the flag from the unit, its drop-ins \
                     or /etc/default/kubelet, and restart the kubelet",
                ));
            }
            for gate in has(removal.gates, &kubelet.gates) {
                let what = of(&format!("its kubelet sets the feature gate {gate}"));
                found.push(error(CHECK, what).on(host).hint(
                    "the new kubelet would not start: remove it from the ConfigMap \
                     kube-system/kubelet-config and /var/lib/kubelet/config.yaml",
                ));
            }
            for field in has(removal.fields, &kubelet.fields) {
                let what = of(&format!("its kubelet's configuration sets {field}"));
                found.push(warning(CHECK, what).on(host).hint(
                    "it has no effect from then on: remove it from the ConfigMap \
                     kube-system/kubelet-config",
                ));
            }
        }
    }
    found
}
