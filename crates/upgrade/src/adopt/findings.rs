//! Judges a reading: whether imgctl can carry the cluster on, and what it cannot. Pure functions, in
//! the order in which their findings are reported.
//!
//! Must not query hosts or the API.

use std::collections::BTreeSet;

use crate::adopt::reading::Reading;
use crate::adopt::{control_plane, k3s};
use crate::document::{Finding, few};
use crate::finding::{error, note, warning};
use crate::observation::NodeSeen;
use imgctl_runtime::version::minor;

/// Oldest minor version whose kubeadm imgctl can work with.
const OLDEST: u64 = 22;
const WINDOWS: &str = "windows";

type Check = fn(&Reading) -> Vec<Finding>;

const CHECKS: [Check; 14] = [
    unreachable,
    answers,
    roles,
    mapping,
    unnamed,
    ready,
    systems,
    runtimes,
    versions,
    programs,
    control_plane::etcd,
    control_plane::authorities,
    control_plane::settings,
    k3s::settings,
];

/// Returns all findings, the most severe first. `cluster` is the name that the cluster gets.
pub fn findings(cluster: &str, reading: &Reading) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    if reading.runtime == "script" {
        // Only the scripts know how the cluster is.
        findings.extend(unreachable(reading));
    } else {
        findings.extend(CHECKS.iter().flat_map(|check| check(reading)));
    }
    findings.extend(record(cluster, reading));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

fn unreachable(reading: &Reading) -> Vec<Finding> {
    let hosts = reading.observation.hosts.iter();
    let away = hosts.filter_map(|host| Some((host, host.unreachable.as_ref()?)));
    away.map(|(host, why)| {
        error("host-unreachable", format!("it cannot be read: {why}"))
            .on(host)
            .hint("every host of the cluster must answer; remove the Node of a host that is gone")
    })
    .collect()
}

fn answers(reading: &Reading) -> Vec<Finding> {
    match &reading.observation.api_problem {
        None => Vec::new(),
        Some(why) => {
            vec![error("api", format!("the Kubernetes API gives no answer: {why}")).hint(
                "on a control plane: `crictl ps -a`, `journalctl -u kubelet`; adopt the cluster \
                 when it works",
            )]
        }
    }
}

fn roles(reading: &Reading) -> Vec<Finding> {
    if reading.runtime == "k3s" {
        return k3s::roles(reading);
    }
    let mut findings = Vec::new();
    for host in reading.reachable() {
        let Some(found) = reading.of(host) else { continue };
        let serves = found.files.contains("manifests/kube-apiserver.yaml");
        let finding = match (host.is_control_plane(), serves) {
            (true, false) => error("role", "it is named under --masters, and runs no API server")
                .hint("name workers under --nodes"),
            (false, true) => error("role", "it is named under --nodes, and runs an API server")
                .hint("name control planes under --masters"),
            _ => continue,
        };
        findings.push(finding.on(host));
    }
    findings
}

fn mapping(reading: &Reading) -> Vec<Finding> {
    if reading.observation.api.is_none() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut taken = BTreeSet::new();
    for host in reading.reachable() {
        let finding = match (&host.node, &host.rivals[..]) {
            (Some(node), _) if taken.insert(node) => continue,
            (Some(node), _) => {
                error("node-mapping", format!("another host is Node {node} as well"))
                    .hint("name each machine once")
            }
            (None, []) => error("node-mapping", "it is no Node of the cluster")
                .hint("`imgctl add` makes it one, after the adoption"),
            (None, rivals) => {
                error("node-mapping", format!("it may be any of the Nodes {}", few(rivals)))
                    .hint("name the host by the address that its Node has")
            }
        };
        findings.push(finding.on(host));
    }
    findings
}

/// Nodes whose hosts were not named. To guess their logins would be wrong too often.
fn unnamed(reading: &Reading) -> Vec<Finding> {
    let known = |node: &&NodeSeen| {
        let mut hosts = reading.observation.hosts.iter();
        hosts.any(|host| host.node.as_ref() == Some(&node.name))
    };
    let is_windows =
        |node: &&NodeSeen| reading.systems.get(&node.name).is_some_and(|system| system == WINDOWS);
    let strangers: Vec<&NodeSeen> =
        reading.nodes().filter(|node| !known(node) && !is_windows(node)).collect();
    if strangers.is_empty() {
        return Vec::new();
    }
    let names: Vec<String> = strangers.iter().map(|node| node.name.clone()).collect();
    let addresses = strangers.iter().filter_map(|node| {
        node.addresses.iter().find(|one| one.kind == "InternalIP").map(|one| one.address.as_str())
    });
    let list: Vec<&str> = addresses.collect();
    vec![
        error("unnamed-node", format!("Nodes without a host among those named: {}", few(&names)))
            .hint(format!(
                "name their hosts as well: --masters or --nodes {}",
                if list.is_empty() { "LIST".to_owned() } else { list.join(",") }
            )),
    ]
}

fn ready(reading: &Reading) -> Vec<Finding> {
    let mut findings = Vec::new();
    for node in reading.nodes() {
        let name = &node.name;
        if !node.ready {
            findings.push(
                error("node-not-ready", format!("Node {name} is not Ready: {}", node.message))
                    .hint("imgctl adopts only healthy clusters: repair the Node or remove it"),
            );
        }
        if !node.pressure.is_empty() {
            let what = format!("Node {name} reports {}", node.pressure.join(", "));
            findings.push(warning("node-pressure", what));
        }
        if node.unschedulable {
            findings.push(note("cordoned", format!("Node {name} is cordoned and stays so")));
        }
    }
    findings
}

fn systems(reading: &Reading) -> Vec<Finding> {
    let windows = reading.systems.iter().filter(|(_, system)| *system == WINDOWS);
    let names: Vec<&str> = windows.map(|(name, _)| name.as_str()).collect();
    if names.is_empty() {
        return Vec::new();
    }
    vec![
        error("windows", format!("{} runs Windows, which imgctl cannot manage", few(&names)))
            .hint("remove these Nodes from the cluster"),
    ]
}

fn runtimes(reading: &Reading) -> Vec<Finding> {
    let mut findings = Vec::new();
    for node in reading.nodes() {
        let name = &node.name;
        let runtime = node.runtime.split("://").next().unwrap_or_default();
        findings.push(match runtime {
            "containerd" | "" => continue,
            "docker" => error("container-runtime", format!("Node {name} runs Docker"))
                .hint("move it to containerd; upgrades and new hosts bring containerd"),
            "cri-o" => warning(
                "container-runtime",
                format!(
                    "Node {name} runs CRI-O: it pulls images from the registries that it is \
                     configured for, not from the images that imgctl brings"
                ),
            ),
            other => {
                error("container-runtime", format!("Node {name} runs {other}, which is not known"))
            }
        });
    }
    findings
}

fn versions(reading: &Reading) -> Vec<Finding> {
    let mut findings = Vec::new();
    let observation = &reading.observation;
    let hosts = observation.hosts.iter();
    let servers: BTreeSet<String> =
        hosts.filter_map(|host| observation.server_version(host)).collect();
    if servers.len() > 1 {
        let all: Vec<&String> = servers.iter().collect();
        findings.push(
            error("mixed-versions", format!("API servers have different versions: {}", few(&all)))
                .hint("finish the upgrade that is under way, with the tool that began it"),
        );
    }
    let Some(version) = reading.version() else {
        return findings;
    };
    if minor(&version).is_none_or(|minor| minor < OLDEST) {
        findings.push(error(
            "version",
            format!("the cluster is at {version}; imgctl works with v1.{OLDEST} and newer"),
        ));
    }
    let behind = reading.nodes().filter(|node| !node.kubelet.is_empty() && node.kubelet != version);
    let behind: Vec<String> =
        behind.map(|node| format!("{} ({})", node.name, node.kubelet)).collect();
    if !behind.is_empty() {
        findings.push(
            warning(
                "mixed-versions",
                format!(
                    "kubelets have another version than the control plane ({version}): {}",
                    few(&behind)
                ),
            )
            .hint("`imgctl upgrade` brings all hosts to one version"),
        );
    }
    findings
}

fn programs(reading: &Reading) -> Vec<Finding> {
    if reading.runtime != "kubeadm" {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut packaged = Vec::new();
    for host in reading.reachable() {
        let Some(found) = reading.of(host) else { continue };
        let lacks: Vec<&str> = ["kubeadm", "kubelet", "kubectl"]
            .into_iter()
            .filter(|name| host.is_control_plane() || *name != "kubectl")
            .filter(|name| !found.programs.contains_key(*name))
            .collect();
        if !lacks.is_empty() {
            findings.push(
                error("programs", format!("it has no {}", lacks.join(", ")))
                    .on(host)
                    .hint("install it in the cluster's version, in a directory of root's PATH"),
            );
        }
        if !found.programs.contains_key("crictl") {
            findings.push(
                warning(
                    "programs",
                    "it has no crictl: images cannot be pulled ahead of an upgrade",
                )
                .on(host),
            );
        }
        if found.package.is_some() {
            packaged.push(host.id.clone());
        }
    }
    if !packaged.is_empty() {
        findings.push(
            note(
                "packages",
                format!(
                    "{}: the kubelet belongs to a package, and upgrades replace its files",
                    few(&packaged)
                ),
            )
            .hint("keep the package manager from replacing them again: `apt-mark hold kubelet kubeadm kubectl`"),
        );
    }
    findings
}

/// The record of an earlier controller must be one of this cluster.
fn record(cluster: &str, reading: &Reading) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(record) = &reading.record else {
        let clusters: BTreeSet<&String> = reading
            .observation
            .hosts
            .iter()
            .filter_map(|host| host.facts.as_ref())
            .flat_map(|facts| &facts.clusters)
            .filter(|name| *name != cluster)
            .collect();
        if !clusters.is_empty() {
            let names: Vec<&String> = clusters.into_iter().collect();
            findings.push(
                warning("other-name", format!("hosts have files of the cluster {}", few(&names)))
                    .hint("if that is this cluster, pass its name with -c"),
            );
        }
        return findings;
    };
    let own = record.clusterfile.cluster.status.adopted.as_ref().map(|own| &*own.cluster_id);
    if own.is_some() && own != reading.cluster_id() && reading.cluster_id().is_some() {
        findings.push(error(
            "record",
            format!("the record ({}) is of another cluster of that name", record.source),
        ));
    }
    findings.push(
        note("record", format!("an earlier controller left a record: {}", record.source)).hint(
            "passwords and variables that look like secrets are not in it: logins come from this \
             command's flags, variables from --env of the next one",
        ),
    );
    if reading.hosts.values().any(|host| host.has_upgrade) {
        findings.push(
            note("upgrade-records", "control planes have copies of the records of upgrades").hint(
                "if an upgrade was under way, copy them before you go on: docs/upgrade.md, \
                 \"Copies on control planes\"",
            ),
        );
    }
    findings
}
