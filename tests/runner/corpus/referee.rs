//! Debian's buildah as the referee: builds an entry and says what came out. Its answers are kept
//! in the target directory under the digest of everything they depend on.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::common::tree::{self, Tree};
use crate::common::{Ran, TestEnv, repository, tool};
use crate::corpus::entry::{BUSYBOX, Entry};

/// Goes up whenever this file asks buildah differently.
const VERSION: &str = "2";

/// What buildah made of an entry.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct Result {
    pub(crate) tree: Tree,
    /// The image's configuration file.
    pub(crate) config: Value,
}

/// buildah with a storage of its own.
pub(crate) struct Referee {
    storage: PathBuf,
    kept: PathBuf,
    version: String,
    busybox: OnceLock<PathBuf>,
}

impl Referee {
    /// Nothing runs yet but `buildah --version`.
    pub(crate) fn new(env: &TestEnv) -> Self {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("corpus-referee");
        std::fs::create_dir_all(&kept).unwrap();
        let busybox = std::fs::read("/bin/busybox").expect("no /bin/busybox: run scripts/setup");
        let fetch = std::fs::read(repository().join("images/busybox/fetch")).unwrap();
        let version = Ran::new(tool("buildah", ["--version"])).ok().stdout();
        let version = format!("{VERSION} {version} {}", digest([&busybox[..], &fetch]));
        Self { storage: env.path("buildah"), kept, version, busybox: OnceLock::new() }
    }

    /// The base image as a docker archive, built from images/busybox and known to this buildah.
    pub(crate) fn busybox(&self) -> &Path {
        self.busybox.get_or_init(|| {
            let context = self.storage.join("busybox");
            std::fs::create_dir_all(&context).unwrap();
            let source = repository().join("images/busybox");
            std::fs::copy(source.join("Kubefile"), context.join("Kubefile")).unwrap();
            Ran::new(tool(source.join("fetch").to_str().unwrap(), [context.join("rootfs")])).ok();
            self.run(
                &context,
                ["build", "--format", "docker", "-f", "Kubefile", "-t", BUSYBOX, "."],
            );
            let archive = self.storage.join("busybox.tar");
            let to = format!("docker-archive:{}:{BUSYBOX}", archive.display());
            self.run(&context, ["push", "--quiet", BUSYBOX, &to]);
            archive
        })
    }

    /// What buildah makes of the entry prepared in `work`.
    pub(crate) fn result(&self, entry: &Entry, work: &Path) -> Result {
        let kept = self.kept.join(format!("{}.{:.16}.json", entry.name, self.key(entry)));
        if let Ok(bytes) = std::fs::read(&kept) {
            return serde_json::from_slice(&bytes).unwrap();
        }
        let result = self.build(entry, work);
        let temporary = kept.with_extension(format!("{}.new", entry.name));
        std::fs::write(&temporary, serde_json::to_vec_pretty(&result).unwrap()).unwrap();
        std::fs::rename(temporary, kept).unwrap();
        result
    }

    fn build(&self, entry: &Entry, work: &Path) -> Result {
        if entry.needs_busybox() {
            self.busybox();
        }
        if entry.has("base.Kubefile") {
            self.bud(work, entry.build_arguments("base.Kubefile", &entry.base_image(), false));
        }
        let image = format!("localhost/corpus/{}", entry.name);
        self.bud(work, entry.build_arguments("Kubefile", &image, true));

        let format = ["inspect", "--type", "image", "--format", "{{.Config}}", &image];
        let config: Value = serde_json::from_str(&self.run(work, format).stdout()).unwrap();
        let layers = config["rootfs"]["diff_ids"].as_array().map_or(0, Vec::len);
        let tree = if layers == 0 { Tree::new() } else { self.tree(work, &image) };
        Result { tree, config }
    }

    fn tree(&self, work: &Path, image: &str) -> Tree {
        // `buildah from` would run the image's ONBUILD triggers; podman shares the storage.
        let mounted = self.podman(work, ["image", "mount", image]).stdout();
        let mut tree = tree::list(Path::new(&mounted));
        self.podman(work, ["image", "umount", image]);
        drop_stubs(&mut tree);
        tree
    }

    fn bud(&self, work: &Path, arguments: Vec<OsString>) {
        // docker's format keeps HEALTHCHECK, SHELL and ONBUILD. crun refuses hybrid cgroups, and
        // the default of open files is more than a container host may allow.
        let own = [
            "--format",
            "docker",
            "--layers",
            "--runtime",
            "runc",
            "--pull-never",
            "--ulimit",
            "nofile=20000:20000",
        ];
        let mut arguments = arguments;
        arguments.splice(1..1, own.iter().map(OsString::from));
        self.run(work, arguments);
    }

    fn run<S: AsRef<OsStr>>(&self, work: &Path, arguments: impl IntoIterator<Item = S>) -> Ran {
        self.command("buildah", work, arguments)
    }

    fn podman<S: AsRef<OsStr>>(&self, work: &Path, arguments: impl IntoIterator<Item = S>) -> Ran {
        self.command("podman", work, arguments)
    }

    fn command<S: AsRef<OsStr>>(
        &self,
        program: &str,
        work: &Path,
        arguments: impl IntoIterator<Item = S>,
    ) -> Ran {
        let mut command = Command::new(program);
        command
            .arg("--root")
            .arg(self.storage.join("root"))
            .arg("--runroot")
            .arg(self.storage.join("runroot"))
            .args(["--storage-driver", "overlay"])
            .args(arguments)
            .env("TMPDIR", "/var/tmp")
            .current_dir(work)
            .stdin(std::process::Stdio::null());
        Ran::new(command).ok()
    }

    /// The digest of all that the answer depends on.
    fn key(&self, entry: &Entry) -> String {
        let shared = repository().join("tests/corpus/context.sh");
        let mut parts = vec![self.version.clone().into_bytes(), std::fs::read(shared).unwrap()];
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(&entry.folder).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        for file in files {
            parts.push(file.file_name().unwrap().as_encoded_bytes().to_vec());
            parts.push(std::fs::read(file).unwrap());
        }
        digest(parts)
    }
}

/// buildah leaves the mount points that it made for RUN in the layer; we leave no trace of ours.
fn drop_stubs(tree: &mut Tree) {
    for name in ["etc/hostname", "etc/hosts", "etc/resolv.conf", "run/secrets"] {
        if tree.get(name).is_some_and(|stub| stub.size == 0 && stub.mode == 0o755) {
            tree.remove(name);
        }
    }
}

fn digest<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.as_ref().len() as u64).to_le_bytes());
        hasher.update(part.as_ref());
    }
    tree::hex(&hasher.finalize())
}
