//! Judges the control plane of a reading: etcd, authorities and certificates, kubeadm's settings.

use std::collections::{BTreeMap, BTreeSet};

use imgctl_base::error::Error;

use crate::adopt::reading::{Reading, days};
use crate::document::{Finding, few};
use crate::finding::{error, note, warning};
use crate::observation::HostSeen;
use imgctl_runtime::kubeadm;

/// Days before the end of a certificate from which on a warning is due.
const SOON: i64 = 30;
const DEFAULT_PKI: &str = "/etc/kubernetes/pki";
const API_SERVER: &str = "kube-apiserver";
/// Directories that a new control plane has, or that every system has.
const ELSEWHERE_TOO: [&str; 8] = [
    "/etc/kubernetes/pki/",
    "/etc/kubernetes/controller-manager.conf",
    "/etc/kubernetes/scheduler.conf",
    "/var/lib/etcd",
    "/usr/",
    "/etc/ssl",
    "/etc/pki",
    "/var/log",
];

pub(super) fn etcd(reading: &Reading) -> Vec<Finding> {
    let observation = &reading.observation;
    if reading.runtime != "kubeadm" || observation.api.is_none() {
        return Vec::new();
    }
    if observation.external_etcd() {
        return vec![
            warning("external-etcd", "etcd is external: imgctl neither upgrades nor backs it up")
                .hint("take snapshots of it yourself; a new control plane needs its client certificate"),
        ];
    }
    let Some(etcd) = &observation.etcd else {
        let why = observation.etcd_problem.clone().unwrap_or_default();
        return vec![error("etcd", format!("etcd cannot be asked: {why}"))];
    };
    let mut findings = Vec::new();
    for alarm in &etcd.alarms {
        findings.push(error("etcd", format!("etcd has the alarm {alarm}")));
    }
    for member in &etcd.members {
        if member.learner {
            let what = format!("member {} of etcd is still a learner", member.name);
            findings.push(error("etcd", what));
        } else if member.version.is_none() {
            let what = format!("member {} of etcd does not answer", member.name);
            findings.push(error("etcd", what));
        }
    }
    if !etcd.members.is_empty() && !etcd.members.iter().any(|member| member.leader) {
        findings.push(error("etcd", "etcd has no leader"));
    }
    let planes = observation.hosts.iter().filter(|host| host.is_control_plane()).count();
    if etcd.members.len() != planes {
        findings.push(
            error(
                "etcd",
                format!(
                    "etcd has {} members, and {planes} control planes are named",
                    etcd.members.len()
                ),
            )
            .hint("name every control plane; remove the member of a control plane that is gone"),
        );
    }
    findings
}

/// Without the authorities' keys, no certificate can be renewed and no control plane added.
pub(super) fn authorities(reading: &Reading) -> Vec<Finding> {
    if reading.runtime != "kubeadm" {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let external_etcd = reading.observation.external_etcd();
    if let Some(first) = reading.control_planes().next()
        && let Some(found) = reading.of(first)
    {
        let lacks: Vec<&str> =
            ["pki/ca.key", "pki/front-proxy-ca.key", "pki/etcd/ca.key", "pki/sa.key"]
                .into_iter()
                .filter(|file| !(external_etcd && *file == "pki/etcd/ca.key"))
                .filter(|file| !found.files.contains(*file))
                .collect();
        if !lacks.is_empty() {
            findings.push(
                error(
                    "external-ca",
                    format!("the keys of its authorities are missing: {}", lacks.join(", ")),
                )
                .on(first)
                .hint(
                    "imgctl signs certificates itself: bring the keys to /etc/kubernetes on the \
                     first control plane for the adoption",
                ),
            );
        }
        if external_etcd && !found.files.contains("pki/etcd/ca.key") {
            findings.push(
                warning("external-ca", "the authority of the external etcd is not on this host")
                    .on(first)
                    .hint("imgctl cannot add control planes to this cluster"),
            );
        }
    }
    let at_ms = reading.observation.at_ms;
    for host in reading.control_planes() {
        let Some(left) = days(at_ms, host) else { continue };
        if left < 0 {
            findings.push(
                error("certificates", "certificates have expired")
                    .on(host)
                    .hint("renew them before the adoption: `kubeadm certs renew all`"),
            );
        } else if left < SOON {
            findings.push(
                warning("certificates", format!("the first certificate expires in {left} days"))
                    .on(host)
                    .hint("after the adoption: `imgctl cert --renew all`"),
            );
        }
    }
    findings
}

pub(super) fn settings(reading: &Reading) -> Vec<Finding> {
    let Some(api) = reading.observation.api.as_ref().filter(|_| reading.runtime == "kubeadm")
    else {
        return Vec::new();
    };
    let Some(configuration) = reading.configuration() else {
        let why = api.unknown.get("kubeadm-config").map(String::as_str);
        let why = why.unwrap_or("the ConfigMap kube-system/kubeadm-config does not exist");
        return vec![
            error("kubeadm-config", format!("kubeadm's configuration cannot be read: {why}")).hint(
                "kubeadm cannot upgrade such a cluster either; upload the configuration \
                         with `kubeadm init phase upload-config all`",
            ),
        ];
    };
    let mut findings = Vec::new();
    let api_version = configuration["apiVersion"].as_str().unwrap_or_default();
    if configuration["kind"] != "ClusterConfiguration"
        || !api_version.starts_with("kubeadm.k8s.io/")
    {
        let what =
            "the ConfigMap kube-system/kubeadm-config has no ClusterConfiguration of kubeadm";
        findings.push(error("kubeadm-config", what));
    } else if let Err(problem) = kubeadm::check_documents(std::slice::from_ref(configuration)) {
        findings.push(error("kubeadm-config", chain(&problem)));
    }
    let directory = configuration["certificatesDir"].as_str().unwrap_or(DEFAULT_PKI);
    if directory.trim_end_matches('/') != DEFAULT_PKI {
        findings.push(error(
            "certificates-directory",
            format!("certificates are in {directory}; imgctl knows {DEFAULT_PKI} alone"),
        ));
    }
    let planes = reading.control_planes().count();
    match reading.endpoint() {
        // Clusters of imgctl and sealos: the record says how hosts reach the API.
        Some(_) if reading.record.is_some() => {}
        Some(endpoint) if endpoint.starts_with(kubeadm::API_NAME) => findings.push(
            warning(
                "endpoint",
                format!("hosts reach the API under {endpoint}: sealos or imgctl made this cluster, and its record is lost"),
            )
            .hint(format!("a new host needs the name {} in its hosts file before it joins", kubeadm::API_NAME)),
        ),
        Some(endpoint) => findings.push(note(
            "endpoint",
            format!("the API stays under {endpoint}; whoever serves that address stays in charge of it"),
        )),
        None if planes > 1 => {}
        None => findings.push(
            warning("endpoint", "kubeadm-config has no controlPlaneEndpoint")
                .hint("workers can be added; kubeadm adds no further control planes to such a cluster"),
        ),
    }
    findings.extend(files(reading));
    findings.extend(cloud(reading));
    let patched: Vec<&str> = reading
        .control_planes()
        .filter(|host| reading.of(host).is_some_and(|found| found.files.contains("patches")))
        .map(|host| host.id.as_str())
        .collect();
    if !patched.is_empty() {
        findings.push(note(
            "patches",
            format!(
                "{}: patches in /etc/kubernetes/patches are applied by upgrades",
                few(&patched)
            ),
        ));
    }
    findings
}

fn chain(error: &Error) -> String {
    error.chain().join(": ")
}

/// Files on the control planes that static Pods name and kubeadm does not copy to a new one.
fn files(reading: &Reading) -> Vec<Finding> {
    let mut named: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for host in reading.control_planes() {
        for path in paths(host) {
            named.entry(path).or_default().insert(host.id.as_str());
        }
    }
    if named.is_empty() {
        return Vec::new();
    }
    let all: Vec<&String> = named.keys().collect();
    vec![
        warning("local-files", format!("static Pods of the control plane use {}", few(&all))).hint(
            "imgctl copies them to control planes that join, and backs them up; what they name \
                 in turn is up to you",
        ),
    ]
}

fn paths(host: &HostSeen) -> impl Iterator<Item = String> {
    let arguments = host.manifests.values().flat_map(|manifest| &manifest.arguments);
    let values = arguments.filter_map(|argument| argument.strip_prefix("--")?.split_once('='));
    values
        .map(|(_, value)| value)
        .filter(|value| {
            value.starts_with('/') && !ELSEWHERE_TOO.iter().any(|at| value.starts_with(at))
        })
        .map(str::to_owned)
}

fn cloud(reading: &Reading) -> Vec<Finding> {
    let flag = |host: &&HostSeen| {
        let server = host.manifests.get(API_SERVER);
        let mut arguments = server.into_iter().flat_map(|manifest| &manifest.arguments);
        host.kubelet.flags.contains("cloud-provider")
            || arguments.any(|argument| argument.starts_with("--cloud-provider"))
    };
    let hosts: Vec<&str> = reading.reachable().filter(flag).map(|host| host.id.as_str()).collect();
    if hosts.is_empty() {
        return Vec::new();
    }
    vec![
        warning("cloud-provider", format!("{}: kubelets have a cloud provider", few(&hosts))).hint(
            "give new hosts the same flag: nodeRegistration.kubeletExtraArgs of a \
                 JoinConfiguration in the Clusterfile",
        ),
    ]
}
