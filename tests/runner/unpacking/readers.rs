//! Who unpacks: imgctl in all its ways, umoci, buildah and containerd. Each makes a tree of an image
//! or says why it does not.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::tree::{self, Compare, Tree};
use crate::common::{Ran, TestEnv, tool};
use crate::unpacking::image::TAG;

/// A tree, or what the tool said when it refused.
pub(crate) type Unpacked = Result<Tree, String>;

/// Times of files and links count; those of directories do where both sides set them.
pub(crate) const FILE_TIMES: Compare = Compare { times_before: i64::MAX, directory_times: false };

const ALL_TIMES: Compare = Compare { times_before: i64::MAX, directory_times: true };

/// The last component of the layout's path, which names the image everywhere.
fn name_of(layout: &Path) -> &str {
    layout.file_name().unwrap().to_str().unwrap()
}

fn outcome(ran: &Ran, root: impl FnOnce(&Ran) -> PathBuf) -> Unpacked {
    if ran.success() { Ok(tree::list(&root(ran))) } else { Err(ran.stderr()) }
}

/// imgctl: the three mount back ends and both forms of `export`, which must agree.
pub(crate) fn imgctl(env: &TestEnv, what: &str, layout: &Path) -> Unpacked {
    let image = &format!("{}:{TAG}", name_of(layout));
    let mut load = env.command(["--no-sync", "load", "--tag", image, "-i"]);
    load.arg(layout);
    let loaded = Ran::new(load);
    if !loaded.success() {
        return Err(loaded.stderr());
    }
    let mut ways: Vec<(&str, Unpacked)> = Vec::new();
    for backend in ["checkout", "overlay", "erofs"] {
        let ran = env.imgctl(["mount", "--read-only", "--backend", backend, image]);
        ways.push((backend, outcome(&ran, |ran| PathBuf::from(ran.stdout()))));
    }
    let path = env.path("exported");
    let _ = std::fs::remove_dir_all(&path);
    let arguments = ["export", image, "-o", path.to_str().unwrap()];
    ways.push(("export", outcome(&env.imgctl(arguments), |_| path.clone())));
    let tar = env.path("exported.tar");
    let ran = env.imgctl(["export", image, "-o", tar.to_str().unwrap()]);
    ways.push((
        "export to a tar",
        outcome(&ran, |_| {
            let path = env.path("extracted");
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).unwrap();
            let flags = ["--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpf"];
            let mut extract = tool("tar", flags);
            extract.arg(&tar).arg("-C").arg(&path);
            Ran::new(extract).ok();
            path
        }),
    ));
    let (_, first) = ways.remove(0);
    for (way, other) in &ways {
        match (&first, other) {
            (Ok(first), Ok(other)) => {
                tree::assert_same(&format!("{what}: checkout and {way}"), first, other, ALL_TIMES);
            }
            (Err(_), Err(_)) => {}
            (first, other) => panic!("{what}: checkout {first:?}, {way} {other:?}"),
        }
    }
    first
}

/// umoci: layers applied to one directory.
pub(crate) fn umoci(env: &TestEnv, layout: &Path) -> Unpacked {
    let bundle = env.path("umoci-bundle");
    let _ = std::fs::remove_dir_all(&bundle);
    let mut unpack = tool("umoci", ["unpack", "--image"]);
    unpack.arg(format!("{}:{TAG}", layout.display())).arg(&bundle);
    outcome(&Ran::new(unpack), |_| bundle.join("rootfs"))
}

/// buildah with overlayfs and a storage of its own.
pub(crate) fn buildah(env: &TestEnv, layout: &Path) -> Unpacked {
    let (root, run) = (env.path("buildah"), env.path("buildah-run"));
    let image = format!("localhost/{}:{TAG}", name_of(layout));
    // buildah takes no path with capital letters for an image's name.
    let mut copy = tool("skopeo", ["--insecure-policy", "copy", "--quiet"]);
    copy.arg(format!("oci:{}:{TAG}", layout.display()));
    copy.arg(format!("containers-storage:[overlay@{}+{}]{image}", root.display(), run.display()));
    let copied = Ran::new(copy);
    if !copied.success() {
        return Err(copied.stderr());
    }
    let buildah = |arguments: &[&str]| {
        let mut command = tool("buildah", ["--storage-driver=overlay", "--root"]);
        command.arg(&root).arg("--runroot").arg(&run).args(arguments);
        Ran::new(command)
    };
    let container = buildah(&["from", "--quiet", "--pull-never", &image]).ok();
    let name = container.stdout();
    let mounted = buildah(&["mount", name.lines().last().unwrap().trim()]);
    outcome(&mounted, |ran| PathBuf::from(ran.stdout()))
}

/// A containerd of our own: its root, state and socket lie in the test's directory.
pub(crate) struct Containerd {
    child: Child,
    socket: PathBuf,
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Containerd {
    pub(crate) fn start(env: &TestEnv) -> Self {
        let at = |name: &str| env.path(Path::new("containerd").join(name));
        let socket = at("socket");
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = {socket:?}\n[ttrpc]\naddress = {:?}\n",
            at("root"),
            at("state"),
            at("ttrpc"),
        );
        let config = env.write("containerd/config.toml", config);
        let log = std::fs::File::create(at("log")).unwrap();
        let child = tool("containerd", ["--config", config.to_str().unwrap()])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("cannot run containerd (scripts/setup installs what tests need)");
        let started = Self { child, socket };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !started.ctr(["version"]).success() {
            assert!(Instant::now() < deadline, "containerd does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        started
    }

    pub(crate) fn ctr<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Ran {
        let mut command = tool("ctr", ["--address"]);
        command.arg(&self.socket).args(arguments);
        Ran::new(command)
    }

    /// The tree that its overlayfs snapshotter shows.
    pub(crate) fn unpack(&self, env: &TestEnv, layout: &Path) -> Unpacked {
        let name = name_of(layout);
        let archive = env.path(format!("{name}.tar"));
        let mut pack = tool("tar", ["-cf"]);
        pack.arg(&archive).arg("-C").arg(layout).arg(".");
        Ran::new(pack).ok();
        let import = ["images", "import", "--base-name"];
        let ran = self.ctr(import.into_iter().chain([name, archive.to_str().unwrap()]));
        if !ran.success() {
            return Err(ran.stderr());
        }
        let target = env.path(format!("{name}.mounted"));
        std::fs::create_dir(&target).unwrap();
        let image = format!("{name}:{TAG}");
        let ran = self.ctr(["images", "mount", &image, target.to_str().unwrap()]);
        outcome(&ran, |_| target)
    }
}
