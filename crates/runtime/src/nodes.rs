//! Nodes that are emptied: cordon, drain, uncordon. Talks to the API itself, not through kubectl.

use std::{sync::Arc, time::Duration};

use crate::Action;
use crate::action::{HostPool, Site};
use crate::control_plane;
use imgctl_base::error::{Context, Error, Kind, Result};
use imgctl_host::agent::protocol::{Facts, OutputLine};
use imgctl_kube::api::Api;
use imgctl_kube::drain::{self, Cordon, OnTimeout};
use imgctl_kube::failover::{Connect, Failover};
use imgctl_model::context::{ClusterContext, Host};
use serde_json::Value;

/// Additional time for a drain step beyond the drain timeouts.
const SLACK: Duration = Duration::from_secs(300);
/// Who cordons the Node of a host that leaves.
const LEAVES: &str = "delete";
/// Part of every error of an agent whose host is given up as lost.
pub const LOST: &str = "is treated as lost";

/// Returns whether a request failed because its host is given up as lost.
pub fn is_lost(error: &Error) -> bool {
    error.kind() == Kind::Network && error.to_string().contains(LOST)
}

/// Returns the API of the first control plane that responds.
pub fn api(context: &ClusterContext, pool: &dyn HostPool) -> Result<Arc<dyn Api>> {
    let mut problems = Vec::new();
    for host in context.control_planes() {
        let tried = pool.agent(host).and_then(control_plane::connect).and_then(|api| {
            api.raw("/readyz").map_err(Error::from)?;
            Ok(api)
        });
        match tried {
            Ok(api) => return Ok(api),
            Err(error) => problems.push(format!("{}: {}", host.id(), error.chain().join(": "))),
        }
    }
    Err(Error::failed(format!("no control plane of cluster {} answers:", context.name))
        .lines(problems.iter().map(|problem| format!("  {problem}")))
        .hint(
        "run `imgctl status`; on a control plane, run `crictl ps -a` and `journalctl -u kubelet`",
    ))
}

/// Returns a client that asks the control planes in turn. Does not connect to any of them yet.
pub fn any_api(context: &ClusterContext, pool: &Arc<dyn HostPool + Send>) -> Failover {
    let connect = |host: &Host| -> Connect {
        let (host, pool) = (host.clone(), Arc::clone(pool));
        Box::new(move || pool.agent(&host).and_then(control_plane::connect))
    };
    Failover::new(context.control_planes().map(connect).collect())
}

/// Returns the action that cordons `node` for the work `id`; a Node that somebody else cordoned stays theirs.
pub fn cordon(node: &str, id: &str) -> Action {
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
pub fn drain(node: &str, id: &str, options: &drain::Options) -> Action {
    let (node, id, own) = (node.to_owned(), id.to_owned(), options.clone());
    let says = says(&format!("Node {node}"), options);
    let inputs = format!("{options:?}");
    let action = Action::depending_on("drain", says, &inputs, move |site| {
        let api = api(site.context, site.pool)?;
        emptied(&*api, &node, &id, &own, &|text| say(site, text))
    });
    limited(action, options)
}

/// Returns how the Pods of hosts that leave are evicted unless somebody chooses otherwise: what is in
/// their emptyDir volumes goes with the host anyway.
pub fn leaving() -> drain::Options {
    drain::Options { delete_emptydir_data: true, ..drain::Options::default() }
}

/// Drains the Node of a host that leaves, which is found by the host's address or name. A host that is given up as lost is not waited for: nothing
/// there would end its Pods.
pub(crate) fn drain_leaving(host: &Host, options: &drain::Options) -> Action {
    let (address, own) = (host.ip().to_owned(), options.clone());
    let says = says(&format!("the Node of {address}"), options);
    let inputs = format!("{options:?}");
    let action = Action::depending_on("drain", says, &inputs, move |site| {
        let api = api(site.context, site.pool)?;
        emptied_for_good(&*api, &address, site.agent.facts(), &own, &|text| say(site, text))
    });
    limited(action, options)
}

fn emptied_for_good(
    api: &dyn Api,
    address: &str,
    facts: Result<Facts>,
    options: &drain::Options,
    say: &dyn Fn(&str),
) -> Result<()> {
    let hostname = facts.as_ref().ok().map(|facts| facts.hostname.to_lowercase());
    let Some(node) = node_of(api, address, hostname.as_deref())? else {
        // The host never joined, or has already left.
        return Ok(());
    };
    match facts {
        Err(error) if is_lost(&error) => {
            drain::cordon(api, &node, LEAVES)?;
            say(&format!("Node {node} is cordoned; its Pods are not evicted: {error}"));
            Ok(())
        }
        _ => emptied(api, &node, LEAVES, options, say),
    }
}

fn says(node: &str, options: &drain::Options) -> String {
    match options.timeout.as_secs() {
        0 => format!("drain {node}: evict its Pods"),
        seconds => format!("drain {node}: evict its Pods within {seconds} s"),
    }
}

/// Limits the action to somewhat more than its drain may take.
fn limited(action: Action, options: &drain::Options) -> Action {
    if options.on_timeout == OnTimeout::Wait || options.timeout.is_zero() {
        return action;
    }
    action.within(options.timeout * 2 + SLACK)
}

/// Drains the Node and says what becomes of each Pod.
fn emptied(
    api: &dyn Api,
    node: &str,
    id: &str,
    options: &drain::Options,
    say: &dyn Fn(&str),
) -> Result<()> {
    let told = |event: drain::PodEvent| say(&event.to_string());
    let gone = empty(api, node, id, options, &told)?;
    say(&format!("Node {node}: {gone} Pods are gone"));
    Ok(())
}

/// Returns the name of the Node with an address, or else with the host name.
fn node_of(api: &dyn Api, address: &str, hostname: Option<&str>) -> Result<Option<String>> {
    let nodes = api.list("/api/v1/nodes").map_err(Error::from)?;
    let has = |node: &Value, wanted: &str| {
        let addresses = node["status"]["addresses"].as_array();
        addresses.into_iter().flatten().any(|one| one["address"] == wanted)
    };
    let name = |node: &Value| node["metadata"]["name"].as_str().map(str::to_owned);
    let by_address = nodes.iter().find(|node| has(node, address)).and_then(name);
    Ok(by_address.or_else(|| {
        let is_named = |node: &&Value| {
            hostname.is_some_and(|own| node["metadata"]["name"] == own || has(node, own))
        };
        nodes.iter().find(is_named).and_then(name)
    }))
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
pub fn uncordon(node: &str) -> Action {
    let node = node.to_owned();
    let says = format!("uncordon Node {node}, unless it was already cordoned");
    Action::new("uncordon", says, move |site| {
        let api = api(site.context, site.pool)?;
        drain::uncordon(&*api, &node).map(|_| ())
    })
}

/// Writes a line to the step's log and the screen.
pub fn say(site: &Site<'_>, text: &str) {
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

    /// A host that answers is emptied, found by its address or its name; a lost one is not waited for.
    #[test]
    fn the_node_of_a_host_that_leaves_is_emptied_unless_the_host_is_lost() {
        let facts = || Ok(Facts { hostname: "N".into(), ..Facts::default() });
        let lost = || Err(Error::network(format!("10.0.0.9 {LOST}")));
        let options = drain::Options {
            timeout: Duration::from_millis(200),
            poll: Duration::from_millis(5),
            ..leaving()
        };
        let cases: [(&str, Result<Facts>, bool); 4] = [
            ("10.0.0.9", facts(), true),
            ("10.0.0.7", facts(), true),
            ("10.0.0.9", lost(), false),
            // A lost host whose Node is gone already.
            ("10.0.0.7", lost(), false),
        ];
        for (number, (address, facts, empties)) in cases.into_iter().enumerate() {
            let api = StandIn::new();
            api.add(json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
                "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]},
            }));
            api.add(json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "p", "ownerReferences":
                    [{"kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}]},
                "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "x:1"}],
                    "volumes": [{"name": "v", "emptyDir": {}}]},
                "status": {"phase": "Running"},
            }));
            let said = std::cell::RefCell::new(Vec::new());
            let say = |text: &str| said.borrow_mut().push(text.to_owned());
            emptied_for_good(&api, address, facts, &options, &say).unwrap();
            let pod = api.peek("/api/v1/namespaces/default/pods/p");
            assert_eq!(pod.is_none(), empties, "{number}: {said:?}");
            let is_closed = api.peek("/api/v1/nodes/n").unwrap()["spec"]["unschedulable"] == true;
            assert_eq!(is_closed, number != 3, "{number}: {said:?}");
        }
    }

    /// A budget that admits no eviction ends the drain with its reason, and the Node accepts Pods again.
    #[test]
    fn a_host_whose_pods_must_stay_does_not_leave() {
        let api = StandIn::new();
        api.add(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}));
        api.add(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone"},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "x:1"}]},
            "status": {"phase": "Running"},
        }));
        let facts = || Ok(Facts { hostname: "n".into(), ..Facts::default() });
        let options = drain::Options { poll: Duration::from_millis(5), ..leaving() };
        let error = emptied_for_good(&api, "x", facts(), &options, &|_| {}).unwrap_err();
        assert!(error.chain().join(" ").contains("alone"), "{:?}", error.chain());
        assert_ne!(api.peek("/api/v1/nodes/n").unwrap()["spec"]["unschedulable"], true);
        let forced = drain::Options { force: true, ..options };
        emptied_for_good(&api, "x", facts(), &forced, &|_| {}).unwrap();
        assert!(api.peek("/api/v1/namespaces/default/pods/alone").is_none());
    }
}
