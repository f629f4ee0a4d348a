//! `pull`, `copy`, `tags`, `inspect` of remote images and `FROM` against Debian's docker-registry,
//! filled by skopeo.

mod copy;
mod from;
mod images;
mod memory;
pub(crate) mod proxy;
mod resume;

use std::path::{Path, PathBuf};

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, tool};

/// A registry with a test's images, and a place to pull to.
pub(crate) struct Bench {
    pub(crate) env: TestEnv,
    pub(crate) registry: Registry,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self { env: TestEnv::new(), registry: Registry::start() }
    }

    /// Builds an image of some files in a store of its own and pushes it with skopeo; gives its
    /// store.
    pub(crate) fn fill(&self, name: &str, files: &[(&str, &str)], arguments: &[&str]) -> PathBuf {
        let layers: String =
            files.iter().map(|(path, _)| format!("COPY {path} /{path}\n")).collect();
        let kubefile = format!("FROM scratch\n{layers}LABEL test=yes\n");
        let directory = format!("fill-{}", name.replace([':', '/'], "-"));
        let context = self.env.context(&directory, &kubefile, files);
        let root = self.env.path(format!("{directory}-root"));
        let words = ["build", "-t", name, "--root"];
        let mut command = self.env.command(words);
        command.arg(&root).args(arguments).arg(&context);
        Ran::new(command).ok();
        self.push(&root, name);
        root
    }

    /// Sends an image of a store to the registry.
    pub(crate) fn push(&self, root: &Path, name: &str) {
        skopeo(&[
            "copy",
            "--all",
            "--dest-tls-verify=false",
            &format!("oci:{}:localhost/{name}", root.join("store").display()),
            &format!("docker://{}", self.name(name)),
        ]);
    }

    /// The full name of an image of the registry.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.registry.host)
    }

    /// The digest that skopeo sees behind a name of the registry.
    pub(crate) fn digest(&self, name: &str) -> String {
        let name = format!("docker://{}", self.name(name));
        let words = ["inspect", "--raw", "--tls-verify=false", &name];
        let raw = skopeo(&words);
        sha256(raw.bytes())
    }
}

/// Runs skopeo, which must succeed.
pub(crate) fn skopeo(words: &[&str]) -> Ran {
    let policy = ["--insecure-policy"];
    Ran::new(tool("skopeo", policy.iter().chain(words))).ok()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    let hash = sha2::Sha256::digest(bytes);
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Text that does not compress.
pub(crate) fn noise(length: usize) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"noise");
    let mut bytes = vec![0; length / 2];
    hasher.finalize_xof().fill(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
