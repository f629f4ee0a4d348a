//! Tests only: a real kube-apiserver and its etcd on loopback, without controllers and kubelets.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::Api;
use crate::client;
use crate::testing::credentials;
use imgctl_base::testing::free_port;

/// Startup is slow on a busy machine.
const BEGIN: Duration = Duration::from_secs(180);

pub struct Real {
    pub directory: tempfile::TempDir,
    pub port: u16,
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

impl Real {
    /// Starts both programs from the directory `assets`.
    pub fn start_in(assets: &Path) -> Self {
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
            ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
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
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            command.spawn().unwrap()
        });
        real.processes.extend(begun);
        let until = Instant::now() + BEGIN;
        let api = real.api("kubeconfig");
        // The server creates its own objects shortly after it reports ready.
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
        real
    }

    /// Returns a client configured by the file `kubeconfig` or `token.kubeconfig`.
    pub fn api(&self, kubeconfig: &str) -> Arc<dyn Api> {
        client::connect_kubeconfig(&self.path(kubeconfig)).unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the end of both logs.
    fn log(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.path(name)).unwrap_or_default();
        let text = read("etcd.log") + &read("kube-apiserver.log");
        let begin = text.len().saturating_sub(4000);
        String::from_utf8_lossy(&text.as_bytes()[begin..]).into_owned()
    }
}
