//! Debian's docker-registry, as many as a test wants: each on a port and in a directory of its own.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The user and the password of registries that ask for one.
pub(crate) const USER: &str = "me";
pub(crate) const PASSWORD: &str = "secret";
/// `me:secret` for htpasswd, by bcrypt.
const HTPASSWD: &str = "me:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";

/// A running registry; it ends, and its content goes, with the value.
pub(crate) struct Registry {
    child: Child,
    /// `127.0.0.1:PORT`.
    pub(crate) host: String,
    /// The root of its tree.
    data: std::path::PathBuf,
    _directory: tempfile::TempDir,
    /// What it has said so far.
    log: Arc<Mutex<Vec<String>>>,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Registry {
    /// One that lets everybody in, by plain HTTP.
    pub(crate) fn start() -> Self {
        Self::configured("", "", None)
    }

    /// One that serves a tree that is there already.
    pub(crate) fn over(tree: &Path) -> Self {
        Self::configured("", "", Some(tree))
    }

    /// One that wants [`USER`] and [`PASSWORD`], by plain HTTP.
    pub(crate) fn with_login() -> Self {
        Self::configured("", HTPASSWD, None)
    }

    /// One that wants a login, by TLS with these PEM files.
    pub(crate) fn with_tls(certificate: &Path, key: &Path) -> Self {
        let tls = format!(
            "  tls:\n    certificate: {}\n    key: {}\n",
            certificate.display(),
            key.display()
        );
        Self::configured(&tls, HTPASSWD, None)
    }

    fn configured(http: &str, htpasswd: &str, tree: Option<&Path>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let data = tree.map_or_else(|| path.join("data"), Path::to_owned);
        let mut configuration = format!(
            "version: 0.1\nlog:\n  level: info\n  formatter: json\nstorage:\n  delete:\n    \
             enabled: true\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:0\n{http}",
            data.display(),
        );
        if !htpasswd.is_empty() {
            let file = path.join("htpasswd");
            std::fs::write(&file, htpasswd).unwrap();
            configuration +=
                &format!("auth:\n  htpasswd:\n    realm: test\n    path: {}\n", file.display());
        }
        let file = path.join("config.yml");
        std::fs::write(&file, configuration).unwrap();
        let mut child = Command::new("docker-registry")
            .arg("serve")
            .arg(file)
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("cannot run docker-registry (scripts/setup installs what tests need)");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let host = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                let (_, rest) = line.split_once("listening on ")?;
                Some(rest.chars().take_while(|c| !"\", ".contains(*c)).collect())
            })
            .expect("docker-registry does not start");
        // It stops when nobody reads what it says.
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let said = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                said.lock().unwrap().push(line);
            }
        });
        Self { child, host, data, _directory: directory, log }
    }

    /// Brings an image of the store at `root`, where it is `localhost/NAME`, in with skopeo.
    pub(crate) fn fill(&self, root: &Path, name: &str) {
        let from = format!("oci:{}:localhost/{name}", root.join("store").display());
        self.skopeo(&["--all", "--dest-tls-verify=false", &from], name);
    }

    /// Brings the image of an OCI archive in with skopeo.
    pub(crate) fn fill_from_archive(&self, archive: &Path, name: &str) {
        let from = format!("oci-archive:{}", archive.display());
        self.skopeo(&["--all", "--dest-tls-verify=false", &from], name);
    }

    fn skopeo(&self, words: &[&str], name: &str) {
        let to = format!("docker://{}/{name}", self.host);
        let copy = ["--insecure-policy", "copy", "-q"];
        let words = copy.iter().chain(words).copied().chain([&*to]);
        super::Ran::new(super::tool("skopeo", words)).ok();
    }

    /// Panics unless skopeo reads the whole image, whose digests it checks.
    #[track_caller]
    pub(crate) fn assert_serves(&self, name: &str) {
        let to = tempfile::tempdir().unwrap();
        let from = format!("docker://{}/{name}", self.host);
        let to = format!("dir:{}", to.path().display());
        let words = ["--insecure-policy", "copy", "-q", "--all"];
        let words = words.into_iter().chain(["--src-tls-verify=false", &from, &to]);
        super::Ran::new(super::tool("skopeo", words)).ok();
    }

    /// The paths of blobs that were asked for (GET), as often as they were; forgets them.
    pub(crate) fn blobs_read(&self) -> Vec<String> {
        let lines = self.logged();
        let member = |line: &str, name: &str| {
            let start = line.split_once(&format!("\"{name}\":\""))?.1;
            Some(start.split('"').next()?.to_owned())
        };
        let answered = lines.iter().filter(|line| line.contains("response completed"));
        let mut blobs: Vec<String> = answered
            .filter(|line| member(line, "http.request.method").as_deref() == Some("GET"))
            .filter_map(|line| member(line, "http.request.uri"))
            .filter(|path| path.contains("/blobs/sha256:"))
            .collect();
        blobs.sort();
        blobs
    }

    /// The bytes of blobs that were sent since the last call.
    pub(crate) fn bytes_read(&self) -> u64 {
        let lines = self.logged();
        let blobs = lines.iter().filter(|line| {
            line.contains("response completed")
                && line.contains("/blobs/sha256:")
                && line.contains("\"http.request.method\":\"GET\"")
        });
        let written = |line: &String| {
            let rest = line.split_once("\"http.response.written\":")?.1;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
        };
        blobs.filter_map(written).sum()
    }

    /// What it has logged; forgets it. A line comes a moment after its answer: those of all earlier
    /// requests are there when that of another request is.
    fn logged(&self) -> Vec<String> {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        let head = format!("GET /v2/?logged HTTP/1.0\r\nHost: {}\r\n\r\n", self.host);
        stream.write_all(head.as_bytes()).unwrap();
        let begun = Instant::now();
        loop {
            let mut lines = self.log.lock().unwrap();
            let is_last =
                |line: &String| line.contains("/v2/?logged") && line.contains("response completed");
            if lines.iter().any(is_last) {
                return std::mem::take(&mut *lines);
            }
            drop(lines);
            assert!(begun.elapsed() < Duration::from_secs(30), "docker-registry logs nothing");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The tree it serves, in docker-distribution's layout.
    pub(crate) fn data(&self) -> std::path::PathBuf {
        self.data.clone()
    }
}
