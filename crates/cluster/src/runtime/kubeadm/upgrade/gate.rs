//! Conditions that must hold before the next host is changed.

use std::time::Duration;

use serde_json::Value;

use crate::runtime::action::{Action, Site};
use crate::runtime::kubeadm::place;
use crate::runtime::kubeadm::upgrade::apply::{images, text};
use crate::runtime::kubeadm::upgrade::crash_loop::CrashLoop;
use crate::runtime::kubeadm::upgrade::etcd_manifest::tag;
use crate::runtime::kubeadm::upgrade::target::Target;
use crate::runtime::kubeadm::upgrade::{members, node};
use crate::runtime::kubectl::Kubectl;
use crate::runtime::node_state::{self, is_true, is_version};
use crate::runtime::wait::until_well_or;
use imgctl_base::error::Result;

const PATIENCE: Duration = Duration::from_secs(420);
const LIMIT: Duration = Duration::from_secs(440);
const API_HINT: &str = "on the control plane: `crictl ps -a`, `crictl logs` of the container, \
`journalctl -u kubelet`; then `imgctl upgrade resume`, or `imgctl rollback`";
const NODE_HINT: &str = "`kubectl describe node`, and on the host `journalctl -u kubelet`, \
`crictl ps -a`; then `imgctl upgrade resume`, or `imgctl rollback`";

pub(super) fn actions(target: &Target) -> Vec<Action> {
    let mut actions = Vec::new();
    if target.is_control_plane() {
        actions.push(gate(
            "gate-api",
            format!("the API server of this host is ready, live and at {}", target.version.text),
            target,
            API_HINT,
            api,
        ));
        if target.has_etcd() {
            actions.push(gate(
                "gate-etcd",
                "the members of etcd are unchanged and healthy".to_owned(),
                target,
                API_HINT,
                members::complaint,
            ));
        }
        actions.push(gate(
            "gate-static-pods",
            "the static Pods of the control plane are Ready and run the images of their manifests"
                .to_owned(),
            target,
            API_HINT,
            static_pods,
        ));
    }
    actions.push(gate(
        "gate-node",
        format!(
            "the Node is Ready with kubelet {}, has reported since its kubelet started and is \
             under no pressure; its network Pods are Ready",
            target.version.text
        ),
        target,
        NODE_HINT,
        whole_node,
    ));
    actions
}

fn gate(
    name: &str,
    says: String,
    target: &Target,
    hint: &'static str,
    complaint: fn(&Site<'_>, &Target) -> Result<Option<String>>,
) -> Action {
    let target = target.clone();
    Action::new(name, says, "", move |site| {
        let crashes = CrashLoop::default();
        until_well_or(site, PATIENCE, hint, &|| complaint(site, &target), &|| crashes.find(site))
    })
    .within(LIMIT)
}

/// Checks that this host's API server responds and has the expected version.
pub(super) fn api(site: &Site<'_>, target: &Target) -> Result<Option<String>> {
    let kubectl = Kubectl::here(site)?;
    for path in ["/readyz?verbose", "/livez"] {
        kubectl.run(&["get", "--raw", path, "--request-timeout=10s"])?;
    }
    let answer = kubectl.run(&["get", "--raw", "/version", "--request-timeout=10s"])?;
    let version: Value = serde_json::from_str(&answer).unwrap_or_default();
    let version = text(&version["gitVersion"], "of an unknown version");
    Ok((!is_version(version, &target.version.text))
        .then(|| format!("the API server is {version} instead of {}", target.version.text)))
}

fn static_pods(site: &Site<'_>, target: &Target) -> Result<Option<String>> {
    let kubectl = Kubectl::here(site)?;
    let name = node::own_name(site, &kubectl)?;
    for (component, image) in images(site)? {
        if component != "etcd" && !is_version(tag(&image), &target.version.text) {
            return Ok(Some(format!(
                "the manifest of {component} has {image} instead of {}",
                target.version.text
            )));
        }
        let pod = format!("{component}-{name}");
        let Some(found) = kubectl.find(&["pod", &pod, "-n", "kube-system"])? else {
            return Ok(Some(format!("Pod {pod} does not exist")));
        };
        let runs = text(&found["spec"]["containers"][0]["image"], "nothing");
        if runs != image {
            return Ok(Some(format!("{pod} still runs {runs} instead of {image}")));
        }
        if !is_true(&found, "Ready") {
            return Ok(Some(format!("{pod} is not Ready")));
        }
    }
    Ok(None)
}

fn whole_node(site: &Site<'_>, target: &Target) -> Result<Option<String>> {
    let kubectl = Kubectl::anywhere(site)?;
    let (name, node) = node::own(site, &kubectl)?;
    let started = place::read(site.agent, &target.restarted())?;
    let lease = kubectl.find(&["lease", &name, "-n", "kube-node-lease"])?;
    let lease = lease.unwrap_or_default();
    if let Some(complaint) =
        node_state::complaint(&name, &node, &lease, &target.version.text, started.as_deref())
    {
        return Ok(Some(complaint));
    }
    // Without kube-proxy and the network, a Ready Node cannot serve traffic.
    let waiting = node::pods(&kubectl, &name)?.into_iter().find(|pod| {
        pod.owner == "DaemonSet" && pod.priority == "system-node-critical" && !pod.is_ready
    });
    Ok(waiting.map(|pod| format!("Pod {} on Node {name} is not Ready", pod.name)))
}
