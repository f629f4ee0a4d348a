//! A registry in the place of the public ones.

use std::path::PathBuf;

use super::registry::Registry;
use super::{Ran, TestEnv, tool};

/// A registry that is asked instead of the public ones, and one small image to put into it.
pub(crate) struct Mirror {
    registry: Registry,
    pub(crate) configuration: PathBuf,
    image: String,
}

impl Mirror {
    pub(crate) fn new(env: &TestEnv) -> Self {
        let registry = Registry::start();
        let entry = |prefix: &str| {
            format!(
                "[[registry]]\nprefix = \"{prefix}\"\nlocation = \"{}\"\ninsecure = true\n",
                registry.host
            )
        };
        let configuration =
            ["docker.io", "registry.k8s.io", "quay.io", "ghcr.io"].map(entry).concat();
        let configuration = env.write("registries.conf", configuration);
        let context = env.context("small", "FROM scratch\nCOPY f /f\n", &[("f", "x")]);
        env.build("localhost/small", &context);
        let layout = env.root().join("store");
        Self {
            registry,
            configuration,
            image: format!("oci:{}:localhost/small:latest", layout.display()),
        }
    }

    /// `imgctl build` that knows no other registry.
    pub(crate) fn build(&self, env: &TestEnv, arguments: &[&str]) -> Ran {
        let mut command = env.command(["build"]);
        command.args(arguments);
        command.env("CONTAINERS_REGISTRIES_CONF", &self.configuration);
        Ran::new(command).ok()
    }

    /// Makes every image that a context names; gives their repositories and tags.
    pub(crate) fn fill(&self, env: &TestEnv, context: &str) -> Vec<(String, String)> {
        let report = self.build(env, &["--images-report", "--json", context]).json();
        let images = report["images"].as_array().unwrap().iter();
        let made = images.map(|image| {
            let name = image["name"].as_str().unwrap();
            let repository = image["repository"].as_str().unwrap().to_owned();
            let tag = name.rsplit(':').next().unwrap().to_owned();
            let to = format!("docker://{}/{repository}:{tag}", self.registry.host);
            let arguments = ["copy", "-q", "--dest-tls-verify=false", &self.image, &to];
            Ran::new(tool("skopeo", arguments)).ok();
            (repository, tag)
        });
        made.collect()
    }
}
