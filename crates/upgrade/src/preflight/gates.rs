//! Feature gates that the new release no longer has: a component that is given one does not start.
//! Those of kubelets are among their settings (manifests.rs).

use serde_json::Value;

use crate::document::Finding;
use crate::finding::error;
use crate::hazards::{REMOVALS, Removal};
use crate::preflight::{look::Look, manifests::sets};
use crate::static_pods::extra_arguments;

const CHECK: &str = "feature-gates";
/// Components of the control plane, with their parts of the ClusterConfiguration.
const COMPONENTS: [(&str, &str); 3] = [
    ("kube-apiserver", "apiServer"),
    ("kube-controller-manager", "controllerManager"),
    ("kube-scheduler", "scheduler"),
];

/// Finds removed gates in what kubeadm gives the new components, and in its own configuration.
pub(super) fn removed(look: &Look<'_>) -> Vec<Finding> {
    let Some(api) = look.api().filter(|_| look.is_kubeadm() && look.is_forward()) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let new = look.new_minors();
    for removal in REMOVALS.iter().filter(|one| new.contains(&one.minor)) {
        if let Some(cluster) = &api.cluster_configuration {
            found.extend(of_components(cluster, removal));
            for gate in removal.kubeadm_gates.iter().filter(|gate| sets(cluster, gate)) {
                found.push(refused("the ClusterConfiguration", gate, removal.minor).hint(
                    "the new kubeadm refuses the configuration: remove it from featureGates of the \
                     ClusterConfiguration of the Clusterfile (`imgctl apply`) or of the ConfigMap \
                     kube-system/kubeadm-config",
                ));
            }
        }
        let proxy = api.proxy_configuration.iter();
        for gate in removal.gates {
            found.extend(proxy.clone().filter(|proxy| sets(proxy, gate)).map(|_| {
                refused("kube-proxy", gate, removal.minor).hint(
                    "the new kube-proxy would not start: remove it from the KubeProxyConfiguration \
                     of the Clusterfile (`imgctl apply`) or the ConfigMap kube-system/kube-proxy",
                )
            }));
        }
    }
    found
}

fn of_components(cluster: &Value, removal: &Removal) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, part) in COMPONENTS {
        let arguments = extra_arguments(cluster.get(part));
        let set: Vec<&str> = arguments
            .get("feature-gates")
            .into_iter()
            .flatten()
            .flat_map(|value| value.split(','))
            .filter_map(|gate| gate.split('=').next())
            .map(str::trim)
            .collect();
        for gate in removal.gates.iter().filter(|gate| set.contains(gate)) {
            found.push(refused(name, gate, removal.minor).hint(format!(
                "the new {name} would not start: remove it from {part}.extraArgs of the \
                 ClusterConfiguration of the Clusterfile (`imgctl apply`) or of the ConfigMap \
                 kube-system/kubeadm-config"
            )));
        }
    }
    found
}

fn refused(who: &str, gate: &str, minor: u64) -> Finding {
    error(CHECK, format!("{who} sets the feature gate {gate}, which v1.{minor} removes"))
}
