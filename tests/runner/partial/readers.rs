//! Other tools read layers with lists at their ends and make the same tree of them, entry by entry.

use std::path::{Path, PathBuf};

use super::{Bench, FORMS, files};
use crate::common::newest::Newest;
use crate::common::tree::{self, Compare};
use crate::common::{Ran, TestEnv, needs_root, tool};
use crate::pull::proxy::Proxy;
use crate::unpacking::readers::{self, Containerd, FILE_TIMES};

/// An image of every form as an OCI layout, named as the readers want it.
fn layout(env: &TestEnv, compression: &str) -> PathBuf {
    let context = super::context(env, 2);
    let name = format!("{compression}:v1");
    let words = ["build", "--compression", compression, "-t", &name, context.to_str().unwrap()];
    env.imgctl(words).ok();
    let path = env.path(compression);
    let to = format!("oci:{}:v1", path.display());
    env.imgctl(["copy", &name, &to]).ok();
    path
}

#[test]
fn everybody_makes_the_same_tree() {
    if !needs_root() {
        return;
    }
    crate::unpacking::private_mounts();
    let env = TestEnv::new();
    let containerd = Containerd::start(&env);
    for compression in FORMS {
        let path = layout(&env, compression);
        let ours = readers::imgctl(&env, compression, &path).unwrap();
        assert_eq!(ours.values().filter(|entry| entry.kind == 'f').count(), files(2).len());
        let mut others = vec![
            ("buildah", readers::buildah(&env, &path)),
            ("containerd", containerd.unpack(&env, &path)),
        ];
        if compression == "none" {
            // Debian's umoci knows no zstd.
            others.push(("umoci", readers::umoci(&env, &path)));
        }
        for (who, theirs) in others {
            let theirs = theirs.unwrap_or_else(|error| panic!("{who}, {compression}: {error}"));
            tree::assert_same(&format!("{who}, {compression}"), &ours, &theirs, FILE_TIMES);
        }
    }
}

/// What reads tars sees the end of the archive and not what follows.
#[test]
fn tar_bsdtar_busybox_and_python_read_a_plain_layer() {
    let bench = Bench::new("none");
    let digest = bench.layer(1)["digest"].as_str().unwrap().replace(':', "/");
    let blob = bench.env.root().join("store/blobs").join(digest);
    let expected = tree::list(&bench.env.export(&bench.name(1), "expected"));
    let script = "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])";
    let python = ["-c", script];
    let readers: [(&str, &[&str], &str); 4] = [
        ("tar", &["-xpf"], "-C"),
        ("bsdtar", &["-xpf"], "-C"),
        ("busybox", &["tar", "-xpf"], "-C"),
        ("python3", &python, ""),
    ];
    for (program, words, into) in readers {
        let to = bench.env.path(program);
        std::fs::create_dir(&to).unwrap();
        let mut command = tool(program, words.iter().copied());
        command.arg(&blob);
        if !into.is_empty() {
            command.arg(into);
        }
        command.arg(&to);
        let ran = Ran::new(command).ok();
        assert_eq!(ran.stderr(), "", "{program} says something");
        let compare = Compare { times_before: i64::MAX, directory_times: false };
        tree::assert_same(program, &expected, &tree::list(&to), compare);
    }
}

/// podman with `enable_partial_images` fetches the frames that it lacks, and makes the same tree.
#[test]
fn podman_pulls_in_part() {
    if !needs_root() {
        return;
    }
    crate::unpacking::private_mounts();
    let bench = Bench::new("zstd");
    let config = bench.env.write(
        "storage.conf",
        format!(
            "[storage]\ndriver = \"overlay\"\ngraphroot = {:?}\nrunroot = {:?}\n[storage.options]\n\
             pull_options = {{enable_partial_images = \"true\", use_hard_links = \"false\", \
             ostree_repos = \"\"}}\n",
            bench.env.path("podman"),
            bench.env.path("podman-run"),
        ),
    );
    let podman = |words: &[&str]| {
        let mut command = tool("podman", words.iter().copied());
        command.env("CONTAINERS_STORAGE_CONF", &config);
        Ran::new(command).ok()
    };
    let proxy = Proxy::start(&bench.registry.host);
    let pull = |version: u32| {
        let name = format!("{}/podman/app:v{version}", proxy.host);
        let before = proxy.bytes();
        let id = podman(&["pull", "-q", "--tls-verify=false", &name]).stdout();
        (id.trim().to_owned(), proxy.bytes() - before)
    };
    (1..3).for_each(|version| for_old_podman(&bench, version));
    let (_, whole) = pull(1);
    let (id, part) = pull(2);
    assert!(whole > 5_000_000 && part < 800_000, "podman asked for {whole} and {part} bytes");
    let mounted = podman(&["image", "mount", &id]).stdout();
    let theirs = tree::list(Path::new(mounted.trim()));
    podman(&["image", "umount", &id]);
    bench.env.imgctl(["pull", &bench.name(2)]).ok();
    let ours = tree::list(&bench.env.export(&bench.name(2), "ours"));
    // podman 4.3 gives the files of partial pulls, also of its own images, the time of the pull.
    tree::assert_same("podman", &ours, &theirs, Compare::default());
}

/// Pushes a version with the annotations' names of containers/storage before 1.44, which Debian's
/// podman has: the list is the same.
fn for_old_podman(bench: &Bench, version: u32) {
    let directory = bench.env.path(format!("dir{version}"));
    let place = format!("dir:{}", directory.display());
    let skopeo = |words: &[&str]| {
        let all = ["--insecure-policy", "copy", "-q"].iter().chain(words);
        Ran::new(tool("skopeo", all)).ok();
    };
    skopeo(&["--src-tls-verify=false", &format!("docker://{}", bench.name(version)), &place]);
    let path = directory.join("manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("io.github.containers.zstd-chunked"));
    std::fs::write(&path, text.replace("io.github.containers", "io.containers")).unwrap();
    let to = format!("docker://{}/podman/app:v{version}", bench.registry.host);
    skopeo(&["--dest-tls-verify=false", &place, &to]);
}

/// podman of Debian's newest suite fetches of the second version only what differs: the list at the end of a layer
/// is the one that containers/storage reads.
#[test]
fn podman_fetches_the_files_that_it_lacks() {
    let Some(newest) = Newest::with("usr/bin/podman") else { return };
    let bench = Bench::new("zstd");
    let env = &bench.env;
    let settings = format!(
        "[storage]\ndriver = \"overlay\"\nrunroot = \"{0}/run\"\ngraphroot = \"{0}/root\"\n[storage.options]\n\
         pull_options = {{enable_partial_images = \"true\", use_hard_links = \"false\", convert_images = \"false\"}}\n",
        env.path("podman").display(),
    );
    let settings =
        format!("CONTAINERS_STORAGE_CONF={}", env.write("storage.conf", settings).display());
    let mut read = Vec::new();
    for version in [1, 2] {
        bench.registry.bytes_read();
        let name = bench.name(version);
        let words =
            ["podman", "--cgroup-manager", "cgroupfs", "--events-backend", "none", "pull", "-q"];
        let words = [&["env", &settings], &words[..], &["--tls-verify=false", &name]].concat();
        newest.run(env, &words).ok();
        read.push(bench.registry.bytes_read());
    }
    println!("podman read {} and {} bytes of layers", read[0], read[1]);
    // The files are random bytes, of which the second version changes a few.
    assert!(read[0] > 4_000_000 && read[1] < read[0] / 4, "{read:?}");
}
