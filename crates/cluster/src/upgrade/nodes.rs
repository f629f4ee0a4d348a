//! Nodes during an upgrade: cordon, drain, uncordon.

use std::{sync::Arc, time::Duration};

use crate::cluster::context::{ClusterContext, Host};
use crate::runtime::Action;
use crate::runtime::action::{HostPool, Site};
use crate::upgrade::document::Choices;
use imgctl_base::error::{Context, Error, Result};
use imgctl_host::agent::protocol::OutputLine;
use imgctl_kube::drain::{self, Cordon, OnTimeout};
use imgctl_kube::failover::{Connect, Failover};
use imgctl_kube::{api::Api, client};

/// Additional time for a drain step beyond the drain timeouts.
const SLACK: Duration = Duration::from_secs(300);

/// Returns the API of the first control plane that responds.
pub fn api(context: &ClusterContext, pool: &dyn HostPool) -> Result<Arc<dyn Api>> {
    let mut problems = Vec::new();
    for host in context.control_planes() {
        let tried = pool.agent(host).and_then(client::connect).and_then(|api| {
            api.raw("/readyz").map_err(Error::from)?;
            Ok(api)
        });
        match tried {
            Ok(api) => return Ok(api),
            Err(error) => problems.push(format!("{}: {}", host.id(), error.chain().join(": "))),
        }
    }
    Err(Error::failed(format!(
        "no control plane of cluster {} answers:\n  {}",
        context.name,
        problems.join("\n  ")
    ))
    .hint(
        "run `imgctl status`; on a control plane, run `crictl ps -a` and `journalctl -u kubelet`",
    ))
}

/// Returns a client that asks the control planes in turn. Does not connect to any of them yet.
pub fn any_api(context: &ClusterContext, pool: &Arc<dyn HostPool + Send>) -> Failover {
    let connect = |host: &Host| -> Connect {
        let (host, pool) = (host.clone(), Arc::clone(pool));
        Box::new(move || pool.agent(&host).and_then(client::connect))
    };
    Failover::new(context.control_planes().map(connect).collect())
}

pub(super) fn cordon(node: &str, id: &str) -> Action {
    let (node, id) = (node.to_owned(), id.to_owned());
    let says = format!("cordon Node {node}");
    Action::new("cordon", says, move |site| {
        let api = api(site.context, site.pool)?;
        if drain::cordon(&*api, &node, &id)? == Cordon::Others {
            say(site, &format!("Node {node} was already cordoned and stays cordoned"));
        }
        Ok(())
    })
}

/// Drains `node`. If the drain fails, the Node is uncordoned; a retry cordons it again first.
pub(super) fn drain(node: &str, id: &str, choices: &Choices) -> Action {
    let (node, id) = (node.to_owned(), id.to_owned());
    let options = drain::Options {
        timeout: Duration::from_secs(choices.drain_timeout_seconds),
        on_timeout: choices.drain_on_timeout,
        delete_emptydir_data: choices.delete_emptydir_data,
        force: choices.force_unmanaged,
        ..drain::Options::default()
    };
    let says =
        format!("drain Node {node}: evict its Pods within {} s", choices.drain_timeout_seconds);
    let inputs = format!("{options:?}");
    let limit = options.timeout;
    let action = Action::depending_on("drain", says, &inputs, move |site| {
        let api = api(site.context, site.pool)?;
        let told = |event: drain::PodEvent| say(site, &event.to_string());
        let gone = empty(&*api, &node, &id, &options, &told)?;
        say(site, &format!("Node {node}: {gone} Pods are gone"));
        Ok(())
    });
    match choices.drain_on_timeout {
        OnTimeout::Wait => action,
        _ => action.within(limit * 2 + SLACK),
    }
}

/// Cordons the Node if necessary and drains it; uncordons it if the drain fails. Returns the number
/// of removed Pods.
fn empty(
    api: &dyn Api,
    node: &str,
    id: &str,
    options: &drain::Options,
    told: &dyn Fn(drain::PodEvent),
) -> Result<usize> {
    drain::cordon(api, node, id)?;
    match drain::drain(api, node, options, told) {
        Ok(drained) => Ok(drained.gone),
        Err(error) => match drain::uncordon(api, node) {
            Ok(_) => Err(error).context(|| format!("Node {node} accepts Pods again")),
            Err(other) => Err(error.hint(format!(
                "Node {node} is still cordoned ({other}): `kubectl uncordon {node}`"
            ))),
        },
    }
}

/// Reverts [`cordon`]; a cordon by others stays.
pub(super) fn uncordon(node: &str) -> Action {
    let node = node.to_owned();
    let says = format!("uncordon Node {node}, unless it was already cordoned");
    Action::new("uncordon", says, move |site| {
        let api = api(site.context, site.pool)?;
        drain::uncordon(&*api, &node).map(|_| ())
    })
}

pub(super) fn say(site: &Site<'_>, text: &str) {
    (site.output)(OutputLine { text: text.to_owned(), error_stream: false });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use imgctl_kube::testing::stand_in::StandIn;

    /// Regression: after a drain timed out, its Node was uncordoned, and the drain of the resumed
    /// upgrade ran on an uncordoned Node.
    #[test]
    fn a_node_that_was_opened_after_a_drain_is_closed_again() {
        const NODE: &str = "/api/v1/nodes/n";
        const BUDGET: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/b";
        let api = StandIn::new();
        api.add(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}))
            .add(json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "p", "labels": {"app": "a"}, "ownerReferences":
                    [{"kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}]},
                "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "x:1"}]},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            }))
            .add(json!({
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
            }));
        let options = |milliseconds| drain::Options {
            timeout: Duration::from_millis(milliseconds),
            poll: Duration::from_millis(5),
            retry: Duration::from_millis(10),
            ..drain::Options::default()
        };
        let error = empty(&api, "n", "u1", &options(100), &|_| {}).unwrap_err();
        assert!(error.chain().join(" ").contains("accepts Pods again"), "{:?}", error.chain());
        let node = api.peek(NODE).unwrap();
        assert_ne!(node["spec"]["unschedulable"], true, "{node}");
        api.change(BUDGET, |budget| budget["spec"]["minAvailable"] = json!(0));
        let gone = empty(&api, "n", "u1", &options(20_000), &|_| {}).unwrap();
        assert_eq!(gone, 1);
        assert_eq!(api.peek(NODE).unwrap()["spec"]["unschedulable"], true);
    }
}
