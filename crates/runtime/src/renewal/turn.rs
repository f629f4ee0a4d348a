//! Whose turn it is. In clusters with an API, control planes take the Lease that every command of
//! imgctl takes, and look whether all others are well. In clusters without one, each host has its own
//! time slots. Workers need no turn: nothing of the control plane is on them.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::renewal::settings::Settings;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_kube::api::Api;
use imgctl_kube::lease::{self, Held, Holder, Outage, Times};

const PAUSE: Duration = Duration::from_secs(5);
/// Longest slot of a host: as long as a renewal takes, and a margin for clocks.
const LONGEST_SLOT: u64 = 600;

/// Outcome of waiting for a turn.
pub(crate) enum Turn {
    /// It is ours while this value lives.
    Ours(Option<Held>),
    /// Somebody else's; why.
    Later(String),
}

/// Takes the cluster's Lease; waits up to `patience` while another holder has it.
pub(crate) fn lease(
    settings: &Settings,
    api: &Arc<dyn Api>,
    patience: Duration,
    times: Times,
) -> Result<Turn> {
    let holder = Holder {
        identity: format!("certificates-{}", settings.address),
        host: settings.address.clone(),
        user: "the timer of certificates".to_owned(),
        verb: "agent renew".to_owned(),
    };
    let end = Instant::now() + patience;
    loop {
        match lease::hold(Arc::clone(api), &holder, false, Outage::Fail, times, &|_| {}) {
            Ok(held) => return Ok(Turn::Ours(Some(held))),
            Err(error) if error.kind() != Kind::Busy => return Err(error),
            Err(error) if Instant::now() >= end => {
                return Ok(Turn::Later(error.chain().join(": ")));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Returns what is wrong with the control planes, `own` address aside: another one that is not well
/// would leave two down.
pub(crate) fn others(api: &dyn Api, own: &str) -> Result<Option<String>> {
    complaint(api, &|is_own| !is_own, own)
}

/// Returns what is wrong with this control plane.
pub(crate) fn this(api: &dyn Api, own: &str) -> Result<Option<String>> {
    complaint(api, &|is_own| is_own, own)
}

fn complaint(api: &dyn Api, counts: &dyn Fn(bool) -> bool, own: &str) -> Result<Option<String>> {
    let nodes = api.list("/api/v1/nodes?labelSelector=node-role.kubernetes.io%2Fcontrol-plane")?;
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let is_own = |node: &Value| {
        let addresses = node["status"]["addresses"].as_array().into_iter().flatten();
        addresses.into_iter().any(|one| one["address"] == own)
    };
    let Some(mine) = nodes.iter().find(|node| is_own(node)).map(&name) else {
        return Err(Error::not_found(format!("no Node of a control plane has the address {own}")));
    };
    for node in nodes.iter().filter(|node| counts(is_own(node))) {
        if !is_ready(node) {
            return Ok(Some(format!("Node {} is not Ready", name(node))));
        }
    }
    let pods =
        api.list("/api/v1/namespaces/kube-system/pods?labelSelector=tier%3Dcontrol-plane")?;
    for pod in pods.iter().filter(|pod| counts(pod["spec"]["nodeName"] == mine.as_str())) {
        if !is_ready(pod) {
            return Ok(Some(format!("Pod {} is not Ready", name(pod))));
        }
    }
    Ok(None)
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// Waits until a slot of this host begins. Slots follow the clock, which `check` compares among hosts.
pub(crate) fn slot(settings: &Settings) {
    std::thread::sleep(until_slot(settings, now()));
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns how long a slot of this host is away, from `now` since 1970.
fn until_slot(settings: &Settings, now: Duration) -> Duration {
    let hosts = u64::try_from(settings.hosts.max(1)).unwrap_or(1);
    if hosts == 1 {
        return Duration::ZERO;
    }
    let slot = (settings.interval / hosts).clamp(5, LONGEST_SLOT) * 1000;
    let now = u64::try_from(now.as_millis()).unwrap_or(0);
    let place = u64::try_from(settings.place).unwrap_or(0) % hosts;
    let begin = place * slot;
    let within = now % (slot * hosts);
    Duration::from_millis(match begin.checked_sub(within) {
        Some(wait) => wait,
        None => begin + slot * hosts - within,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn settings(place: usize, hosts: usize, interval: u64) -> Settings {
        Settings {
            cluster: "c".to_owned(),
            runtime: "script".to_owned(),
            root: "/d".to_owned(),
            address: "10.0.0.1".to_owned(),
            control_plane: true,
            place,
            hosts,
            interval,
            validity: None,
            declared: None,
            health: None,
            scripts: "/d".to_owned(),
            environment: BTreeMap::new(),
        }
    }

    #[test]
    fn no_two_hosts_begin_at_the_same_time() {
        for hosts in 1..6 {
            for now in (0..200_000).step_by(777) {
                let now = Duration::from_millis(now);
                let mut begins: Vec<Duration> = (0..hosts)
                    .map(|place| now + until_slot(&settings(place, hosts, 60), now))
                    .collect();
                begins.sort_unstable();
                for pair in begins.windows(2) {
                    assert!(pair[1] - pair[0] >= Duration::from_secs(5), "{begins:?}");
                }
            }
        }
        assert_eq!(until_slot(&settings(0, 1, 60), Duration::from_secs(7)), Duration::ZERO);
        let wait = until_slot(&settings(1, 3, 43_200), Duration::from_secs(599));
        assert_eq!(wait, Duration::from_secs(1));
    }
}
