//! Detects a crash loop of the components that a gate waits for, in which case waiting is useless.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::runtime::action::{Line, Site};
use imgctl_base::error::{Error, Kind};

/// Number of starts since the gate began that count as a crash loop: one or two can be caused by a
/// server that the component depends on.
const STARTS: u64 = 3;

const LOOK: &str = "systemctl show -p NRestarts --value kubelet 2>/dev/null || true\n\
echo\n\
crictl ps -a -o json --name '^(etcd|kube-apiserver|kube-controller-manager|kube-scheduler)$' 2>/dev/null || true";

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
        let line = Line::query(LOOK);
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
        let end: String = end.lines().map(|line| format!("\n    {line}")).collect();
        let message = format!(
            "{}: {} keeps crashing ({times} times since the gate began); the end of its log:{end}",
            site.agent.host(),
            one.name
        );
        Some(Error::new(Kind::CommandFailed, message))
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
