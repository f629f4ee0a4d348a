//! Probe Pods: whether a Node does for a new Pod what users' Pods need. One Pod is scheduled to the
//! Node, gets a network, pulls its image, starts and, if its image has a shell, resolves a name and
//! reaches the API. It is deleted in any case; one that a killed run left is deleted first.
//!
//! Must not depend on upgrades.

mod pod;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::{Api, ApiError, encoded};
use imgctl_base::error::{Error, Result};

/// Namespace of probe Pods.
pub(crate) const NAMESPACE: &str = "kube-system";
/// Label of all probe Pods.
pub(crate) const LABEL: &str = "imgctl.io/probe";
/// Most events of a Pod that an error quotes.
const EVENTS: usize = 5;

/// A probe of one Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub node: String,
    pub image: String,
    /// The image has `sh`: names and the API are checked as well.
    pub has_shell: bool,
}

/// Limits in time.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// For everything until the probe has ended well.
    pub limit: Duration,
    /// Between two looks at the Pod.
    pub poll: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self { limit: Duration::from_secs(300), poll: Duration::from_secs(1) }
    }
}

/// What a probe Pod goes through, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Create,
    Schedule,
    Network,
    Pull,
    Start,
    Resolve,
    Reach,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "the API accepts it",
            Self::Schedule => "it is scheduled",
            Self::Network => "it gets a network",
            Self::Pull => "its image is pulled",
            Self::Start => "it starts",
            Self::Resolve => "it resolves kubernetes.default.svc",
            Self::Reach => "it reaches the API",
        })
    }
}

/// What a probe Pod has shown so far.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// It is in this phase, with what is known about it.
    In(Phase, String),
    Failed(Phase, String),
    /// All phases are over; those that could not be checked, with the reason.
    Done(Vec<String>),
}

/// Runs the probe; returns what could not be checked, in sentences.
///
/// # Errors
/// Names the phase that failed, or that the limit cut off, with the Pod's events.
pub fn probe(
    api: &dyn Api,
    probe: &Probe,
    times: Times,
    told: &dyn Fn(&str),
) -> Result<Vec<String>> {
    let until = Instant::now() + times.limit;
    let name = pod::name(&probe.node);
    let path = path(&name);
    remove(api, &path, times, until)?;
    let failed = |phase: Phase, why: &str, events: &[String]| {
        let mut text = format!("the probe Pod on Node {} failed before {phase}: {why}", probe.node);
        for event in events {
            text.push_str(&format!("\n  event: {event}"));
        }
        Error::check_failed(text).hint(hint(phase))
    };
    if let Err(error) = api.create(&collection(), &pod::manifest(probe, &name, times.limit)) {
        // Without an answer it may exist.
        let _ = api.delete(&path, &now());
        return Err(failed(Phase::Create, &error.to_string(), &[]));
    }
    let mut reached = None;
    let seen = loop {
        let seen = match api.get(&path) {
            Ok(pod) => pod::read(&pod, probe.has_shell),
            Err(error) if error.is_not_found() => {
                Seen::Failed(Phase::Start, "somebody has deleted it".to_owned())
            }
            // The API of a control plane that was just upgraded may be away for a moment.
            Err(error) => Seen::In(reached.unwrap_or(Phase::Schedule), error.to_string()),
        };
        match &seen {
            Seen::In(phase, _) if Instant::now() < until => {
                if reached.is_none_or(|known| known < *phase) {
                    told(&format!("the probe Pod waits until {phase}"));
                    reached = Some(*phase);
                }
                std::thread::sleep(times.poll);
            }
            _ => break seen,
        }
    };
    let went = match seen {
        Seen::Done(unchecked) => Ok(unchecked),
        Seen::Failed(phase, why) => Err(failed(phase, &why, &events(api, &name))),
        Seen::In(phase, why) => {
            let why = match why.as_str() {
                "" => format!("nothing has happened for {} s", times.limit.as_secs()),
                why => format!("{why} (after {} s)", times.limit.as_secs()),
            };
            Err(failed(phase, &why, &events(api, &name)))
        }
    };
    let removed = remove(api, &path, times, Instant::now() + times.limit);
    match (went, removed) {
        (Ok(unchecked), Ok(())) => Ok(unchecked),
        (Ok(_), Err(error)) => Err(error),
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(left)) => Err(error.hint(left.to_string())),
    }
}

/// Deletes all probe Pods, of whatever Node; returns how many there were.
pub fn clean(api: &dyn Api) -> Result<usize> {
    let selector = encoded(LABEL);
    let pods = api.list(&format!("{}?labelSelector={selector}", collection()))?;
    for pod in &pods {
        if let Some(name) = pod["metadata"]["name"].as_str() {
            delete(api, &path(name))?;
        }
    }
    Ok(pods.len())
}

fn collection() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods")
}

fn path(name: &str) -> String {
    format!("{}/{name}", collection())
}

/// Options of a deletion that does not wait for the container: it has nothing to lose.
fn now() -> Value {
    json!({ "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 1 })
}

fn delete(api: &dyn Api, path: &str) -> Result<(), ApiError> {
    match api.delete(path, &now()) {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Deletes a probe Pod and waits until it is gone, which its kubelet confirms.
fn remove(api: &dyn Api, path: &str, times: Times, until: Instant) -> Result<()> {
    let name = path.rsplit('/').next().unwrap_or_default();
    let command = format!("kubectl delete pod -n {NAMESPACE} {name}");
    loop {
        let gone = delete(api, path).and_then(|()| match api.get(path) {
            Ok(_) => Ok(false),
            Err(error) if error.is_not_found() => Ok(true),
            Err(error) => Err(error),
        });
        match gone {
            Ok(true) => return Ok(()),
            Ok(false) | Err(_) if Instant::now() < until => std::thread::sleep(times.poll),
            Ok(false) => {
                return Err(Error::check_failed(format!(
                    "the kubelet does not end probe Pod {NAMESPACE}/{name}"
                ))
                .hint(format!("when its Node is healthy again: `{command}`")));
            }
            Err(error) => {
                return Err(Error::from(error)
                    .context(format!("cannot delete probe Pod {NAMESPACE}/{name}"))
                    .hint(format!("`{command}`")));
            }
        }
    }
}

/// Returns the last events of the Pod, as text; none if they cannot be read.
fn events(api: &dyn Api, name: &str) -> Vec<String> {
    let selector = encoded(&format!("involvedObject.name={name}"));
    let list = format!("/api/v1/namespaces/{NAMESPACE}/events?fieldSelector={selector}");
    let all = api.list(&list).unwrap_or_default();
    let text = |event: &Value| {
        let word = |key: &str| event[key].as_str().unwrap_or_default().trim().to_owned();
        format!("{} {}: {}", word("type"), word("reason"), word("message"))
    };
    let mut all: Vec<(String, String)> = all
        .iter()
        .filter(|event| event["involvedObject"]["name"] == name)
        .map(|event| (event["lastTimestamp"].as_str().unwrap_or_default().to_owned(), text(event)))
        .collect();
    all.sort();
    let first = all.len().saturating_sub(EVENTS);
    all.split_off(first).into_iter().map(|(_, text)| text).collect()
}

fn hint(phase: Phase) -> &'static str {
    match phase {
        Phase::Create => "see which webhook, policy or quota refuses it",
        Phase::Schedule => "see whether kube-scheduler runs: `kubectl get pods -n kube-system`",
        Phase::Network => {
            "see the Pod of the network plugin on that Node, and the kubelet's journal"
        }
        Phase::Pull => {
            "see whether the host reaches its registry (`crictl pull`), and whether that has the image"
        }
        Phase::Start => {
            "see the kubelet's journal on that host; an image that --probe names needs `sh`"
        }
        Phase::Resolve => {
            "see CoreDNS, and the Pods of kube-proxy and the network plugin on that Node"
        }
        Phase::Reach => "see kube-proxy and the network plugin on that Node",
    }
}
