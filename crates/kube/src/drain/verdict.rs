//! Decides what a drain does with each Pod of a Node: the rules of `kubectl drain
//! --ignore-daemonsets`, in the same order.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::drain::Options;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Evict it, as far as its PodDisruptionBudget allows; contains what is lost with it, if
    /// anything.
    Evict(Option<&'static str>),
    /// Delete it regardless of PodDisruptionBudgets ([`Options::disable_eviction`]).
    Delete(Option<&'static str>),
    /// Leave it on the Node.
    Skip(&'static str),
    /// Refuse to drain the Node because of it.
    Refuse(String),
}

const BY_DAEMON_SET: &str = "its DaemonSet would recreate it";
const MIRROR: &str = "it is a static Pod of the Node";
const NO_CONTROLLER: &str = "no controller recreates it";
const LOCAL_STORAGE: &str = "its emptyDir volumes are lost";
const ORPHAN: &str = "its DaemonSet is gone: no controller recreates it";

/// DaemonSets of a cluster, by namespace and name.
#[derive(Clone, Debug, Default)]
pub(super) struct DaemonSets(BTreeSet<(String, String)>);

impl DaemonSets {
    pub(super) fn of(objects: &[Value]) -> Self {
        let place = |object: &Value| {
            let meta = &object["metadata"];
            Some((meta["namespace"].as_str()?.to_owned(), meta["name"].as_str()?.to_owned()))
        };
        Self(objects.iter().filter_map(place).collect())
    }

    fn has(&self, namespace: &str, name: &str) -> bool {
        self.0.contains(&(namespace.to_owned(), name.to_owned()))
    }
}

/// Decides for one Pod. Pure.
pub(super) fn verdict(pod: &Value, daemon_sets: &DaemonSets, options: &Options) -> Verdict {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
    let is_finished = is_finished(pod);
    let controller = controller(pod);
    let mut lost = None;
    if let Some(("DaemonSet", name)) = controller
        && !is_finished
    {
        match (daemon_sets.has(namespace, name), options.force) {
            (true, _) => return Verdict::Skip(BY_DAEMON_SET),
            (false, true) => lost = Some(ORPHAN),
            (false, false) => {
                return Verdict::Refuse(format!(
                    "its DaemonSet {name} is gone, no controller recreates it (--force-unmanaged)"
                ));
            }
        }
    }
    if !pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null() {
        return Verdict::Skip(MIRROR);
    }
    if !is_finished && has_local_storage(pod) {
        if !options.delete_emptydir_data {
            return Verdict::Refuse(
                "it has data in emptyDir volumes, which are lost with it (--delete-emptydir-data)"
                    .to_owned(),
            );
        }
        lost = lost.or(Some(LOCAL_STORAGE));
    }
    if !is_finished && controller.is_none() {
        if !options.force {
            return Verdict::Refuse(
                "no controller recreates it elsewhere (--force-unmanaged)".to_owned(),
            );
        }
        lost = Some(NO_CONTROLLER);
    }
    if options.disable_eviction { Verdict::Delete(lost) } else { Verdict::Evict(lost) }
}

/// Returns the kind and name of the controlling owner of a Pod.
fn controller(pod: &Value) -> Option<(&str, &str)> {
    let owners = pod["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|one| one["controller"] == true)?;
    Some((owner["kind"].as_str()?, owner["name"].as_str()?))
}

/// Returns whether the Pod has ended and will not restart.
pub(super) fn is_finished(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn has_local_storage(pod: &Value) -> bool {
    let volumes = pod["spec"]["volumes"].as_array();
    volumes.is_some_and(|all| all.iter().any(|volume| !volume["emptyDir"].is_null()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Returns a Pod described by keywords: `rs`, `ds`, `orphan` (its DaemonSet is gone), `mirror`,
    /// `emptydir`, `done`, `failed`, `gone` (being deleted).
    fn pod(words: &str) -> Value {
        let mut pod = json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "1"},
            "status": {"phase": "Running"},
        });
        for word in words.split_whitespace() {
            let owner =
                |kind: &str, name: &str| json!([{"kind": kind, "name": name, "controller": true}]);
            let meta = &mut pod["metadata"];
            match word {
                "rs" => meta["ownerReferences"] = owner("ReplicaSet", "r"),
                "ds" => meta["ownerReferences"] = owner("DaemonSet", "d"),
                "orphan" => meta["ownerReferences"] = owner("DaemonSet", "nowhere"),
                "owned" => meta["ownerReferences"] = json!([{"kind": "ConfigMap", "name": "c"}]),
                "mirror" => meta["annotations"] = json!({"kubernetes.io/config.mirror": "x"}),
                "emptydir" => pod["spec"] = json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
                "done" => pod["status"]["phase"] = json!("Succeeded"),
                "failed" => pod["status"]["phase"] = json!("Failed"),
                "gone" => meta["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
                _ => panic!("{word}"),
            }
        }
        pod
    }

    #[test]
    fn the_whole_matrix() {
        let sets = DaemonSets::of(&[json!({"metadata": {"namespace": "n", "name": "d"}})]);
        let plain = Options::default();
        let emptydir = Options { delete_emptydir_data: true, ..Options::default() };
        let force = Options { force: true, ..Options::default() };
        let all = Options { force: true, delete_emptydir_data: true, ..Options::default() };
        let (evict, skip, refuse) = (Verdict::Evict, Verdict::Skip, "refuse");
        let cases = [
            // Pod, and the decision without options, with --delete-emptydir-data, with --force, and
            // with both.
            ("rs", [Ok(evict(None)), Ok(evict(None)), Ok(evict(None)), Ok(evict(None))]),
            (
                "ds",
                [
                    Ok(skip(BY_DAEMON_SET)),
                    Ok(skip(BY_DAEMON_SET)),
                    Ok(skip(BY_DAEMON_SET)),
                    Ok(skip(BY_DAEMON_SET)),
                ],
            ),
            (
                "ds emptydir",
                [
                    Ok(skip(BY_DAEMON_SET)),
                    Ok(skip(BY_DAEMON_SET)),
                    Ok(skip(BY_DAEMON_SET)),
                    Ok(skip(BY_DAEMON_SET)),
                ],
            ),
            ("ds done", [Ok(evict(None)), Ok(evict(None)), Ok(evict(None)), Ok(evict(None))]),
            (
                "orphan",
                [
                    Err("DaemonSet nowhere"),
                    Err("DaemonSet nowhere"),
                    Ok(evict(Some(ORPHAN))),
                    Ok(evict(Some(ORPHAN))),
                ],
            ),
            (
                "orphan emptydir",
                [
                    Err("DaemonSet nowhere"),
                    Err("DaemonSet nowhere"),
                    Err("emptyDir"),
                    Ok(evict(Some(ORPHAN))),
                ],
            ),
            ("orphan failed", [Ok(evict(None)), Ok(evict(None)), Ok(evict(None)), Ok(evict(None))]),
            ("mirror", [Ok(skip(MIRROR)), Ok(skip(MIRROR)), Ok(skip(MIRROR)), Ok(skip(MIRROR))]),
            (
                "mirror emptydir",
                [Ok(skip(MIRROR)), Ok(skip(MIRROR)), Ok(skip(MIRROR)), Ok(skip(MIRROR))],
            ),
            (
                "mirror done",
                [Ok(skip(MIRROR)), Ok(skip(MIRROR)), Ok(skip(MIRROR)), Ok(skip(MIRROR))],
            ),
            (
                "rs emptydir",
                [
                    Err("emptyDir"),
                    Ok(evict(Some(LOCAL_STORAGE))),
                    Err("emptyDir"),
                    Ok(evict(Some(LOCAL_STORAGE))),
                ],
            ),
            (
                "rs emptydir done",
                [Ok(evict(None)), Ok(evict(None)), Ok(evict(None)), Ok(evict(None))],
            ),
            (
                "",
                [
                    Err("no controller"),
                    Err("no controller"),
                    Ok(evict(Some(NO_CONTROLLER))),
                    Ok(evict(Some(NO_CONTROLLER))),
                ],
            ),
            (
                "owned",
                [
                    Err("no controller"),
                    Err("no controller"),
                    Ok(evict(Some(NO_CONTROLLER))),
                    Ok(evict(Some(NO_CONTROLLER))),
                ],
            ),
            (
                "emptydir",
                [
                    Err("emptyDir"),
                    Err("no controller"),
                    Err("emptyDir"),
                    Ok(evict(Some(NO_CONTROLLER))),
                ],
            ),
            ("done", [Ok(evict(None)), Ok(evict(None)), Ok(evict(None)), Ok(evict(None))]),
            (
                "failed emptydir",
                [Ok(evict(None)), Ok(evict(None)), Ok(evict(None)), Ok(evict(None))],
            ),
            ("rs gone", [Ok(evict(None)), Ok(evict(None)), Ok(evict(None)), Ok(evict(None))]),
        ];
        for (words, expected) in cases {
            for (options, expected) in [&plain, &emptydir, &force, &all].into_iter().zip(expected) {
                let found = verdict(&pod(words), &sets, options);
                match (expected, &found) {
                    (Ok(expected), found) => assert_eq!(*found, expected, "{words}: {options:?}"),
                    (Err(part), Verdict::Refuse(why)) => {
                        assert!(why.contains(part), "{words}: {why} ({refuse})");
                    }
                    (Err(_), found) => panic!("{words}: {found:?} with {options:?}"),
                }
            }
        }
        let without_budgets = Options { disable_eviction: true, ..Options::default() };
        let found = verdict(&pod("rs"), &sets, &without_budgets);
        assert_eq!(found, Verdict::Delete(None));
        assert_eq!(verdict(&pod("ds"), &sets, &without_budgets), skip(BY_DAEMON_SET));
    }
}
