//! Layers of which most is here already: `pull`, `copy` and `registry sync` fetch the rest by ranges
//! from Debian's docker-registry, and other tools read the layers that make that possible.

mod faults;
mod kills;
mod readers;
mod ways;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, noise, tool};
use crate::registry_faults::bench::at;

/// Number of files of the image, and bytes of each.
const FILES: u64 = 60;
const SIZE: usize = 100_000;
/// Both forms of lists.
const FORMS: [&str; 2] = ["zstd", "none"];

/// Two versions of an image in a registry, of which the machine `env` has the first.
struct Bench {
    env: TestEnv,
    registry: Registry,
}

impl Bench {
    /// With layers of this compression; `env` has pulled `app:v1`.
    fn new(compression: &str) -> Self {
        let env = TestEnv::new();
        let registry = Registry::start();
        let maker = env.path("maker");
        for version in [1, 2] {
            let name = format!("{}/team/app:v{version}", registry.host);
            let context = context(&env, version);
            let words = ["build", "--compression", compression, "-t", &name];
            let mut build = at(&maker, words);
            build.arg(context);
            Ran::new(build).ok();
            Ran::new(at(&maker, ["push", &name])).ok();
        }
        let bench = Self { env, registry };
        bench.env.imgctl(["pull", &bench.name(1)]).ok();
        bench
    }

    fn name(&self, version: u32) -> String {
        format!("{}/team/app:v{version}", self.registry.host)
    }

    /// The layer of a version as its manifest names it.
    fn layer(&self, version: u32) -> Value {
        let manifest = self.manifest(&self.name(version)).json();
        let layers = manifest["layers"].as_array().unwrap();
        assert_eq!(layers.len(), 1);
        layers[0].clone()
    }

    /// The manifest of an image of the registry, byte for byte.
    fn manifest(&self, name: &str) -> Ran {
        let name = format!("docker://{name}");
        let words = ["inspect", "--raw", "--tls-verify=false", &name];
        Ran::new(tool("skopeo", words)).ok()
    }

    fn layer_size(&self, version: u32) -> u64 {
        self.layer(version)["size"].as_u64().unwrap()
    }

    /// Panics unless the tree of version 2 is what was built.
    fn assert_is_new(&self, name: &str) {
        let to = self.env.path("exported");
        let _ = std::fs::remove_dir_all(&to);
        let tree = self.env.export(name, "exported");
        for (path, content) in files(2) {
            assert!(std::fs::read(tree.join(&path)).unwrap() == content, "{path}");
        }
        self.env.imgctl(["scrub", "--deep"]).ok();
    }
}

/// The files of a version. The second version changes three of them and adds one.
fn files(version: u32) -> Vec<(String, Vec<u8>)> {
    let seed = |number| if version > 1 && number % 20 == 7 { 900 + number } else { number };
    let mut files: Vec<(String, Vec<u8>)> = (0..FILES)
        .map(|number| (format!("bin/f{number:02}"), noise(seed(number) * 2 + 11, SIZE)))
        .collect();
    files.extend((0..50).map(|number| (format!("etc/f{number:02}"), vec![b'x'; number * 20])));
    if version > 1 {
        files.push(("bin/f30-new".to_owned(), noise(4321, 5000)));
    }
    files
}

fn context(env: &TestEnv, version: u32) -> PathBuf {
    let name = format!("context{version}");
    let path = env.context(&name, "FROM scratch\nCOPY bin bin\nCOPY etc etc\n", &[]);
    env.write(Path::new(&name).join("Kubefile"), "FROM scratch\nCOPY . .\n");
    env.write(Path::new(&name).join(".dockerignore"), "Kubefile\n.dockerignore\n");
    for (file, content) in files(version) {
        let path = env.write(Path::new(&name).join(file), content);
        let time =
            std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        std::fs::File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
    }
    path
}
