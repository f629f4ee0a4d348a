//! All checks, for running, skipping and documenting them.

use crate::document::{Document, Finding, Severity};
use crate::preflight::{
    corefile, etcd, gates, hosts, manifests, nodes, notes, runtimes, workloads,
};
use crate::skew::{KUBELET_NEWER, KUBELET_SKEW, SERVER_SKEW};
use crate::{observation::Observation, preflight::look::Look, request::Request};
use imgctl_base::error::{Error, Result};

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
    "worker-unreachable", true, "unreachable workers are skipped", hosts::workers;
    "api", false, "the Kubernetes API answers", nodes::answers;
    "lock", false, "no other command works on the cluster", nodes::lease;
    "installed-anew", false, "each host still has what made it a member", hosts::installed_anew;
    "same-machine", true, "each host is a separate machine", hosts::twins;
    "node-mapping", false, "each host has exactly one Node", nodes::mapping;
    "unknown-node", true, "each Node has a host in the Clusterfile", nodes::strangers;
    KUBELET_NEWER, false, "no kubelet is newer than an API server, now and after each step",
        |look| runtimes::skew_of(look, KUBELET_NEWER);
    KUBELET_SKEW, false, "no kubelet is more than three minors behind (two below v1.25), now and after each step",
        |look| runtimes::skew_of(look, KUBELET_SKEW);
    SERVER_SKEW, false, "API servers are at most one minor apart, now and after each step",
        |look| runtimes::skew_of(look, SERVER_SKEW);
    "mixed-versions", true, "hosts are at the version of the cluster's image", runtimes::mixed;
    "upgrade-from", false, "the image's label imgctl.io/upgrade-from allows the current version", runtimes::upgrade_from;
    "image-settings", true, "the new image accepts the settings that the cluster has (settings.schema.json)", runtimes::image_settings;
    "kubeadm-config", true, "the new kubeadm can read kubeadm's ConfigMap", runtimes::kubeadm;
    "static-manifests", true, "static Pods of the control plane match kubeadm-config, or patches preserve the differences", manifests::edited;
    "kubelet-configuration", true, "the new kubelets accept the current flags and settings", manifests::kubelet_settings;
    "feature-gates", true, "the new control plane, kube-proxy and kubeadm know the feature gates that are set", gates::removed;
    "corefile", true, "kubeadm can migrate the Corefile of CoreDNS", corefile::plugins;
    "container-runtime", true, "container runtimes are new enough", runtimes::container_runtimes;
    "sandbox-image", true, "container runtimes use the pause image that the image ships", runtimes::sandbox;
    "clock-skew", true, "clocks agree: 2 s among control planes, 30 s with the controller", hosts::clocks;
    "free-space", true, "there is enough space for trees, images and etcd", hosts::room;
    "kernel", true, "kernels are at least as new as the image's label imgctl.io/min-kernel requires", hosts::kernels;
    "cgroup", true, "the kubelet supports the cgroup version of its host", hosts::cgroups;
    "swap", true, "swap is off on every host", hosts::swap;
    "leftovers", true, "no host has files of an incomplete upgrade", hosts::leftovers;
    "controller-is-member", true, "the command runs outside of the cluster", hosts::controller;
    "node-not-ready", true, "Nodes are ready", nodes::ready;
    "node-pressure", true, "no Node is short of memory, disk or process IDs", |_| Vec::new();
    "cordoned", true, "no Node is cordoned", nodes::cordons;
    "unavailable-budget", true, "fewer workers are out of service than --max-unavailable allows", nodes::budget;
    "etcd", true, "all members of etcd are healthy and without alarms, one for each control plane", etcd::members;
    "etcd-size", true, "etcd's database is far from its quota", |_| Vec::new();
    "etcd-version", true, "etcd can be upgraded from its version to that of the image", etcd::versions;
    "etcd-downgrade", true, "a rollback leaves no newer etcd behind", etcd::downgrade;
    "single-control-plane", true, "the API stays available while a control plane is upgraded", |_| Vec::new();
    "certificates", true, "certificates are valid long enough and can be renewed", hosts::certificate_expiry;
    "removed-apis", true, "no client uses APIs that the target removes", nodes::removed;
    "webhooks", true, "webhooks that must answer are served", nodes::webhooks;
    "api-services", true, "aggregated APIs are available", nodes::services;
    "application-versions", true, "installed images support the target (label app.alpha.sealer.io/supported-kube-version)", runtimes::applications;
    "pod-disruption-budgets", true, "PodDisruptionBudgets allow evictions", workloads::budgets;
    "unmanaged-pods", true, "evicted Pods have an owner that recreates them", workloads::unmanaged;
    "terminating-pods", true, "deleted Pods have terminated", workloads::stuck;
    "local-data", true, "no Pod has data that an eviction loses", workloads::local_data;
    "git-volumes", true, "the new kubelets accept the volumes of Pods", workloads::git_volumes;
    "single-replicas", true, "Pods that move are not the only replica", workloads::single;
    "restarts", true, "at most as many containers restart as --max-restarts allows", workloads::restarts;
    "unhealthy-workloads", true, "Deployments, StatefulSets and DaemonSets are complete", workloads::unhealthy;
};

/// Reports whether `--skip-check` accepts a check.
pub fn may_be_skipped(id: &str) -> bool {
    CHECKS.iter().any(|check| check.id == id && check.may_be_skipped)
}

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
                    .hint(format!("these can be skipped: {}", all.join(", "))));
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
    let look = Look { document, observation, request };
    let mut findings: Vec<Finding> = CHECKS.iter().flat_map(|check| (check.find)(&look)).collect();
    let notes = notes::of(&look);
    for finding in &mut findings {
        finding.skipped = finding.severity == Severity::Error
            && request.choices.skip_checks.contains(&finding.check);
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    document.findings = findings;
    document.notes = notes;
}
