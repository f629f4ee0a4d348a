//! Debian's docker-registry, as many as a test wants: each on a port and in a directory of its own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

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
    directory: tempfile::TempDir,
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
        Self::configured("", "")
    }

    /// One that wants [`USER`] and [`PASSWORD`], by plain HTTP.
    pub(crate) fn with_login() -> Self {
        Self::configured("", HTPASSWD)
    }

    /// One that wants a login, by TLS with these PEM files.
    pub(crate) fn with_tls(certificate: &Path, key: &Path) -> Self {
        let tls = format!(
            "  tls:\n    certificate: {}\n    key: {}\n",
            certificate.display(),
            key.display()
        );
        Self::configured(&tls, HTPASSWD)
    }

    fn configured(http: &str, htpasswd: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut configuration = format!(
            "version: 0.1\nlog:\n  level: info\n  formatter: json\nstorage:\n  delete:\n    \
             enabled: true\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:0\n{http}",
            path.join("data").display(),
        );
        if !htpasswd.is_empty() {
            let file = path.join("htpasswd");
            std::fs::write(&file, htpasswd).unwrap();
            configuration += &format!(
                "auth:\n  htpasswd:\n    realm: test\n    path: {}\n",
                file.display()
            );
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
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            host,
            directory,
        }
    }

    /// The tree it serves, in docker-distribution's layout.
    pub(crate) fn data(&self) -> std::path::PathBuf {
        self.directory.path().join("data")
    }
}
