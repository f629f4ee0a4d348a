//! Compares the result of an upgrade with its plan.

use serde::{Deserialize, Serialize};

use crate::observation::{HostSeen, ManifestSeen, Observation};
use crate::{document::Document, restarts::forward};
use imgctl_kube::restart::{Actual, Comparison, Mismatch, RunningContainer, compare};
use imgctl_runtime::version::order_of;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub hosts: Vec<HostReport>,
    /// Workloads with fewer ready Pods than before.
    pub workloads: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostReport {
    pub host: String,
    pub version: Option<String>,
    /// Deviations from the plan.
    pub problems: Vec<String>,
    /// Comparison with the restart prediction, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<Comparison>,
}

impl Report {
    /// Returns whether the result matches the plan.
    #[cfg(test)]
    pub fn is_well(&self) -> bool {
        self.workloads.is_empty()
            && self.hosts.iter().all(|host| {
                let told = host.restarts.as_ref();
                host.problems.is_empty() && told.is_none_or(|told| told.mismatches.is_empty())
            })
    }
}

/// Compares; `before` is the observation on which the plan was based, if it is still available.
pub fn report(document: &Document, before: Option<&Observation>, after: &Observation) -> Report {
    Report {
        hosts: after
            .hosts
            .iter()
            .filter_map(|host| {
                let was = before.and_then(|before| before.host(&host.id));
                of_host(document, was, after, host)
            })
            .collect(),
        workloads: before.map(|before| worse(before, after)).unwrap_or_default(),
    }
}

fn of_host(
    document: &Document,
    was: Option<&HostSeen>,
    after: &Observation,
    host: &HostSeen,
) -> Option<HostReport> {
    let planned = document.hosts.get(&host.id)?;
    if planned.skipped.is_some() {
        return None;
    }
    let mut problems = Vec::new();
    if let Some(why) = &host.unreachable {
        problems.push(format!("it cannot be reached: {why}"));
    }
    let version = after.version_of(host);
    let target = &document.target().version;
    if let Some(version) = &version
        && order_of(version, target).is_none_or(std::cmp::Ordering::is_ne)
    {
        problems.push(format!("it is at {version} instead of {target}"));
    }
    if let Some(server) = after.server_version(host)
        && order_of(&server, target).is_none_or(std::cmp::Ordering::is_ne)
    {
        problems.push(format!("its API server is at {server} instead of {target}"));
    }
    if let Some(node) = after.node_of(host) {
        if !node.ready {
            problems.push(format!("Node {} is not ready: {}", node.name, node.message));
        }
        if node.unschedulable != planned.was_unschedulable {
            let (is, was) =
                if node.unschedulable { ("cordoned", "was not") } else { ("not cordoned", "was") };
            problems.push(format!("Node {} is {is}, but {was} before", node.name));
        }
    } else if planned.node.is_some() && after.api.is_some() {
        problems.push("its Node is gone".to_owned());
    }
    let told = forward(document, &host.id);
    if let (Some(why), Some(_)) = (&host.containers_problem, &told) {
        problems.push(format!("cannot tell which of its containers restarted: {why}"));
    }
    let told = told.filter(|_| !host.containers.is_empty());
    Some(HostReport {
        host: host.id.clone(),
        version,
        problems,
        restarts: told.map(|told| {
            let mut fared = compare(&told, &host.containers);
            for one in fared.mismatches.iter_mut().chain(&mut fared.undecided) {
                one.why = why(one, was, host);
            }
            fared
        }),
    })
}

/// Explains the behaviour of a container as far as possible, by its manifest or its hash.
fn why(mismatch: &Mismatch, was: Option<&HostSeen>, host: &HostSeen) -> Option<String> {
    let predicted = &mismatch.predicted;
    if predicted.is_static
        && let Some(now) = host.manifests.get(&predicted.container)
        && let Some(before) = was.and_then(|was| was.manifests.get(&predicted.container))
        && let Some(changes) = manifest_changes(before, now)
        && mismatch.actual != Actual::Kept
    {
        return Some(format!("its manifest changed: {changes}"));
    }
    let hash = |containers: &[RunningContainer], id: &str| {
        let one = containers.iter().find(|one| one.id == id)?;
        one.hash_annotation.clone()
    };
    let before = was.and_then(|was| hash(&was.containers, &predicted.id));
    let now = mismatch.successor(&host.containers);
    let now = now.and_then(|now| now.hash_annotation.clone());
    Some(match (mismatch.actual, before, now) {
        (Actual::Kept, _, Some(now)) => {
            format!("its hash is {now} as before, and the new kubelet accepts it")
        }
        (Actual::Restarted, Some(before), Some(now)) if before == now => format!(
            "its spec is the same (hash {now}), so it exited, failed a probe or was stopped \
             manually: see `crictl ps -a` and `journalctl -u kubelet` there"
        ),
        (Actual::Restarted, Some(before), Some(now)) => {
            format!("the kubelet gave it the hash {now} instead of {before}")
        }
        (Actual::Recreated, ..) if predicted.is_static => {
            "its manifest has the same image and arguments: the kubelet gave its pod another uid, \
             or it was removed and restored"
                .to_owned()
        }
        (Actual::Recreated | Actual::Gone, ..) => match &predicted.owner {
            Some(owner) => format!("its pod was deleted; {owner} should have created another"),
            None => "its pod was deleted".to_owned(),
        },
        _ => return None,
    })
}

fn manifest_changes(before: &ManifestSeen, now: &ManifestSeen) -> Option<String> {
    let mut changes = Vec::new();
    if let (Some(before), Some(now)) = (&before.image, &now.image)
        && before != now
    {
        changes.push(format!("image {now} instead of {before}"));
    }
    let missing = |from: &ManifestSeen, of: &ManifestSeen| -> Vec<String> {
        let words = from.arguments.iter();
        words.filter(|word| !of.arguments.contains(word)).cloned().collect()
    };
    for (words, what) in [(missing(now, before), "new"), (missing(before, now), "gone")] {
        if !words.is_empty() {
            changes.push(format!("{what}: {}", words.join(" ")));
        }
    }
    if before.volumes != now.volumes
        || before.environment != now.environment
        || before.containers != now.containers
        || before.has_limits != now.has_limits
    {
        changes.push("other containers, volumes, limits or environment".to_owned());
    }
    (!changes.is_empty()).then(|| changes.join("; "))
}

fn worse(before: &Observation, after: &Observation) -> Vec<String> {
    let (Some(before), Some(after)) = (&before.api, &after.api) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for was in &before.workloads {
        let same = after.workloads.iter().find(|now| {
            (&now.kind, &now.namespace, &now.name) == (&was.kind, &was.namespace, &was.name)
        });
        let now = same.map_or(0, |now| now.ready);
        // A workload scaled down or deleted meanwhile does not count as a problem.
        let wanted = same.map_or(0, |now| now.desired);
        if now < was.ready.min(wanted) {
            found.push(format!(
                "{} {}/{}: {now} Pods are ready, {} were before",
                was.kind, was.namespace, was.name, was.ready
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::WorkloadSeen;
    use crate::testing::{document, kubernetes, request};

    /// A control plane whose etcd was predicted to stay.
    #[test]
    fn a_wrong_prediction_is_told_with_what_led_to_it() {
        let container = |id: &str, uid: &str, hash: &str| RunningContainer {
            namespace: "kube-system".into(),
            pod: "etcd-a".into(),
            uid: uid.repeat(32),
            container: "etcd".into(),
            id: id.into(),
            running: true,
            hash_annotation: Some(hash.into()),
            hash_without_resources: None,
            is_static: true,
        };
        let manifest = |words: &[&str]| ManifestSeen {
            image: Some("etcd:3.5.21-0".into()),
            arguments: words.iter().map(|&word| word.to_owned()).collect(),
            ..ManifestSeen::default()
        };
        let mut before = kubernetes(1, 0, "v1.33.4");
        before.hosts[0].containers = vec![container("one", "a", "7")];
        let joined = ["etcd", "--initial-cluster=a=x,b=y"];
        before.hosts[0].manifests.insert("etcd".into(), manifest(&joined));
        let mut plan = document(&before, &request("v1.33.4", &["v1.33.5"]));
        let told = &mut plan.restarts.get_mut("10.0.0.1").unwrap()["forward"]["containers"][0];
        told["verdict"] = "keep".into();
        let mut after = kubernetes(1, 0, "v1.33.5");
        let mut wrong = |id: &str, uid: &str, hash: &str, words: &[&str]| {
            after.hosts[0].containers = vec![container(id, uid, hash)];
            after.hosts[0].manifests.insert("etcd".into(), manifest(words));
            let report = report(&plan, Some(&before), &after);
            let fared = report.hosts[0].restarts.clone().unwrap();
            assert_eq!(fared.mismatches.len(), 1);
            fared.mismatches[0].to_string()
        };
        let text = wrong("two", "b", "7", &["etcd", "--initial-cluster=a=x"]);
        assert!(
            text.contains("predicted keep")
                && text.contains("new: --initial-cluster=a=x; gone: --initial-cluster=a=x,b=y"),
            "{text}"
        );
        let text = wrong("two", "b", "7", &joined);
        assert!(text.contains("another uid"), "{text}");
        let text = wrong("two", "a", "7", &joined);
        assert!(text.contains("its spec is the same (hash 7)"), "{text}");
        let text = wrong("two", "a", "9", &joined);
        assert!(text.contains("hash 9 instead of 7"), "{text}");
    }

    #[test]
    fn what_is_not_as_planned_is_told() {
        let mut before = kubernetes(1, 2, "v1.33.4");
        let workload = |name: &str, desired, ready| WorkloadSeen {
            kind: "Deployment".into(),
            namespace: "a".into(),
            name: name.into(),
            desired,
            ready,
        };
        before.api.as_mut().unwrap().nodes[2].unschedulable = true;
        before.api.as_mut().unwrap().workloads =
            vec![workload("web", 3, 3), workload("gone", 2, 2), workload("less", 5, 5)];
        let plan = document(&before, &request("v1.33.4", &["v1.34.2"]));
        let mut after = kubernetes(1, 2, "v1.34.2");
        after.api.as_mut().unwrap().nodes[2].unschedulable = true;
        after.api.as_mut().unwrap().workloads = vec![workload("web", 3, 3), workload("less", 2, 2)];
        let good = report(&plan, Some(&before), &after);
        assert!(good.is_well() && good.hosts.len() == 3, "{good:?}");
        let api = after.api.as_mut().unwrap();
        api.nodes[1].kubelet = "v1.33.4".into();
        api.nodes[1].unschedulable = true;
        api.nodes[2].unschedulable = false;
        api.nodes[0].ready = false;
        api.workloads[0].ready = 2;
        after.hosts[2].unreachable = Some("no route".into());
        let bad = report(&plan, Some(&before), &after);
        assert!(!bad.is_well());
        assert_eq!(bad.workloads, ["Deployment a/web: 2 Pods are ready, 3 were before"]);
        let told: Vec<String> = bad.hosts.iter().map(|host| host.problems.join("; ")).collect();
        assert!(told[0].contains("not ready"), "{told:?}");
        assert!(told[1].contains("v1.33.4 instead of v1.34.2") && told[1].contains("is cordoned"));
        assert!(told[2].contains("no route") && told[2].contains("but was before"), "{told:?}");
    }
}
