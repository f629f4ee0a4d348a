//! What a sound store is, and the canary that nothing may touch.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::Value;

pub(crate) use crate::common::noise;
use crate::common::tree::{self, Tree};
use crate::common::{IMGCTL, Ran, TestEnv, json};

/// The user that an ordinary user's commands run as.
pub(crate) const NOBODY: u32 = 65534;

/// Panics unless every blob, name, layer and snapshot is what it should be.
#[track_caller]
pub(crate) fn assert_scrubs_clean(env: &TestEnv) {
    env.imgctl(["scrub", "--deep"]).ok();
}

/// Prunes, and panics if anything is left that nothing needs.
#[track_caller]
pub(crate) fn assert_prunes_clean(env: &TestEnv) {
    age_leftovers(&env.path("root/store"));
    env.imgctl(["prune"]).ok();
    assert_no_garbage(env);
}

/// Panics if the store has something that no image, cache record or mount needs.
#[track_caller]
pub(crate) fn assert_no_garbage(env: &TestEnv) {
    let store = env.path("root/store");
    for directory in ["ingest", "leases", "trash"] {
        assert_eq!(names(&store.join(directory)), BTreeSet::new(), "{directory}");
    }
    let mounts = env.imgctl(["mounts", "--format={{.ID}} {{.State}}"]).ok().stdout();
    let mut found = names(&store.join("mounts"));
    found.remove(".lock");
    found.retain(|id| !mounts.lines().any(|line| *line == format!("{id} mounted")));
    assert_eq!(found, BTreeSet::new(), "mounts:\n{mounts}");
    let needed = needed_blobs(&store);
    assert_eq!(names(&store.join("blobs/sha256")), needed, "blobs");
    // Finished things have names of hex digits only.
    let temporary = |name: &String| name.contains('.');
    for directory in ["cache", "cache/steps", "snapshots", "toc", "tars"] {
        let left: Vec<String> =
            names(&store.join(directory)).into_iter().filter(temporary).collect();
        assert_eq!(left, Vec::<String>::new(), "{directory}");
    }
}

/// Panics if a mount below the test's directory is left.
#[track_caller]
pub(crate) fn assert_no_mounts(env: &TestEnv) {
    let directory = std::fs::canonicalize(env.path("")).unwrap();
    // Names in it may be anything.
    let table = std::fs::read("/proc/self/mountinfo").unwrap();
    let table = String::from_utf8_lossy(&table);
    let ours: Vec<&str> =
        table.lines().filter(|line| line.contains(directory.to_str().unwrap())).collect();
    assert_eq!(ours, Vec::<&str>::new());
}

/// The names in a directory; none if it is not there.
pub(crate) fn names(directory: &Path) -> BTreeSet<String> {
    std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Makes temporary files look as old as those that `prune` believes to be abandoned.
fn age_leftovers(store: &Path) {
    let old = SystemTime::now() - Duration::from_secs(600);
    for directory in ["cache", "cache/steps", "snapshots", "toc", "tars"] {
        for name in names(&store.join(directory)) {
            let path = store.join(directory).join(&name);
            if name.ends_with(".tmp") && path.is_file() {
                std::fs::File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
            }
        }
    }
}

/// The hex of every blob that `index.json` leads to, and of those that the build cache lists.
fn needed_blobs(store: &Path) -> BTreeSet<String> {
    let mut needed = BTreeSet::new();
    let mut pending = vec![json(&store.join("index.json"))];
    while let Some(document) = pending.pop() {
        let lists = ["manifests", "layers"].iter().filter_map(|key| document[key].as_array());
        for descriptor in lists.flatten().chain(document.get("config")) {
            let Some(hex) = hex_of(descriptor) else {
                continue;
            };
            let media = descriptor["mediaType"].as_str().unwrap_or_default();
            let blob = store.join("blobs/sha256").join(&hex);
            if media.contains("manifest") || media.contains("index") {
                pending.push(json(&blob));
            } else if media.contains("config") {
                // A layer's tar, which an EROFS mount has made of it, is a blob named by its diff-id.
                let diff_ids = json(&blob)["rootfs"]["diff_ids"].as_array().cloned();
                needed.extend(present(&diff_ids.unwrap_or_default(), store));
            }
            needed.insert(hex);
        }
    }
    let steps = store.join("cache/steps");
    for name in names(&steps) {
        let record = json(&steps.join(name));
        let digests = record["digests"].as_array().cloned();
        needed.extend(present(&digests.unwrap_or_default(), store));
    }
    needed
}

/// The hex of those digests that are blobs.
fn present(digests: &[Value], store: &Path) -> Vec<String> {
    digests
        .iter()
        .filter_map(|digest| digest.as_str()?.strip_prefix("sha256:"))
        .filter(|hex| store.join("blobs/sha256").join(hex).exists())
        .map(str::to_owned)
        .collect()
}

fn hex_of(descriptor: &Value) -> Option<String> {
    let digest = descriptor["digest"].as_str()?;
    Some(digest.strip_prefix("sha256:")?.to_owned())
}

/// A directory beside the store that hostile input points at, and what was in it.
pub(crate) struct Canary {
    pub(crate) path: PathBuf,
    before: Tree,
}

impl Canary {
    /// Makes it, with a file, a directory and a link that a careless program would go through.
    pub(crate) fn new(env: &TestEnv) -> Self {
        env.write("canary/file", "alive");
        env.write("canary/directory/inner", "alive");
        std::os::unix::fs::symlink("directory", env.path("canary/link")).unwrap();
        let path = env.path("canary");
        let before = tree::list(&path);
        Self { path, before }
    }

    /// Panics if anything in it, or anything new beside it, has appeared or changed.
    #[track_caller]
    pub(crate) fn assert_untouched(&self, what: &str) {
        assert_eq!(tree::list(&self.path), self.before, "{what}");
        for place in ["/imgctl-canary", "/tmp/imgctl-canary"] {
            assert!(!Path::new(place).exists(), "{what} has written {place}");
        }
    }
}

/// A directory where user nobody has a copy of the binary and may write, and commands run by it.
pub(crate) struct Nobody<'a> {
    env: &'a TestEnv,
    home: PathBuf,
}

impl<'a> Nobody<'a> {
    /// Makes the user's home; it is empty.
    pub(crate) fn new(env: &'a TestEnv) -> Self {
        let home = env.path("nobody");
        std::fs::create_dir(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
        // The binary under test may lie where nobody has no business.
        let binary = env.path("imgctl");
        std::fs::copy(IMGCTL, &binary).unwrap();
        std::fs::set_permissions(binary, PermissionsExt::from_mode(0o755)).unwrap();
        Self { env, home }
    }

    /// Its home directory; the store is below.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// `imgctl ARGUMENTS` as that user, with nothing in its environment but HOME.
    pub(crate) fn command<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(self.env.path("imgctl"))
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &self.home)
            .current_dir(&self.home)
            .stdin(std::process::Stdio::null());
        command
    }

    /// Runs it.
    pub(crate) fn imgctl<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Ran {
        Ran::new(self.command(arguments))
    }
}

/// Numbers that differ from run to run, spread evenly.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}
