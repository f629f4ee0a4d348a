//! Pods without which a cluster does not work, and that are not Ready: those of DaemonSets and the
//! static ones in kube-system, and whatever is marked as critical for its Node or the cluster
//! (kube-proxy, network plugins, CoreDNS).
//!
//! Must not depend on what installs them.

use serde::Serialize;

use crate::pipeline::nodes;
use imgctl_base::error::Result;
use imgctl_model::context::ClusterContext;
use imgctl_runtime::action::HostPool;

/// Query that prints one line for each Pod that matters and is not Ready. The message is the last field
/// because it may contain any text. The Pods of a large cluster are megabytes: the host selects.
const PODS: &str = "get pods -A -o 'jsonpath={range .items[*]}{.metadata.namespace}\
                    |{.metadata.name}|{.spec.priorityClassName}\
                    |{.status.conditions[?(@.type==\"Ready\")].status}\
                    |{.status.phase}|{.metadata.deletionTimestamp}\
                    |{.metadata.ownerReferences[0].kind}|{.spec.nodeName}\
                    |{.status.initContainerStatuses[*].state.waiting.reason} \
                    {.status.containerStatuses[*].state.waiting.reason} \
                    {.status.containerStatuses[*].state.terminated.reason}\
                    |{.status.conditions[?(@.type==\"Ready\")].message}{\"\\n\"}{end}' \
                    | { grep -E '^kube-system\\||^[^|]*\\|[^|]*\\|system-(node|cluster)-critical\\|' || true; } \
                    | { grep -vE '^[^|]*\\|[^|]*\\|[^|]*\\|True\\|' || true; }";

const NAMESPACE: &str = "kube-system";
const CRITICAL: [&str; 2] = ["system-node-critical", "system-cluster-critical"];

/// A Pod of the system that is not Ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PodStatus {
    /// `kube-system/kube-proxy-x7k2p`.
    pub name: String,
    /// Its Node, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// `CrashLoopBackOff`, or what else its status says.
    pub reason: String,
}

impl PodStatus {
    /// Returns a sentence.
    pub fn problem(&self) -> String {
        format!("Pod {} is not Ready: {}", self.name, self.reason)
    }
}

/// Queries the first control plane. `key` names the query among the commands on that host.
pub(crate) fn ask(
    context: &ClusterContext,
    pool: &dyn HostPool,
    key: &str,
) -> Result<Vec<PodStatus>> {
    let text = nodes::line(context, pool, key, PODS)?;
    Ok(text.lines().filter_map(pod).collect())
}

/// Parses one line of the output of [`PODS`]; `None` for a Pod that is to be as it is.
fn pod(line: &str) -> Option<PodStatus> {
    let fields: Vec<&str> = line.splitn(10, '|').collect();
    let [namespace, name, class, ready, phase, deleted, owner, node, reasons, message] = fields[..]
    else {
        return None;
    };
    let matters = CRITICAL.contains(&class)
        || (namespace == NAMESPACE && ["DaemonSet", "Node"].contains(&owner));
    // A Pod that was deleted is replaced, and one that has succeeded is done.
    if !matters || ready == "True" || phase == "Succeeded" || !deleted.is_empty() {
        return None;
    }
    let reason = reasons.split_whitespace().find(|reason| *reason != "PodInitializing");
    let reason = match (reason, message.trim()) {
        (Some(reason), "") => reason.to_owned(),
        (Some(reason), message) => format!("{reason} ({message})"),
        (None, "") => format!("phase {phase}"),
        (None, message) => message.to_owned(),
    };
    Some(PodStatus {
        name: format!("{namespace}/{name}"),
        node: (!node.is_empty()).then(|| node.to_owned()),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_are_not_ready_are_told_with_their_reason() {
        let proxy = pod(
            "kube-system|kube-proxy-x|system-node-critical|False|Running||DaemonSet|one| CrashLoopBackOff |containers with unready status: [kube-proxy]",
        );
        let proxy = proxy.unwrap();
        assert_eq!(
            (&*proxy.name, proxy.node.as_deref()),
            ("kube-system/kube-proxy-x", Some("one"))
        );
        assert_eq!(
            proxy.problem(),
            "Pod kube-system/kube-proxy-x is not Ready: CrashLoopBackOff (containers with unready \
             status: [kube-proxy])"
        );
        let told = |line: &str| pod(line).map(|pod| pod.reason);
        // A static Pod that has just been seen, a network plugin elsewhere, CoreDNS without a place.
        assert_eq!(
            told("kube-system|etcd-one||False|Pending||Node|one|  |").as_deref(),
            Some("phase Pending")
        );
        assert_eq!(
            told("kube-flannel|kube-flannel-ds-x|system-node-critical|False|Pending||DaemonSet|one|ImagePullBackOff PodInitializing |a | b").as_deref(),
            Some("ImagePullBackOff (a | b)")
        );
        let dns = "kube-system|coredns-x|system-cluster-critical||Pending||ReplicaSet|||";
        assert_eq!(pod(dns).unwrap().node, None);
        for well in [
            "kube-system|kube-proxy-x|system-node-critical|True|Running||DaemonSet|one|  |",
            // Of a user, done, deleted.
            "kube-system|mine-x||False|Running||ReplicaSet|one|CrashLoopBackOff |",
            "default|mine-x||False|Running||DaemonSet|one|CrashLoopBackOff |",
            "kube-system|job-x|system-cluster-critical|False|Succeeded||Job|one|  Completed|",
            "kube-system|kube-proxy-x|system-node-critical|False|Running|2024-01-01T00:00:00Z|DaemonSet|one|  |",
            "No resources found",
            "",
        ] {
            assert_eq!(pod(well), None, "{well}");
        }
    }

    /// The selection is that of a shell on the host.
    #[test]
    fn a_host_sends_only_what_matters() {
        let lines = "kube-system|a||True|Running||Node|one|  |\n\
                     kube-system|b||False|Running||Node|one|  |\n\
                     x|c|system-node-critical|False|Running||DaemonSet|one|  |is True|\n\
                     x|d|system-node-critical|True|Running||DaemonSet|one|  |\n\
                     x|system-node-critical||False|Running||DaemonSet|one|  |\n";
        let (_, filter) = PODS.split_once("{end}' ").unwrap();
        let script = format!("printf '%s' \"$LINES_\" {filter}");
        let ran = std::process::Command::new("bash")
            .args(["-c", &script])
            .env("LINES_", lines)
            .output()
            .unwrap();
        let told = String::from_utf8(ran.stdout).unwrap();
        let names: Vec<&str> = told.lines().filter_map(|line| line.split('|').nth(1)).collect();
        assert_eq!(names, ["b", "c"], "{told}");
    }
}
