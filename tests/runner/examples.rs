//! Every folder of `Kubefile.examples` and `images` builds with its container images inside, says
//! what it is for, and names only scripts that it brings. Binaries that `fetch` would download are
//! stood in for, and so are the container images, in a registry that stands in for the public ones.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::common::mirror::Mirror;
use crate::common::{Ran, TestEnv, repository, tool};

/// Programs that `fetch` scripts put in place, made up so that no network is needed.
const PROGRAMS: [&str; 3] = ["etcd", "etcdctl", "k3s"];

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
    let name = folder.file_name().unwrap();
    let copy = env.path(name);
    Ran::new(tool("cp", [OsStr::new("-R"), folder.as_ref(), copy.as_ref()])).ok();
    if copy.join("fetch").exists() {
        let programs = env.path("programs");
        std::fs::create_dir_all(&programs).unwrap();
        for program in PROGRAMS {
            let path = programs.join(program);
            std::fs::write(&path, "#!/bin/sh\necho stand-in\n").unwrap();
            Ran::new(tool("chmod", [OsStr::new("755"), path.as_ref()])).ok();
        }
        let mut fetch = tool(copy.join("fetch").to_str().unwrap(), [] as [&str; 0]);
        fetch.env("ETCD_BIN", &programs);
        fetch.env("K3S_BIN", programs.join("k3s"));
        Ran::new(fetch).ok();
    }
    copy
}

/// How many container images the examples that have some name.
const IMAGES: [(&str, usize); 4] =
    [("app-helm", 1), ("app-manifests", 2), ("flannel", 2), ("k3s", 2)];

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
    // The publisher's file, below its address, and the list that has its checksum.
    let file = env.write(format!("files/v9.9.9%2Bk3s1/{k3s}"), "#!/bin/sh\n");
    let list = format!("{}  {k3s}-airgap\n{}  {k3s}\n", "0".repeat(64), sha256(&file));
    env.write(format!("files/v9.9.9%2Bk3s1/sha256sum-{arch}.txt"), list);
    let fetch = |url: &str| {
        let folder = repository().join("Kubefile.examples/k3s");
        let copy = env.path("k3s");
        let _ = std::fs::remove_dir_all(&copy);
        Ran::new(tool("cp", [OsStr::new("-R"), folder.as_ref(), copy.as_ref()])).ok();
        let _ = std::fs::remove_dir_all(copy.join("bin"));
        let mut command = tool(copy.join("fetch").to_str().unwrap(), [] as [&str; 0]);
        let path = std::env::var("PATH").unwrap();
        command
            .env("PATH", format!("{}:{path}", env.path("bin").display()))
            .env("FILES", env.path("files"))
            .envs([("K3S_URL", url), ("K3S_VERSION", "v9.9.9+k3s1")]);
        (Ran::new(command), copy.join("bin/k3s"))
    };
    let url = "https://files.example";
    fetch(url).0.ok();
    for plain in ["http://files.example", "file:///tmp", "ftp://files.example", "files.example"] {
        let (ran, placed) = fetch(plain);
        assert!(ran.fails(1).stderr().contains("is not an https:// address"), "{plain}");
        assert!(!placed.exists());
    }
    let k3s_file = format!("v9.9.9%2Bk3s1/{k3s}");
    let k3s_list = format!("v9.9.9%2Bk3s1/sha256sum-{arch}.txt");
    let airgap = format!("{}  {k3s}-airgap\n", "0".repeat(64));
    let cases: [(&str, Option<&str>); 4] = [
        (&k3s_file, Some("#!/bin/sh\nevil\n")),
        (&k3s_list, None),
        (&k3s_list, Some("")),
        (&k3s_list, Some(&airgap)),
    ];
    for (name, content) in cases {
        let file = env.path("files").join(name);
        let before = std::fs::read(&file).unwrap();
        match content {
            Some(content) => std::fs::write(&file, content).unwrap(),
            None => std::fs::remove_file(&file).unwrap(),
        }
        let (ran, placed) = fetch(url);
        let ran = ran.fails(1);
        assert!(ran.stderr().contains("checksum") || content.is_none(), "{}", ran.report());
        assert!(!placed.exists(), "{name} {content:?}");
        std::fs::write(&file, before).unwrap();
    }
}
