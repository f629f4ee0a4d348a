//! A registry under test: `imgctl registry serve` or Debian's docker-registry on a free port.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{IMGCTL, TestEnv};
use crate::registry_server::http::{Request, Response, sha256};

/// A server, killed when it goes.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    stderr: Option<std::thread::JoinHandle<String>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Serves `directory` with further flags.
    pub(crate) fn start(directory: &Path, flags: &[&str]) -> Self {
        let mut command = Command::new(IMGCTL);
        command
            .args(["--no-sync", "registry", "serve", "--create"])
            .arg(directory)
            .args(["--addr", "127.0.0.1:0"])
            .args(flags)
            .env_clear();
        Self::run(command)
    }

    /// Serves the store of `env` with further flags.
    pub(crate) fn of_store(env: &TestEnv, flags: &[&str]) -> Self {
        let verb = ["--no-sync", "registry", "serve", "--store"];
        let mut command = env.command(verb);
        command.args(["--addr", "127.0.0.1:0"]).args(flags);
        Self::run(command)
    }

    fn run(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        let Some((_, address)) = line.trim().split_once("://") else {
            panic!("it does not serve: {}", reader.join().unwrap());
        };
        Self { child, address: address.to_owned(), stderr: Some(reader) }
    }

    /// Debian's docker-registry on the same sort of directory.
    pub(crate) fn docker(directory: &Path) -> Self {
        for _ in 0..20 {
            let address = format!("127.0.0.1:{}", imgctl_base::testing::free_port());
            let config = directory.with_extension("yml");
            let text = format!(
                "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}}}, delete: {{enabled: true}}}}\nhttp: {{addr: '{address}'}}\nlog: {{level: error}}\n",
                directory.display()
            );
            std::fs::write(&config, text).unwrap();
            let child = Command::new("docker-registry")
                .arg("serve")
                .arg(&config)
                .env_clear()
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("docker-registry is missing (scripts/setup installs it)");
            let mut server = Self { child, address, stderr: None };
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(120) {
                // Another test may have been given the same port.
                if server.child.try_wait().unwrap().is_some() {
                    break;
                }
                if std::net::TcpStream::connect(&server.address).is_ok() {
                    return server;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        panic!("docker-registry does not start");
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for the end; gives the exit code and what was said on stderr.
    pub(crate) fn wait(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        let stderr = self.stderr.take().map(|reader| reader.join().unwrap());
        (code, stderr.unwrap_or_default())
    }

    /// Ends it with SIGTERM.
    pub(crate) fn stop(self) -> String {
        self.signal(rustix::process::Signal::TERM);
        let (code, stderr) = self.wait();
        assert_eq!(code, Some(0), "{stderr}");
        stderr
    }

    /// Resident memory, in kibibytes.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[track_caller]
    pub(crate) fn send(&self, request: &Request) -> Response {
        request.send(&self.address)
    }

    #[track_caller]
    pub(crate) fn ask(&self, method: &str, path: impl Into<String>) -> Response {
        self.send(&Request::new(method, path))
    }

    /// Pushes a blob in one request; gives its digest.
    #[track_caller]
    pub(crate) fn push_blob(&self, repository: &str, content: &[u8]) -> String {
        let digest = sha256(content);
        let path = format!("/v2/{repository}/blobs/uploads/?digest={digest}");
        self.send(&Request::new("POST", path).body(content)).is(201);
        digest
    }

    #[track_caller]
    pub(crate) fn push_manifest(
        &self,
        repository: &str,
        target: &str,
        manifest: &serde_json::Value,
    ) -> Response {
        let media_type = manifest["mediaType"].as_str().unwrap();
        let path = format!("/v2/{repository}/manifests/{target}");
        let request = Request::new("PUT", path).header("Content-Type", media_type);
        self.send(&request.body(manifest.to_string()))
    }

    /// Pushes an image of one layer with that content under a tag; gives its manifest.
    #[track_caller]
    pub(crate) fn push_image(
        &self,
        repository: &str,
        tag: &str,
        content: &[u8],
    ) -> serde_json::Value {
        let manifest = image(
            &self.push_blob(repository, b"{}"),
            &self.push_blob(repository, content),
            content.len(),
        );
        self.push_manifest(repository, tag, &manifest).is(201);
        manifest
    }
}

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A manifest with a config `{}` and one layer.
pub(crate) fn image(config: &str, layer: &str, size: usize) -> serde_json::Value {
    serde_json::json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": 2},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layer, "size": size}],
    })
}

/// The digest of a manifest as [`Server::push_manifest`] sends it.
pub(crate) fn digest_of(manifest: &serde_json::Value) -> String {
    sha256(manifest.to_string().as_bytes())
}
