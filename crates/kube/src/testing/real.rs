//! Tests only: tests against a real kube-apiserver, if `KUBEBUILDER_ASSETS` names a directory that
//! contains kube-apiserver and etcd.

use std::path::{Path, PathBuf};

pub(crate) use crate::testing::real_server::Real;

impl Real {
    /// Starts the servers. Returns `None`, with a word, if there are no assets: the test is skipped.
    pub fn start() -> Option<Self> {
        tests::assets().map(|assets| Self::start_in(&assets))
    }
}

/// Returns whether to record the answers again.
pub(crate) fn is_recording() -> bool {
    tests::told("IMGCTL_RECORD").is_some()
}

pub(crate) fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/kube/recorded")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::api::{Api, PatchKind};
    use crate::drain::{Cordon, OnTimeout, Options, blocked, cordon, drain, uncordon};
    use crate::lease;

    /// Reads an environment variable set for the test run.
    #[expect(clippy::disallowed_methods, reason = "only tests are told so")]
    pub(super) fn told(name: &str) -> Option<PathBuf> {
        std::env::var_os(name).map(PathBuf::from)
    }

    /// Returns the directory of the programs; says so if there is none.
    pub(super) fn assets() -> Option<PathBuf> {
        let assets = told("KUBEBUILDER_ASSETS");
        if assets.is_none() {
            eprintln!("skipped: needs KUBEBUILDER_ASSETS");
        }
        assets
    }

    const PODS: &str = "/api/v1/namespaces/default/pods";
    const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

    fn add_pod(api: &dyn Api, name: &str, node: &str, app: &str) {
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": app}, "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r",
                "controller": true,
            }]},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "x"}]},
        });
        api.create(PODS, &pod).unwrap();
        let status = json!({"status": {
            "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        }});
        let path = format!("{PODS}/{name}/status");
        api.patch(&path, PatchKind::Merge, &status).unwrap();
    }

    #[test]
    fn a_real_api_server_is_drained_and_locked() {
        let Some(real) = Real::start() else {
            return;
        };
        let api = real.api("token.kubeconfig");
        let error = real.api("wrong.kubeconfig").get(PODS).unwrap_err();
        assert_eq!((error.code, error.reason.as_str()), (401, "Unauthorized"));
        assert_eq!(real.api("stranger.kubeconfig").get(PODS).unwrap_err().code, 0);

        // More than one page.
        for number in 0..510 {
            let map = json!({"metadata": {"name": format!("m{number}")}});
            api.create("/api/v1/namespaces/default/configmaps", &map).unwrap();
        }
        let maps = api.list("/api/v1/namespaces/default/configmaps").unwrap();
        assert_eq!(maps.len(), 510);
        assert!(maps.iter().all(|map| map["kind"] == "ConfigMap"));

        let node = json!({"metadata": {"name": "n"}});
        api.create("/api/v1/nodes", &node).unwrap();
        assert_eq!(cordon(&*api, "n", "u").unwrap(), Cordon::Ours);
        for name in ["one", "two"] {
            add_pod(&*api, name, "n", "free");
        }
        add_pod(&*api, "elsewhere", "m", "free");
        let options = Options {
            // No kubelet is running that would end the Pods.
            grace: Some(0),
            timeout: Duration::from_secs(2),
            poll: Duration::from_millis(50),
            retry: Duration::from_millis(200),
            ..Options::default()
        };
        assert_eq!(drain(&*api, "n", &options, &|_| {}).unwrap().gone, 2);

        add_pod(&*api, "held", "n", "held");
        let budget = json!({
            "metadata": {"name": "b"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "held"}}},
        });
        api.create(BUDGETS, &budget).unwrap();
        let status = json!({"status": {
            "observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 1,
            "desiredHealthy": 1, "expectedPods": 1,
        }});
        api.patch(&format!("{BUDGETS}/b/status"), PatchKind::Merge, &status).unwrap();
        let pods = api.list(PODS).unwrap();
        assert_eq!(blocked(&api.list(BUDGETS).unwrap(), &pods).len(), 1);
        let error = drain(&*api, "n", &options, &|_| {}).unwrap_err().to_string();
        assert!(error.contains("PodDisruptionBudget default/b allows 0"), "{error}");
        let options = Options { on_timeout: OnTimeout::Delete, ..options };
        let drained = drain(&*api, "n", &options, &|_| {}).unwrap();
        assert_eq!((drained.gone, drained.forced.len()), (1, 1));
        assert!(uncordon(&*api, "n").unwrap());
        let node = api.get("/api/v1/nodes/n").unwrap();
        assert_eq!(node["spec"]["unschedulable"], Value::Null);

        let times = lease::Times { renew: Duration::from_millis(300), ..lease::Times::default() };
        let take = |identity: &str| {
            let holder = lease::Holder { identity: identity.to_owned(), ..Default::default() };
            let fail = lease::Outage::Fail;
            lease::hold(Arc::clone(&api), &holder, false, fail, times, &|_| {})
        };
        let held = take("a").unwrap();
        assert!(take("b").is_err());
        drop(held);
        drop(take("b").unwrap());
    }
}
