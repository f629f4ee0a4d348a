//! What changes on one host and in the cluster's objects when its documents change. Pure.

use std::collections::BTreeSet;

use crate::kubeadm::upgrade::reconfigure::{rules, rules::Rule};
use crate::kubeadm::{Kubeadm, config::Config};
use crate::setting::{Component, Difference, Setting, differences};
use imgctl_base::error::{Error, Result};
use imgctl_model::context::{ClusterContext, Host};

/// Kinds of documents in the order of a plan.
const KINDS: [&str; 5] = [
    "ClusterConfiguration",
    "KubeletConfiguration",
    "KubeProxyConfiguration",
    "InitConfiguration",
    "JoinConfiguration",
];

/// Where kubeadm's documents have the flags of kubelets.
const FLAGS: [&str; 2] = ["nodeRegistration", "kubeletExtraArgs"];

/// The settings of one host that change.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    /// Of ClusterConfiguration.
    pub(super) cluster: Vec<Difference>,
    pub(super) kubelet: Vec<Difference>,
    pub(super) proxy: Vec<Difference>,
    /// Flags of this host's kubelet; the last field of the path is the name.
    pub(super) flags: Vec<Difference>,
    pub(super) components: BTreeSet<Component>,
}

impl Change {
    /// Adds what Config documents change in files of the image.
    pub(super) fn with_files(mut self, containerd: bool) -> Self {
        if containerd {
            self.components.insert(Component::Containerd);
        }
        self
    }
}

impl Change {
    /// Returns what changes on `host`, which the control plane `first` initialised or is.
    pub(super) fn of(
        kubeadm: &Kubeadm<'_>,
        from: &ClusterContext,
        to: &ClusterContext,
        host: &Host,
    ) -> Result<Self> {
        let (old, new) = (kubeadm.of(from, host)?.1, kubeadm.of(to, host)?.1);
        let is_first = to.first().is_some_and(|first| first.address == host.address);
        let mut change = Self::default();
        for kind in KINDS {
            // Each host has been made by one of them.
            let is_own = match kind {
                "InitConfiguration" => is_first,
                "JoinConfiguration" => !is_first,
                _ => true,
            };
            for one in of_kind(kind, &old, &new).into_iter().filter(|_| is_own) {
                let Rule::Changes(component) = rules::of(kind, &one) else {
                    continue;
                };
                if component == Component::Later
                    || (component.is_static() && !host.is_control_plane())
                {
                    continue;
                }
                change.components.insert(component);
                match kind {
                    "ClusterConfiguration" => change.cluster.push(one),
                    "KubeletConfiguration" => change.kubelet.push(one),
                    "KubeProxyConfiguration" => change.proxy.push(one),
                    _ if one.starts_with(&FLAGS) => change.flags.push(one),
                    _ => {}
                }
            }
        }
        Ok(change)
    }

    /// Static Pods whose manifests are written again.
    pub(super) fn pods(&self) -> impl Iterator<Item = Component> {
        Component::STATIC.into_iter().filter(|one| self.components.contains(one))
    }

    pub(super) fn has_pods(&self) -> bool {
        self.pods().next().is_some()
    }

    pub(super) fn has(&self, component: Component) -> bool {
        self.components.contains(&component)
    }

    /// Names for the lines of a plan.
    pub(super) fn restarts(&self) -> String {
        let names: Vec<&str> = self
            .components
            .iter()
            .filter(|one| **one != Component::KubeProxy)
            .map(|one| one.name())
            .collect();
        names.join(", ")
    }
}

fn of_kind(kind: &str, old: &Config, new: &Config) -> Vec<Difference> {
    let (old, new) = (old.documents(), new.documents());
    match kind {
        "ClusterConfiguration" => differences(&old.cluster, &new.cluster),
        "KubeletConfiguration" => differences(&old.kubelet, &new.kubelet),
        "KubeProxyConfiguration" => differences(&old.proxy, &new.proxy),
        "InitConfiguration" => differences(&old.init, &new.init),
        _ => differences(&old.join, &new.join),
    }
}

/// Returns all settings that differ, for a plan.
///
/// # Errors
/// If settings cannot change while the cluster runs; names all of them.
pub(super) fn settings(
    kubeadm: &Kubeadm<'_>,
    from: &ClusterContext,
    to: &ClusterContext,
) -> Result<Vec<Setting>> {
    let Some(first) = to.first() else {
        return Ok(Vec::new());
    };
    let (old, new) = (kubeadm.of(from, first)?.1, kubeadm.of(to, first)?.1);
    let is_first = |host: &&Host| host.address == first.address;
    let mut all = Vec::new();
    let mut refused = Vec::new();
    for kind in KINDS {
        for one in of_kind(kind, &old, &new) {
            let component = match rules::of(kind, &one) {
                Rule::Changes(component) => component,
                Rule::Refused(why) => {
                    let shown = one.shown(kind, Component::Later, Vec::new());
                    refused.push((shown, why));
                    continue;
                }
            };
            let hosts = to.hosts.iter().filter(|host| match (component, kind) {
                (Component::Later, _) => false,
                (Component::Kubelet, "InitConfiguration") => is_first(host),
                (Component::Kubelet, "JoinConfiguration") => !is_first(host),
                (Component::KubeProxy, _) => true,
                (component, _) => component.is_on_workers() || host.is_control_plane(),
            });
            let hosts = hosts.map(Host::id).collect();
            all.push(one.shown(kind, component, hosts));
        }
    }
    if refused.is_empty() { Ok(all) } else { Err(refusal(&refused)) }
}

fn refusal(refused: &[(Setting, &'static str)]) -> Error {
    let value = |value: &Option<serde_json::Value>| {
        value.as_ref().map_or_else(|| "not set".to_owned(), ToString::to_string)
    };
    let text = match refused.len() {
        1 => "a setting cannot change while the cluster runs:".to_owned(),
        number => format!("{number} settings cannot change while the cluster runs:"),
    };
    let (mut lines, mut whys) = (Vec::new(), Vec::<&str>::new());
    for (setting, why) in refused {
        lines.push(format!(
            "  {} {}: {} → {}",
            setting.document,
            setting.name,
            value(&setting.old),
            value(&setting.new)
        ));
        if !whys.contains(why) {
            whys.push(why);
        }
    }
    whys.iter().fold(Error::usage(text).lines(lines), |error, why| error.hint(*why))
}
