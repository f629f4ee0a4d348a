//! An image in a real registry, a proxy in front of it, and a store to pull to.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::common::proxy::Proxy;
use crate::common::registry::Registry;
use crate::common::{IMGCTL, Ran, TestEnv, tool};
use crate::faults::archive::{Layout, sha256};
use crate::faults::support::{assert_prunes_clean, assert_scrubs_clean, noise};

/// Exit codes of docs/cli.md.
pub(crate) const NOT_FOUND: i32 = 3;
pub(crate) const BAD_CONTENT: i32 = 4;
pub(crate) const DENIED: i32 = 5;
pub(crate) const NETWORK: i32 = 7;
pub(crate) const CHECK_FAILED: i32 = 10;

/// Bytes of the image's large file.
pub(crate) const BIG: usize = 3 << 20;

/// `team/app:v1` with a large and a small layer behind a proxy.
pub(crate) struct Bench {
    pub(crate) env: TestEnv,
    pub(crate) registry: Registry,
    pub(crate) proxy: Proxy,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let bench = Self::around(Registry::start());
        make(&bench.env, "maker", "team/app:v1", 1);
        bench.registry.fill(&bench.env.path("maker"), "team/app:v1");
        bench
    }

    /// With a registry in which there is nothing yet.
    pub(crate) fn around(registry: Registry) -> Self {
        let proxy = Proxy::start(&registry.host);
        Self { env: TestEnv::new(), registry, proxy }
    }

    /// With a hand-made image instead.
    pub(crate) fn of(layout: &Layout) -> Self {
        let bench = Self::around(Registry::start());
        let archive = bench.env.write("image.tar", layout.archive());
        bench.registry.fill_from_archive(&archive, "team/app:v1");
        bench
    }

    /// The image's name through the proxy.
    pub(crate) fn name(&self) -> String {
        format!("{}/team/app:v1", self.proxy.host)
    }

    /// The repository as messages name it.
    pub(crate) fn repository(&self) -> String {
        format!("{}/team/app", self.proxy.host)
    }

    /// The image's manifest as the registry has it, and its digest.
    pub(crate) fn manifest(&self) -> (Value, String) {
        let name = format!("docker://{}/team/app:v1", self.registry.host);
        let words = ["inspect", "--raw", "--tls-verify=false", &name];
        let ran = Ran::new(tool("skopeo", words)).ok();
        (ran.json(), format!("sha256:{}", sha256(ran.bytes())))
    }

    /// The digest of the large layer.
    pub(crate) fn layer(&self) -> String {
        let (manifest, _) = self.manifest();
        let layers = manifest["layers"].as_array().unwrap();
        let largest = layers.iter().max_by_key(|layer| layer["size"].as_u64());
        largest.unwrap()["digest"].as_str().unwrap().to_owned()
    }

    /// `imgctl pull FLAGS NAME`.
    pub(crate) fn pull<S: AsRef<OsStr>>(&self, flags: impl IntoIterator<Item = S>) -> Ran {
        let mut command = self.env.command(["pull"]);
        command.args(flags).arg(self.name());
        Ran::new(command)
    }

    /// Pulls in both ways; each must fail with this exit code and these words, and leave nothing.
    #[track_caller]
    pub(crate) fn refuses(&self, what: &str, code: i32, words: &[&str]) {
        for flags in [&["--retry=2"][..], &["--retry=2", "--unpack"]] {
            let ran = self.pull(flags);
            println!("{what}: {}", ran.report());
            says(what, &ran.fails(code), words);
            self.assert_nothing_left();
        }
    }

    /// The pull works, and brings what was put in.
    #[track_caller]
    pub(crate) fn pulls(&self, flags: &[&str]) -> Ran {
        let ran = self.pull(flags).ok();
        let got = self.env.imgctl(["cat", &format!("{}:/big", self.name())]);
        assert!(got.ok().bytes() == noise(1, BIG));
        assert_scrubs_clean(&self.env);
        ran
    }

    /// Half-downloaded blobs wait a day for somebody to go on with them: lets it pass.
    fn age_partials(&self) {
        let old = SystemTime::now() - Duration::from_secs(25 * 3600);
        for name in crate::faults::support::names(&self.env.root().join("store/ingest")) {
            let path = self.env.root().join("store/ingest").join(name);
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_modified(old).unwrap();
        }
    }

    /// There is no image in the store, and nothing of one.
    #[track_caller]
    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.env.imgctl(["images", "-q"]).ok().stdout(), "");
        assert_scrubs_clean(&self.env);
        self.age_partials();
        assert_prunes_clean(&self.env);
        let blobs = self.env.root().join("store/blobs/sha256");
        assert!(crate::faults::support::names(&blobs).is_empty());
    }
}

/// Panics unless the error has all these words.
#[track_caller]
pub(crate) fn says(what: &str, ran: &Ran, words: &[&str]) {
    let said = ran.stderr();
    for word in words {
        assert!(said.contains(word), "{what}: no `{word}` in\n{said}");
    }
}

/// Builds `localhost/NAME` with a large and a small layer, uncompressed, in the store `root`.
pub(crate) fn make(env: &TestEnv, root: &str, name: &str, seed: u64) -> PathBuf {
    let directory = format!("{root}-context");
    let kubefile = "FROM scratch\nCOPY big /big\nCOPY small /small\n";
    let context = env.context(&directory, kubefile, &[("small", &seed.to_string())]);
    env.write(context.join("big"), noise(seed, BIG));
    let root = env.path(root);
    let mut command = at(&root, ["build", "--timestamp=0", "--compression=none", "-t"]);
    command.arg(format!("localhost/{name}")).arg(context);
    Ran::new(command).ok();
    root
}

/// `imgctl --root ROOT ARGUMENTS`, on any store.
pub(crate) fn at<S: AsRef<OsStr>>(
    root: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> std::process::Command {
    let mut command = std::process::Command::new(IMGCTL);
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", root.parent().unwrap())
        .arg("--root")
        .arg(root)
        .args(arguments)
        .stdin(std::process::Stdio::null());
    command
}
