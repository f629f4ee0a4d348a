//! Tests only: a real kube-apiserver with its etcd on loopback, if `KUBEBUILDER_ASSETS` names a
//! directory that holds both. There are no controllers and no kubelets.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::kube::api::Api;
use crate::kube::{client, credentials};

/// It is slow to begin on a busy machine.
const BEGIN: Duration = Duration::from_secs(180);

pub(crate) struct Real {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) port: u16,
    processes: Vec<Child>,
}

impl Drop for Real {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Real {
    /// `None` where there are no assets: then the test is for elsewhere.
    pub(crate) fn start() -> Option<Self> {
        let assets = tests::told("KUBEBUILDER_ASSETS")?;
        let mut real = Self {
            directory: tempfile::tempdir().unwrap(),
            port: free_port(),
            processes: Vec::new(),
        };
        credentials::write(real.directory.path(), real.port);
        let (client, peer) = (free_port(), free_port());
        let client = format!("http://127.0.0.1:{client}");
        let peer = format!("http://127.0.0.1:{peer}");
        let at = |name: &str| real.path(name).display().to_string();
        let etcd = [
            ("name", "e".to_owned()),
            ("data-dir", at("etcd")),
            ("listen-client-urls", client.clone()),
            ("advertise-client-urls", client.clone()),
            ("listen-peer-urls", peer.clone()),
            ("initial-advertise-peer-urls", peer.clone()),
            ("initial-cluster", format!("e={peer}")),
        ];
        let server = [
            ("etcd-servers", client),
            ("bind-address", "127.0.0.1".to_owned()),
            ("secure-port", real.port.to_string()),
            ("advertise-address", "127.0.0.1".to_owned()),
            ("endpoint-reconciler-type", "none".to_owned()),
            ("service-cluster-ip-range", "10.96.0.0/16".to_owned()),
            ("tls-cert-file", at("server.crt")),
            ("tls-private-key-file", at("server.key")),
            ("client-ca-file", at("ca.crt")),
            ("token-auth-file", at("tokens.csv")),
            ("authorization-mode", "AlwaysAllow".to_owned()),
            (
                "service-account-issuer",
                "https://kubernetes.default.svc".to_owned(),
            ),
            ("service-account-key-file", at("sa.pub")),
            ("service-account-signing-key-file", at("sa.key")),
            ("disable-admission-plugins", "ServiceAccount".to_owned()),
        ];
        let begun = [("etcd", &etcd[..]), ("kube-apiserver", &server[..])].map(|(name, flags)| {
            let log = std::fs::File::create(real.path(&format!("{name}.log"))).unwrap();
            let mut command = Command::new(assets.join(name));
            for (flag, value) in flags {
                command.arg(format!("--{flag}={value}"));
            }
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log);
            command.spawn().unwrap()
        });
        real.processes.extend(begun);
        let until = Instant::now() + BEGIN;
        let api = real.api("kubeconfig");
        // What it makes itself comes a moment after it is ready.
        while api.raw("/readyz").is_err()
            || api.get("/api/v1/namespaces/default").is_err()
            || api.get("/api/v1/namespaces/kube-system").is_err()
        {
            assert!(Instant::now() < until, "{}", real.log());
            let ended = |process: &mut Child| process.try_wait().unwrap().is_some();
            let is_over = real.processes.iter_mut().any(ended);
            assert!(!is_over, "{}", real.log());
            std::thread::sleep(Duration::from_millis(300));
        }
        Some(real)
    }

    /// A client as the file `kubeconfig` or `token.kubeconfig` says.
    pub(crate) fn api(&self, kubeconfig: &str) -> Arc<dyn Api> {
        client::connect_kubeconfig(&self.path(kubeconfig)).unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What both said last.
    fn log(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.path(name)).unwrap_or_default();
        let text = read("etcd.log") + &read("kube-apiserver.log");
        let begin = text.len().saturating_sub(4000);
        String::from_utf8_lossy(&text.as_bytes()[begin..]).into_owned()
    }
}

/// Whether answers are to be recorded anew.
pub(crate) fn is_recording() -> bool {
    tests::told("IMGCTL_RECORD").is_some()
}

/// Where recordings lie.
pub(crate) fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kube/recorded")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kube::api::PatchKind;
    use crate::kube::drain::{Cordon, OnTimeout, Options, blocked, cordon, drain, uncordon};
    use crate::kube::lease;

    /// What who runs the tests says.
    #[expect(clippy::disallowed_methods, reason = "only tests are told so")]
    pub(super) fn told(name: &str) -> Option<PathBuf> {
        std::env::var_os(name).map(PathBuf::from)
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
        assert_eq!(
            real.api("stranger.kubeconfig").get(PODS).unwrap_err().code,
            0
        );

        // More than a page.
        for number in 0..510 {
            let map = json!({"metadata": {"name": format!("m{number}")}});
            api.create("/api/v1/namespaces/default/configmaps", &map)
                .unwrap();
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
            // There is no kubelet that would end them.
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
        api.patch(&format!("{BUDGETS}/b/status"), PatchKind::Merge, &status)
            .unwrap();
        let pods = api.list(PODS).unwrap();
        assert_eq!(blocked(&api.list(BUDGETS).unwrap(), &pods).len(), 1);
        let error = drain(&*api, "n", &options, &|_| {})
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("PodDisruptionBudget default/b allows 0"),
            "{error}"
        );
        let options = Options {
            on_timeout: OnTimeout::Delete,
            ..options
        };
        let drained = drain(&*api, "n", &options, &|_| {}).unwrap();
        assert_eq!((drained.gone, drained.forced.len()), (1, 1));
        assert!(uncordon(&*api, "n").unwrap());
        let node = api.get("/api/v1/nodes/n").unwrap();
        assert_eq!(node["spec"]["unschedulable"], Value::Null);

        let times = lease::Times::default();
        let held = lease::hold(Arc::clone(&api), "a", times).unwrap();
        assert!(lease::hold(Arc::clone(&api), "b", times).is_err());
        drop(held);
        drop(lease::hold(api, "b", times).unwrap());
    }
}
