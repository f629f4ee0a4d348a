//! Conditions that must hold before the next host is changed. A crash loop of a component that a gate
//! waits for ends it at once.

use std::sync::{Mutex, PoisonError};
use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use crate::action::{Action, Line, Site};
use crate::kubeadm::place;
use crate::kubeadm::upgrade::apply::{images, text};
use crate::kubeadm::upgrade::target::{Target, own_name, own_node, pods_of};
use crate::kubeadm::upgrade::{etcd_manifest::tag, members};
use crate::wait::until_well_or;
use crate::{
    kubectl,
    kubectl::{Kubectl, is_true, is_version},
};
use imgctl_base::error::{Error, Kind, Result};

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
    Action::new(name, says, move |site| {
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
    let name = own_name(site, &kubectl)?;
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
    let (name, node) = own_node(site, &kubectl)?;
    let started = place::read(site.agent, &target.restarted())?;
    let lease = kubectl.find(&["lease", &name, "-n", "kube-node-lease"])?;
    let lease = lease.unwrap_or_default();
    if let Some(complaint) =
        kubectl::complaint(&name, &node, &lease, &target.version.text, started.as_deref())
    {
        return Ok(Some(complaint));
    }
    // Without kube-proxy and the network, a Ready Node cannot serve traffic.
    let waiting = pods_of(&kubectl, &name)?.into_iter().find(|pod| {
        pod.owner == "DaemonSet" && pod.priority == "system-node-critical" && !pod.is_ready
    });
    Ok(waiting.map(|pod| format!("Pod {} on Node {name} is not Ready", pod.name)))
}

/// Number of starts since the gate began that count as a crash loop: one or two can be caused by a
/// server that the component depends on.
const STARTS: u64 = 3;

const LOOK: &str = include_str!("scripts/count-starts.sh");

/// Number of starts of each component when the gate began.
#[derive(Default)]
pub(super) struct CrashLoop(Mutex<Option<BTreeMap<String, u64>>>);

/// The kubelet or a container of a static Pod.
struct Started {
    name: String,
    times: u64,
    /// Command that shows the end of its log; `None` while it runs.
    log: Option<String>,
}

impl CrashLoop {
    /// Returns the crash-looping component, with the end of its log. A host that cannot be queried
    /// does not count as a crash loop.
    pub(super) fn find(&self, site: &Site<'_>) -> Option<Error> {
        let line = Line { quiet: true, ..Line::script(&[LOOK]) };
        let text = site.run_on(site.agent, &line, "-starts").ok()?;
        let now = read(&text);
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let began = held.get_or_insert_with(|| {
            let starts = now.iter().map(|one| (one.name.clone(), one.times));
            starts.collect()
        });
        let looping = now.iter().find_map(|one| {
            let before = began.get(&one.name).copied().unwrap_or(0);
            let times = one.times.saturating_sub(before);
            let log = one.log.as_ref().filter(|_| times >= STARTS)?;
            Some((one, times, log))
        });
        let (one, times, log) = looping?;
        let end =
            site.run_on(site.agent, &Line::query(log.clone()), "-crashed").unwrap_or_default();
        let message = format!(
            "{}: {} keeps crashing ({times} times since the gate began); the end of its log:",
            site.agent.host(),
            one.name
        );
        Some(
            Error::new(Kind::CommandFailed, message)
                .lines(end.lines().map(|line| format!("    {line}"))),
        )
    }
}

fn read(text: &str) -> Vec<Started> {
    let (restarts, containers) = text.split_once('\n').unwrap_or((text, ""));
    let mut all = Vec::new();
    if let Ok(times) = restarts.trim().parse() {
        all.push(Started {
            name: "kubelet".to_owned(),
            times,
            log: Some("journalctl --no-pager -q -o cat -n 20 -u kubelet 2>&1".to_owned()),
        });
    }
    let containers: Value = serde_json::from_str(containers.trim()).unwrap_or_default();
    // Newest container of each name.
    let mut newest = BTreeMap::<&str, (u64, &Value)>::new();
    for container in containers["containers"].as_array().into_iter().flatten() {
        let name = container["metadata"]["name"].as_str().unwrap_or_default();
        let attempt = container["metadata"]["attempt"].as_u64().unwrap_or(0);
        let created = |one: &Value| -> u64 {
            let text = one["createdAt"].as_str().unwrap_or_default();
            text.parse().unwrap_or(0)
        };
        let is_newer =
            newest.get(name).is_none_or(|(_, known)| created(container) >= created(known));
        if is_newer {
            newest.insert(name, (attempt, container));
        }
    }
    for (name, (times, container)) in newest {
        let id = container["id"].as_str().unwrap_or_default();
        let has_ended = container["state"] == "CONTAINER_EXITED";
        let fits = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        all.push(Started {
            name: name.to_owned(),
            times,
            log: (has_ended && fits).then(|| format!("crictl logs --tail 20 {id} 2>&1")),
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_container_of_each_name_counts() {
        let text = r#"4

{"containers":[
 {"id":"aa1","metadata":{"name":"kube-apiserver","attempt":7},"state":"CONTAINER_EXITED","createdAt":"10"},
 {"id":"bb2","metadata":{"name":"kube-apiserver","attempt":2},"state":"CONTAINER_EXITED","createdAt":"20"},
 {"id":"cc3","metadata":{"name":"etcd","attempt":1},"state":"CONTAINER_RUNNING","createdAt":"15"}]}"#;
        let all = read(text);
        let shown: Vec<_> =
            all.iter().map(|one| (one.name.as_str(), one.times, one.log.is_some())).collect();
        assert_eq!(shown, [("kubelet", 4, true), ("etcd", 1, false), ("kube-apiserver", 2, true)]);
        assert!(all[2].log.as_ref().unwrap().ends_with("bb2 2>&1"));
        assert!(read("").is_empty());
        assert!(read("nonsense\n\nnone").is_empty());
    }
}
