//! After all control planes are upgraded: checks that add-ons are rolled out and the cluster
//! reports its version.

use std::time::Duration;

use serde_json::Value;

use crate::action::{Action, Site};
use crate::kubeadm::upgrade::{apply::text, daemon_set, etcd_manifest::tag, target::Target};
use crate::kubectl::{Kubectl, is_version};
use crate::wait::waiting;
use imgctl_base::error::Result;
use imgctl_template::yaml;

const PATIENCE: Duration = Duration::from_secs(420);
const HINT: &str = "`kubectl -n kube-system get pods -o wide`, `kubectl -n kube-system describe` of \
what is not Ready; then `imgctl upgrade resume`";

pub(super) fn actions(target: &Target) -> Vec<Action> {
    let version = target.clone();
    vec![
        waiting(
            "cluster-version",
            format!("ConfigMap kubeadm-config has kubernetesVersion {}", target.version.text),
            PATIENCE,
            HINT,
            move |site| configured(site, &version),
        ),
        addons(target),
    ]
}

/// Waits until kube-proxy and CoreDNS are rolled out.
pub(super) fn addons(target: &Target) -> Action {
    rollout(Some(target.version.text.clone()))
}

/// Waits until the kube-proxy and the CoreDNS of the backup are rolled out again, whatever their versions.
pub(super) fn addons_again() -> Action {
    rollout(None)
}

fn rollout(version: Option<String>) -> Action {
    waiting(
        "addons",
        "kube-proxy and CoreDNS are rolled out, if the cluster has them",
        PATIENCE,
        HINT,
        move |site| rolled_out(site, version.as_deref()),
    )
}

fn configured(site: &Site<'_>, target: &Target) -> Result<Option<String>> {
    let kubectl = Kubectl::anywhere(site)?;
    let map = kubectl.get(&["configmap", "kubeadm-config", "-n", "kube-system"])?;
    let document = yaml::parse(text(&map["data"]["ClusterConfiguration"], "{}"))?;
    let version = text(&document["kubernetesVersion"], "nothing");
    Ok((version != target.version.text)
        .then(|| format!("kubeadm-config has {version} instead of {}", target.version.text)))
}

fn rolled_out(site: &Site<'_>, version: Option<&str>) -> Result<Option<String>> {
    let kubectl = Kubectl::anywhere(site)?;
    if let Some(proxy) = kubectl.find(&["daemonset", "kube-proxy", "-n", "kube-system"])? {
        match before_rollout(&proxy, version) {
            Some(complaint) => return Ok(Some(complaint)),
            None if is_everywhere(&proxy) => {}
            None => {
                let complaint = daemon_set::complaint(site, &kubectl, &proxy)?;
                if complaint.is_some() {
                    return Ok(complaint);
                }
            }
        }
    }
    let dns = kubectl.find(&["deployment", "coredns", "-n", "kube-system"])?;
    Ok(dns.and_then(|dns| deployment(&dns)))
}

/// Returns what is wrong with kube-proxy before its rollout. If `version` is given, kube-proxy must have it.
fn before_rollout(object: &Value, version: Option<&str>) -> Option<String> {
    let image = text(&object["spec"]["template"]["spec"]["containers"][0]["image"], "nothing");
    if let Some(version) = version.filter(|version| !is_version(tag(image), version)) {
        return Some(format!("kube-proxy is {image} instead of {version}"));
    }
    is_unobserved(object).then(|| "kube-proxy was changed a moment ago".to_owned())
}

/// Reports whether every Node has the new Pod and it is available.
fn is_everywhere(object: &Value) -> bool {
    let status = |name: &str| object["status"][name].as_u64().unwrap_or(0);
    let wanted = status("desiredNumberScheduled");
    status("updatedNumberScheduled") >= wanted && status("numberAvailable") >= wanted
}

fn deployment(object: &Value) -> Option<String> {
    if is_unobserved(object) {
        return Some("CoreDNS was changed a moment ago".to_owned());
    }
    let status = |name: &str| object["status"][name].as_u64().unwrap_or(0);
    let wanted = object["spec"]["replicas"].as_u64().unwrap_or(1);
    let (updated, available) = (status("updatedReplicas"), status("availableReplicas"));
    // One Pod can be unavailable meanwhile: the Deployment's own strategy allows it.
    (updated < wanted || (wanted > 0 && available == 0))
        .then(|| format!("CoreDNS: {updated} of {wanted} Pods are new, {available} available"))
}

fn is_unobserved(object: &Value) -> bool {
    let wanted = object["metadata"]["generation"].as_u64().unwrap_or(0);
    object["status"]["observedGeneration"].as_u64().unwrap_or(0) < wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn add_ons_must_be_rolled_out() {
        let proxy = |image: &str, updated: u64| {
            json!({
                "metadata": {"generation": 2},
                "spec": {"template": {"spec": {"containers": [{"image": image}]}}},
                "status": {"observedGeneration": 2, "desiredNumberScheduled": 3,
                    "updatedNumberScheduled": updated, "numberAvailable": updated},
            })
        };
        let new = "registry.k8s.io/kube-proxy:v1.34.9";
        assert_eq!(before_rollout(&proxy(new, 3), Some("v1.34.9")), None);
        assert!(is_everywhere(&proxy(new, 3)) && !is_everywhere(&proxy(new, 2)));
        let old = proxy("registry.k8s.io/kube-proxy:v1.33.1", 3);
        assert!(before_rollout(&old, Some("v1.34.9")).unwrap().contains("v1.33.1"));
        // On the way back, the definition of the backup counts.
        assert_eq!(before_rollout(&old, None), None);
        let dns = json!({"metadata": {"generation": 1}, "spec": {"replicas": 2},
            "status": {"observedGeneration": 1, "updatedReplicas": 2, "availableReplicas": 1}});
        assert_eq!(deployment(&dns), None);
    }
}
