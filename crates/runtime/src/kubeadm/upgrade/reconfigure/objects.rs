//! The ConfigMaps that kubeadm and kube-proxy read, and the rollout of kube-proxy.

use std::time::Duration;

use serde_json::Value;

use crate::action::{Action, Site};
use crate::kubeadm::upgrade::reconfigure::change::Change;
use crate::kubeadm::upgrade::target::Target;
use crate::setting::{Component, Difference, put};
use crate::{kubectl::Kubectl, wait::until_well};
use imgctl_base::error::{Error, Result};
use imgctl_template::yaml;

const PATIENCE: Duration = Duration::from_secs(180);
const HINT: &str = "`kubectl -n kube-system get configmap`; then `imgctl upgrade resume`";
/// Annotation of kube-proxy's Pods: they read their configuration when they start.
const MARK: &str = "imgctl.io/settings";

/// A document of the cluster in a ConfigMap of kube-system, and its key there.
#[derive(Clone, Copy)]
pub(super) struct Place(&'static str, &'static str);

pub(super) const CLUSTER: Place = Place("kubeadm-config", "ClusterConfiguration");
pub(super) const KUBELET: Place = Place("kubelet-config", "kubelet");
pub(super) const PROXY: Place = Place("kube-proxy", "config.conf");

impl Place {
    pub(super) fn name(self) -> &'static str {
        self.0
    }

    /// Returns the ConfigMap; `None` if the cluster does not have it.
    fn find(self, kubectl: &Kubectl<'_>) -> Result<Option<Value>> {
        kubectl.find(&["configmap", self.0, "-n", "kube-system"])
    }

    /// Returns the document with the new settings; `None` if the cluster does not have it.
    pub(super) fn changed(
        self,
        kubectl: &Kubectl<'_>,
        differences: &[Difference],
    ) -> Result<Option<String>> {
        let Some(map) = self.find(kubectl)? else {
            return Ok(None);
        };
        self.with(&map, differences).map(Some)
    }

    fn with(self, map: &Value, differences: &[Difference]) -> Result<String> {
        let text = map["data"][self.1].as_str().ok_or_else(|| {
            Error::not_found(format!("the ConfigMap kube-system/{} has no {}", self.0, self.1))
        })?;
        edited(text, differences)
    }
}

/// Returns a YAML document with the differences made in it; the same text if they are there already.
pub(super) fn edited(text: &str, differences: &[Difference]) -> Result<String> {
    let mut document = yaml::parse(text)?;
    let mut changed = false;
    for one in differences {
        changed |= put(&mut document, one)?;
    }
    if !changed {
        return Ok(text.to_owned());
    }
    let mut text = yaml::write(&document)?;
    text.push('\n');
    Ok(text)
}

/// Makes the differences in the cluster's ConfigMaps, and has kube-proxy read its own again.
pub(super) fn actions(target: &Target, change: &Change) -> Vec<Action> {
    let maps: Vec<(Place, Vec<Difference>)> = [
        (CLUSTER, change.cluster.clone()),
        (KUBELET, change.kubelet.clone()),
        (PROXY, change.proxy.clone()),
    ]
    .into_iter()
    .filter(|(_, differences)| !differences.is_empty())
    .collect();
    if maps.is_empty() {
        return Vec::new();
    }
    let names: Vec<&str> = maps.iter().map(|(place, _)| place.0).collect();
    let mut says = format!(
        "kubectl replace: the new settings in ConfigMap {} of kube-system",
        names.join(", ")
    );
    let rolls = change.has(Component::KubeProxy);
    if rolls {
        says.push_str("; kubectl patch: DaemonSet kube-proxy is rolled out");
    }
    let id = target.id.clone();
    let action = Action::new("settings-objects", says, move |site| {
        until_well(site, PATIENCE, HINT, &|| {
            replace(site, &maps)?;
            if rolls {
                roll(site, &id)?;
            }
            Ok(None)
        })
    });
    vec![action.within(PATIENCE + Duration::from_secs(20))]
}

fn replace(site: &Site<'_>, maps: &[(Place, Vec<Difference>)]) -> Result<()> {
    let kubectl = Kubectl::anywhere(site)?;
    for (place, differences) in maps {
        let Some(mut map) = place.find(&kubectl)? else {
            site.say(&format!("the cluster has no ConfigMap {}", place.0));
            continue;
        };
        let text = place.with(&map, differences)?;
        if map["data"][place.1] != text.as_str() {
            map["data"][place.1] = text.into();
            kubectl.replace(&map)?;
            site.say(&format!("ConfigMap {} has the new settings", place.0));
        }
    }
    Ok(())
}

fn roll(site: &Site<'_>, id: &str) -> Result<()> {
    let kubectl = Kubectl::anywhere(site)?;
    if kubectl.find(&["daemonset", "kube-proxy", "-n", "kube-system"])?.is_none() {
        site.say("the cluster has no DaemonSet kube-proxy");
        return Ok(());
    }
    let patch = serde_json::json!({
        "spec": {"template": {"metadata": {"annotations": {MARK: id}}}}
    });
    let patch = patch.to_string();
    let words = ["patch", "daemonset", "kube-proxy", "-n", "kube-system", "-p", &patch];
    kubectl.run(&words).map(|_| ())
}
