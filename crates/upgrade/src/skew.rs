//! Checks the version skew in a Kubernetes cluster, now and after each step of a plan.

use std::collections::{BTreeMap, BTreeSet};

use crate::document::{Direction, Document, Finding, Severity};
use crate::observation::Observation;
use imgctl_runtime::version::{minor, minors_between, order_of};

/// A kubelet is newer than an API server.
pub(crate) const KUBELET_NEWER: &str = "kubelet-newer";
/// A kubelet is too old for the API servers.
pub(crate) const KUBELET_SKEW: &str = "kubelet-skew";
/// The minors of API servers are too far apart.
pub(crate) const SERVER_SKEW: &str = "server-skew";

/// Maximum number of minors that a kubelet of this version may be behind the API servers.
pub(crate) fn kubelet_limit(kubelet: &str) -> u64 {
    match minor(kubelet) {
        Some(minor) if minor < 25 => 2,
        _ => 3,
    }
}

/// Returns whether a kubelet may keep its version while the API servers are at `server`.
pub(crate) fn may_lag(kubelet: &str, server: &str) -> bool {
    minors_between(kubelet, server).is_some_and(|behind| behind <= kubelet_limit(kubelet))
}

/// Reports skew that is not supported now, or would not be after some step. `at_once`: all control
/// planes stop together and start at the target, as they do for a snapshot.
pub(super) fn findings(
    document: &Document,
    observation: &Observation,
    at_once: bool,
) -> Vec<Finding> {
    let mut walk = Walk::new(document, observation);
    walk.judge("now");
    walk.own_kubelets(observation);
    let target = document.target().version.clone();
    if document.direction == Direction::Back {
        for hop in &document.hops {
            walk.workers(document, &hop.version, "when the workers are back at");
        }
        if at_once {
            walk.servers.values_mut().for_each(|server| server.clone_from(&target));
        } else {
            for hop in &document.hops {
                walk.control_planes(document, &hop.version, "when control planes are back at");
            }
        }
        walk.judge(&format!("after the rollback to {target}"));
    } else {
        for hop in &document.hops {
            walk.control_planes(document, &hop.version, "when control planes are at");
            if hop.workers {
                walk.workers(document, &hop.version, "when workers are at");
            }
        }
        walk.judge(&format!("when everything is at {target}"));
    }
    walk.found
}

/// The versions at one point of the upgrade.
struct Walk {
    /// API server versions, by host.
    servers: BTreeMap<String, String>,
    /// Versions of the workers' kubelets, by host.
    kubelets: BTreeMap<String, String>,
    found: Vec<Finding>,
    /// Findings already reported.
    told: BTreeSet<(&'static str, String)>,
}

impl Walk {
    fn new(document: &Document, observation: &Observation) -> Self {
        let (mut servers, mut kubelets) = (BTreeMap::new(), BTreeMap::new());
        for host in &observation.hosts {
            if host.is_control_plane() {
                let version = observation.server_version(host);
                let version = version.unwrap_or_else(|| document.from.version.clone());
                servers.insert(host.id.clone(), version);
            } else if let Some(version) = observation.version_of(host) {
                kubelets.insert(host.id.clone(), version);
            }
        }
        Self { servers, kubelets, found: Vec::new(), told: BTreeSet::new() }
    }

    fn control_planes(&mut self, document: &Document, version: &str, when: &str) {
        for id in &document.control_planes {
            self.servers.insert(id.clone(), version.to_owned());
            self.judge(&format!("{when} {version}"));
        }
    }

    fn workers(&mut self, document: &Document, version: &str, when: &str) {
        for id in document.canary.iter().chain(document.batches.iter().flatten()) {
            self.kubelets.insert(id.clone(), version.to_owned());
        }
        self.judge(&format!("{when} {version}"));
    }

    /// The kubelet of a control plane is never newer than its own API server.
    fn own_kubelets(&mut self, observation: &Observation) {
        for host in observation.hosts.iter().filter(|host| host.is_control_plane()) {
            let (Some(kubelet), Some(server)) =
                (observation.version_of(host), self.servers.get(&host.id))
            else {
                continue;
            };
            if order_of(&kubelet, server).is_some_and(std::cmp::Ordering::is_gt) {
                let what =
                    format!("now its kubelet {kubelet} is newer than its API server {server}");
                self.tell(KUBELET_NEWER, Some(&host.id), what, NEWER_HINT);
            }
        }
    }

    fn judge(&mut self, when: &str) {
        let servers: Vec<&String> = self.servers.values().collect();
        let by_order = |one: &&&String, other: &&&String| {
            order_of(one, other).unwrap_or(std::cmp::Ordering::Equal)
        };
        let (Some(oldest), Some(newest)) = (
            servers.iter().min_by(by_order).map(ToString::to_string),
            servers.iter().max_by(by_order).map(ToString::to_string),
        ) else {
            return;
        };
        if minors_between(&oldest, &newest).is_none_or(|apart| apart > 1) {
            let what = format!(
                "{when} API servers would be at {oldest} and {newest}: they may be at most one \
                 minor apart"
            );
            self.tell(SERVER_SKEW, None, what, "bring all control planes to one version first");
        }
        for (id, kubelet) in self.kubelets.clone() {
            if order_of(&kubelet, &oldest).is_some_and(std::cmp::Ordering::is_gt) {
                let what =
                    format!("{when} its kubelet {kubelet} is newer than an API server ({oldest})");
                self.tell(KUBELET_NEWER, Some(&id), what, NEWER_HINT);
            } else if !may_lag(&kubelet, &newest) {
                let limit = kubelet_limit(&kubelet);
                let below = if limit == 2 { " below v1.25" } else { "" };
                let what = format!(
                    "{when} its kubelet {kubelet} is too far behind the API servers ({newest}): \
                     {limit} minors are the limit{below}"
                );
                let hint = "bring this host to the cluster's version first, or name images of the \
                            minors between: `imgctl upgrade IMAGE IMAGE --hop auto`";
                self.tell(KUBELET_SKEW, Some(&id), what, hint);
            }
        }
    }

    fn tell(&mut self, check: &'static str, host: Option<&str>, what: String, hint: &str) {
        let key = (check, host.unwrap_or_default().to_owned());
        if self.told.insert(key) {
            self.found.push(Finding {
                check: check.to_owned(),
                severity: Severity::Error,
                host: host.map(str::to_owned),
                what,
                hint: Some(hint.to_owned()),
                skipped: false,
            });
        }
    }
}

const NEWER_HINT: &str = "a kubelet must never be newer than an API server: restore its previous \
                          version there (`systemctl stop kubelet`, copy rootfs/bin/kubelet of the \
                          cluster's data directory over it, `systemctl start kubelet`), then \
                          upgrade";
