//! Debian's buildah as the referee: builds an entry and says what came out. Its answers are kept
//! in the target directory under the digest of everything they depend on.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::common::tree::{self, Tree};
use crate::common::{Ran, repository, tool};
use crate::corpus::entry::{BUSYBOX, Entry};
use crate::corpus::made::{self, PER_STORAGE};

/// Goes up whenever this file asks buildah differently.
const VERSION: &str = "4";

/// The driver for entries with RUN: what they leave depends on layers. Trees of vfs need no mounting.
const OVERLAY: &str = "overlay";

/// What buildah made of an entry.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct Result {
    pub(crate) tree: Tree,
    /// The image's configuration file.
    pub(crate) config: Value,
}

/// buildah with a storage of its own, for one thread.
pub(crate) struct Referee {
    storage: PathBuf,
    /// What was built in `storage`.
    entries: usize,
    has_busybox: bool,
    kept: PathBuf,
    version: String,
}

impl Referee {
    /// Nothing runs yet but `buildah --version`.
    pub(crate) fn new(storage: PathBuf) -> Self {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("corpus-referee");
        std::fs::create_dir_all(&kept).unwrap();
        let busybox = std::fs::read("/bin/busybox").expect("no /bin/busybox: run scripts/setup");
        let fetch = std::fs::read(repository().join("images/busybox/fetch")).unwrap();
        let version = Ran::new(tool("buildah", ["--version"])).ok().stdout();
        let version = format!("{VERSION} {version} {}", digest([&busybox[..], &fetch]));
        Self { storage, entries: 0, has_busybox: false, kept, version }
    }

    /// What buildah makes of the entry prepared in `work`.
    pub(crate) fn result(&mut self, entry: &Entry, work: &Path) -> Result {
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

    fn build(&mut self, entry: &Entry, work: &Path) -> Result {
        if self.entries == PER_STORAGE {
            std::fs::remove_dir_all(&self.storage).unwrap();
            (self.entries, self.has_busybox) = (0, false);
        }
        self.entries += 1;
        let driver = if entry.needs_busybox() { OVERLAY } else { "vfs" };
        if entry.needs_busybox() && !self.has_busybox {
            let source = busybox(&work.join("busybox"));
            let words = ["build", "-f", "Kubefile", "-t", BUSYBOX, "."];
            self.bud(&source, driver, words.iter().map(OsString::from).collect());
            std::fs::remove_dir_all(source).unwrap();
            self.has_busybox = true;
        }
        if entry.has("base.Kubefile") {
            self.bud(
                work,
                driver,
                entry.build_arguments("base.Kubefile", &entry.base_image(), false),
            );
        }
        let image = format!("localhost/corpus/{}", entry.name);
        self.bud(work, driver, entry.build_arguments("Kubefile", &image, true));
        let name = format!("{image}:latest");
        if !entry.needs_busybox() {
            let (tree, config) = made::by_buildah(&self.root(), &name);
            return Result { tree, config };
        }
        let (layer, config) = made::known_to_buildah(&self.root(), OVERLAY, &name);
        let tree = layer.map_or_else(Tree::new, |_| self.mounted(work, &name));
        Result { tree, config }
    }

    /// The tree of an image with layers.
    fn mounted(&self, work: &Path, image: &str) -> Tree {
        // `buildah from` would run the image's ONBUILD triggers; podman shares the storage.
        let podman = |words: [&str; 3]| self.run("podman", OVERLAY, work, words.map(Into::into));
        let place = podman(["image", "mount", image]).stdout();
        let mut tree = tree::list(Path::new(&place));
        podman(["image", "umount", image]);
        drop_stubs(&mut tree);
        tree
    }

    fn root(&self) -> PathBuf {
        self.storage.join("root")
    }

    fn bud(&self, work: &Path, driver: &str, mut arguments: Vec<OsString>) {
        // Layers are what RUN leaves; without them, directories that WORKDIR names appear, too. But vfs
        // takes a file for the one in the layer below if size and time are the same.
        let names_directory = |name| {
            std::fs::read(work.join(name))
                .is_ok_and(|text| String::from_utf8_lossy(&text).to_uppercase().contains("WORKDIR"))
        };
        let has_layers =
            driver == OVERLAY || ["Kubefile", "base.Kubefile"].into_iter().any(names_directory);
        // docker's format keeps HEALTHCHECK, SHELL and ONBUILD. crun refuses hybrid cgroups, and the
        // default of open files is more than a container host may allow.
        let own = [
            "--format",
            "docker",
            if has_layers { "--layers" } else { "--layers=false" },
            "--runtime",
            "runc",
            "--pull-never",
            "--ulimit",
            "nofile=20000:20000",
        ];
        arguments.splice(1..1, own.iter().map(OsString::from));
        self.run("buildah", driver, work, arguments);
    }

    fn run(
        &self,
        program: &str,
        driver: &str,
        work: &Path,
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Ran {
        let mut command = Command::new(program);
        command
            .arg("--root")
            .arg(self.root())
            .arg("--runroot")
            .arg(self.storage.join("runroot"))
            .args(["--storage-driver", driver])
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

/// The context of the base image (images/busybox) at `place`.
pub(crate) fn busybox(place: &Path) -> PathBuf {
    let source = repository().join("images/busybox");
    std::fs::create_dir_all(place).unwrap();
    std::fs::copy(source.join("Kubefile"), place.join("Kubefile")).unwrap();
    Ran::new(tool(source.join("fetch").to_str().unwrap(), [place.join("rootfs")])).ok();
    place.to_owned()
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
