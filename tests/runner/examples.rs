//! Every folder of `Kubefile.examples` and `images` builds with its container images inside, says
//! what it is for, and names only scripts that it brings. Binaries that `fetch` would download are
//! stood in for, and so are the container images, in a registry that stands in for the public ones.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::common::registry::Registry;
use crate::common::{Ran, TestEnv, repository, tool};

/// Programs that `fetch` scripts put in place, made up so that no network is needed.
const PROGRAMS: [&str; 17] = [
    "etcd",
    "etcdctl",
    "kubeadm",
    "kubelet",
    "kubectl",
    "crictl",
    "k3s",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "runc",
    "docker-registry",
    "conntrack",
    "bridge",
    "host-local",
    "loopback",
    "portmap",
];

/// `kubeadm config images list`, whose answer follows from the version alone.
const KUBEADM: &str = r#"#!/bin/sh
[ "$1 $2 $3 $4" = "config images list --kubernetes-version" ] || exit 2
for name in apiserver controller-manager scheduler proxy; do echo "registry.k8s.io/kube-$name:$5"; done
case $5 in
  v1.33.*) printf 'registry.k8s.io/%s\n' coredns/coredns:v1.12.0 pause:3.10 etcd:3.5.24-0 ;;
  *) printf 'registry.k8s.io/%s\n' coredns/coredns:v1.12.1 pause:3.10.1 etcd:3.6.4-0 ;;
esac
"#;

fn folders(parent: &str) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(repository().join(parent))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("Kubefile").exists())
        .collect();
    folders.sort();
    assert!(!folders.is_empty(), "{parent} is empty");
    folders
}

/// Copies an example (without what a `fetch` of the user's left there) and fetches stand-ins.
fn prepare(env: &TestEnv, folder: &Path) -> PathBuf {
    fetched(env, folder, &[])
}

/// The same with variables for `fetch`.
fn fetched(env: &TestEnv, folder: &Path, variables: &[(&str, &str)]) -> PathBuf {
    let name = folder.file_name().unwrap();
    let copy = env.path(name);
    Ran::new(tool("cp", [OsStr::new("-R"), folder.as_ref(), copy.as_ref()])).ok();
    if copy.join("fetch").exists() {
        let programs = env.path("programs");
        std::fs::create_dir_all(&programs).unwrap();
        for program in PROGRAMS {
            let path = programs.join(program);
            let text = match program {
                "kubeadm" => KUBEADM,
                _ => "#!/bin/sh\necho stand-in\n",
            };
            std::fs::write(&path, text).unwrap();
            Ran::new(tool("chmod", [OsStr::new("755"), path.as_ref()])).ok();
        }
        let mut fetch = tool(copy.join("fetch").to_str().unwrap(), [] as [&str; 0]);
        for variable in ["ETCD_BIN", "KUBE_BIN", "CRI_BIN", "CNI_BIN"] {
            fetch.env(variable, &programs);
        }
        fetch.envs(variables.iter().copied());
        fetch.env("K3S_BIN", programs.join("k3s"));
        Ran::new(fetch).ok();
    }
    copy
}

/// A registry that is asked instead of the public ones, and one small image to put into it.
struct Mirror {
    registry: Registry,
    configuration: PathBuf,
    image: String,
}

impl Mirror {
    fn new(env: &TestEnv) -> Self {
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
    fn build(&self, env: &TestEnv, arguments: &[&str]) -> Ran {
        let mut command = env.command(["build"]);
        command.args(arguments);
        command.env("CONTAINERS_REGISTRIES_CONF", &self.configuration);
        Ran::new(command).ok()
    }

    /// Makes every image that a context names; gives their repositories and tags.
    fn fill(&self, env: &TestEnv, context: &str) -> Vec<(String, String)> {
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

/// How many container images the examples that have some name.
const IMAGES: [(&str, usize); 5] =
    [("app-helm", 1), ("app-manifests", 2), ("flannel", 2), ("k3s", 2), ("kubernetes", 7)];

#[test]
fn every_example_builds_and_brings_the_scripts_and_images_that_it_names() {
    let env = TestEnv::new();
    let mirror = Mirror::new(&env);
    for folder in folders("Kubefile.examples").into_iter().chain(folders("images")) {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(folder.join("README.md").exists(), "{name} has no README.md");
        if name == "imgctl" {
            // Its context is made by scripts/release; the tests of `release::` build it.
            continue;
        }
        let context = prepare(&env, &folder);
        let path = context.to_str().unwrap();
        let images = mirror.fill(&env, path);
        let expected = IMAGES.iter().find(|(example, _)| *example == name);
        assert_eq!(images.len(), expected.map_or(0, |(_, count)| *count), "{name}: {images:?}");
        mirror.build(&env, &["-t", &name, path]);
        for (repository, tag) in images {
            let tags =
                format!("registry/docker/registry/v2/repositories/{repository}/_manifests/tags");
            let link = format!("{name}:/{tags}/{tag}/current/link");
            env.imgctl(["cat", &link]).ok();
        }

        let config = env.config(&name);
        let labels = config["config"]["Labels"].as_object().cloned().unwrap_or_default();
        for (label, line) in &labels {
            let words = line.as_str().unwrap().split_whitespace();
            for script in words.filter(|word| word.ends_with(".sh")) {
                let found = env.imgctl(["cat", &format!("{name}:/scripts/{script}")]);
                assert!(
                    found.success(),
                    "{name}: label {label} names {script}, which is not there"
                );
            }
        }
        let is_rootfs = labels.get("sealos.io.type").is_some_and(|kind| kind == "rootfs");
        assert!(!is_rootfs || labels.contains_key("version"), "{name}: a rootfs has a version");
        for unwanted in ["/fetch", "/README.md", "/Kubefile"] {
            let inside = env.imgctl(["ls", &format!("{name}:{unwanted}")]);
            assert!(!inside.success(), "{name}: {unwanted} does not belong into the image");
        }
    }
}

#[test]
fn the_version_of_kubernetes_decides_its_images() {
    let env = TestEnv::new();
    let mirror = Mirror::new(&env);
    let folder = repository().join("Kubefile.examples/kubernetes");
    let context = fetched(&env, &folder, &[("KUBE_VERSION", "v1.33.7")]);
    let path = context.to_str().unwrap();
    // Archives in the context are the build's business, not the hosts'.
    std::fs::create_dir_all(context.join("images/skopeo")).unwrap();
    std::fs::write(context.join("images/skopeo/left.tar"), "x").unwrap();

    let images = mirror.fill(&env, path);
    assert_eq!(images.len(), 7, "{images:?}");
    let tag = |name: &str| {
        let found = images.iter().find(|(repository, _)| repository == name);
        found.map(|(_, tag)| tag.as_str())
    };
    assert_eq!(tag("kube-apiserver"), Some("v1.33.7"));
    assert_eq!(tag("etcd"), Some("3.5.24-0"));
    assert_eq!(tag("pause"), Some("3.10"));

    let version = ["--build-arg", "KUBE_VERSION=v1.33.7"];
    mirror.build(&env, &[&version[..], &["-t", "k8s", path]].concat());
    let tree = env.path("tree");
    env.imgctl(["export", "k8s", "-o", tree.to_str().unwrap()]).ok();
    assert!(!tree.join("images/skopeo").exists());
    let sandbox = |value: Option<&str>| {
        let script = tree.join("scripts/sandbox-image.sh");
        let mut command = tool("bash", [script.as_os_str()]);
        command.envs(value.map(|value| ("sandboxImage", value)));
        Ran::new(command).ok().stdout()
    };
    assert_eq!(sandbox(None), "pause:3.10");
    assert_eq!(sandbox(Some("own/pause:1")), "own/pause:1");

    // Another version than the one that was fetched is not built.
    let mut other = env.command(["build", "--build-arg", "KUBE_VERSION=v1.34.1", path]);
    other.env("CONTAINERS_REGISTRIES_CONF", &mirror.configuration);
    let refused = Ran::new(other);
    assert!(!refused.success());
    let errors = refused.stderr();
    assert!(errors.contains("kubernetes-v1.34.1"), "{errors}");
}

#[test]
fn no_example_copies_archives_that_it_embeds() {
    let env = TestEnv::new();
    for folder in folders("Kubefile.examples") {
        let context = prepare(&env, &folder);
        std::fs::create_dir_all(context.join("images/skopeo")).unwrap();
        let list = "oci-archive:pause.tar@registry.k8s.io/pause:3.10\n";
        std::fs::write(context.join("images/skopeo/tar.txt"), list).unwrap();
        std::fs::write(context.join("images/skopeo/pause.tar"), "x").unwrap();
        let found = env.imgctl(["build", "--check", context.to_str().unwrap()]).ok();
        let found = found.stdout();
        assert!(!found.contains("EmbeddedArchiveCopied"), "{found}");
    }
    // The same archives with a Kubefile that takes in all of images/.
    let files =
        [("images/skopeo/tar.txt", "oci-archive:a.tar@x/a:1\n"), ("images/skopeo/a.tar", "x")];
    let context = env.context("twice", "FROM scratch\nCOPY images images\n", &files);
    let check = |arguments: &[&str]| {
        let path = context.to_str().unwrap();
        env.imgctl([&["build", "--check"], arguments, &[path]].concat()).ok().stdout()
    };
    let found = check(&[]);
    assert!(found.contains("EmbeddedArchiveCopied"), "{found}");
    assert!(found.contains("--exclude=skopeo"), "{found}");
    // Without embedding, the copy is the only one.
    assert!(!check(&["--save-image=false"]).contains("EmbeddedArchiveCopied"));
}

#[test]
fn every_script_parses() {
    let list = tool("git", ["-C", repository().to_str().unwrap(), "ls-files", "-z", "--"]);
    let files = Ran::new(list).ok();
    let mut seen = 0;
    for name in files.bytes().split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let path = repository().join(String::from_utf8_lossy(name).as_ref());
        let text = std::fs::read(&path).unwrap_or_default();
        let is_bash = text.starts_with(b"#!/usr/bin/env bash")
            || text.starts_with(b"# shellcheck shell=bash");
        if is_bash {
            Ran::new(tool("bash", [OsStr::new("-n"), path.as_ref()])).ok();
            seen += 1;
        }
    }
    assert!(seen > 30, "only {seen} scripts were found");
}

/// Stands in for curl: serves the files below `$FILES` under any name of a server, over TLS only.
const CURL: &str = r#"#!/bin/sh
while [ $# -gt 1 ]; do
  case $1 in
    --proto | --proto-redir) [ "$2" = =https ] || exit 1; tls=x$tls; shift ;;
    -o) out=$2; shift ;;
  esac
  shift
done
[ "$tls" = xx ] || exit 1
path=${1#https://*/}
[ "$path" != "$1" ] && cp "$FILES/$path" "$out"
"#;

#[test]
fn a_download_without_its_checksum_is_not_used() {
    let env = TestEnv::new();
    let sha256 = |path: &Path| Ran::new(tool("sha256sum", [path])).ok().stdout()[..64].to_owned();
    let curl = env.write("bin/curl", CURL);
    Ran::new(tool("chmod", ["755", curl.to_str().unwrap()])).ok();
    let arch = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let k3s = if arch == "amd64" { "k3s" } else { "k3s-arm64" };
    // Files of the publisher, below its address, each followed by the file that has its checksum.
    let kubernetes = format!("v9.9.9/bin/linux/{arch}");
    for name in ["kubeadm", "kubelet", "kubectl"] {
        let text = if name == "kubeadm" { KUBEADM } else { "#!/bin/sh\n" };
        let file = env.write(format!("files/{kubernetes}/{name}"), text);
        env.write(format!("files/{kubernetes}/{name}.sha256"), sha256(&file));
    }
    let file = env.write(format!("files/v9.9.9%2Bk3s1/{k3s}"), "#!/bin/sh\n");
    let list = format!("{}  {k3s}-airgap\n{}  {k3s}\n", "0".repeat(64), sha256(&file));
    env.write(format!("files/v9.9.9%2Bk3s1/sha256sum-{arch}.txt"), list);
    let cri = env.path("programs");
    let fetch = |example: &str, url: &str, version: &str| {
        let folder = repository().join("Kubefile.examples").join(example);
        let copy = env.path(example);
        let _ = std::fs::remove_dir_all(&copy);
        Ran::new(tool("cp", [OsStr::new("-R"), folder.as_ref(), copy.as_ref()])).ok();
        let _ = std::fs::remove_dir_all(copy.join("bin"));
        let mut command = tool(copy.join("fetch").to_str().unwrap(), [] as [&str; 0]);
        let path = std::env::var("PATH").unwrap();
        command
            .env("PATH", format!("{}:{path}", env.path("bin").display()))
            .env("FILES", env.path("files"))
            .envs([("KUBE_URL", url), ("K3S_URL", url)])
            .env("KUBE_VERSION", version)
            .env("K3S_VERSION", format!("{version}+k3s1"))
            .envs([("CRI_BIN", &cri), ("CNI_BIN", &cri)]);
        (Ran::new(command), copy.join("bin").join(if example == "k3s" { k3s } else { "kubelet" }))
    };
    for program in PROGRAMS {
        env.write(Path::new("programs").join(program), "");
    }
    let url = "https://files.example";
    for example in ["kubernetes", "k3s"] {
        fetch(example, url, "v9.9.9").0.ok();
        for plain in ["http://files.example", "file:///tmp", "ftp://files.example", "files.example"]
        {
            let (ran, placed) = fetch(example, plain, "v9.9.9");
            assert!(ran.fails(1).stderr().contains("is not an https:// address"), "{plain}");
            assert!(!placed.exists());
        }
    }
    // Kubernetes' default version is verified with the list in the repository, whatever the server says.
    for name in ["kubeadm", "kubelet", "kubectl"] {
        for end in ["", ".sha256"] {
            let from = env.path(format!("files/{kubernetes}/{name}{end}"));
            let text = std::fs::read(from).unwrap();
            env.write(format!("files/v1.34.1/bin/linux/{arch}/{name}{end}"), text);
        }
    }
    let (ran, placed) = fetch("kubernetes", url, "v1.34.1");
    assert!(ran.fails(1).stderr().contains("does not have the checksum"));
    assert!(!placed.exists());

    let (kubelet, k3s_file) = (format!("{kubernetes}/kubelet"), format!("v9.9.9%2Bk3s1/{k3s}"));
    let k3s_list = format!("v9.9.9%2Bk3s1/sha256sum-{arch}.txt");
    let airgap = format!("{}  {k3s}-airgap\n", "0".repeat(64));
    let cases: [(&str, &str, Option<&str>); 8] = [
        ("kubernetes", &kubelet, Some("#!/bin/sh\nevil\n")),
        ("kubernetes", &format!("{kubelet}.sha256"), None),
        ("kubernetes", &format!("{kubelet}.sha256"), Some("")),
        ("kubernetes", &format!("{kubelet}.sha256"), Some("<html>not found</html>")),
        ("k3s", &k3s_file, Some("#!/bin/sh\nevil\n")),
        ("k3s", &k3s_list, None),
        ("k3s", &k3s_list, Some("")),
        ("k3s", &k3s_list, Some(&airgap)),
    ];
    for (example, name, content) in cases {
        let file = env.path("files").join(name);
        let before = std::fs::read(&file).unwrap();
        match content {
            Some(content) => std::fs::write(&file, content).unwrap(),
            None => std::fs::remove_file(&file).unwrap(),
        }
        let (ran, placed) = fetch(example, url, "v9.9.9");
        let ran = ran.fails(1);
        assert!(ran.stderr().contains("checksum") || content.is_none(), "{}", ran.report());
        assert!(!placed.exists(), "{name} {content:?}");
        std::fs::write(&file, before).unwrap();
    }
}
