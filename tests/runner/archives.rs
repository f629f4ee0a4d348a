//! `save` and `load`, and the store itself as an archive: skopeo, podman and umoci read what we
//! write, we read what they write, and nothing bad comes in.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Ran, TestEnv, long, needs_root, tool, tree};

/// Exit codes of docs/cli.md.
const NOT_FOUND: i32 = 3;
const BAD_CONTENT: i32 = 4;
const NO_SPACE: i32 = 8;

/// An environment with the image `localhost/x:v1` of two layers.
fn with_image(compression: &str) -> TestEnv {
    let env = TestEnv::new();
    let kubefile = "FROM scratch\nCOPY bin /bin\nCOPY etc /etc\nCMD [\"/bin/x\"]\n";
    let files = [("bin/x", "#!/bin/sh\n"), ("etc/conf", "a=b\n"), ("etc/sub/more", "c\n")];
    let context = env.context("context", kubefile, &files);
    let context = context.to_str().unwrap();
    env.imgctl(["build", "--compression", compression, "-t", "x:v1", context]).ok();
    env
}

fn skopeo(arguments: &[&str]) -> Ran {
    Ran::new(tool("skopeo", ["--insecure-policy"].iter().chain(arguments))).ok()
}

/// podman with a storage of its own.
fn podman(env: &TestEnv, arguments: &[&str]) -> Ran {
    let (root, run) = (env.path("podman"), env.path("podman-run"));
    let mut command = tool("podman", ["--storage-driver=vfs", "--root"]);
    command.arg(root).arg("--runroot").arg(run).args(arguments);
    Ran::new(command).ok()
}

/// The ID of an image, without `sha256:`.
fn id(env: &TestEnv, name: &str) -> String {
    let ran = env.imgctl(["images", "--no-trunc", "-q", name]).ok();
    ran.stdout().trim_start_matches("sha256:").to_owned()
}

fn save(env: &TestEnv, format: &str, file: &str) -> String {
    let path = env.path(file).to_str().unwrap().to_owned();
    env.imgctl(["save", "--format", format, "-o", &path, "x:v1"]).ok();
    path
}

#[test]
fn the_store_is_an_image_layout_for_others() {
    let env = with_image("gzip");
    let store = env.root().join("store");
    let store = store.to_str().unwrap();
    let layout = format!("oci:{store}:localhost/x:v1");
    let config = skopeo(&["inspect", "--config", &layout]).json();
    assert_eq!(config["config"]["Cmd"][0], "/bin/x");
    let names = Ran::new(tool("umoci", ["ls", "--layout", store])).ok();
    assert_eq!(names.stdout(), "localhost/x:v1");
    if needs_root() {
        let bundle = env.path("bundle");
        let image = format!("{store}:localhost/x:v1");
        let unpack = ["unpack", "--image", &image, bundle.to_str().unwrap()];
        Ran::new(tool("umoci", unpack)).ok();
        let theirs = tree::list(&bundle.join("rootfs"));
        let ours = tree::list(&env.export("x:v1", "ours"));
        let differences = tree::differences(&ours, &theirs, tree::Compare::default());
        assert!(differences.is_empty(), "{differences:?}");
    }
    // What another tool adds is there for us.
    let source = format!("oci:{store}:localhost/x:v1");
    skopeo(&["copy", "--quiet", &source, &format!("oci:{store}:localhost/theirs:v1")]);
    assert_eq!(id(&env, "localhost/theirs:v1"), id(&env, "x:v1"));
}

#[test]
fn podman_loads_what_we_save_as_the_same_image() {
    let env = with_image("zstd");
    for format in ["oci-archive", "docker-archive"] {
        let path = save(&env, format, &format!("{format}.tar"));
        podman(&env, &["load", "--quiet", "-i", &path]);
        let inspect = ["image", "inspect", "--format", "{{.Id}}", "localhost/x:v1"];
        assert_eq!(podman(&env, &inspect).stdout(), id(&env, "x:v1"), "{format}");
        podman(&env, &["rmi", "--force", "localhost/x:v1"]);
    }
}

#[test]
fn we_load_what_podman_saves_as_the_same_image() {
    // podman converts no zstd layers for docker.
    let env = with_image("gzip");
    let path = save(&env, "oci-archive", "ours.tar");
    podman(&env, &["load", "--quiet", "-i", &path]);
    let expected = id(&env, "x:v1");
    for format in ["docker-archive", "oci-archive", "docker-dir", "oci-dir"] {
        let path = env.path(format!("podman-{format}"));
        let path = path.to_str().unwrap();
        podman(&env, &["save", "--quiet", "--format", format, "-o", path, "localhost/x:v1"]);
        let other = TestEnv::new();
        // Directories of the docker-dir format know no names.
        other.imgctl(["load", "-i", path, "--tag", "x:v1"]).ok();
        assert_eq!(id(&other, "x:v1"), expected, "{format}");
        other.imgctl(["scrub", "--deep"]).ok();
    }
}

#[test]
fn archives_have_the_names_of_other_tools() {
    let env = with_image("zstd");
    let context = env.context("second", "FROM x:v1\nENV A=b\n", &[]);
    env.build("y:v1", &context);
    let both = env.path("both.tar").to_str().unwrap().to_owned();
    env.imgctl(["save", "-o", &both, "x:v1", "y:v1"]).ok();
    for format in ["oci-archive", "docker-archive"] {
        let path = save(&env, format, format);
        let other = TestEnv::new();
        other.imgctl(["load", &format!("{format}:{path}")]).ok();
        assert_eq!(id(&other, "x:v1"), id(&env, "x:v1"), "{format}");
    }
    let other = TestEnv::new();
    other.imgctl(["load", "-i", &format!("oci-archive:{both}:localhost/y:v1")]).ok();
    assert!(!other.imgctl(["inspect", "x:v1"]).success(), "one image was asked for");
    other.imgctl(["inspect", "y:v1"]).ok();
    let error =
        other.imgctl(["load", &format!("oci-archive:{both}:x:v1"), &both]).fails(2).stderr();
    assert!(error.contains("several archives"), "{error}");
    let gone = other.imgctl(["load", "oci-archive:gone"]).fails(NOT_FOUND).stderr();
    assert!(gone.contains("gone"), "{gone}");
    // A file by that very name takes precedence.
    fs::copy(env.path("oci-archive"), env.path("oci-archive:odd")).unwrap();
    let mut command = env.command(["load", "oci-archive:odd"]);
    command.current_dir(env.path("."));
    Ran::new(command).ok();
}

/// `run` reads archives as sealos does: it does not ask a registry for a file's name.
#[test]
fn run_takes_archives_by_path_transport_and_flag() {
    let env = with_image("zstd");
    save(&env, "oci-archive", "archive");
    save(&env, "docker-archive", "docker");
    let cases: [&[&str]; 6] = [
        &["./archive"],
        &["oci-archive:archive"],
        &["docker-archive:docker"],
        &["-t", "oci-archive", "archive"],
        &["-t", "docker-archive", "docker"],
        &["../$/archive"],
    ];
    for words in cases {
        let here = env.path(".").canonicalize().unwrap();
        let name = here.file_name().unwrap().to_str().unwrap();
        let words = words.iter().map(|word| word.replace('$', name));
        let other = TestEnv::new();
        let mut command =
            other.command(["run", "--local"].map(str::to_owned).into_iter().chain(words));
        command.current_dir(&here);
        let error = Ran::new(command).fails(2).stderr();
        assert!(error.contains("localhost/x:v1 (application)"), "{error}");
        other.imgctl(["inspect", "x:v1"]).ok();
    }
    let error = env.imgctl(["run", "./gone"]).fails(NOT_FOUND).stderr();
    assert!(error.contains("./gone"), "{error}");
}

#[test]
fn several_names_and_images_travel_together_through_a_pipe() {
    let env = with_image("zstd");
    let context = env.context("second", "FROM x:v1\nENV A=b\n", &[]);
    env.build("y:v1", &context);
    env.imgctl(["tag", "x:v1", "reg.io/team/x:v2"]).ok();
    let script = format!(
        "{0} --root {1} save x:v1 y:v1 reg.io/team/x:v2 --compression \"$COMPRESSION\" |
         {0} --root {2} load",
        crate::common::IMGCTL,
        env.root().display(),
        env.path("other").display()
    );
    for compression in ["none", "gzip", "zstd"] {
        let mut shell = tool("sh", ["-c", &script]);
        let ran = Ran::new({
            shell.env("COMPRESSION", compression);
            shell
        })
        .ok();
        let mut lines: Vec<String> = ran.stdout().lines().map(str::to_owned).collect();
        lines.sort();
        let expected = ["localhost/x:v1", "localhost/y:v1", "reg.io/team/x:v2"];
        assert_eq!(lines, expected.map(|name| format!("Loaded image: {name}")));
    }
}

#[test]
fn the_same_image_gives_the_same_archive() {
    let env = with_image("zstd");
    for format in ["oci-archive", "docker-archive"] {
        let paths = ["one", "two"].map(|name| save(&env, format, &format!("{format}-{name}")));
        let [one, two] = paths.map(|path| fs::read(path).unwrap());
        assert!(one == two, "{format}");
    }
}

#[test]
fn bad_archives_are_refused_with_a_reason_and_leave_nothing() {
    let env = with_image("zstd");
    let good = fs::read(save(&env, "oci-archive", "good.tar")).unwrap();
    let half = env.write("half.tar", &good[..good.len() / 2]);
    let text = env.write("text.tar", "this is no archive at all");
    let other = TestEnv::new();
    for path in [&half, &text] {
        let ran = other.imgctl(["load", "-i", path.to_str().unwrap()]).fails(BAD_CONTENT);
        assert!(ran.stderr().contains(path.to_str().unwrap()), "{}", ran.report());
    }
    other.imgctl(["load", "-i", "/nonexistent"]).fails(NOT_FOUND);
    env.imgctl(["save", "-o", "/dev/null", "nobody/knows:this"]).fails(NOT_FOUND);
    assert_eq!(other.imgctl(["images", "-q"]).ok().stdout(), "");
    let blobs = other.root().join("store/blobs/sha256");
    assert_eq!(fs::read_dir(blobs).unwrap().count(), 0);
}

/// An archive of a few MiB that takes a moment to load.
fn large_archive(env: &TestEnv, name: &str, seed: u64) -> String {
    // Noise, so that it stays as large as it is; a generator of our own, so that it is the same.
    let mut state = seed;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(6 << 20)
    .collect();
    let directory = format!("context-{name}");
    env.write(format!("{directory}/noise"), noise);
    let context = env.context(&directory, "FROM scratch\nCOPY noise /\n", &[]);
    env.build(name, &context);
    let path = env.path(format!("{name}.tar")).to_str().unwrap().to_owned();
    env.imgctl(["save", name, "-o", &path]).ok();
    path
}

fn start(env: &TestEnv, arguments: &[&str]) -> std::process::Child {
    let mut command: Command = env.command(arguments);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_load_killed_at_any_moment_leaves_a_good_store() {
    let source = TestEnv::new();
    let path = large_archive(&source, "big", 1);
    let env = TestEnv::new();
    let begin = Instant::now();
    env.imgctl(["load", "-i", &path]).ok();
    let whole = begin.elapsed();
    let rounds = if long() { 200 } else { 12 };
    for round in 0..rounds {
        env.imgctl(["rmi", "--force", "big"]).ok();
        env.imgctl(["prune"]).ok();
        let mut child = start(&env, &["load", "-i", &path]);
        std::thread::sleep(whole.mul_f64(f64::from(round) / f64::from(rounds)));
        child.kill().unwrap();
        child.wait().unwrap();
        env.imgctl(["scrub"]).ok();
        env.imgctl(["load", "-i", &path]).ok();
        env.imgctl(["scrub", "--deep"]).ok();
    }
    env.imgctl(["rmi", "--force", "big"]).ok();
    env.imgctl(["prune", "--all"]).ok();
    assert_empty(&env.root().join("store"));
}

/// Nothing is left of images, layers and unfinished things.
fn assert_empty(store: &Path) {
    for directory in ["blobs/sha256", "snapshots", "toc", "ingest", "trash", "leases", "mounts"] {
        let mut left: Vec<_> =
            fs::read_dir(store.join(directory)).unwrap().map(Result::unwrap).collect();
        // Locks stay: a lock file that is removed is no lock.
        left.retain(|entry| entry.file_name() != ".lock");
        assert!(left.is_empty(), "{directory}: {left:?}");
    }
}

#[test]
fn loads_and_prunes_at_the_same_time_all_succeed() {
    let source = TestEnv::new();
    let paths = [large_archive(&source, "one", 1), large_archive(&source, "two", 2)];
    let env = TestEnv::new();
    let rounds = if long() { 20 } else { 3 };
    for _ in 0..rounds {
        let mut children: Vec<_> =
            paths.iter().chain(&paths).map(|path| start(&env, &["load", "-i", path])).collect();
        let deadline = Instant::now() + Duration::from_secs(120);
        while !children.is_empty() {
            assert!(Instant::now() < deadline, "a load hangs");
            env.imgctl(["prune", "--all"]).ok();
            children.retain_mut(|child| match child.try_wait().unwrap() {
                Some(status) => {
                    assert!(status.success(), "{status}");
                    false
                }
                None => true,
            });
        }
        env.imgctl(["scrub", "--deep"]).ok();
        assert_eq!(env.imgctl(["images", "-q"]).ok().stdout().lines().count(), 2);
        env.imgctl(["rmi", "--all", "--force"]).ok();
    }
}

#[test]
fn a_full_disk_is_said_and_the_store_stays_good() {
    if !needs_root() {
        return; // Only root can mount a small file system.
    }
    let source = TestEnv::new();
    let path = large_archive(&source, "big", 3);
    let env = TestEnv::new();
    let root = env.root();
    fs::create_dir(&root).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=4m", "tmpfs", root.to_str().unwrap()];
    Ran::new(tool("mount", mount)).ok();
    let ran = env.imgctl(["load", "-i", &path]);
    let report = ran.report();
    let after = env.imgctl(["scrub", "--deep"]);
    let left = fs::read_dir(root.join("store/blobs/sha256")).unwrap().count();
    Ran::new(tool("umount", [root.to_str().unwrap()])).ok();
    let ran = ran.fails(NO_SPACE);
    assert!(ran.stderr().contains("hint:"), "{report}");
    after.ok();
    assert_eq!(left, 0);
}

#[test]
fn limits_on_archives_are_flags() {
    let env = TestEnv::new();
    let context = env.context("limited", "FROM scratch\nCOPY file /\n", &[("file", "x")]);
    env.build("limited:v1", &context);
    let archive = env.path("limited.tar");
    let archive = archive.to_str().unwrap();
    env.imgctl(["save", "-o", archive, "limited:v1"]).ok();
    for limit in ["--max-entries=1", "--max-size=1kB"] {
        let said = env.imgctl(["load", "-i", archive, limit]).fails(4).stderr();
        assert!(said.contains("limited.tar"), "{said}");
    }
    env.imgctl(["load", "-i", archive, "--max-entries=100"]).ok();
    env.imgctl(["load", "-i", archive, "--max-size=big"]).fails(2);
}
