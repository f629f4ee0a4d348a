//! All checks, for running, skipping and documenting them.

use super::look::Look;
use super::{
    api, applications, certificates, corefile, etcd, hosts, kubelet, manifests, nodes, notes,
    runtimes, workloads,
};
use crate::upgrade::document::{Document, Finding, Severity};
use crate::upgrade::observation::Observation;
use crate::upgrade::request::Request;
use crate::upgrade::skew::{KUBELET_NEWER, KUBELET_SKEW, SERVER_SKEW};
use imgctl_base::error::{Error, Result};

/// One check.
pub(crate) struct Check {
    /// The ID for `--skip-check`; stable across releases.
    pub id: &'static str,
    /// The condition to check, in one sentence.
    pub about: &'static str,
    /// Whether `--skip-check` may name it.
    pub(crate) may_be_skipped: bool,
    find: fn(&Look<'_>) -> Vec<Finding>,
}

macro_rules! checks {
    ($($id:expr, $skip:literal, $about:literal, $find:expr;)*) => {
        &[$(Check { id: $id, about: $about, may_be_skipped: $skip, find: $find }),*]
    };
}

/// In the order in which their findings are reported.
pub(crate) const CHECKS: &[Check] = checks! {
    "control-plane-unreachable", false, "every control plane can be reached", hosts::control_planes;
    "worker-unreachable", true, "workers that cannot be reached are left out", hosts::workers;
    "api", false, "the Kubernetes API answers", api::answers;
    "lock", false, "nobody else is at work on the cluster", api::lease;
    "same-machine", true, "each host is a machine of its own", hosts::twins;
    "node-mapping", false, "each host has exactly one Node", nodes::mapping;
    "unknown-node", true, "each Node has a host in the Clusterfile", nodes::strangers;
    KUBELET_NEWER, false, "no kubelet is newer than an API server, now and after each step",
        |look| runtimes::skew_of(look, KUBELET_NEWER);
    KUBELET_SKEW, false, "no kubelet is more than three minors behind (two below v1.25), now and after each step",
        |look| runtimes::skew_of(look, KUBELET_SKEW);
    SERVER_SKEW, false, "API servers are at most one minor apart, now and after each step",
        |look| runtimes::skew_of(look, SERVER_SKEW);
    "mixed-versions", true, "hosts are at the version of the cluster's image", runtimes::mixed;
    "upgrade-from", false, "the image's label imgctl.io/upgrade-from admits the present version", runtimes::upgrade_from;
    "kubeadm-config", true, "kubeadm's ConfigMap can be read by the new kubeadm", runtimes::kubeadm;
    "static-manifests", true, "static Pods of the control plane are what kubeadm makes of kubeadm-config, or patches keep what is not", manifests::edited;
    "kubelet-configuration", true, "kubelets know their flags and settings still in the target", kubelet::settings;
    "corefile", true, "kubeadm can take the Corefile of CoreDNS along", corefile::plugins;
    "container-runtime", true, "container runtimes are new enough", runtimes::container_runtimes;
    "sandbox-image", true, "container runtimes use the pause image that the image brings", runtimes::sandbox;
    "clock-skew", true, "clocks agree: 2 s among control planes, 30 s with ours", hosts::clocks;
    "free-space", true, "there is room for trees, images and etcd", hosts::room;
    "kernel", true, "kernels are as new as the image's label imgctl.io/min-kernel says", hosts::kernels;
    "cgroup", true, "the cgroup version is one that the kubelet starts on", hosts::cgroups;
    "swap", true, "no host swaps", hosts::swap;
    "leftovers", true, "no host holds files of an upgrade that did not end", hosts::leftovers;
    "controller-is-member", true, "the command runs outside of the cluster", hosts::controller;
    "node-not-ready", true, "Nodes are ready", nodes::ready;
    "node-pressure", true, "no Node is short of memory, disk or process numbers", |_| Vec::new();
    "cordoned", true, "no Node is cordoned", nodes::cordons;
    "unavailable-budget", true, "fewer workers are out of service than --max-unavailable allows", nodes::budget;
    "etcd", true, "all members of etcd are healthy, as many as control planes, without alarms", etcd::members;
    "etcd-size", true, "etcd's database is far from its quota", |_| Vec::new();
    "etcd-version", true, "etcd may go from its version to that of the image", etcd::versions;
    "etcd-downgrade", true, "the way back does not leave a newer etcd behind", etcd::downgrade;
    "single-control-plane", true, "the API stays while a control plane is upgraded", |_| Vec::new();
    "certificates", true, "certificates last, and can be renewed", certificates::expiry;
    "removed-apis", true, "nobody uses APIs that the target has no more", api::removed;
    "webhooks", true, "webhooks that must answer are served", api::webhooks;
    "api-services", true, "aggregated APIs are available", api::services;
    "application-versions", true, "installed images support the target (label app.alpha.sealer.io/supported-kube-version)", applications::supported;
    "pod-disruption-budgets", true, "PodDisruptionBudgets let Pods go", workloads::budgets;
    "unmanaged-pods", true, "evicted Pods are made anew by somebody", workloads::unmanaged;
    "terminating-pods", true, "Pods that were deleted are gone", workloads::stuck;
    "local-data", true, "Pods have no data that is lost with them", workloads::local_data;
    "single-replicas", true, "Pods that move have others beside them", workloads::single;
    "restarts", true, "no more containers restart than --max-restarts allows", workloads::restarts;
    "unhealthy-workloads", true, "Deployments, StatefulSets and DaemonSets are complete", workloads::unhealthy;
};

/// Checks that all of these may be skipped.
///
/// # Errors
/// A usage error for an unknown ID, or for a check that cannot be skipped.
pub(crate) fn check_skips(ids: &[String]) -> Result<()> {
    for id in ids {
        match CHECKS.iter().find(|check| check.id == id) {
            None => {
                let all: Vec<&str> = CHECKS
                    .iter()
                    .filter(|check| check.may_be_skipped)
                    .map(|check| check.id)
                    .collect();
                return Err(Error::usage(format!("there is no check `{id}`"))
                    .hint(format!("these may be skipped: {}", all.join(", "))));
            }
            Some(check) if !check.may_be_skipped => {
                return Err(Error::usage(format!(
                    "the check `{id}` cannot be skipped: {} or the upgrade breaks the cluster",
                    check.about
                )));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Runs all checks and adds findings and notes, the most severe first.
pub(crate) fn run(document: &mut Document, observation: &Observation, request: &Request<'_>) {
    let look = Look {
        document,
        observation,
        request,
    };
    let mut findings: Vec<Finding> = CHECKS
        .iter()
        .flat_map(|check| (check.find)(&look))
        .collect();
    let notes = notes::of(&look);
    for finding in &mut findings {
        finding.skipped = finding.severity == Severity::Error
            && request.choices.skip_checks.contains(&finding.check);
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    document.findings = findings;
    document.notes = notes;
}
