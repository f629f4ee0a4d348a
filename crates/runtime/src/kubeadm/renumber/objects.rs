//! API objects that name the address of a control plane, and the Pods that took the address of
//! their host when they started.

use std::time::Duration;

use serde_json::json;

use crate::action::{Action, Site};
use crate::kubeadm::readdress::Addresses;
use crate::kubeadm::{place, settings::etc};
use crate::kubectl::Kubectl;
use crate::wait::until_well;
use imgctl_base::error::Result;
use imgctl_model::context::{ClusterContext, Host};

const PATIENCE: Duration = Duration::from_secs(120);
const HINT: &str = "`kubectl get configmap -A` on a control plane; then run the same command again";

/// ConfigMaps that kubeadm writes, with their namespaces.
const MAPS: [(&str, &str); 3] = [
    ("kube-system", "kubeadm-config"),
    ("kube-public", "cluster-info"),
    ("kube-system", "kube-proxy"),
];

/// Time in which Pods are created again: also after the controller manager has found a new leader.
const READY: Duration = Duration::from_secs(300);
const PODS_HINT: &str = "`kubectl get pods -A -o wide` shows the Pods of the Node, `kubectl describe` \
why one does not start; then run the same command again";

/// Prints `NAMESPACE|NAME|OWNER'S KIND|OWNER|HOST NETWORK|READY` for each Pod.
const PODS: &str = r#"jsonpath={range .items[*]}{.metadata.namespace}|{.metadata.name}|{.metadata.ownerReferences[0].kind}|{.metadata.ownerReferences[0].name}|{.spec.hostNetwork}|{.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}"#;

/// Annotation of the Pods of kube-proxy with the server of their kubeconfig, which they read only
/// when they start: another server makes other Pods.
const SERVER: &str = "imgctl.io/api-server";

/// Changes the address in the ConfigMaps, and restarts kube-proxy everywhere if its own names it.
pub(super) fn config_maps(addresses: &Addresses, host: &Host) -> Action {
    let names: Vec<String> =
        MAPS.iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect();
    let says = format!(
        "change the address in the ConfigMaps {}; restart kube-proxy on all hosts, if its own \
         names this host as server",
        names.join(", ")
    );
    let (addresses, server) = (addresses.clone(), format!("https://{}:", bracketed(host.ip())));
    let action = Action::new("config-maps", says, move |site| {
        until_well(site, PATIENCE, HINT, &|| change(site, &addresses, &server).map(|()| None))
    });
    action.within(PATIENCE * 2)
}

fn bracketed(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}

fn change(site: &Site<'_>, addresses: &Addresses, server: &str) -> Result<()> {
    let kubectl = Kubectl::anywhere(site)?;
    for (namespace, name) in MAPS {
        let Some(found) = kubectl.find(&["configmap", name, "-n", namespace])? else {
            continue;
        };
        let new = addresses.in_config_map(&found);
        if let Some(new) = &new {
            kubectl.replace(new)?;
            site.say(&format!("ConfigMap {namespace}/{name} is changed"));
        }
        // Also if an earlier attempt changed the ConfigMap and went no further.
        let now = new.as_ref().unwrap_or(&found);
        let config = now["data"]["kubeconfig.conf"].as_str().unwrap_or_default();
        if name == "kube-proxy" && config.contains(server) {
            let patch =
                json!({"spec": {"template": {"metadata": {"annotations": {SERVER: server}}}}});
            let patch = patch.to_string();
            let object = ["patch", "daemonset", "kube-proxy", "-n", namespace, "-p", &patch];
            kubectl.run_shown(&object)?;
        }
    }
    Ok(())
}

/// Deletes the Pods of DaemonSets that use this host's network, and waits until their controllers
/// have created others. Network plugins and proxies take the address of the host when they start.
pub(super) fn network_pods(context: &ClusterContext) -> Action {
    let says = "delete the Pods of DaemonSets that use the network of this host, and wait for those \
                that replace them";
    let list = etc(context, "network-pods");
    let action = Action::new("network-pods", says, move |site| {
        until_well(site, READY, PODS_HINT, &|| recreate(site, &list))?;
        site.remove(&list)
    });
    action.within(READY * 2)
}

/// Returns the Pods that are still missing. The first attempt lists in a file what it deletes: a
/// repeated one must not delete what came since.
fn recreate(site: &Site<'_>, list: &str) -> Result<Option<String>> {
    let kubectl = Kubectl::anywhere(site)?;
    let Some(node) = kubectl.own_node()? else {
        return Ok(Some("the Node is not there".to_owned()));
    };
    let selector = format!("spec.nodeName={node}");
    let ask = || kubectl.run(&["get", "pods", "-A", "--field-selector", &selector, "-o", PODS]);
    let before = match place::read(site.agent, list)? {
        Some(text) => text,
        None => {
            let text = ask()?;
            place::write(site.agent, list, 0o600, &text)?;
            text
        }
    };
    let before: Vec<Pod<'_>> = before.lines().filter_map(Pod::of_daemon_set).collect();
    for pod in &before {
        let (name, namespace) = (pod.name, pod.namespace);
        let options = ["--wait=false", "--ignore-not-found"];
        kubectl.run(&[&["delete", "pod", name, "-n", namespace], &options[..]].concat())?;
    }
    let now = ask()?;
    let now: Vec<Pod<'_>> = now.lines().filter_map(Pod::of_daemon_set).collect();
    Ok(missing(&before, &now))
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pod<'a> {
    namespace: &'a str,
    name: &'a str,
    owner: &'a str,
    is_ready: bool,
}

impl<'a> Pod<'a> {
    /// Parses a line of [`PODS`]; `None` for Pods that do not take the address of the host.
    fn of_daemon_set(line: &'a str) -> Option<Self> {
        let fields: Vec<&str> = line.split('|').collect();
        match fields[..] {
            [namespace, name, "DaemonSet", owner, "true", ready] => {
                Some(Self { namespace, name, owner, is_ready: ready == "True" })
            }
            _ => None,
        }
    }
}

/// Returns the first Pod of `before` that no other Pod has replaced.
fn missing(before: &[Pod<'_>], now: &[Pod<'_>]) -> Option<String> {
    let is_back = |old: &&Pod<'_>| {
        now.iter().any(|new| {
            (new.namespace, new.owner) == (old.namespace, old.owner)
                && new.is_ready
                && before.iter().all(|old| old.name != new.name)
        })
    };
    // One that was not Ready before says nothing about the new address.
    let pod = before.iter().find(|old| old.is_ready && !is_back(old))?;
    Some(format!("no Pod of DaemonSet {}/{} is Ready again", pod.namespace, pod.owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(lines: &'static str) -> Vec<Pod<'static>> {
        lines.lines().filter_map(Pod::of_daemon_set).collect()
    }

    #[test]
    fn pods_of_daemon_sets_in_the_network_of_the_host_are_replaced() {
        let before = pods(
            "kube-system|kube-proxy-a|DaemonSet|kube-proxy|true|True\n\
             default|web|ReplicaSet|web|true|True\n\
             default|agent|DaemonSet|agent||True\n\
             kube-system|etcd-cp-1|Node|cp-1|true|True",
        );
        assert_eq!(before.len(), 1);
        let why = missing(&before, &before).unwrap();
        assert!(why.contains("kube-system/kube-proxy"), "{why}");
        let coming = pods("kube-system|kube-proxy-b|DaemonSet|kube-proxy|true|False");
        assert!(missing(&before, &coming).is_some());
        let ready = pods("kube-system|kube-proxy-b|DaemonSet|kube-proxy|true|True");
        assert_eq!(missing(&before, &ready), None);
        assert_eq!(missing(&[], &before), None);
    }
}
