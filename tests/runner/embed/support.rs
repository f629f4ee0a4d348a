//! An upstream registry with small images in it, and what the tests look at afterwards.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, tool};

/// A registry, and the store in which its images are made: the tests' own stores know nothing.
pub(crate) struct Upstream {
    pub(crate) registry: Registry,
    maker: TestEnv,
}

impl Upstream {
    pub(crate) fn new() -> Self {
        Self { registry: Registry::start(), maker: TestEnv::new() }
    }

    /// The full name of `name`.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.registry.host)
    }

    /// Makes an image of a base layer and a layer of its own, for this machine's platform.
    pub(crate) fn image(&self, name: &str, base: &str, own: &str) {
        self.make(name, base, own, &[]);
    }

    /// The same for two platforms.
    pub(crate) fn index(&self, name: &str, base: &str, own: &str) {
        self.make(name, base, own, &["--platform=linux/amd64,linux/arm64"]);
    }

    fn make(&self, name: &str, base: &str, own: &str, flags: &[&str]) {
        let kubefile = "FROM scratch\nCOPY base /base\nARG TARGETARCH\nCOPY own /own.$TARGETARCH\n";
        let files = [("base", base), ("own", own)];
        let context = self.maker.context("context", kubefile, &files);
        let path = context.to_str().unwrap();
        let local = format!("localhost/{name}");
        let mut arguments = vec!["build", "--timestamp=0", "-q", "-t", &local, path];
        arguments.extend(flags);
        self.maker.imgctl(arguments).ok();
        let layout = self.maker.root().join("store");
        let from = format!("oci:{}:{local}", layout.display());
        let to = format!("docker://{}", self.name(name));
        Ran::new(tool("skopeo", ["copy", "-q", "--all", "--dest-tls-verify=false", &from, &to]))
            .ok();
    }

    /// The bytes of what a tag or digest names.
    pub(crate) fn raw(&self, name: &str) -> Vec<u8> {
        raw(&self.registry, name)
    }

    /// The digest of what a tag names.
    pub(crate) fn digest(&self, name: &str) -> String {
        digest(&self.registry, name)
    }
}

/// The manifest or index that `name` of a registry means, byte for byte.
pub(crate) fn raw(registry: &Registry, name: &str) -> Vec<u8> {
    let source = format!("docker://{}/{name}", registry.host);
    let arguments = ["inspect", "--raw", "--tls-verify=false", &source];
    Ran::new(tool("skopeo", arguments)).ok().bytes().to_vec()
}

/// Its digest.
pub(crate) fn digest(registry: &Registry, name: &str) -> String {
    use std::io::Write as _;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&raw(registry, name)).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let sum = Ran::new(tool("sha256sum", [path])).ok().stdout();
    format!("sha256:{}", sum.split(' ').next().unwrap())
}

/// Copies an image (whole, or this machine's platform) out of a registry and gives the files' names
/// with their content.
pub(crate) fn fetched(registry: &Registry, name: &str, all: bool) -> BTreeMap<String, Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let from = format!("docker://{}/{name}", registry.host);
    let to = format!("dir:{}", directory.path().display());
    let mut arguments = vec!["copy", "-q", "--src-tls-verify=false", &from, &to];
    if all {
        arguments.push("--all");
    }
    Ran::new(tool("skopeo", arguments)).ok();
    let files = std::fs::read_dir(directory.path()).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, std::fs::read(entry.path()).unwrap())
    });
    files.collect()
}

/// A context whose list names `images`.
pub(crate) fn listing(env: &TestEnv, name: &str, images: &[String]) -> PathBuf {
    let list = images.join("\n");
    let files = [("images/shim/list", &*list)];
    env.context(name, "FROM scratch\nCOPY images images\n", &files)
}

/// Builds `context` as `name` with further flags.
pub(crate) fn build(env: &TestEnv, name: &str, context: &Path, flags: &[&str]) -> Ran {
    let mut arguments = vec!["build", "--timestamp=0", "-t", name];
    arguments.extend(flags);
    arguments.push(context.to_str().unwrap());
    env.imgctl(arguments)
}

/// The registry layers of a stored image: what is in each, and its digest.
pub(crate) fn registry_layers(env: &TestEnv, name: &str) -> BTreeMap<String, String> {
    let inspected = env.imgctl(["inspect", name]).ok().json();
    let manifest = inspected["Manifest"].as_str().unwrap();
    let manifest: Value = serde_json::from_str(manifest).unwrap();
    let layers = manifest["layers"].as_array().unwrap().iter();
    let is_registry = |layer: &&Value| layer["annotations"]["io.imgctl.layer.kind"] == "registry";
    let described = layers.filter(is_registry).map(|layer| {
        let digest = layer["digest"].as_str().unwrap().to_owned();
        let title = layer["annotations"]["io.imgctl.layer.images"].as_str();
        (title.unwrap_or(&digest).to_owned(), digest)
    });
    described.collect()
}

/// Serves the registry tree of a stored image.
pub(crate) fn serve(env: &TestEnv, image: &str, to: &str) -> Registry {
    Registry::over(&env.export(image, to).join("registry"))
}
